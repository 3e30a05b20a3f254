"""Results: what a program returns, as tensors in a fixed order and a structure that holds all else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Size, Tensor, nn

from superopt.dtypes import dtype_text

__all__ = ["Branch", "Made", "Plain", "Structure", "Watched", "difference", "flatten"]


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor among the results."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Plain:
    """A result that is no tensor and holds none."""

    value: Any


@dataclass(frozen=True, slots=True)
class Branch:
    """A tuple, list, dict, named tuple or dataclass: its type, and its parts by how one reaches them."""

    kind: type
    parts: tuple[tuple[str, "Structure"], ...]


Structure: TypeAlias = Made | Plain | Branch


def flatten(result: Any) -> tuple[list[Tensor], Structure]:
    """Return the tensors of a result, and the result with `Made` in their places; dicts are sorted by key."""
    tensors: list[Tensor] = []
    return tensors, _structure(result, tensors)


def _structure(value: Any, tensors: list[Tensor]) -> Structure:
    if isinstance(value, Tensor):
        tensors.append(value)
        return Made(dtype_text(value.dtype), tuple(value.shape))
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: (str(type(item[0])), repr(item[0])))
        return Branch(type(value), tuple((f"[{key!r}]", _structure(item, tensors)) for key, item in items))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = zip(value._fields, value, strict=True)
        return Branch(type(value), tuple((f".{name}", _structure(item, tensors)) for name, item in parts))
    if isinstance(value, tuple | list) and not isinstance(value, Size):
        numbered = enumerate(value)
        return Branch(type(value), tuple((f"[{i}]", _structure(item, tensors)) for i, item in numbered))
    if is_dataclass(value) and not isinstance(value, type):
        named = ((one.name, getattr(value, one.name)) for one in fields(value))
        return Branch(type(value), tuple((f".{name}", _structure(item, tensors)) for name, item in named))
    return Plain(value)


def difference(left: Structure, right: Structure, place: str = "result") -> tuple[str, bool] | None:
    """Return the first place in which two results differ as structures, or None.

    The text comes with whether they surely differ: objects of unknown types may be equal in ways that
    cannot be seen.
    """
    if isinstance(left, Branch) and isinstance(right, Branch):
        return _branches(left, right, place)
    if isinstance(left, Plain) and isinstance(right, Plain):
        return _plain(left.value, right.value, place)
    if left == right:
        return None
    return f"{place}: {_words(left)} against {_words(right)}", True


def _branches(left: Branch, right: Branch, place: str) -> tuple[str, bool] | None:
    if left.kind is not right.kind and not (
        _kin(left.kind) and left.kind.__qualname__ == right.kind.__qualname__
    ):
        return f"{place}: {_words(left)} against {_words(right)}", True
    ours, theirs = ([name for name, _ in one.parts] for one in (left, right))
    if ours != theirs:
        if issubclass(left.kind, tuple | list):
            return f"{place}: {len(ours)} items against {len(theirs)}", True
        return f"{place}: the keys {', '.join(ours)} against {', '.join(theirs)}", True
    for (name, one), (_, other) in zip(left.parts, right.parts, strict=True):
        found = difference(one, other, place + name)
        if found is not None:
            return found
    return None


def _kin(kind: type) -> bool:
    """Return whether two types of one name may be taken for one: named tuples and dataclasses made anew."""
    return hasattr(kind, "_fields") or is_dataclass(kind)


def _plain(left: Any, right: Any, place: str) -> tuple[str, bool] | None:
    if left is right or (type(left) is type(right) and repr(left) == repr(right) and _is_number(left)):
        return None
    known = _is_known(left) and _is_known(right)
    if type(left) is not type(right):
        return f"{place}: {_words(Plain(left))} against {_words(Plain(right))}", known
    try:
        same = bool(left == right)
    except Exception:  # the comparison is the user's own code
        same, known = False, False
    if same:
        return None
    if known:
        return f"{place}: {left!r} against {right!r}", True
    return f"{place}: two objects of {type(left).__name__} cannot be compared", False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | complex)  # NaN is not equal to itself


def _is_known(value: Any) -> bool:
    """Return whether values of this type differ where they compare as different."""
    plain = (int, float, complex, str, bytes, bool, slice, range, set, frozenset, Enum, type(None))
    of_torch = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
    return isinstance(value, (*plain, *of_torch))


def _words(part: Structure) -> str:
    match part:
        case Made():
            return str(part)
        case Plain(value):
            return repr(value) if _is_known(value) else f"a {type(value).__name__}"
        case Branch(kind, parts):
            return f"a {kind.__name__} of {len(parts)}"


class Watched:
    """A program that returns its tensors in a fixed order, and notes the structure of what it returned."""

    def __init__(self, program: Callable[..., Any]) -> None:
        self.structure: Structure | None = None
        self.function = self._wrapped(program)

    def _wrapped(self, program: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> tuple[Tensor, ...]:
            tensors, self.structure = flatten(program(*inputs))
            return tuple(tensors)

        if not isinstance(program, nn.Module):
            return wraps(program)(run)

        class Module(nn.Module):
            """The module with its parameters, whose names messages use."""

            def __init__(self, module: nn.Module) -> None:
                super().__init__()
                self.module = module
                self.training = module.training

        module = Module(program)
        # wraps() would also copy the module's own attributes, its parameters among them.
        run.__wrapped__ = program.forward  # type: ignore[attr-defined]
        module.forward = run
        return module
