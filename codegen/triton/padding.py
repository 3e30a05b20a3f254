"""Padding: what a tile holds beyond the end of an axis whose size it does not divide.

Loads put zeros there. What is computed from zeros may be zero, finite, or anything (1 / 0); only a
reduction cares, and hides exactly the lanes that would spoil it.
"""

from collections.abc import Sequence
from enum import IntEnum

from superopt.ops import OPS

__all__ = ["Lanes", "after_operator"]


class Lanes(IntEnum):
    """What lanes beyond the end of an axis hold."""

    ANY = 0
    FINITE = 1
    ZERO = 2


def after_operator(op: str, operands: Sequence[Lanes | None]) -> Lanes:
    """Return what an operator leaves along an axis; None stands for an operand without that axis."""
    present = [lanes for lanes in operands if lanes is not None]
    facts = OPS[op]
    if facts.keeps_zero and all(lanes == Lanes.ZERO for lanes in operands):
        return Lanes.ZERO
    if facts.absorbs_zero and Lanes.ZERO in present and Lanes.ANY not in present:
        return Lanes.ZERO
    if op == "where" and list(operands[1:]) == [Lanes.ZERO, Lanes.ZERO]:
        return Lanes.ZERO
    if op == "div" and list(operands) == [Lanes.ZERO, None]:
        return Lanes.ZERO
    if op in ("exp", "exp2") and present == [Lanes.ZERO]:
        return Lanes.FINITE
    if facts.finite and Lanes.ANY not in present:
        return Lanes.FINITE
    return Lanes.ANY
