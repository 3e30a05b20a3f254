"""Comparisons: what a test must see of each one before the program that makes it has been tested.

A selection, of a comparison or of booleans, sorts out NaN and infinities. Exponentials and maxima sort
out minus infinities that are added to what they take, as masks are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from superopt.ir import Graph, Opaque, Region, tensorless_values

__all__ = [
    "COMPARED",
    "EXTREMA",
    "SYMBOLS",
    "Comparison",
    "demands_of",
    "may_take",
    "names_of_minus_infinity",
    "sorts_out_nan",
]

COMPARED = frozenset({"lt", "gt", "le", "ge", "eq", "ne"})
"""Operators whose value jumps where their operands meet."""

EXTREMA = frozenset({"maximum", "minimum", "relu", "abs"})
"""Operators that bend where their operands meet."""

SYMBOLS = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "eq": "=", "ne": "!=", "add": "+", "sub": "-"}
SYMBOLS |= {"mul": "*", "div": "/", "and": "and", "or": "or"}

_TRUE = {"lt": {-1}, "gt": {1}, "le": {-1, 0}, "ge": {0, 1}, "eq": {0}, "ne": {-1, 1}, "bool": {1}}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of a program, and what must be seen of it: each demand by one of its outcomes.

    An outcome says how the left side is to the right one: -1 less, 0 equal, 1 greater. A boolean input,
    and a mask made outside the algebra, is 1 where it is true and -1 where it is false.
    """

    program: int
    node: int
    value: int  # its number in the region's graph
    op: str
    left: str
    right: str
    demands: tuple[frozenset[int], ...]
    integers: int | None  # the position of the input on the left, if it is one of integers
    number: float | None  # the one on the right, if it is a constant

    def __str__(self) -> str:
        if self.op in EXTREMA:
            return f"{self.op}({self.left}{', ' + self.right if self.op in ('maximum', 'minimum') else ''})"
        return f"{self.left} {SYMBOLS[self.op]} {self.right}" if self.op in SYMBOLS else self.left

    def is_tie(self, demand: frozenset[int]) -> bool:
        """Whether a demand is a tie of ordered numbers: if no result shows it, < and <= are the same."""
        return demand == {0} and self.op in ("lt", "gt", "le", "ge")

    def met_by_labels(self, extents: Mapping[int, int]) -> "Comparison":
        """Return it with the demands that labels can meet: they name places of an axis, and none is beyond.

        The axes' extents are given by the positions of these inputs.
        """
        extent = None if self.integers is None else extents.get(self.integers)
        if extent is None or self.number is None:
            return self
        beyond = -1 if self.number <= 0 else 1 if self.number >= extent - 1 else None
        return replace(self, demands=tuple(one for one in self.demands if one != {beyond}))

    def missing(self, demand: frozenset[int]) -> str:
        """Return a demand in plain words."""
        makes_true = frozenset(_TRUE.get(self.op, ()))
        if demand == makes_true:
            return "true"
        if demand == frozenset({-1, 0, 1}) - makes_true or (self.op == "bool" and demand == {-1}):
            return "false"
        order = {-1: "less than", 0: "equal to", 1: "greater than"}
        return f"tried with {self.left} {' or '.join(order[one] for one in sorted(demand))} {self.right}"


def demands_of(op: str, possible: frozenset[int], *, direct: bool) -> tuple[frozenset[int], ...]:
    """Return what must be seen of a comparison, or nothing where it is decided before the program runs.

    That the two sides are equal is only demanded of numbers that inputs can be made to hold: what is
    computed of many others may never be just a number.
    """
    ordered = [frozenset({one}) for one in (-1, 1) if one in possible]
    if op in EXTREMA:
        return tuple(ordered) if len(ordered) == 2 else ()
    equal = [frozenset({0})] if 0 in possible else []
    if op in ("eq", "ne"):
        apart = ordered if direct else [frozenset({-1, 1} & possible)] if ordered else []
        return (*equal, *apart) if equal and apart else ()
    if op in ("lt", "ge"):  # less, against equal or greater
        sides = [frozenset({-1} & possible), frozenset({0, 1} & possible)]
    else:
        sides = [frozenset({1} & possible), frozenset({-1, 0} & possible)]
    if not all(sides):
        return ()
    return (*ordered, *equal) if direct else tuple(sides)


_SINKING = frozenset({"max", "exp", "exp2", "expm1", "sigmoid", "tanh", "erf"}) | COMPARED | EXTREMA
"""Operators that may make numbers of minus infinity."""

_CARRYING = frozenset({"add", "sub", "mul", "div", "where", "rename", "select", "max", "maximum", "minimum"})
"""Operators whose value may be minus infinity where one operand is, and that mix it with no other element."""


def sorts_out_nan(graph: Graph) -> bool:
    """Return whether results may be numbers where inputs are NaN: what selects is no NaN itself."""
    tensorless = tensorless_values(graph)
    return any(port.dtype == "bool" for port in graph.inputs) or any(
        step.op in COMPARED and not tensorless[at] for at, step in graph.numbered
    )


def names_of_minus_infinity(graph: Graph) -> frozenset[str]:
    """Return the inputs of a region whose numbers reach what makes numbers of minus infinity."""
    found: set[str] = set()
    carried: list[frozenset[str]] = [
        frozenset({port.name}) if port.dtype[0] in "fb" and port.dtype != "bool" else frozenset()
        for port in graph.inputs
    ]
    for step in graph.steps:
        given = frozenset[str]().union(*(carried[i] for i in step.inputs))
        if step.op in _SINKING:
            found |= given
        carried.append(given if step.op in _CARRYING else frozenset())
    return frozenset(found)


def may_take(nodes: Iterable[Region | Opaque], tensors: Iterable[Tensor]) -> bool:
    """Return whether a program may be tried where numbers are missing.

    Operators outside the algebra may fail on NaN, and may take the context of a GPU along. On a CPU those
    of PyTorch raise an exception.
    """
    opaque = [node for node in nodes if isinstance(node, Opaque)]
    if not opaque:
        return True
    on_cpu = all(one.device == torch.device("cpu") for one in tensors)
    return on_cpu and all(node.target.startswith("aten.") for node in opaque)
