"""Rounding: how far the numbers of one run may be off in the program's own dtype, element by element.

Inputs are exact. So are sums and products of short multiples of a power of two, as of small integers:
no dtype rounds them. Everything else is off by a unit in the last place of its size, and by what the errors
of its operands make.
"""

from fractions import Fraction
from math import frexp

import torch
from torch import Tensor

from superopt.ir import Step
from superopt.ops import OPS
from superopt.trace.run import Evaluation, Value

__all__ = ["Rounding", "grain_of"]

_GRAINS = (0, 6, 12)  # powers of one half of which inputs may be multiples
_LONGEST = 2**24  # denominator of a constant that counts as short
_ROUNDS_NOTHING = frozenset(
    {"neg", "abs", "relu", "max", "select", "rename", "window", "maximum", "minimum", "where", "guard"}
)
_SUMS = frozenset({"add", "sub", "sum"})  # results are multiples of what all operands are multiples of
_PRODUCTS = frozenset({"mul", "contract"})


def grain_of(tensor: Tensor) -> float | None:
    """Return a power of one half of which all elements are multiples, or None."""
    finite = tensor[tensor.isfinite()]
    for power in _GRAINS:
        scaled = finite * 2.0**power
        if bool((scaled == scaled.round()).all()):
            return 2.0**-power
    return None


class Rounding:
    """The errors of the values of one run; None for a value that every dtype holds exactly."""

    def __init__(self, run: Evaluation, unit: float) -> None:
        self.run = run
        self.unit = unit
        self.errors: dict[int, Tensor | None] = {}
        self.grains: dict[int, float | None] = {}
        self.axes: dict[int, tuple[str, ...]] = {}

    def enter(self, value: int, made: Value, error: Tensor | None, grain: float | None) -> None:
        """Note what is known of an input."""
        self.errors[value] = None if error is None else error.reshape(made.tensor.shape)
        self.grains[value] = grain
        self.axes[value] = made.axes

    def of(self, step: Step, axes: tuple[str, ...]) -> Tensor | None:
        """Return the errors of all operands of a step together, or None where all are exact."""
        found = None
        for i in step.inputs:
            error = self.errors.get(i)
            if error is not None:
                there = self.run.spread(Value(error, self.axes[i]), axes)
                found = there if found is None else found + there
        return found

    def follow(self, value: int, step: Step, made: Value) -> None:
        """Note the error of a step's value."""
        self.axes[value] = made.axes
        grain = self.grains[value] = self._grain(step)
        self.errors[value] = self._error(step, made, grain)

    def _error(self, step: Step, made: Value, grain: float | None) -> Tensor | None:
        if step.value is not None:
            return None if _is_short(step.value, self.unit) else made.tensor.abs() * self.unit
        if step.op in ("size", "index", "infinity") or _is_mask(step.op):
            return None
        if all(self.errors.get(i) is None for i in step.inputs):
            if step.op in _ROUNDS_NOTHING:
                return None
            size = self._size(step, made)
            return None if self._fits(grain, size) else size * self.unit
        carried = self._carried(step, made)
        return carried if step.op in _ROUNDS_NOTHING else carried + self._size(step, made) * self.unit

    def _size(self, step: Step, made: Value) -> Tensor:
        """Return how large the numbers are whose roundings make the error of a value."""
        operands = [self.run.values[i] for i in step.inputs]
        if step.op == "sum":
            return operands[0].tensor.abs().sum([operands[0].axes.index(axis) for axis in step.axes])
        if step.op == "contract":
            a, b = (Value(one.tensor.abs(), one.axes) for one in operands)
            return self.run.contract(a, b, step.axes).tensor
        return made.tensor.abs()

    def _fits(self, grain: float | None, size: Tensor) -> bool:
        """Whether every dtype as precise as the program's holds numbers of this size and grain."""
        largest = float(size.max()) if size.numel() else 0.0
        return grain is not None and largest * self.unit <= 2 * grain

    def _carried(self, step: Step, made: Value) -> Tensor:
        """Return how far the errors of a step's operands put its value off."""
        operands = [self.run.values[i] for i in step.inputs]
        errors = [self.errors.get(i) for i in step.inputs]
        if step.op == "rename":
            [error] = errors
            assert error is not None
            return error
        total = torch.zeros_like(made.tensor)
        for at, (operand, error) in enumerate(zip(operands, errors, strict=True)):
            if error is None:
                continue
            off = Value(error, operand.axes)
            if step.op == "contract":
                other = operands[1 - at]
                moved = self.run.contract(off, Value(other.tensor.abs(), other.axes), step.axes).tensor
            elif step.op in ("sum", "max"):
                dims = [operand.axes.index(axis) for axis in step.axes]
                moved = error.sum(dims) if step.op == "sum" else error.amax(dims)
            elif step.op == "select":
                moved = self.run.select(step, off).tensor
            elif step.op == "window":
                moved = self.run.window(step, off).tensor
            else:
                moved = self._moved(step, operands, at, error, made)
            total = total + moved
        return total

    def _moved(self, step: Step, operands: list[Value], at: int, error: Tensor, made: Value) -> Tensor:
        """Return how far a scalar operator's value moves as one operand moves by its error, up or down."""
        farthest = torch.zeros_like(made.tensor)
        for sign in (-1, 1):
            moved = list(operands)
            moved[at] = Value(operands[at].tensor + sign * error, operands[at].axes, operands[at].mask)
            there = self.run.elementwise(step.op, moved).tensor
            farthest = torch.maximum(farthest, (there - made.tensor).abs())
        return farthest

    def _grain(self, step: Step) -> float | None:
        if step.op in ("index", "size") or _is_mask(step.op):
            return 1.0
        if step.value is not None:
            bits = step.value.denominator
            return 1.0 / bits if bits & (bits - 1) == 0 and bits <= _LONGEST else None
        grains = [self.grains.get(i) for i in step.inputs]
        known = [one for one in grains if one is not None]
        if not known or len(known) < len(grains):
            return None
        if step.op in _SUMS or step.op in _ROUNDS_NOTHING:
            return min(known)
        if step.op in _PRODUCTS:
            return known[0] * known[1]
        return known[0] ** 2 if step.op == "square" else None


def _is_mask(op: str) -> bool:
    return op in OPS and OPS[op].mask


def _is_short(number: Fraction, unit: float) -> bool:
    """Whether a dtype with such a unit in the last place holds a number exactly."""
    share, _ = frexp(float(number))
    return Fraction(float(number)) == number and (share * 2 / unit).is_integer()
