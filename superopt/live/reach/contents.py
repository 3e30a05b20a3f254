"""Contents: what objects hold besides their attributes: slots, bytes, results of calls, bound objects."""

import array
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
from torch import Tensor

__all__ = [
    "ARRAYS",
    "BOUND",
    "PLAIN",
    "UNFILLED",
    "WRAPPERS",
    "Same",
    "are_kept",
    "in_context",
    "in_slots",
    "in_thread",
    "names_taken_by",
    "owner_of",
    "reader_of_bytes",
    "results_of",
    "slots_of",
    "wrapped_by",
]

PLAIN = frozenset(
    {int, bool, float, complex, str, bytes, type(None), type(Ellipsis)}
    | {torch.dtype, torch.device, torch.Size, slice, range}
)
_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)
_NO_ITEMS: dict[Any, Any] = {}
_VIEWS = (type(_NO_ITEMS.keys()), type(_NO_ITEMS.values()), type(_NO_ITEMS.items()))

BOUND = (*_METHODS, *_VIEWS)
"""Functions and methods of C code, and views of dicts, which `owner_of` knows."""

WRAPPERS = (
    *(types.MethodType, staticmethod, classmethod, functools.partial),
    *(functools.cached_property, property),
)
"""What is made of functions, which `wrapped_by` gives."""

ARRAYS = (bytearray, array.array, memoryview)
"""Python's own arrays, whose bytes `reader_of_bytes` reads."""

UNFILLED = object()
"""What stands for the content of a slot that holds nothing."""


class Same:
    """An object as a fact about what a function reads: equal to nothing but itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


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


def owner_of(value: Any) -> Any:
    """Return the object that a method of C code is bound to, or that a view of a dict shows, or None."""
    if isinstance(value, _VIEWS):
        return value.mapping
    owner = value.__self__ if isinstance(value, _METHODS) else None
    return None if isinstance(owner, types.ModuleType | type) else owner


def wrapped_by(value: Any) -> tuple[Any, ...]:
    """Return what one of `WRAPPERS` is made of: a function, and for some what it is called with."""
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    return (value.func,) if isinstance(value, functools.cached_property) else (value.fget,)


def reader_of_bytes(value: Any) -> Callable[[], bytes]:
    """Return a function that reads the bytes of one of `ARRAYS` as they are when it is called."""
    return partial(bytes, value) if isinstance(value, bytearray) else value.tobytes


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


def names_taken_by(taker: "attrgetter[Any] | methodcaller") -> tuple[list[str], tuple[Any, ...]]:
    """Return the names by which an object of `operator` takes attributes or methods, and what it holds."""
    made: Any = taker.__reduce__()
    makes, given = made
    held = (*getattr(makes, "args", ()), *given, getattr(makes, "keywords", {}))
    return [name for one in held if isinstance(one, str) for name in one.split(".")], held
