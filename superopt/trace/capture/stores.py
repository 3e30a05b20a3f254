"""Stores: what a function keeps beyond its call, put back as it was before it ran on tensors without data."""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from superopt.trace.capture.libraries import is_library
from superopt.trace.capture.places import (
    InCache,
    InCell,
    InClass,
    InDict,
    InGroup,
    InMemo,
    InSlots,
    Place,
    slots_of,
)

__all__ = ["Stores", "contents_of", "within_context"]

_MOST = 20_000  # objects that are followed
_LONG = 1_000  # items of a list or a dict: longer ones are not looked into
_LIBRARIES = ("torch", "builtins")
_CONTAINERS = frozenset({dict, list, tuple, set, deque})


class Stores:
    """The places into which a function may store something, with what they hold now.

    Attributes of classes and modules are followed where some code that was met names them.
    """

    def __init__(self, function: Any) -> None:
        self._seen: dict[int, Any] = {}
        self._places: list[Place] = [InMemo(parametrize._cache)]
        self._by_name: list[Mapping[str, Any]] = []  # the attributes of classes and modules
        self._names = {"forward", "__call__"}
        left = deque([function])
        while left and len(self._seen) < _MOST:
            value = left.popleft()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                left += self._held(value)
            if not left:
                left += [one for one in self._named() if id(one) not in self._seen]

    def _named(self) -> Iterator[Any]:
        for attributes in self._by_name:
            for name in self._names & attributes.keys():
                yield attributes[name]

    def _held(self, value: Any) -> Iterator[Any]:
        kind = type(value)
        if isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, ModuleType):
            if not _is_library(value.__name__):
                self._by_name.append(vars(value))
                self._places.append(InDict(vars(value), self._names))
        elif isinstance(value, functools._lru_cache_wrapper):
            self._places.append(InCache(value))
            yield value.__wrapped__
        elif isinstance(value, Tensor):
            yield getattr(value, "__dict__", None)  # attributes of a user's
        elif made_of := _made_of(value):
            yield from made_of
        elif isinstance(value, nn.Module) or kind.__module__.partition(".")[0] not in _LIBRARIES:
            yield from self._items(value)
            yield from self._attributes(value, kind)
        else:
            yield from self._items(value)

    def _items(self, value: Any) -> Iterable[Any]:
        """Return what a container holds, and nothing for other objects."""
        if isinstance(value, tuple):
            return value
        if not isinstance(value, dict | list | set | deque) or len(value) > _LONG:
            return ()
        self._places.append(InDict(value) if isinstance(value, dict) else InGroup(value))
        return list(value.values()) if isinstance(value, dict) else list(value)

    def _attributes(self, value: Any, kind: type) -> Iterator[Any]:
        if kind in _CONTAINERS:
            return
        yield getattr(value, "__dict__", None)
        if slots_of(kind):
            slots = InSlots(value)
            self._places.append(slots)
            yield from slots.before.values()
        yield kind

    def _class(self, kind: type) -> Iterator[Any]:
        if _is_library(kind.__module__):
            return
        yield from kind.__mro__[1:]
        self._places.append(InClass(kind))
        self._by_name.append(vars(kind))
        for name, value in vars(kind).items():  # Python itself calls these
            if name.startswith("__") and isinstance(value, FunctionType):
                yield value

    def _function(self, function: FunctionType) -> Iterator[Any]:
        for cell in function.__closure__ or ():
            variable = InCell(cell)
            self._places.append(variable)
            yield from variable.before.values()
        yield from (function.__defaults__, function.__kwdefaults__, vars(function))
        named = dict.fromkeys(_names(function.__code__))
        if not _is_library(function.__module__):
            self._names |= named.keys()
        places = function.__globals__
        self._places.append(InDict(places, named))
        yield from [places[name] for name in named if name in places]

    def put_back(self) -> str:
        """Put back what was there wherever a tensor without data is now; return the first such place."""
        found = [title for place in self._places for title in place.stored()]
        return found[0] if found else ""


def within_context(run: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """Return what a function returns, and what each ContextVar holds that it leaves with something else.

    What it sets in such variables ends with its run.
    """
    context = copy_context()
    before = dict(context)
    result = context.run(run, *arguments)
    return result, {one.name: value for one, value in context.items() if before.get(one) is not value}


def _made_of(value: Any) -> tuple[Any, ...]:
    """Return what a method, a property or a partial function is made of."""
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, functools.cached_property):
        return (value.func,)
    return (value.fget, value.fset) if isinstance(value, property) else ()


def _is_library(module: str | None) -> bool:
    return is_library(module) or (module or "").partition(".")[0] == "superopt"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def contents_of(value: Any) -> object:
    """Return what says whether lists and dicts still hold the same objects, under the same keys."""
    if isinstance(value, dict):
        return dict, [(key, contents_of(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [contents_of(one) for one in value]
    return id(value)
