"""Tensorless values: what indices, extents and constants make is known without luck, and computed exactly.

Masks of indices come out as they do for real numbers, and constants compare as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph, Step, tensorless_values
from superopt.ops import OPS
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.constants import exact_constant
from superopt.verify.field.residues import Residues, align_dims

__all__ = [
    "Numbers",
    "Pair",
    "Pairs",
    "constants_of",
    "moved_dims",
    "roots_of",
    "selected_places",
    "tensorless_numbers",
]

Numbers: TypeAlias = NDArray[np.float64]
"""Exact values on a grid, of shape (1, 1, *grid) like residues of one level and trial."""

Pair: TypeAlias = tuple[Residues, Numbers | None]
"""A tensorless value as residues, and as exact numbers where these are known."""

_FUNCTIONS: dict[str, Callable[..., Numbers]] = {
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "pow": np.power,
}


def moved_dims(ndim: int, mapping: Sequence[tuple[str, str | int]], order: Mapping[str, int]) -> list[int]:
    """Return how a rename transposes an array whose grid dimensions begin at 2.

    All at once: the dimension that goes to `new` is `old`, whatever `new` held before.
    """
    source = list(range(ndim))
    moves = {2 + order[str(new)]: 2 + order[old] for old, new in mapping}
    vacated = [dim for dim in moves.values() if dim not in moves]
    for new_dim, old_dim in moves.items():
        source[new_dim] = old_dim
    # A dimension that moved away is replaced by the empty dimension at its new place.
    for dim, empty in zip(vacated, (dim for dim in moves if dim not in moves.values()), strict=True):
        source[dim] = empty
    return source


def selected_places(
    ndim: int,
    mapping: Sequence[tuple[str, str | int]],
    order: Mapping[str, int],
    positions: Mapping[str, tuple[int, ...]],
) -> tuple[slice, ...]:
    """Return the index expression of a select: the place of each position among the evaluated positions."""
    at = [slice(None)] * ndim
    for axis, position in mapping:
        place = positions[axis].index(int(position)) if axis in positions else int(position)
        at[2 + order[axis]] = slice(place, place + 1)
    return tuple(at)


class _UnknownFunctionError(Exception):
    """Exact values are not known of this function."""


class _Exact:
    """Scalars of exact values, as float64 has them."""

    def const(self, value: Fraction) -> Numbers:
        return np.array(float(value)).reshape(1, 1)

    def infinity(self) -> Numbers:
        return np.array(np.inf).reshape(1, 1)

    def add(self, a: Numbers, b: Numbers) -> Numbers:
        return np.asarray(np.add(*align_dims(a, b)))

    def mul(self, a: Numbers, b: Numbers) -> Numbers:
        return np.asarray(np.multiply(*align_dims(a, b)))

    def neg(self, a: Numbers) -> Numbers:
        return -a

    def inv(self, a: Numbers) -> Numbers:
        return 1 / a

    def exp(self, a: Numbers) -> Numbers:
        return np.exp(a)

    def sqrt(self, a: Numbers) -> Numbers:
        return np.sqrt(a)

    def maximum(self, a: Numbers, b: Numbers) -> Numbers:
        return np.asarray(np.maximum(*align_dims(a, b)))

    def less(self, a: Numbers, b: Numbers) -> Numbers:
        return np.asarray(np.less(*align_dims(a, b)), dtype=np.float64)

    def equal(self, a: Numbers, b: Numbers) -> Numbers:
        return np.asarray(np.equal(*align_dims(a, b)), dtype=np.float64)

    def where(self, mask: Numbers, a: Numbers, b: Numbers) -> Numbers:
        a, b = align_dims(a, b)
        mask, a = align_dims(mask, a)
        chosen: Numbers = np.where(mask != 0, a, align_dims(a, b)[1])
        return chosen

    def function(self, name: str, *args: Numbers) -> Numbers:
        if name not in _FUNCTIONS:
            raise _UnknownFunctionError(name)
        return _FUNCTIONS[name](*args)


_EXACT = _Exact()


def _on_both(name: str) -> Callable[..., Pair]:
    """Return an operation on residues and on numbers that does the same to both."""

    def apply(pairs: "Pairs", *args: Pair) -> Pair:
        residues: Residues = getattr(pairs.field, name)(*(one for one, _ in args))
        return residues, _apply(getattr(_EXACT, name), *args)

    return apply


class Pairs:
    """Scalars of tensorless values: the field's arithmetic, with comparisons decided by the numbers."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def const(self, value: Fraction) -> Pair:
        """Return an exact rational constant."""
        return self.field.const(value), _EXACT.const(value)

    def infinity(self) -> Pair:
        """Return plus infinity."""
        return self.field.infinity(), _EXACT.infinity()

    add, mul, neg, inv = map(_on_both, ("add", "mul", "neg", "inv"))
    exp, sqrt, where = map(_on_both, ("exp", "sqrt", "where"))

    def maximum(self, a: Pair, b: Pair) -> Pair:
        """Return the larger of a and b."""
        smaller = _apply(_EXACT.less, a, b)
        if smaller is None:
            return self.field.maximum(a[0], b[0]), None
        return self.where((self._residues(smaller), smaller), b, a)

    def less(self, a: Pair, b: Pair) -> Pair:
        """Return 1 where a < b, else 0."""
        truth = _apply(_EXACT.less, a, b)
        return (self.field.less(a[0], b[0]) if truth is None else self._residues(truth)), truth

    def equal(self, a: Pair, b: Pair) -> Pair:
        """Return 1 where a = b, else 0."""
        truth = _apply(_EXACT.equal, a, b)
        return (self.field.equal(a[0], b[0]) if truth is None else self._residues(truth)), truth

    def function(self, name: str, *args: Pair) -> Pair:
        """Return a named function, with its numbers where they are known."""
        known = [one for _, one in args if one is not None]
        numbers = _EXACT.function(name, *known) if name in _FUNCTIONS and len(known) == len(args) else None
        return self.field.function(name, *(one for one, _ in args)), numbers

    def _residues(self, truth: Numbers) -> Residues:
        shape = (self.field.levels, self.field.trials, *truth.shape[2:])
        return np.broadcast_to(truth.astype(np.uint64), shape)


def _apply(function: Callable[..., Numbers], *args: Pair) -> Numbers | None:
    known = [one for _, one in args if one is not None]
    if len(known) < len(args):
        return None
    with np.errstate(all="ignore"):
        return function(*known)


def tensorless_numbers(
    graph: Graph,
    order: Mapping[str, int],
    places: Mapping[str, Sequence[int]],
    extents: Mapping[str, int],
) -> list[Numbers | None]:
    """Return the exact value of every tensorless value that has one, on the given positions of each axis.

    Axes without a place in the order are left out, and with them the values that have them.
    """
    tensorless = tensorless_values(graph)
    numbers: list[Numbers | None] = [None] * len(graph.inputs)
    positions = {axis: tuple(found) for axis, found in places.items()}
    for step in graph.steps:
        known = [one for one in (numbers[i] for i in step.inputs) if one is not None]
        found = None
        named = {*step.axes, *(axis for pair in step.mapping for axis in pair if isinstance(axis, str))}
        seen = step.op == "size" or named <= order.keys()
        if seen and tensorless[len(numbers)] and len(known) == len(step.inputs):
            with np.errstate(all="ignore"):
                found = _tensorless_step(step, known, order, positions, extents)
        numbers.append(found)
    return numbers


def _tensorless_step(
    step: Step,
    args: Sequence[Numbers],
    order: Mapping[str, int],
    positions: Mapping[str, tuple[int, ...]],
    extents: Mapping[str, int],
) -> Numbers | None:
    ndim = 2 + len(order)
    if step.op in OPS:
        try:
            return np.asarray(OPS[step.op].scalar(_EXACT, *args))
        except _UnknownFunctionError:
            return None
    match step.op:
        case "const":
            assert step.value is not None
            return np.full((1,) * ndim, float(step.value))
        case "infinity":
            return np.full((1,) * ndim, np.inf)
        case "size":
            axis = step.axes[0]
            return np.full((1,) * ndim, float(extents[axis])) if axis in extents else None
        case "index":
            axis = step.axes[0]
            shape = [1] * ndim
            shape[2 + order[axis]] = len(positions[axis])
            return np.array(positions[axis], dtype=np.float64).reshape(shape)
        case "rename":
            return args[0].transpose(moved_dims(ndim, step.mapping, order))
        case "select":
            if any(int(at) not in positions[axis] for axis, at in step.mapping):
                return None
            found = args[0][selected_places(ndim, step.mapping, order, positions)]
            return np.asarray(found)
    dims = tuple(2 + order[axis] for axis in step.axes)
    if step.op == "max":
        return np.asarray(args[0].max(axis=dims, keepdims=True))
    if any(extents.get(axis) != len(positions[axis]) for axis in step.axes):
        return None
    product = _EXACT.mul(*args) if step.op == "contract" else args[0]
    shape = [
        len(positions[axis]) if axis in step.axes else product.shape[2 + order[axis]]
        for axis in sorted(order, key=order.__getitem__)
    ]
    return np.asarray(np.broadcast_to(product, (1, 1, *shape)).sum(axis=dims, keepdims=True))


class _Rationals:
    """Scalars that note every rational constant that a program makes; a value is one, or None."""

    def __init__(self, narrow: bool) -> None:
        self.narrow = narrow
        self.found: set[Fraction] = set()
        self.known = True

    def const(self, value: Fraction) -> Fraction | None:
        meant = exact_constant(value, self.narrow)
        self.known &= meant.known
        self._note(meant.value)
        return self._note(meant.rational)

    def infinity(self) -> None:
        return None

    def size(self, extent: int | None) -> Fraction | None:
        return None if extent is None else self._note(Fraction(extent))

    def add(self, a: Fraction | None, b: Fraction | None) -> Fraction | None:
        return None if a is None or b is None else self._note(a + b)

    def mul(self, a: Fraction | None, b: Fraction | None) -> Fraction | None:
        return None if a is None or b is None else self._note(a * b)

    def neg(self, a: Fraction | None) -> Fraction | None:
        return None if a is None else self._note(-a)

    def inv(self, a: Fraction | None) -> Fraction | None:
        return self._note(1 / a) if a else None

    def other(self, *args: Fraction | None) -> None:
        return None

    exp = sqrt = maximum = less = equal = where = other

    def function(self, name: str, *args: Fraction | None) -> None:
        return None

    def _note(self, value: Fraction | None) -> Fraction | None:
        if value is not None:
            self.found.add(abs(value))
        return value


def roots_of(graph: Graph, narrow: bool) -> frozenset[Fraction]:
    """Return the numbers whose roots are constants of a program."""
    meant = [exact_constant(step.value, narrow) for step in graph.steps if step.value is not None]
    return frozenset(one.value for one in meant if one.root)


def constants_of(
    graph: Graph, narrow: bool, extents: Mapping[str, int] | None = None
) -> tuple[frozenset[Fraction], bool, dict[int, Fraction]]:
    """Return the magnitudes of all rational constants of a program, whether it is known of all constants
    which number was meant, and the value of every step that is a rational constant.

    Where extents are told, these are constants, too.
    """
    noted = _Rationals(narrow)
    values: list[Fraction | None] = [None] * len(graph.inputs)
    for step in graph.steps:
        args = [values[i] for i in step.inputs]
        if step.value is not None:
            values.append(noted.const(step.value))
        elif step.op in OPS:
            values.append(OPS[step.op].scalar(noted, *args))
        elif step.op == "size":
            values.append(noted.size((extents or {}).get(step.axes[0])))
        else:
            values.append(args[0] if step.op in ("rename", "select", "max") else None)
    known = {place: value for place, value in enumerate(values) if value is not None}
    return frozenset(noted.found), noted.known, known
