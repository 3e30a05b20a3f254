"""The operators that graphs are made of: everything that is true of one stands in its record.

Rows and columns are the first two dimensions. A matrix has no others; an image has two more, and its first
two are samples and channels; the weight of a convolution has as many dimensions as an image, and its first
two are the channels that it makes and the channels that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError
from superopt.rules.discover.language import images
from superopt.rules.discover.language.shapes import SCALAR, Shape, Word

__all__ = ["OPERATORS", "Operator", "Unifier", "Values", "operators_named"]

_LEAD = 2  # the dimensions of a batch of tensors before those of a tensor
_ONE: Word = ("1",)


class Unifier(Protocol):
    """Decides whether two dimensions can be equal, and where a dimension is cut."""

    def same(self, left: Word, right: Word) -> bool:
        """Return whether two words are equal, or can be made so."""

    def cut(self, word: Word) -> tuple[Word, Word] | None:
        """Return the two parts of a word that is split, or None where it cannot be."""

    def may_move(self, place: Word, window: Word) -> bool:
        """Return whether a window may move over a dimension; a typing still checks what the words are."""
        return True

    def may_grow(self, window: Word) -> bool:
        """Return whether a dimension may get a border of zeros."""
        return True


class Values(Protocol):
    """Batches of tensors, of numbers or of symbols; two dimensions come before those of a tensor.

    A number may be undefined, as 1 / 0 is, and so is everything that is computed from it.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the batch."""

    def constant(self, value: Fraction) -> Self:
        """Return a constant of the same kind, which goes with any shape."""

    def __add__(self, other: Self, /) -> Self:
        """Return the sums of elements."""

    def __mul__(self, other: Self, /) -> Self:
        """Return the products of elements."""

    def relu(self) -> Self:
        """Return the elements above zero, and zero for the others."""

    def matmul(self, other: Self, /) -> Self:
        """Return the products of matrices."""

    def negative(self) -> Self:
        """Return the elements times -1."""

    def inverse(self) -> Self:
        """Return one divided by each element."""

    def exp(self) -> Self:
        """Return e to each element."""

    def log(self) -> Self:
        """Return the logarithms of the elements above zero; others have none."""

    def sqrt(self) -> Self:
        """Return the roots of the elements that are not below zero; others have none."""

    def maximum(self, other: Self, /) -> Self:
        """Return the larger one of each two elements."""

    def less(self, other: Self, /) -> Self:
        """Return 1 where the element is below the other one, and 0 elsewhere."""

    def where(self, mask: Self, /) -> Self:
        """Return the elements where a mask is not zero, and zero elsewhere."""

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
    joins: int | None = None  # the dimension that a concatenation joins
    ranks: tuple[int, ...] = (2,)  # how many dimensions its operands may have
    family: str = "matrices"  # the operators that are enumerated together unless others are named
    exact: bool = True  # whether it makes fractions of fractions
    partial: bool = False  # whether some elements have no result

    def __reduce__(self) -> tuple[Callable[[str], Operator], tuple[str]]:
        """Operators are sent to other processes by name."""
        return _known, (self.name,)


def _known(name: str) -> Operator:
    return OPERATORS[name]


def _alike(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
    """Elementwise, on tensors of one shape."""
    first = shapes[0]
    if any(len(shape) != len(first) or shape == SCALAR for shape in shapes):
        return None
    for other in shapes[1:]:
        if not all(unifier.same(one, two) for one, two in zip(first, other, strict=True)):
            return None
    return (first,)


def _scaled(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
    return (shapes[1],) if shapes[0] == SCALAR else None


def _scaled_rows(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
    column, matrix = shapes
    if len(column) != 2 or len(matrix) != 2 or not unifier.same(column[1], _ONE):
        return None
    return (matrix,) if unifier.same(column[0], matrix[0]) else None


def _folded(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
    return ((shapes[0][0], _ONE),) if len(shapes[0]) == 2 else None


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
        if left == SCALAR or len(left) != len(right):
            return None
        pairs = [(one, other) for at, (one, other) in enumerate(zip(left, right, strict=True)) if at != axis]
        if not all(unifier.same(one, other) for one, other in pairs):
            return None
        return ((*left[:axis], left[axis] + right[axis], *left[axis + 1 :]),)

    return typing


def _cut(axis: int) -> Typing:
    def typing(shapes: Sequence[Shape], unifier: Unifier) -> tuple[Shape, ...] | None:
        (shape,) = shapes
        if shape == SCALAR or (parts := unifier.cut(shape[axis])) is None:
            return None
        return tuple((*shape[:axis], part, *shape[axis + 1 :]) for part in parts)

    return typing


def _concat(axis: int) -> Meaning:
    def meaning(values: Sequence[Any], at: int) -> tuple[Any, ...]:
        return (values[0].each(lambda *parts: np.concatenate(parts, axis=axis + _LEAD), *values),)

    return meaning


def _split(axis: int) -> Meaning:
    before = (slice(None),) * (axis + _LEAD)

    def meaning(values: Sequence[Any], at: int) -> tuple[Any, ...]:
        (value,) = values
        return (
            value.each(lambda x: x[(*before, slice(None, at))], value),
            value.each(lambda x: x[(*before, slice(at, None))], value),
        )

    return meaning


def _times(values: Sequence[Any], at: int) -> tuple[Any, ...]:
    """Multiply a tensor by a scalar, which comes as a matrix of one element."""
    scalar, tensor = values
    more = len(tensor.shape) - len(scalar.shape)
    return (scalar.each(lambda x: x.reshape(*x.shape, *(1,) * more), scalar) * tensor,)


def _sum_cols(values: Sequence[Any], at: int) -> tuple[Any, ...]:
    (value,) = values
    columns = _columns(value)
    total = columns[0]
    for column in columns[1:]:
        total = total + column
    return (total,)


def _max_cols(values: Sequence[Any], at: int) -> tuple[Any, ...]:
    (value,) = values
    columns = _columns(value)
    largest = columns[0]
    for column in columns[1:]:
        largest = largest.maximum(column)
    return (largest,)


def _columns(value: Any) -> list[Any]:
    return [value.each(lambda x, at=at: x[..., at : at + 1], value) for at in range(value.shape[-1])]


_BOTH = (2, 4)
_ALGEBRA = "algebra"
_ALL = (
    Operator("add", 2, _alike, lambda v, at: (v[0] + v[1],), commutative=True, ranks=_BOTH),
    Operator("mul", 2, _alike, lambda v, at: (v[0] * v[1],), commutative=True, ranks=_BOTH),
    Operator("scale", 2, _scaled, _times, ranks=_BOTH),
    Operator("relu", 1, _alike, lambda v, at: (v[0].relu(),), ranks=_BOTH),
    Operator("matmul", 2, _product, lambda v, at: (v[0].matmul(v[1]),)),
    Operator("transpose", 1, _transposed, lambda v, at: (v[0].each(lambda x: np.swapaxes(x, -1, -2), v[0]),)),
    Operator("concat_rows", 2, _joined(0), _concat(0), joins=0, ranks=_BOTH),
    Operator("concat_cols", 2, _joined(1), _concat(1), joins=1, ranks=_BOTH),
    Operator("split_rows", 1, _cut(0), _split(0), results=2, cuts=0, ranks=_BOTH),
    Operator("split_cols", 1, _cut(1), _split(1), results=2, cuts=1, ranks=_BOTH),
    Operator("div", 2, _alike, lambda v, at: (v[0] * v[1].inverse(),), family=_ALGEBRA, partial=True),
    Operator("exp", 1, _alike, lambda v, at: (v[0].exp(),), family=_ALGEBRA, exact=False),
    Operator("log", 1, _alike, lambda v, at: (v[0].log(),), family=_ALGEBRA, exact=False, partial=True),
    Operator("square", 1, _alike, lambda v, at: (v[0] * v[0],), family=_ALGEBRA),
    Operator("sqrt", 1, _alike, lambda v, at: (v[0].sqrt(),), family=_ALGEBRA, exact=False, partial=True),
    Operator("abs", 1, _alike, lambda v, at: (v[0].maximum(v[0].negative()),), family=_ALGEBRA),
    Operator("max", 2, _alike, lambda v, at: (v[0].maximum(v[1]),), commutative=True, family=_ALGEBRA),
    Operator("less", 2, _alike, lambda v, at: (v[0].less(v[1]),), family=_ALGEBRA),
    Operator("where", 2, _alike, lambda v, at: (v[1].where(v[0]),), family=_ALGEBRA),
    Operator("sum_cols", 1, _folded, _sum_cols, family=_ALGEBRA),
    Operator("max_cols", 1, _folded, _max_cols, family=_ALGEBRA),
    Operator("scale_rows", 2, _scaled_rows, lambda v, at: (v[0] * v[1],), family=_ALGEBRA),
    *(
        Operator(name, arity, typing, meaning, ranks=(4,), family="images")
        for name, arity, typing, meaning in images.RECORDS
    ),
)

OPERATORS = MappingProxyType({operator.name: operator for operator in _ALL})
"""Every operator by its name."""


def operators_named(names: Collection[str]) -> tuple[Operator, ...]:
    """Return the operators with these names, in the order of the table."""
    for name in names:
        if name not in OPERATORS:
            raise InputError(f"there is no operator {name!r}; there are {', '.join(OPERATORS)}")
    return tuple(operator for operator in _ALL if operator.name in names)
