"""Builder: values of the algebra while they are built, on axes that still merge and split.

A `Value` is a node by number; a `Sym` is a traced tensor: a value, its dimensions and its dtype.
A Sym may carry a mask: where it is 0, the tensor is minus infinity (see masks.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import isfinite

import torch

from superopt.ir import COMPARISONS
from superopt.ops import OPS
from superopt.trace.axes import Axes, Dim

__all__ = ["Builder", "Node", "Reading", "Sym", "UnsupportedError", "Window"]


class UnsupportedError(Exception):
    """The algebra has no rule for this use of an operator: it becomes opaque, with this reason."""


@dataclass(frozen=True, slots=True)
class Node:
    """One value: an input or an operator on earlier ones, on axes that may have changed since."""

    op: str  # "input", or an operator of the IR
    inputs: tuple[int, ...] = ()
    axes: Dim = ()
    mapping: tuple[tuple[int, int], ...] = ()
    value: Fraction | None = None
    places: "tuple[Window, ...]" = ()
    covers: Dim = ()  # the value's axes
    level: int = -1  # the region it belongs to; -1 fits anywhere
    tensorless: bool = False  # a function of axis indices alone
    mask: bool = False  # always 0 or 1


@dataclass(frozen=True, slots=True)
class Window:
    """Where a window reads a value: a place of the IR on axes that still merge and split."""

    read: Dim
    terms: tuple[tuple[int, int], ...]  # an axis, and the factor of its position
    offset: int


@dataclass(frozen=True, slots=True)
class Sym:
    """A traced tensor."""

    value: int
    dims: tuple[Dim, ...]
    dtype: torch.dtype
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A tensor read at known places along its dimensions: one after the other, or as it is where None."""

    source: Sym
    places: tuple[Sequence[int] | None, ...]  # ranges where they rise evenly


class Builder:
    """Makes nodes, equal ones once, and brings the axes of operands together."""

    def __init__(self, *, for_proof: bool = False) -> None:
        self.for_proof = for_proof
        self.axes = Axes()
        self.nodes: list[Node] = []
        self._known: dict[Node, int] = {}
        self.spans: dict[int, tuple[int, int]] = {}  # the least and the largest number of some integers
        self.stored: dict[int, torch.dtype] = {}  # the dtypes of the values that are inputs
        self.picks: dict[int, int] = {}  # a value -> the value of which each of its numbers is one, or 0
        self.first_places: dict[int, int] = {}  # a value that is the first place of a maximum -> of what
        self.readings: dict[int, tuple[Sym, Reading]] = {}  # a value, as which tensor it is what reading

    def add(self, node: Node) -> int:
        """Return the number of a node, new or known."""
        if node not in self._known:
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return self._known[node]

    def input(self, dims: tuple[Dim, ...], level: int, boolean: bool) -> int:
        """Return a new input on these dimensions; no two inputs are one."""
        covers = tuple(axis for dim in dims for axis in dim)
        self.axes.meet(covers)
        self.nodes.append(Node("input", covers=covers, level=level, mask=boolean))
        return len(self.nodes) - 1

    def const(self, value: Fraction | int | float) -> int:
        """Return an exact constant."""
        value = Fraction(value)
        return self.add(Node("const", value=value, tensorless=True, mask=value in (0, 1)))

    def size(self, dim: Dim) -> int:
        """Return the extent of a dimension, as a product of its axes' sizes."""
        found = self.const(1)
        for axis in self.axes.leaves(dim):
            found = self.apply("mul", found, self.add(Node("size", axes=(axis,), tensorless=True)))
        return found

    def index(self, dim: Dim) -> int:
        """Return the running index along a dimension."""
        found = self.const(0)
        for axis, inner in self.axes.grid(dim):
            own = self.add(Node("index", axes=(axis,), covers=(axis,), tensorless=True))
            found = self.apply("add", found, self.apply("mul", own, self.size(inner)))
        return found

    def table(self, dim: Dim, numbers: Sequence[Fraction | int | float]) -> int:
        """Return the value that is one of these numbers at each index of a dimension: lines, end to end."""
        if isinstance(numbers, range) and len(numbers) > 1:
            rise = self.apply("mul", self.index(dim), self.const(numbers.step))
            return self.apply("add", rise, self.const(numbers.start))
        exact = [Fraction(number) for number in numbers]
        index = self.index(dim)
        found: int | None = None
        start = 0
        while start < len(exact):
            step = exact[start + 1] - exact[start] if start + 1 < len(exact) else Fraction(0)
            end = start + 1
            while end < len(exact) and exact[end] - exact[end - 1] == step:
                end += 1
            rise = self.apply("mul", index, self.const(step)) if step else self.const(0)
            line = self.apply("add", rise, self.const(exact[start] - step * start))
            later = self.apply("ge", index, self.const(start))
            found = line if found is None else self.apply("where", later, line, found)
            start = end
        return self.const(0) if found is None else found

    def covers(self, value: int) -> frozenset[int]:
        """Return the axes of a value as they are now."""
        return frozenset(self.axes.leaves(self.nodes[value].covers))

    def constant(self, value: int) -> Fraction | None:
        """Return the number that a value is, or None."""
        return self.nodes[value].value

    def apply(self, op: str, *inputs: int) -> int:
        """Return an elementwise operator on values whose axes already agree."""
        simple = self._simplify(op, inputs)
        if simple is not None:
            return simple
        covers = self._union(inputs)
        self.axes.meet(covers)
        nodes = [self.nodes[i] for i in inputs]
        level = max((node.level for node in nodes), default=-1)
        tensorless = all(node.tensorless for node in nodes)
        mask = OPS[op].makes_mask(node.mask for node in nodes)
        return self.add(Node(op, inputs, covers=covers, level=level, tensorless=tensorless, mask=mask))

    def _union(self, inputs: Sequence[int]) -> Dim:
        return tuple(dict.fromkeys(axis for i in inputs for axis in self.axes.leaves(self.nodes[i].covers)))

    def _simplify(self, op: str, inputs: tuple[int, ...]) -> int | None:
        """Return what an operator amounts to when it does nothing, or works on constants alone."""
        values = [self.constant(i) for i in inputs]
        match op, values:
            case "neg", [Fraction() as a]:
                return self.const(-a)
            case "not", [Fraction() as a]:
                return self.const(1 - a)
            case "not", _ if self.nodes[inputs[0]].op == "not":
                return self.nodes[inputs[0]].inputs[0]
            case "not", _ if self.nodes[inputs[0]].tensorless and self.nodes[inputs[0]].op in COMPARISONS:
                node = self.nodes[inputs[0]]  # an index is never NaN, so the opposite is exact
                return self.apply(OPS[node.op].opposite, *node.inputs)
            case "add" | "sub", [a, Fraction(numerator=0)]:
                return inputs[0]
            case "add", [Fraction(numerator=0), b]:
                return inputs[1]
            case "mul" | "div", [a, Fraction(numerator=1, denominator=1)]:
                return inputs[0]
            case "mul", [Fraction(numerator=1, denominator=1), b]:
                return inputs[1]
            case "add" | "sub" | "mul" | "div", [Fraction() as a, Fraction() as b] if op != "div" or b:
                table = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b if b else a}
                return self.const(table[op])
            case (("lt" | "gt" | "le" | "ge" | "eq" | "ne"), [Fraction() as a, Fraction() as b]):
                truth = {"lt": a < b, "gt": a > b, "le": a <= b, "ge": a >= b, "eq": a == b, "ne": a != b}
                return self.const(int(truth[op]))
            case "and", [a, b]:
                return self._logical(inputs, a, b, neutral=1)
            case "or", [a, b]:
                return self._logical(inputs, a, b, neutral=0)
            case "log", _ if self.nodes[inputs[0]].op == "exp":  # as in a logsumexp of one element
                return self.nodes[inputs[0]].inputs[0]
            case "div", _ if inputs[0] == inputs[1] and self.nodes[inputs[0]].op == "exp":  # a softmax of one
                return self.const(1)
            case "where", [Fraction() as a, _, _]:
                return inputs[1] if a else inputs[2]
            case "where", [_, _, _] if inputs[1] == inputs[2]:
                return inputs[1]
        return None

    def _logical(
        self, inputs: tuple[int, ...], a: Fraction | None, b: Fraction | None, neutral: int
    ) -> int | None:
        if inputs[0] == inputs[1]:
            return inputs[0]
        for own, other in ((a, inputs[1]), (b, inputs[0])):
            if own is not None:
                return other if own == neutral else self.const(1 - neutral)
        return None

    def reduce(self, op: str, value: int, axes: Sequence[int]) -> int:
        """Return a sum or maximum over axes that the value has."""
        axes = self.axes.leaves(axes)
        if not axes:
            return value
        node = self.nodes[value]
        covers = tuple(axis for axis in self.axes.leaves(node.covers) if axis not in axes)
        mask = node.mask and op == "max"
        return self.add(Node(op, (value,), axes, covers=covers, level=node.level, mask=mask))

    def contract(self, a: int, b: int, axes: Sequence[int]) -> int:
        """Return the product of two values summed over axes that either has."""
        axes = self.axes.leaves(axes)
        covers = self._union((a, b))
        for constant, other in ((a, b), (b, a)):
            if self.constant(constant) is not None:
                return self.apply("mul", constant, self.reduce("sum", other, axes))
        if not axes:
            return self.apply("mul", a, b)
        self.axes.meet(covers)
        level = max(self.nodes[a].level, self.nodes[b].level)
        kept = tuple(axis for axis in covers if axis not in axes)
        return self.add(Node("contract", (a, b), axes, covers=kept, level=level))

    def rename(self, value: int, mapping: Mapping[int, int]) -> int:
        """Return a value on other axes, all at once; the mapping is between leaves."""
        covers = self.covers(value)
        used = {old: new for old, new in mapping.items() if old in covers and old != new}
        if not used:
            return value
        node = self.nodes[value]
        if node.tensorless:
            return self.substitute(value, {old: self.index((new,)) for old, new in used.items()})
        for old, new in used.items():
            self.axes.pair(old, new)
        leaves = self.axes.leaves(node.covers)
        moved = tuple(used.get(axis, axis) for axis in leaves)
        self.axes.meet(moved)
        pairs = tuple(sorted(used.items()))
        return self.add(
            Node("rename", (value,), mapping=pairs, covers=moved, level=node.level, mask=node.mask)
        )

    def select(self, value: int, at: Mapping[int, int]) -> int:
        """Return a value at fixed positions of some of its axes."""
        covers = self.covers(value)
        used = {axis: position for axis, position in at.items() if axis in covers}
        if not used:
            return value
        node = self.nodes[value]
        if node.tensorless:
            return self.substitute(value, {axis: self.const(position) for axis, position in used.items()})
        kept = tuple(axis for axis in self.axes.leaves(node.covers) if axis not in used)
        pairs = tuple(sorted(used.items()))
        return self.add(
            Node("select", (value,), mapping=pairs, covers=kept, level=node.level, mask=node.mask)
        )

    def window(self, value: int, read: Dim, terms: Sequence[tuple[Dim, int]], offset: int) -> int:
        """Return a value read along a dimension at a sum of other dimensions' indices, 0 outside."""
        old = self.axes.leaves(read)
        made = [
            (axis, factor * self.axes.extent(inner))
            for dim, factor in terms
            for axis, inner in self.axes.grid(dim)
        ]
        self.axes.meet((*old, *(axis for axis, _ in made)))
        covers, node = self.covers(value), self.nodes[value]
        if node.tensorless or not covers & set(old):
            return self._computed_window(value, old, terms, offset)
        if not covers.issuperset(old):
            raise UnsupportedError("windows along a dimension that is repeated in part")
        if not made:
            size = self.axes.extent(old)
            at = self.axes.position(old, offset)
            return self.select(value, at) if 0 <= offset < size else self.const(0)
        window = Window(old, tuple(made), offset)
        kept = tuple(axis for axis in self.axes.leaves(node.covers) if axis not in old)
        new = tuple(dict.fromkeys((*kept, *(axis for axis, _ in made))))
        self.axes.meet((*self.axes.leaves(node.covers), *new))
        before: tuple[Window, ...] = ()
        if node.op == "window" and (padded := self._padded_by(node, old)) is not None:
            both = Window(padded.read, window.terms, padded.offset + offset)
            places = tuple(both if one is padded else one for one in node.places)
            return self.add_window(replace(node, places=places, covers=new))
        if node.op == "window":
            named = {axis for one in node.places for axis in (*one.read, *(axis for axis, _ in one.terms))}
            if {*old, *(axis for axis, _ in made)}.isdisjoint(self.axes.leaves(tuple(named))):
                before, value = node.places, node.inputs[0]
        places = (*before, window)
        return self.add_window(
            Node("window", (value,), places=places, covers=new, level=node.level, mask=node.mask)
        )

    def _padded_by(self, node: Node, old: Dim) -> Window | None:
        """Return the place of a window that made such an axis by adding zeros around what it reads."""
        for place in node.places:
            if len(old) == 1 and place.terms == ((old[0], 1),):
                end = place.offset + self.axes.extent(old)
                if place.offset <= 0 and end >= self.axes.extent(place.read):
                    return place
        return None

    def add_window(self, node: Node) -> int:
        """Return the number of a window, no two axes of which ever become one."""
        read = [axis for one in node.places for axis in one.read]
        self.axes.meet((*read, *(axis for one in node.places for axis, _ in one.terms), *node.covers))
        return self.add(node)

    def _computed_window(self, value: int, old: Dim, terms: Sequence[tuple[Dim, int]], offset: int) -> int:
        """Return a window of what reads no tensor, or is the same along the whole dimension."""
        place = self.const(offset)
        for dim, factor in terms:
            place = self.apply("add", place, self.apply("mul", self.index(dim), self.const(factor)))
        size = self.const(self.axes.extent(old))
        inside = self.apply("and", self.apply("ge", place, self.const(0)), self.apply("lt", place, size))
        if self.covers(value) & set(old):
            if len(old) > 1:
                raise UnsupportedError("windows of indices along a dimension of several axes")
            value = self.substitute(value, {old[0]: place})
        return self.apply("mul", inside, value)

    def substitute(self, value: int, places: Mapping[int, int]) -> int:
        """Return a tensorless value with other values in the place of some axes' indices."""
        node = self.nodes[value]
        assert node.tensorless
        if node.op == "index":
            total = self.const(0)
            for axis, inner in self.axes.grid(node.axes):
                own = places.get(axis, self.add(Node("index", axes=(axis,), covers=(axis,), tensorless=True)))
                total = self.apply("add", total, self.apply("mul", own, self.size(inner)))
            return total
        if not node.inputs:
            return value
        return self.apply(node.op, *(self.substitute(i, places) for i in node.inputs))

    def dims(self, sym: Sym) -> tuple[Dim, ...]:
        """Return the dimensions of a tensor as they are now."""
        return tuple(self.axes.leaves(dim) for dim in sym.dims)

    def shape(self, sym: Sym) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self.axes.extent(dim) for dim in sym.dims)

    def scalar(self, value: float | int | bool, dtype: torch.dtype) -> Sym:
        """Return a number as a tensor; minus infinity is 0 under an empty mask."""
        if isinstance(value, complex) or value != value:
            raise UnsupportedError(f"the constant {value} has no meaning in the algebra")
        if not isfinite(value):
            if value > 0:
                return Sym(self.add(Node("infinity", tensorless=True)), (), dtype)
            return Sym(self.const(0), (), dtype, self.const(0))
        return Sym(self.const(Fraction(value)), (), dtype)

    def join(self, operands: Sequence[tuple[Sym, Sequence[object]]]) -> tuple[list[Sym], dict[object, Dim]]:
        """Return the operands with equally labelled dimensions on the same axes, and those axes.

        Axes merge where they may; where they have met, the later operand is renamed.
        """
        placed: dict[object, Dim] = {}
        joined = []
        for sym, labels in operands:
            mapping: dict[int, int] = {}
            named = list(zip(labels, sym.dims, strict=True))
            shared = [(label, dim) for label, dim in named if self.axes.leaves(dim) and label in placed]
            self._match(placed, shared)
            for label, dim in shared:
                count = len(self.axes.leaves(dim))
                for i in range(count):
                    p, q = self.axes.leaves(placed[label])[i], self.axes.leaves(dim)[i]
                    if p == q:
                        continue
                    if self.axes.met(p, q):
                        mapping[q] = p
                    else:
                        self.axes.merge(p, q)
            mapping = {self.axes.root(q): self.axes.root(p) for q, p in mapping.items()}
            for label, dim in named:
                leaves = self.axes.leaves(dim)
                if not leaves or label in placed:
                    continue
                used = {axis for other in placed.values() for axis in self.axes.leaves(other)}
                for axis in leaves:
                    if axis in used:
                        mapping[axis] = self.axes.twin(axis)
                placed[label] = tuple(mapping.get(axis, axis) for axis in leaves)
                self.axes.meet(axis for other in placed.values() for axis in other)
            joined.append(self.map(sym, partial(self.rename, mapping=mapping)))
        return joined, {label: self.axes.leaves(dim) for label, dim in placed.items()}

    def _match(self, placed: Mapping[object, Dim], shared: Sequence[tuple[object, Dim]]) -> None:
        """Split axes until every shared dimension has the same factors on both sides."""
        while True:
            version = self.axes.version
            for label, dim in shared:
                if not self.axes.match(placed[label], dim):
                    ours, theirs = (self._sizes(d) for d in (placed[label], dim))
                    raise UnsupportedError(
                        f"dimensions with the factors {ours} and {theirs} have no common refinement"
                    )
            if version == self.axes.version:
                return

    def _sizes(self, dim: Dim) -> tuple[int, ...]:
        return tuple(self.axes.sizes[axis] for axis in self.axes.leaves(dim))

    def map(self, sym: Sym, function: Callable[[int], int]) -> Sym:
        """Return a tensor with its value, and its mask, replaced; the dimensions stay."""
        mask = None if sym.mask is None else function(sym.mask)
        return replace(sym, value=function(sym.value), mask=mask)

    def broadcast(self, *syms: Sym) -> tuple[list[Sym], tuple[Dim, ...]]:
        """Return tensors on common axes by PyTorch's broadcasting, and the common dimensions."""
        rank = max(len(sym.dims) for sym in syms)
        operands = [(sym, range(rank - len(sym.dims), rank)) for sym in syms]
        joined, placed = self.join(operands)
        dims = tuple(placed.get(i, ()) for i in range(rank))
        self.axes.meet(axis for dim in dims for axis in dim)
        return joined, dims

    def settle(self, sym: Sym) -> Sym:
        """Return a tensor without a mask: minus infinity becomes explicit."""
        if sym.mask is None:
            return sym
        low = self.apply("neg", self.add(Node("infinity", tensorless=True)))
        return replace(sym, value=self.apply("where", sym.mask, sym.value, low), mask=None)
