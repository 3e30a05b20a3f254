"""Causal: the part of a loop outside which a mask makes everything that is added up zero.

The mask compares positions, as `ge(index[s], index[t])` does. Where each sum of a loop over t is of
values that vanish wherever the mask does not hold, the loop may stop after the last t that any position
s of the program can see; it starts late for a mask of the other kind, as a window's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.codegen.statements import Compute, KernelProgram, LoopStatement
from superopt.ir import Graph

__all__ = ["Reach", "find_reaches"]

_ZERO_STAYS = frozenset({"neg", "square", "silu", "gelu", "gelu_tanh", "relu", "tanh", "abs", "sqrt", "sin"})
_Form = dict[tuple[str, str], int]  # ("index" or "size", axis) or ("one", "") -> whole coefficient


@dataclass(frozen=True, slots=True)
class Reach:
    """A mask that holds only where the loop's position is below, or above, a form in other positions."""

    mask: int
    upper: bool  # position <= form, else position >= form
    form: tuple[tuple[tuple[str, str], int], ...]


def find_reaches(program: KernelProgram, loop: LoopStatement) -> tuple[Reach, ...]:
    """Return the masks that bound a loop; none where something in it does not vanish with them."""
    computed = [one for one in loop.body if isinstance(one, Compute)]
    if any(not isinstance(one, Compute) and type(one).__name__ != "Load" for one in loop.body):
        return ()
    graph = program.graph
    vanishing: dict[int, frozenset[int]] = {}
    sums: list[frozenset[int]] = []
    for one in computed:
        operands = [vanishing.get(i, frozenset()) for i in one.step.inputs]
        found = frozenset[int]()
        op = one.step.op
        if op in ("mul", "and", "contract"):
            found = frozenset().union(*operands)
        elif op in _ZERO_STAYS or op in ("div", "sum"):
            found = operands[0]
        elif op in ("add", "sub"):
            found = operands[0] & operands[1]
        elif op == "where" and _is_zero(graph, one.step.inputs[2]):
            found = operands[0] | operands[1]
        if op in ("ge", "gt", "le", "lt"):
            found |= {one.value}
        vanishing[one.value] = found
        if one.accumulates:
            sums.append(found if op in ("sum", "contract") else frozenset())
    if not sums:
        return ()
    common = frozenset.intersection(*sums)
    reaches = (_reach(graph, value, loop.axis) for value in sorted(common))
    return tuple(reach for reach in reaches if reach is not None)


def _is_zero(graph: Graph, value: int) -> bool:
    step = graph.step_of(value)
    return step is not None and step.op == "const" and step.value == 0


def _reach(graph: Graph, mask: int, axis: str) -> Reach | None:
    """Return the bound that a comparison of positions puts on an axis."""
    step = graph.step_of(mask)
    assert step is not None
    larger, smaller = step.inputs if step.op in ("ge", "gt") else step.inputs[::-1]
    difference = _sum(_form(graph, larger), _form(graph, smaller), -1)  # not negative where the mask holds
    if difference is None:
        return None
    if step.op in ("gt", "lt"):
        difference[("one", "")] = difference.get(("one", ""), 0) - 1
    sign = difference.pop(("index", axis), 0)
    if sign not in (1, -1):
        return None
    form = {term: -sign * factor for term, factor in difference.items() if factor}
    return Reach(mask, sign == -1, tuple(sorted(form.items())))


def _form(graph: Graph, value: int) -> _Form | None:
    """Return a value as a sum of positions, extents and whole numbers."""
    step = graph.step_of(value)
    if step is None:
        return None
    if step.op in ("index", "size"):
        return {(step.op, step.axes[0]): 1}
    if step.op == "const" and step.value is not None and step.value.denominator == 1:
        return {("one", ""): int(step.value)}
    if step.op == "neg":
        return _sum({}, _form(graph, step.inputs[0]), -1)
    if step.op in ("add", "sub"):
        a, b = (_form(graph, i) for i in step.inputs)
        return _sum(a, b, 1 if step.op == "add" else -1)
    return None


def _sum(a: Mapping[tuple[str, str], int] | None, b: _Form | None, factor: int) -> _Form | None:
    if a is None or b is None:
        return None
    found = dict(a)
    for term, count in b.items():
        found[term] = found.get(term, 0) + factor * count
    return found
