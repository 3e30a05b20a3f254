"""Bound masked loops: a loop walks only where a mask lets something through to what it accumulates.

The mask compares positions, as `ge(index[s], index[t])` does. Where each sum of a loop over t is of
values that vanish wherever the mask does not hold, and each maximum of values that are minus infinity
there, the loop may stop after the last t that any position s of the program can see; it starts late for
a mask of the other kind, as a window's. Running shifts do not move where no maximum does.
"""

from collections.abc import Mapping
from dataclasses import replace

from superopt.codegen.lowering.outside_masks import outside_masks
from superopt.codegen.statements import (
    Compute,
    KernelProgram,
    Load,
    LoopStatement,
    Move,
    Reach,
    Statement,
    Term,
)
from superopt.ir import Graph

__all__ = ["bound_masked_loops"]

_Form = dict[Term, int]  # a sum of terms with whole coefficients


def bound_masked_loops(program: KernelProgram) -> KernelProgram:
    """Return the program with the masks that bound each of its loops."""

    def bounded(statement: Statement) -> Statement:
        if not isinstance(statement, LoopStatement):
            return statement
        reaches = _reaches(program, statement)
        return LoopStatement(statement.axis, tuple(map(bounded, statement.body)), reaches)

    return replace(program, statements=tuple(map(bounded, program.statements)))


def _reaches(program: KernelProgram, loop: LoopStatement) -> tuple[Reach, ...]:
    """Return the masks that bound a loop; none where something in it does not vanish with them."""
    if not all(isinstance(one, (Compute, Move, Load)) for one in loop.body):
        return ()
    graph = program.graph
    computes = [one for one in loop.body if isinstance(one, Compute)]
    outside = outside_masks(graph, [(one.value, one.step) for one in computes], partial=True)
    accumulated = [
        outside[one.value].lowest if one.step.op == "max" else outside[one.value].vanishing
        for one in computes
        if one.accumulates
    ]
    if not accumulated:
        return ()
    common = frozenset.intersection(*accumulated)
    reaches = (_reach(graph, value, loop.axis) for value in sorted(common))
    return tuple(reach for reach in reaches if reach is not None)


def _reach(graph: Graph, mask: int, axis: str) -> Reach | None:
    """Return the bound that a comparison of positions puts on an axis."""
    step = graph.step_at(mask)
    larger, smaller = step.inputs if step.op in ("ge", "gt") else step.inputs[::-1]
    difference = _sum(_form(graph, larger), _form(graph, smaller), -1)  # not negative where the mask holds
    if difference is None:
        return None
    if step.op in ("gt", "lt"):
        difference[()] = difference.get((), 0) - 1
    sign = difference.pop((("index", axis),), 0)
    if sign not in (1, -1) or any(("index", axis) in term for term in difference):
        return None
    form = {term: -sign * factor for term, factor in difference.items() if factor}
    return Reach(mask, sign == -1, tuple(sorted(form.items())))


def _form(graph: Graph, value: int) -> _Form | None:
    """Return a value as a sum of products of positions and extents, with whole coefficients."""
    step = graph.step_of(value)
    if step is None:
        return None
    if step.op in ("index", "size"):
        return {((step.op, step.axes[0]),): 1}
    if step.value is not None and step.value.denominator == 1:
        return {(): int(step.value)}
    if step.op == "neg":
        return _sum({}, _form(graph, step.inputs[0]), -1)
    if step.op in ("add", "sub"):
        a, b = (_form(graph, i) for i in step.inputs)
        return _sum(a, b, 1 if step.op == "add" else -1)
    if step.op == "mul":
        a, b = (_form(graph, i) for i in step.inputs)
        if a is None or b is None:
            return None
        found: _Form = {}
        for one, factor in a.items():
            for other, count in b.items():
                term = tuple(sorted(one + other))
                found[term] = found.get(term, 0) + factor * count
        return found
    return None


def _sum(a: Mapping[Term, int] | None, b: _Form | None, factor: int) -> _Form | None:
    if a is None or b is None:
        return None
    found = dict(a)
    for term, count in b.items():
        found[term] = found.get(term, 0) + factor * count
    return found
