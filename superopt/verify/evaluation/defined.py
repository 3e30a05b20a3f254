"""Defined: whether a program has no result for numbers for which another one has.

log(x y) is a number where x and y are both negative, and log(x) + log(y) is none. Trials with such numbers
are left out where equality is tested, so they are looked at here.
"""

from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph, Step
from superopt.ir.rewrite import Emit, rewritten
from superopt.verify.evaluation.interpret import interpret, output_tensor
from superopt.verify.evaluation.levels import LOGARITHMS, first_levels, levels_of
from superopt.verify.evaluation.orders import nonnegative_values
from superopt.verify.evaluation.tiny import tiny_sizes
from superopt.verify.field.primes import HIGHEST, choose_tower
from superopt.verify.field.residues import UNDEFINED

__all__ = ["defined_less_often"]

_ROOTS = frozenset({"sqrt", "rsqrt"}) | LOGARITHMS
_TRIALS = 96
_ACCIDENTS = 2  # in so many trials a program may divide by zero by chance


def defined_less_often(left: Graph, right: Graph, links: Iterable[tuple[str, str]], seed: int) -> bool:
    """Return whether the second of two aligned graphs is undefined where the first is not."""
    if not _doubtful(right):
        return False
    logarithms = any(step.op in LOGARITHMS for graph in (left, right) for step in graph.steps)
    levels = levels_of(left, right, limit=3 if logarithms else len(HIGHEST))
    tower = choose_tower(seed, levels, (), logarithms=logarithms, signs=False)[0]
    tiny = tiny_sizes(left, right, links=tuple(links), narrow=True, smallest=True)
    field = tiny.field(seed, trials=_TRIALS, levels=levels, tower=tower)

    def holes(graph: Graph) -> list[NDArray[np.bool_]]:
        values = interpret(graph, field, tiny.sizes)
        tensors = [output_tensor(graph, one, values[one.value], tiny.sizes) for one in graph.outputs]
        found = [
            tensor[first_levels(graph)[one.value]] >= UNDEFINED
            for one, tensor in zip(graph.outputs, tensors, strict=True)
        ]
        return [np.broadcast_to(one, (_TRIALS, *one.shape[1:])) for one in found]

    lost = np.zeros(_TRIALS, dtype=np.bool_)
    # A value that is never negative for real numbers is no square in half of the trials, so its root is
    # undefined there. A hole of the second program counts only if it stays once such roots are defined.
    for own, other, sure in zip(holes(left), holes(right), holes(_without_sure_roots(right)), strict=True):
        lost |= (other & sure & ~own).any(axis=tuple(range(1, own.ndim)))
    return int(lost.sum()) > _ACCIDENTS


def _without_sure_roots(graph: Graph) -> Graph:
    """Return the graph with absolute values under the roots whose operands are surely not negative."""
    sure = nonnegative_values(graph)
    changed = iter([step.op in _ROOTS and sure[step.inputs[0]] for step in graph.steps])

    def written(step: Step, emit: Emit) -> int:
        if not next(changed):
            return emit(step)
        operand = step.inputs[0]
        if step.op == "log1p":
            operand = emit(Step("add", (operand, emit(Step("const", value=Fraction(1))))))
        return emit(Step("log" if step.op == "log1p" else step.op, (emit(Step("abs", (operand,))),)))

    return rewritten(graph, written)


def _doubtful(graph: Graph) -> bool:
    """Return whether a graph takes a root or a logarithm of what may be negative."""
    sure = nonnegative_values(graph)
    return any(step.op in _ROOTS and not sure[step.inputs[0]] for step in graph.steps)
