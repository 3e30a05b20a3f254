"""Lanes: what a tile holds beyond the end of an axis that its size does not divide.

Loads put zeros there. What is computed from zeros may be zero, finite, or anything (1 / 0); only a
reduction cares, and hides exactly the lanes that would spoil it.
"""

from collections.abc import Sequence
from enum import IntEnum

__all__ = ["Lanes", "after_operator", "after_product"]


class Lanes(IntEnum):
    """What lanes beyond the end of an axis hold."""

    ANY = 0
    FINITE = 1
    ZERO = 2


_KEEP_ZERO = frozenset(
    {
        "neg",
        "square",
        "silu",
        "gelu",
        "gelu_tanh",
        "relu",
        "tanh",
        "abs",
        "sqrt",
        "sin",
        "erf",
        "rename",
        "sum",
    }
)
_FINITE = frozenset(
    {"neg", "square", "silu", "gelu", "gelu_tanh", "relu", "tanh", "abs", "sin", "cos", "erf", "sigmoid"}
    | {
        "add",
        "sub",
        "mul",
        "maximum",
        "minimum",
        "where",
        "lt",
        "gt",
        "le",
        "ge",
        "eq",
        "ne",
        "and",
        "or",
        "not",
    }
    | {"rename", "sum"}
)


def after_operator(op: str, operands: Sequence[Lanes | None]) -> Lanes:
    """Return what an operator leaves along an axis; None stands for an operand without that axis."""
    present = [lanes for lanes in operands if lanes is not None]
    if op in _KEEP_ZERO and present == [Lanes.ZERO]:
        return Lanes.ZERO
    if op == "mul" and Lanes.ZERO in present and Lanes.ANY not in present:
        return Lanes.ZERO
    if op in ("add", "sub", "maximum", "minimum") and list(operands) == [Lanes.ZERO, Lanes.ZERO]:
        return Lanes.ZERO
    if op == "where" and list(operands[1:]) == [Lanes.ZERO, Lanes.ZERO]:
        return Lanes.ZERO
    if op == "div" and list(operands) == [Lanes.ZERO, None]:
        return Lanes.ZERO
    if op in ("exp", "exp2") and present == [Lanes.ZERO]:
        return Lanes.FINITE
    if op in _FINITE and Lanes.ANY not in present:
        return Lanes.FINITE
    return Lanes.ANY


def after_product(a: Lanes | None, b: Lanes | None) -> Lanes:
    """Return what the product of two tiles holds along an axis."""
    return after_operator("mul", (a, b))
