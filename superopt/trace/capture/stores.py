"""Stores: what a function keeps beyond its call, put back as it was before it ran on tensors without data."""

from collections.abc import Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from superopt.trace.capture.tape import leaves

__all__ = ["Stores"]

_MOST = 20_000  # objects that are followed
_LONG = 1_000  # items of a list or a dict: longer ones are not looked into
_LIBRARIES = ("torch", "builtins")
_MISSING = object()


class Stores:
    """The dicts, lists and variables that a function may store into, with what they hold now."""

    def __init__(self, function: Any) -> None:
        self._seen: dict[int, Any] = {}
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any], tuple[str, ...] | None]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._cells: list[tuple[CellType, Any]] = []
        left = [function]
        while left and len(self._seen) < _MOST:
            value = left.pop()
            if id(value) not in self._seen and not isinstance(value, Tensor | ModuleType | type):
                self._seen[id(value)] = value
                left += self._held(value)

    def _held(self, value: Any) -> Iterator[Any]:
        if isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, dict):
            if len(value) <= _LONG:
                self._dicts.append((value, dict(value), None))
                yield from value.values()
        elif isinstance(value, list):
            if len(value) <= _LONG:
                self._lists.append((value, list(value)))
                yield from value
        elif isinstance(value, tuple):
            yield from value
        elif isinstance(value, nn.Module) or type(value).__module__.partition(".")[0] not in _LIBRARIES:
            yield getattr(value, "__dict__", None)
            for name in ("forward", "__call__"):
                yield getattr(type(value), name, None)

    def _function(self, function: FunctionType) -> Iterator[Any]:
        for cell in function.__closure__ or ():
            content = _content(cell)
            self._cells.append((cell, content))
            yield content
        named = tuple(dict.fromkeys(_names(function.__code__)))
        places = function.__globals__
        held = {name: places[name] for name in named if name in places}
        self._dicts.append((places, held, named))
        yield from held.values()

    def put_back(self) -> str:
        """Put back what was there wherever a tensor without data is now; return the first such place."""
        found = []
        for holder, held, names in self._dicts:
            for name in [*holder] if names is None else names:
                if _is_new(holder.get(name, _MISSING), held.get(name, _MISSING)):
                    found.append(str(name))
                    if name in held:
                        holder[name] = held[name]
                    else:
                        del holder[name]
        for items, before in self._lists:
            known = set(map(id, before))
            if any(id(one) not in known and _is_new(one, _MISSING) for one in items):
                found.append("a list")
                items[:] = before
        for cell, content in self._cells:
            if _is_new(_content(cell), content):
                found.append("a variable around it")
                if content is _MISSING:
                    del cell.cell_contents
                else:
                    cell.cell_contents = content
        return found[0] if found else ""


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return _MISSING


def _is_new(now: Any, before: Any) -> bool:
    """Whether a tensor without data, or a structure of them, came to a place."""
    if now is before or not isinstance(now, Tensor | tuple | list | dict):
        return False
    return any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in leaves(now))
