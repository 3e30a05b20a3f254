"""Rules: how operands and value of an operator may lie along a dimension of a mesh, with no communication.

Dimensions are independent of each other: a step may take another rule along each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from superopt.ir import Step, step_axes
from superopt.shard.sharded import MAXIMUM, SUM

__all__ = ["Rule", "rules"]

Tag: TypeAlias = str | None
Rule: TypeAlias = tuple[tuple[Tag, ...], Tag]
"""The tags of the operands, and that of the value."""

_LINEAR: dict[str, tuple[tuple[Tag, ...], ...]] = {
    "neg": ((SUM,),),
    "add": ((SUM, SUM),),
    "sub": ((SUM, SUM),),
    "mul": ((SUM, None), (None, SUM)),
    "contract": ((SUM, None), (None, SUM)),
    "div": ((SUM, None),),
    "sum": ((SUM,),),
    "rename": ((SUM,), (MAXIMUM,)),
    "select": ((SUM,), (MAXIMUM,)),
    "max": ((MAXIMUM,),),
}
"""Operators that give partial values from partial operands, and from which."""


def rules(step: Step, operands: tuple[frozenset[str], ...], splittable: frozenset[str]) -> Iterator[Rule]:
    """Yield the rules of a step along a dimension that may split some axes."""
    yield (None,) * len(operands), None
    for tags in _LINEAR.get(step.op, ()):
        yield tags, SUM if SUM in tags else MAXIMUM
    union = frozenset[str]().union(*operands)
    made = step_axes(step, operands)
    mapping = dict(step.mapping)
    slid = {axis for place in step.places for axis in place.named}  # a window reads beyond its own part
    for axis in sorted((union | made) & splittable):
        if step.op == "index":
            yield (), axis
        if axis in slid or axis not in union or (step.op == "select" and axis in mapping):
            continue
        tags = tuple(axis if axis in own else None for own in operands)
        after = str(mapping.get(axis, axis))
        if after in made:
            yield tags, after
        else:
            yield tags, MAXIMUM if step.op == "max" else SUM
