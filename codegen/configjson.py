"""Configjson: a kernel's configuration as plain JSON data, and back, each field checked."""

from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from superopt.errors import InputError

__all__ = ["config_from_json", "config_json"]

T = TypeVar("T")

_LARGEST = 2**31


def config_json(config: Any) -> dict[str, Any]:
    """Return a configuration as plain data: pairs as lists, sets sorted."""
    return {one.name: _plain(getattr(config, one.name)) for one in fields(config)}


def config_from_json(kind: type[T], data: Any) -> T:
    """Return the configuration of a kind that plain data describes, or raise InputError."""
    if not isinstance(data, dict):
        raise InputError(f"a configuration is {data!r}; it is an object with {_listed(kind)}")
    if unknown := [name for name in data if name not in _names(kind)]:
        raise InputError(f"a configuration has the unknown field {unknown[0]!r}; it has {_listed(kind)}")
    hints = get_type_hints(kind)
    found = {}
    for one in fields(kind):  # type: ignore[arg-type]
        if one.name in data:
            found[one.name] = _typed(hints[one.name], data[one.name], one.name)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise InputError(f"a configuration has no {one.name!r}; it has {_listed(kind)}")
    return kind(**found)


def _names(kind: Any) -> list[str]:
    return [one.name for one in fields(kind)]


def _listed(kind: Any) -> str:
    return ", ".join(_names(kind))


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Return a value of a type, or raise InputError: nothing else may enter the text of a kernel."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal and value in arguments and type(value) in map(type, arguments):
        return value
    if origin is frozenset and isinstance(value, list):
        return frozenset(_typed(arguments[0], item, where) for item in value)
    if origin is tuple and isinstance(value, list):
        kinds = (arguments[0],) * len(value) if arguments[1:] == (...,) else arguments
        if len(kinds) == len(value):
            return tuple(_typed(kind, item, where) for kind, item in zip(kinds, value, strict=True))
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and type(value) is int and 0 <= value <= _LARGEST:
        return value
    if hint is str and isinstance(value, str) and value.replace(".", "_").isidentifier():
        return value
    raise InputError(f"the {where} of a configuration is wrong: {value!r}")
