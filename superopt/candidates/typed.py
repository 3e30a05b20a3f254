"""Typed: plain data from a file as the fields of a dataclass, each of the type that the class declares."""

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from superopt.errors import InputError

__all__ = ["typed_fields"]


def typed_fields(kind: type, data: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the named fields of a dataclass from plain data, or raise InputError."""
    declared = get_type_hints(kind)
    found = {}
    for name in names:
        if name not in data or name not in declared or not _fits(data[name], declared[name]):
            said = f"{name} is {data[name]!r}" if name in data else f"{name!r} is missing"
            raise InputError(f"{said}; the file is damaged")
        found[name] = data[name]
    return found


def _fits(value: Any, declared: Any) -> bool:
    """Whether a value is of a declared type: a whole number is a float as well, and a list is a tuple."""
    origin = get_origin(declared)
    if origin is UnionType:
        return any(_fits(value, one) for one in get_args(declared))
    if origin is Literal:
        return value in get_args(declared)
    if declared is None or declared is NoneType:
        return value is None
    if declared is float:
        return type(value) in (int, float)
    if declared in (bool, int, str):
        return type(value) is declared
    return isinstance(value, list | tuple if origin is tuple else origin or declared)
