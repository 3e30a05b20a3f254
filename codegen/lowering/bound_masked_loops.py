"""Bound masked loops: a loop walks only where a mask lets something through to what it accumulates.

The mask compares positions, as `ge(index[s], index[t])` does. Where each sum of a loop over t is of
values that vanish wherever the mask does not hold, and each maximum of values that are minus infinity
there, the loop may stop after the last t that any position s of the program can see; it starts late for
a mask of the other kind, as a window's. Running shifts do not move where no maximum does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from superopt.ir import Graph, Step
from superopt.ops import OPS

__all__ = ["bound_masked_loops", "zero_outside"]

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
    vanishing, lowest = zero_outside(graph, [(one.value, one.step) for one in computes])
    accumulated = [
        lowest[one.value] if one.step.op == "max" else vanishing[one.value]
        for one in computes
        if one.accumulates
    ]
    if not accumulated:
        return ()
    common = frozenset.intersection(*accumulated)
    reaches = (_reach(graph, value, loop.axis) for value in sorted(common))
    return tuple(reach for reach in reaches if reach is not None)


def zero_outside(
    graph: Graph, steps: Sequence[tuple[int, Step]]
) -> tuple[dict[int, frozenset[int]], dict[int, frozenset[int]]]:
    """Return for each value the masks outside which it is 0, and the masks outside which it is -infinity."""
    vanishing: dict[int, frozenset[int]] = {}
    lowest: dict[int, frozenset[int]] = {}
    for value, step in steps:
        operands = [vanishing.get(i, frozenset()) for i in step.inputs]
        below = [lowest.get(i, frozenset()) for i in step.inputs]
        found = frozenset[int]()
        op = step.op
        if op == "contract" or (op in OPS and OPS[op].absorbs_zero):
            found = frozenset().union(*operands)
        elif op in ("div", "sum"):
            found = operands[0]
        elif op == "where" and graph.constant(step.inputs[2]) == 0:
            found = operands[0] | operands[1]
        elif op in ("exp", "exp2"):
            found = below[0]
        elif op in OPS and OPS[op].keeps_zero:
            found = frozenset.intersection(*operands)
        if op in ("ge", "gt", "le", "lt"):
            found |= {value}
        vanishing[value] = found
        lowest[value] = _lowest(graph, step, operands, below)
    return vanishing, lowest


def _lowest(
    graph: Graph, step: Step, vanishing: Sequence[frozenset[int]], lowest: Sequence[frozenset[int]]
) -> frozenset[int]:
    """Return the masks outside which a step makes minus infinity, given what its inputs are there."""
    match step.op:
        case "where" if _is_minus_infinity(graph, step.inputs[2]):
            return vanishing[0] | lowest[1]
        case "max":
            return lowest[0]
        case "sub" if _is_bounded(graph, step.inputs[1]):
            return lowest[0]
        case "maximum":
            return lowest[0] & lowest[1]
        case "mul":
            return lowest[0] if (graph.constant(step.inputs[1]) or 0) > 0 else frozenset()
        case _:
            return frozenset()


def _is_minus_infinity(graph: Graph, value: int) -> bool:
    step = graph.step_of(value)
    inner = graph.step_of(step.inputs[0]) if step is not None and step.op == "neg" else None
    return inner is not None and inner.op == "infinity"


def _is_bounded(graph: Graph, value: int) -> bool:
    """Return whether a value is never minus infinity: a number, or at least one."""
    step = graph.step_of(value)
    if step is None or step.value is not None:
        return step is not None
    return step.op == "maximum" and any(_is_bounded(graph, i) for i in step.inputs)


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
