"""The operators that graphs are made of: everything that is true of one stands in its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError
from superopt.rules.discover.language.shapes import SCALAR, Shape, Word

__all__ = ["OPERATORS", "Operator", "Unifier", "Values", "operators_named"]


class Unifier(Protocol):
    """Decides whether two dimensions can be equal, and where a dimension is cut."""

    def same(self, left: Word, right: Word) -> bool:
        """Return whether two words are equal, or can be made so."""

    def cut(self, word: Word) -> tuple[Word, Word] | None:
        """Return the two parts of a word that is split, or None where it cannot be."""


class Values(Protocol):
    """Batches of matrices, of numbers or of symbols; the last two dimensions are rows and columns."""

    def __add__(self, other: Self, /) -> Self:
        """Return the sums of elements."""

    def __mul__(self, other: Self, /) -> Self:
        """Return the products of elements."""

    def relu(self) -> Self:
        """Return the elements above zero, and zero for the others."""

    def matmul(self, other: Self, /) -> Self:
        """Return the products of matrices."""

    @staticmethod
    def each(function: Callable[..., NDArray[Any]], *values: Any) -> Any:
        """Return what a function that only moves elements makes of arrays."""


Typing = Callable[[Sequence[Shape], Unifier], tuple[Shape, ...] | None]
"""The shapes of the results, given the shapes of the operands; None where the operator cannot take them."""

Meaning = Callable[[Sequence[Any], int], tuple[Any, ...]]
"""The results (`Values`) for some operands and the place of a cut, which is 0 where nothing is cut."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: its name, how many operands and results it has, its typing and its meaning."""

    name: str
    arity: int
    typing: Typing
    meaning: Meaning
    commutative: bool = False
    results: int = 1
    cuts: int | None = None  # the dimension that a split cuts


def _alike(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
    """Elementwise, on matrices of one shape."""
    first = shapes[0]
    if any(len(shape) != 2 for shape in shapes):
        return None
    for other in shapes[1:]:
        if not all(unifier.same(one, two) for one, two in zip(first, other, strict=True)):
            return None
    return (first,)


def _scaled(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
    return (shapes[1],) if shapes[0] == SCALAR else None


def _product(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
    left, right = shapes
    if len(left) != 2 or len(right) != 2 or not unifier.same(left[1], right[0]):
        return None
    return ((left[0], right[1]),)


def _transposed(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
    return (shapes[0][::-1],) if len(shapes[0]) == 2 else None


def _joined(axis: int) -> Typing:
    def typing(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
        left, right = shapes
        if len(left) != 2 or len(right) != 2 or not unifier.same(left[1 - axis], right[1 - axis]):
            return None
        joined = left[axis] + right[axis]
        return ((joined, left[1]) if axis == 0 else (left[0], joined),)

    return typing


def _cut(axis: int) -> Typing:
    def typing(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
        (shape,) = shapes
        if len(shape) != 2 or (parts := unifier.cut(shape[axis])) is None:
            return None
        return tuple((part, shape[1]) if axis == 0 else (shape[0], part) for part in parts)

    return typing


def _concat(axis: int) -> Meaning:
    def meaning(values: Sequence[Any], at: int) -> tuple[Any, ...]:
        return (values[0].each(lambda *parts: np.concatenate(parts, axis=axis - 2), *values),)

    return meaning


def _split(axis: int) -> Meaning:
    def meaning(values: Sequence[Any], at: int) -> tuple[Any, ...]:
        (value,) = values
        if axis == 0:
            return value.each(lambda x: x[..., :at, :], value), value.each(lambda x: x[..., at:, :], value)
        return value.each(lambda x: x[..., :at], value), value.each(lambda x: x[..., at:], value)

    return meaning


_ALL = (
    Operator("add", 2, _alike, lambda v, at: (v[0] + v[1],), commutative=True),
    Operator("mul", 2, _alike, lambda v, at: (v[0] * v[1],), commutative=True),
    Operator("scale", 2, _scaled, lambda v, at: (v[0] * v[1],)),
    Operator("relu", 1, _alike, lambda v, at: (v[0].relu(),)),
    Operator("matmul", 2, _product, lambda v, at: (v[0].matmul(v[1]),)),
    Operator("transpose", 1, _transposed, lambda v, at: (v[0].each(lambda x: np.swapaxes(x, -1, -2), v[0]),)),
    Operator("concat_rows", 2, _joined(0), _concat(0)),
    Operator("concat_cols", 2, _joined(1), _concat(1)),
    Operator("split_rows", 1, _cut(0), _split(0), results=2, cuts=0),
    Operator("split_cols", 1, _cut(1), _split(1), results=2, cuts=1),
)

OPERATORS = MappingProxyType({operator.name: operator for operator in _ALL})
"""Every operator by its name."""


def operators_named(names: Sequence[str]) -> tuple[Operator, ...]:
    """Return the operators with these names, in the order of the table."""
    for name in names:
        if name not in OPERATORS:
            raise InputError(f"there is no operator {name!r}; there are {', '.join(OPERATORS)}")
    return tuple(operator for operator in _ALL if operator.name in names)
