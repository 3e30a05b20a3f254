"""Walk: all that a function reads besides its arguments, found by walking through its code and objects.

From the function the walk goes to the cells of its closure, the globals that its code names, its
defaults, the object it is a method of, and from there to attributes, items, classes, submodules and
other functions. An attribute is followed where some code that was met names it, in a string too; where
code takes attributes by names that it puts together (`getattr`), all of them are. Library code is not
followed: PyTorch's modules are read through their parameters, buffers, hooks and named attributes.
"""

import contextvars
import enum
import functools
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter, methodcaller
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from superopt.codegen.forms import form
from superopt.live.reach.classes import (
    AUTOGRAD_NAMES,
    DYNAMIC_LOOKUPS,
    METHODS,
    NEVER_CALLED,
    OF_EVERY_MODULE,
    RECORDS,
    has_own_lookup,
    is_all_attributes,
    names_of_methods,
)
from superopt.live.reach.code import identifiers_in, imported_by, words_for_globals
from superopt.live.reach.contents import (
    ARRAYS,
    BOUND,
    PLAIN,
    UNFILLED,
    WRAPPERS,
    Same,
    in_context,
    in_slots,
    in_thread,
    names_taken_by,
    owner_of,
    reader_of_bytes,
    results_of,
    slots_of,
    wrapped_by,
)
from superopt.live.reach.reached import Reached
from superopt.trace.capture.libraries import PLACES, is_library, is_library_module

__all__ = ["reach"]

_CONTENTS = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# What tells a function the mode of autograd in which it is called.
_MODES: dict[str, Callable[[], bool]] = {
    one.__name__: one for one in (torch.is_grad_enabled, torch.is_inference_mode_enabled)
}
_MAKERS = ("__new__", "__init__")  # what runs where an object of a class is made
_of_autograd = attrgetter("requires_grad", "is_leaf")
_MOST = 20_000  # objects that are followed
_LONG = 1_000  # items of a list or a dict: longer ones are not looked into
_SMALL = 64  # elements of an array of numpy's whose contents are watched


def reach(function: Any) -> Reached:
    """Return what a function reads besides its arguments."""
    names, by_any_name = {"forward", "__call__"}, False
    while True:
        walk = _Walk(names, by_any_name)
        walk.value(function)
        if walk.names == names and walk.by_any_name == by_any_name:
            return walk.found
        names, by_any_name = walk.names, walk.by_any_name


class _Walk:
    """One walk, which follows the attributes that are named by what walks before it have met."""

    def __init__(self, names: set[str], by_any_name: bool) -> None:
        self.followed, self.names = frozenset(names), set(names)
        self.all_followed = self.by_any_name = by_any_name
        self.found = Reached()
        self.seen: dict[int, int] = {}
        self.places: dict[int, int] = {}  # the places of tensors, by their ids
        self.classes: set[int] = set()
        self.keep: list[Any] = []  # every object whose id is a key above

    def value(self, value: Any) -> None:
        """Follow a value."""
        facts, kind = self.found.facts, type(value)
        if kind in PLAIN:
            facts.append((kind, repr(value)))  # zeros have signs
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif id(value) in self.seen:
            facts.append(("seen", self.seen[id(value)]))
        elif len(self.seen) >= _MOST:
            facts.append(Same(value))
        else:
            self.seen[id(value)] = len(self.seen)
            self.keep.append(value)
            try:
                self._object(value)
            except Exception:  # an object of the user's that does not let itself be looked at
                facts.append(Same(value))

    def _tensor(self, tensor: Tensor) -> None:
        is_new = id(tensor) not in self.places
        if is_new:
            self.places[id(tensor)] = len(self.places)
            self.found.tensors.append(tensor)
            try:
                self.found.facts.append(form(tensor))
            except RuntimeError:  # a tensor of this kind has no strides
                self.found.facts.append(Same(tensor))
        self.found.facts.append(("tensor", self.places[id(tensor)]))
        if is_new:
            self._beside(tensor)

    def _beside(self, tensor: Tensor) -> None:
        """Follow what a tensor carries: a user's attributes, and what code asks of autograd."""
        attributes = getattr(tensor, "__dict__", None)
        if isinstance(attributes, dict):
            self._held_by_name(attributes)
        if not AUTOGRAD_NAMES.isdisjoint(self.followed):
            self.found.facts.append(_of_autograd(tensor))
            self.found.picks.append((_of_autograd, tensor))
        if "grad" in self.followed and tensor.is_leaf:
            self.found.picks.append((lambda holder: (holder.grad,), tensor))
            self.value(tensor.grad)

    def _held_by_name(self, attributes: Mapping[str, Any], *, all_of_them: bool = False) -> None:
        """Follow attributes that code may read, some of which may only come later."""
        (self.found.sized if attributes else self.found.empty).append(attributes)
        self._pick(attributes, self._named(attributes, all_of_them=all_of_them or self.all_followed))

    def _object(self, value: Any) -> None:
        """Follow an object by the first line of `_WAYS` for its type, or else as an instance of a class."""
        for kinds, follow in _WAYS:
            if isinstance(value, kinds):
                follow(self, value)
                return
        if type(value).__module__ == "numpy":
            self._array(value)
        else:
            self._instance(value)

    def _same(self, value: Any) -> None:
        """Note which object this is, and look no further."""
        self.found.facts.append(Same(value))

    def _wrapper(self, value: Any) -> None:
        for wrapped in wrapped_by(value):
            self.value(wrapped)

    def _taker(self, taker: "attrgetter[Any] | methodcaller") -> None:
        """Follow what takes attributes or methods by name: these names are names that code uses."""
        self.found.facts.append(type(taker))
        names, held = names_taken_by(taker)
        self.names.update(names)
        self.value(held)

    def _cached_function(self, function: Any) -> None:
        self._same(function)
        self.value(function.__wrapped__)
        self._results(function)

    def _python_module(self, value: types.ModuleType) -> None:
        self._same(value)
        if not is_library(value.__name__):
            self._held_by_name(vars(value))

    def _class_itself(self, kind: type) -> None:
        """Follow a class that code may make objects of."""
        self._same(kind)
        self._class(kind)
        self._makers(kind)

    def _bound(self, value: Any) -> None:
        """Follow a function or a method of C code, or a view of a dict, to the object that it belongs to."""
        if value in _MODES.values():
            self._same(value)
            self.found.modes.add(value)
        elif (owner := owner_of(value)) is not None:
            self.found.facts.append((type(value), getattr(value, "__name__", "")))
            self.value(owner)
        else:
            self._instance(value)

    def _container(self, value: Any) -> None:
        if isinstance(value, dict | types.MappingProxyType):
            self._dict(value)
        else:
            self._sequence(value)
        if not is_library(type(value).__module__):
            self._attributes(value, type(value))

    def _function(self, function: types.FunctionType) -> None:
        if is_library(function.__module__) and function.__code__.co_filename.startswith(PLACES):
            self._same(function)
            return
        self.found.facts.append(function.__code__)
        named = self._code(function.__code__, function.__globals__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # the cell is still empty
                self.found.facts.append("empty")
                continue
            self.found.cells.append(cell)
            if name == "__class__" and "super" in function.__code__.co_names:  # it makes no objects of it
                self.found.facts.append(Same(content))
                self._class(content)
            else:
                self.value(content)
        self.value(function.__defaults__)
        self.value(function.__kwdefaults__)
        # What a library wraps around a function may be an attribute of the wrapper, as a table of functions.
        by_library = function.__code__.co_filename.startswith(PLACES)
        self._held_by_name(vars(function), all_of_them=by_library)
        # Tools that load code again put it into the functions that are there.
        self.found.picks.append((attrgetter("__code__", "__defaults__", "__kwdefaults__"), function))
        places = function.__globals__
        self._pick(places, [one for one in named if one in places and not is_library_module(places[one])])

    def _code(self, code: types.CodeType, places: Mapping[str, Any]) -> list[str]:
        """Note what a code uses, and return the names that may be globals, in order."""
        named = list(code.co_names)
        self.names.update(identifiers_in(code.co_consts))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                named += self._code(constant, places)
        imported = [one for one in imported_by(code, places) if not is_library(one)]
        if imported:
            self._pick(sys.modules, imported)
        words = words_for_globals(code)
        own = {*code.co_names, *(words or ())}
        self.names |= own
        self.found.modes |= {_MODES[one] for one in own if one in _MODES}
        if not DYNAMIC_LOOKUPS.isdisjoint(own):
            self.by_any_name = True
        if words != ():
            self.found.sized.append(places)  # the global may come later
            named += [one for one in places if not one.startswith("__")] if words is None else words
        return list(dict.fromkeys(named))

    def _named(self, attributes: Mapping[str, Any], *, all_of_them: bool = False) -> list[str]:
        """Return the attributes that code may read."""
        return [one for one in attributes if all_of_them or one in self.followed]

    def _pick(self, holder: Mapping[str, Any], names: list[str]) -> None:
        """Watch some values of a dict of attributes, and follow them."""
        self.found.facts.append(tuple(names))
        if names:
            self.found.picks.append((itemgetter(*names, names[0]), holder))  # two names give a tuple
        for name in names:
            self.value(holder[name])

    def _is_too_long(self, value: Any) -> bool:
        """Whether a container is too long to be looked into; if so, only its length is watched."""
        if len(value) <= _LONG:
            return False
        self.found.sized.append(value)
        self.found.facts.append((Same(value), len(value)))
        return True

    def _dict(self, value: Mapping[Any, Any]) -> None:
        if not value:
            self.found.facts.append((type(value), 0))
            self.found.empty.append(value)
            return
        if self._is_too_long(value):
            return
        self.found.facts.append((type(value), len(value)))
        self.found.items += [value, value.values()]
        for key, item in value.items():
            self.value(key)
            self.value(item)

    def _sequence(self, value: Any) -> None:
        if self._is_too_long(value):
            return
        self.found.facts.append((type(value), len(value)))
        if not isinstance(value, tuple | frozenset):
            self.found.items.append(value)
            self.found.sized.append(value)  # an item may have moved from a list to the next one
        for item in value:
            self.value(item)

    def _array(self, value: Any) -> None:
        """Follow what is of a class of numpy's."""
        if hasattr(value, "nbytes") and hasattr(value, "size") and value.size <= _SMALL:
            self.found.facts.append((type(value), str(value.dtype), value.shape, value.tobytes()))
            self.found.arrays.append((value.tobytes, value.tobytes()))
        else:
            self.found.facts.append(Same(value))

    def _bytes(self, value: Any) -> None:
        """Follow an array of Python's own."""
        read = reader_of_bytes(value)
        if self._is_too_long(value):
            return
        self.found.facts.append((type(value), getattr(value, "typecode", ""), read()))
        self.found.arrays.append((read, read()))

    def _asked(self, value: Any, ask: Callable[[], Any]) -> None:
        """Follow what an object gives when it is asked for it, which may be another thing in each call."""
        self.found.facts.append(Same(value))
        self.found.picks.append((lambda holder: (ask(),), value))
        self.value(ask())

    def _in_thread(self, value: threading.local) -> None:
        """Follow the attributes of an object that has others in each thread."""
        kind = type(value)
        everything = self.all_followed or has_own_lookup(kind)
        names = self._named(vars(value), all_of_them=everything)
        named = (lambda name: True) if everything else self.followed.__contains__
        self.found.facts += [Same(value), tuple(names)]
        self.found.picks.append((functools.partial(in_thread, named), value))
        for name in names:
            self.value(vars(value)[name])
        self._class(kind)

    def _results(self, cache: Any) -> None:
        """Follow the results that a function keeps; it may keep more later."""
        holder, results = results_of(cache)
        if results:
            self.found.caches.append((holder, frozenset(map(id, results))))
        for one in results:
            self.value(one)

    def _instance(self, value: Any) -> None:
        kind = type(value)
        if kind.__module__.partition(".")[0] == "superopt":  # another optimized program: it watches itself
            self.found.facts.append(Same(value))
            self.value(getattr(value, "function", None))
            return
        holds_any = isinstance(getattr(value, "__dict__", None), dict) or bool(slots_of(kind))
        self.found.facts.append(Same(kind if holds_any and is_all_attributes(kind) else value))
        self._attributes(value, kind)

    def _attributes(self, value: Any, kind: type) -> None:
        """Follow the attributes of an object, and what its class has."""
        opened = is_library(kind.__module__)
        if not opened:
            self.found.objects.append(value)
        records = any(base.__module__ in RECORDS for base in kind.__mro__)
        everything = records or has_own_lookup(kind) or (self.all_followed and not opened)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.found.sized.append(attributes)
            inner = isinstance(value, nn.Module)
            names = self._named(attributes, all_of_them=everything)
            self._pick(attributes, [one for one in names if not (inner and one in OF_EVERY_MODULE)])
            if inner:
                self.found.modules.append(value)
                self._module(kind, attributes)
        slots = {name: one for name, one in slots_of(kind).items() if everything or name in self.followed}
        self._slots(value, slots)
        self._class(kind)

    def _slots(self, value: Any, slots: Mapping[str, types.MemberDescriptorType]) -> None:
        """Follow what an object holds in slots, some of which may be filled only later."""
        held = dict(zip(slots, in_slots(slots.values(), value), strict=True))
        filled = [name for name, one in held.items() if one is not UNFILLED]
        self.found.facts.append(tuple(filled))
        if filled:
            self.found.picks.append((attrgetter(*filled, filled[0]), value))
        if len(filled) < len(slots):
            empty = tuple(slot for name, slot in slots.items() if held[name] is UNFILLED)
            self.found.picks.append((functools.partial(in_slots, empty), value))
        for name in filled:
            self.value(held[name])

    def _module(self, kind: type, attributes: Mapping[str, Any]) -> None:
        named = names_of_methods(kind) if is_library(kind.__module__) else None
        for one in _CONTENTS:
            if attributes.get(one) or named is None or one in named:
                self.value(attributes.get(one))
        for one in _HOOKS:
            self.value(attributes.get(one))
        self.value(module._global_forward_hooks)
        self.value(module._global_forward_pre_hooks)

    def _class(self, kind: type) -> None:
        meta: Any = type(kind)  # a class has the attributes of its own class, too
        base: Any
        for base in (*kind.__mro__, *meta.__mro__):
            if base is object or base is nn.Module:
                continue
            if is_library(base.__module__):
                if issubclass(base, nn.Module):
                    self.names |= names_of_methods(base)
            elif id(base) not in self.classes:
                self.classes.add(id(base))
                self.keep.append(base)
                self.found.sized.append(vars(base))
                self._pick(vars(base), [one for one in vars(base) if self._may_be_used(base, one)])

    def _makers(self, kind: type) -> None:
        """Follow what runs where objects of a class are made; `_class` follows its metaclass."""
        for base in kind.__mro__:
            if not is_library(base.__module__):
                self._pick(vars(base), [one for one in _MAKERS if one in vars(base)])

    def _may_be_used(self, base: type, name: str) -> bool:
        """Whether code may read an attribute of a class: it is named, or Python itself calls it."""
        if name in NEVER_CALLED:
            return False
        special = name.startswith("__") and name.endswith("__")
        if special:
            return isinstance(vars(base)[name], METHODS)
        return name in self.followed or self.all_followed


# How an object is followed, by its type; of several lines the first one counts.
_WAYS: tuple[tuple[Any, Callable[[_Walk, Any], None]], ...] = (
    (types.FunctionType, _Walk._function),
    (WRAPPERS, _Walk._wrapper),
    (attrgetter | methodcaller, _Walk._taker),
    (functools._lru_cache_wrapper, _Walk._cached_function),
    (types.ModuleType, _Walk._python_module),
    (type, _Walk._class_itself),
    (BOUND, _Walk._bound),
    (ARRAYS, _Walk._bytes),
    (dict | types.MappingProxyType | list | tuple | set | frozenset | deque, _Walk._container),
    (enum.Enum, _Walk._same),
    (contextvars.ContextVar, lambda walk, one: walk._asked(one, functools.partial(in_context, one))),
    (threading.local, _Walk._in_thread),
    (weakref.ref, lambda walk, one: walk._asked(one, one)),
)
