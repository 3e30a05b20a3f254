"""Levels: which levels of the tower a program needs.

An exponential at level i reads level i + 1 of its argument, a logarithm level i - 1. An oracle or a
comparison reads the first level that its argument has, which is 0 but below a logarithm.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import TypeAlias

from superopt.ir import Graph
from superopt.ops import OPS, Op

__all__ = ["LOGARITHMS", "demanded_levels", "first_levels", "levels_of"]

LOGARITHMS = frozenset({"log", "log2", "log1p"})
"""Functions whose values begin one level further down than their arguments."""

_Reads: TypeAlias = frozenset[tuple[int, int | None]]
"""Arguments, each with the level at which it is read, counted from the result's; None: its first level."""


class _Reading:
    """Scalars whose values say which arguments are read, and at which levels."""

    def const(self, *value: Fraction) -> _Reads:
        return frozenset()

    infinity = const

    def add(self, a: _Reads, b: _Reads) -> _Reads:
        return a | b

    mul = add

    def neg(self, a: _Reads) -> _Reads:
        return a

    inv = sqrt = neg

    def exp(self, a: _Reads) -> _Reads:
        return _shifted(a, 1)

    def maximum(self, a: _Reads, b: _Reads) -> _Reads:
        return a | b | self.less(a, b)

    def less(self, a: _Reads, b: _Reads) -> _Reads:
        return frozenset((arg, None) for arg, _ in a | b)

    equal = less

    def where(self, mask: _Reads, a: _Reads, b: _Reads) -> _Reads:
        return mask | a | b

    def function(self, name: str, *args: _Reads) -> _Reads:
        if name in LOGARITHMS:
            return _shifted(args[0], -1)
        if name == "guard":
            return args[0] | args[1]
        return frozenset((arg, None) for reads in args for arg, _ in reads)


def _shifted(reads: _Reads, by: int) -> _Reads:
    return frozenset((arg, None if shift is None else shift + by) for arg, shift in reads)


@cache
def _reads(op: Op) -> _Reads:
    arguments = (frozenset({(i, 0)}) for i in range(op.arity))
    result: _Reads = op.scalar(_Reading(), *arguments)
    return result


class _Firsts:
    """Scalars whose values are the first level that a number has."""

    def const(self, *args: object) -> int:
        return 0

    infinity = less = equal = const

    def add(self, *args: int) -> int:
        return max(args)

    mul = maximum = neg = inv = sqrt = add

    def exp(self, a: int) -> int:
        return max(a - 1, 0)

    def where(self, mask: int, a: int, b: int) -> int:
        return max(a, b)

    def function(self, name: str, *args: int) -> int:
        if name in LOGARITHMS:
            return args[0] + 1
        return max(args) if name == "guard" else 0


_FIRSTS = _Firsts()


def first_levels(graph: Graph) -> list[int]:
    """Return for each value the first level that it has."""
    firsts = [0] * len(graph.inputs)
    for step in graph.steps:
        args = [firsts[i] for i in step.inputs]
        firsts.append(OPS[step.op].scalar(_FIRSTS, *args) if step.op in OPS else max(args, default=0))
    return firsts


def demanded_levels(graph: Graph, levels: int, outputs: Sequence[int] | None = None) -> list[set[int]]:
    """Return for each value the levels that the outputs depend on, each output read at some level."""
    firsts = first_levels(graph)
    wanted = outputs or [firsts[output.value] for output in graph.outputs]
    demanded: list[set[int]] = [set() for _ in firsts]
    for output, level in zip(graph.outputs, wanted, strict=True):
        demanded[output.value].add(level)
    first = len(graph.inputs)
    for value in reversed(range(first, len(demanded))):
        step = graph.step_at(value)
        if step.op not in OPS:
            for i in step.inputs:
                demanded[i] |= demanded[value]
                if step.op == "max" and demanded[value]:
                    demanded[i].add(firsts[i])
            continue
        for arg, shift in _reads(OPS[step.op]):
            source = step.inputs[arg]
            for level in demanded[value]:
                read = firsts[source] if shift is None else max(level + shift, firsts[source])
                # Below the last level an exponential is an oracle of its argument.
                demanded[source].add(read if read < levels else firsts[source])
    return demanded


def levels_of(*graphs: Graph, limit: int) -> int:
    """Return how many levels the graphs' nested exponentials need, at most `limit`.

    Outputs of graphs that have as many of them are read at the first level that all have.
    """
    firsts = [first_levels(graph) for graph in graphs]
    alike = len({len(graph.outputs) for graph in graphs}) == 1
    shared = [
        max(found[graph.outputs[i].value] for graph, found in zip(graphs, firsts, strict=True))
        for i in range(len(graphs[0].outputs) if alike else 0)
    ]
    return (
        max(
            max(levels, default=0)
            for graph in graphs
            for levels in demanded_levels(graph, limit, shared or None)
        )
        + 1
    )
