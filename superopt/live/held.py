"""Held: what objects hold that shows in no attributes of theirs, and what their classes tell of them."""

import array
import builtins
import contextvars
import functools
import gc
import threading
import types
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch import Tensor, nn

from superopt.live.imported import is_library

__all__ = [
    "ANY_NAME",
    "METHODS",
    "NEVER_CALLED",
    "OF_AUTOGRAD",
    "OF_EVERY_MODULE",
    "PLAIN",
    "RECORDS",
    "UNFILLED",
    "are_kept",
    "bytes_of",
    "finds_attributes",
    "in_context",
    "in_slots",
    "in_thread",
    "is_described",
    "names_of_methods",
    "object_of",
    "parts_of",
    "results_of",
    "slots_of",
    "taken_by",
]

PLAIN = frozenset(
    {int, bool, float, complex, str, bytes, type(None), type(Ellipsis)}
    | {torch.dtype, torch.device, torch.Size, slice, range}
)
_BOUND = (types.BuiltinMethodType, types.MethodWrapperType)
_NO_ITEMS: dict[Any, Any] = {}
_VIEWS = (type(_NO_ITEMS.keys()), type(_NO_ITEMS.values()), type(_NO_ITEMS.items()))

RECORDS = ("types", "argparse", "collections", "functools")
"""Modules of a library whose classes hold a user's data in attributes."""

_STATELESS = ("typing", "typing_extensions", "abc")  # their classes hold nothing

ANY_NAME = frozenset({"getattr", "vars", "__dict__", "attrgetter", "__getattribute__", "__getattr__"})
"""What code names that takes attributes by names that it may put together."""

METHODS = (
    types.FunctionType,
    classmethod,
    staticmethod,
    functools.partialmethod,
    functools.singledispatchmethod,
)
"""What is a method where a class holds it."""

NEVER_CALLED = frozenset(
    {"__init__", "__new__", "__repr__", "__str__", "__setstate__", "__getstate__", "__reduce__"}
    | {"__init_subclass__", "__del__", "__dir__", "extra_repr", "reset_parameters"}
)
"""Methods that nothing calls on an object that a function has."""

OF_AUTOGRAD = frozenset({"requires_grad", "is_leaf", "grad_fn"})
"""Attributes that tell whether a tensor requires gradients; what PyTorch computes does not depend on them."""

OF_EVERY_MODULE = frozenset(
    {"_parameters", "_buffers", "_modules"} | {one for one in vars(nn.Module()) if "_hooks" in one}
)
"""The attributes by which nn.Module itself works."""

UNFILLED = object()
"""What stands for the content of a slot that holds nothing."""


def in_context(variable: contextvars.ContextVar[Any]) -> Any:
    """Return what a variable of the context holds now, or None."""
    try:
        return variable.get()
    except LookupError:
        return None


def in_thread(named: Callable[[str], bool], local: threading.local) -> tuple[Any, ...]:
    """Return what a `threading.local` holds in this thread, of the names that are meant."""
    held = {name: value for name, value in vars(local).items() if named(name)}
    return (len(held), *held, *held.values())


def slots_of(kind: type) -> dict[str, types.MemberDescriptorType]:
    """Return the slots of the objects of a class, by the names under which code finds them.

    Those are not always the names in `__slots__`: Python puts the class before private ones.
    """
    slotted = [vars(base) for base in reversed(kind.__mro__) if "__slots__" in vars(base)]
    return {
        name: slot
        for held in slotted
        for name, slot in held.items()
        if isinstance(slot, types.MemberDescriptorType)
    }


def in_slots(slots: Iterable[types.MemberDescriptorType], holder: Any) -> tuple[Any, ...]:
    """Return what an object holds in some slots, UNFILLED for each that holds nothing."""
    return tuple(_in_slot(slot, holder) for slot in slots)


def _in_slot(slot: types.MemberDescriptorType, holder: Any) -> Any:
    try:
        return slot.__get__(holder)
    except AttributeError:
        return UNFILLED


def object_of(value: Any) -> Any:
    """Return the object that a method of C code is bound to, or that a view of a dict shows, or None."""
    if isinstance(value, _VIEWS):
        return value.mapping
    owner = value.__self__ if isinstance(value, _BOUND) else None
    return None if isinstance(owner, types.ModuleType | type) else owner


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return what a method, a partial function or a property is made of, and nothing for other objects."""
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, functools.cached_property):
        return (value.func,)
    return (value.fget,) if isinstance(value, property) else ()


def bytes_of(value: Any) -> Callable[[], bytes] | None:
    """Return what reads the bytes of an array of Python's own, or None for another object."""
    if isinstance(value, bytearray):
        return partial(bytes, value)
    return value.tobytes if isinstance(value, array.array | memoryview) else None


def results_of(cache: Any) -> tuple[Any, list[Any]]:
    """Return what refers to the results that `functools.lru_cache` keeps, and those that may change.

    Numbers, texts and tensors are left out, and tuples of them: a cache of tables may grow at each call.
    Some keys may be among the results.
    """
    own = (cache.__wrapped__, vars(cache))
    held = [one for one in gc.get_referents(cache) if not any(one is other for other in own)]
    tables = [one for one in held if type(one) is dict]
    if cache.cache_parameters()["maxsize"] is None:
        table = tables[0]
        return table, [one for one in table.values() if _may_change(one)]
    # A cache of limited size refers to its results itself, and from a dict to links between them.
    inner = [one for one in tables if any(map(_is_link, one.values()))]
    results = [one for one in held if not any(one is other for other in inner) and _may_change(one)]
    return cache, results if inner else []


def are_kept(caches: list[tuple[Any, frozenset[int]]]) -> bool:
    """Whether all that kept some results, by their ids, keep them still."""
    return all(ids.issubset(map(id, gc.get_referents(one))) for one, ids in caches)


def _is_link(value: Any) -> bool:
    return type(value).__qualname__ == "_lru_list_elem"


def _may_change(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_may_change, value))
    plain = type(value) in PLAIN or isinstance(value, Tensor | type) or type(value) is object
    return not plain and not _is_link(value)


def taken_by(taker: "attrgetter[Any] | methodcaller") -> tuple[list[str], tuple[Any, ...]]:
    """Return the names by which an object of `operator` takes attributes or methods, and what it holds."""
    made: Any = taker.__reduce__()
    makes, given = made
    held = (*getattr(makes, "args", ()), *given, getattr(makes, "keywords", {}))
    return [name for one in held if isinstance(one, str) for name in one.split(".")], held


def is_described(kind: type) -> bool:
    """Whether an object of a class is nothing but its attributes; a subclass of int is more."""
    return all(
        base is object
        or issubclass(base, nn.Module)
        or base.__module__ in (*RECORDS, *_STATELESS)
        or not is_library(base.__module__)
        for base in kind.__mro__
    )


def finds_attributes(kind: type) -> bool:
    """Whether a class finds attributes by code of its own, under other names perhaps."""
    own = [base for base in kind.__mro__ if not is_library(base.__module__)]
    return any(one in vars(base) for base in own for one in ("__getattr__", "__getattribute__"))


@functools.cache
def names_of_methods(kind: Any) -> frozenset[str]:
    """Return the names that the methods of one of PyTorch's modules use."""
    names: set[str] = set()
    for name, method in vars(kind).items():
        if isinstance(method, types.FunctionType) and name not in NEVER_CALLED:
            names.update(method.__code__.co_names)
    return frozenset(names - ANY_NAME - OF_AUTOGRAD - vars(builtins).keys())
