"""The terms of a goal: what a graph computes, in the few operators that the axioms know.

Axes that always travel together through a goal are one axis here (a *group*), so that a view
into heads costs the search nothing. A sub-expression that reads no tensor, such as a causal mask,
is one leaf: no axiom could do anything with its inside.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from superopt.dtypes import FLOATS
from superopt.ir import Graph, Step, tensorless_values, value_axes
from superopt.ir.windows.place import Place
from superopt.ops import OPS

__all__ = ["OPERATORS", "Goal", "Leaf", "Node", "axis_groups", "goal_of"]

OPERATORS = (
    "leaf",
    "mul",
    "add",
    "inv",
    "neg",
    "exp",
    "sqrt",
    "maximum",
    "call1",
    "call2",
    "call3",
    "sum",
    "max",
    "access",
    "log",
    "window",
)
"""The operators of terms; a row of the search names an operator by its position here."""

COMMUTATIVE = frozenset({"mul", "add", "maximum"})


@dataclass(frozen=True, slots=True)
class Node:
    """One term: an operator on earlier terms; attr is the number of a leaf, function, axis group, access or
    window."""

    op: str
    args: tuple[int, ...] = ()
    attr: int = 0


@dataclass(frozen=True, slots=True)
class Leaf:
    """A term without arguments: a value of the graph, or a constant that an operator brings along."""

    position: int | None
    constant: Fraction | None
    mask: int  # bit set of axis groups
    nonnegative: bool = False  # known for certain
    once: bool = False  # it is a weight, or reads no tensor at all
    extent: int | None = None  # bit set of the axis groups whose sizes multiply to the leaf


@dataclass(frozen=True, slots=True)
class WindowRule:
    """Two chains of windows, the one that is read first being last, which show the same of any tensor.

    The tensor must lack the axes that only one side makes on the way. With `summed`, the left side is a sum
    over that axis, and the right side a sum over the axes that its window makes. With `beside`, both sides
    show the same only where that window reads inside, and are multiplied by what it shows.
    """

    name: str
    left: tuple[Place, ...]
    right: tuple[Place, ...]
    summed: str = ""
    beside: Place | None = None

    @property
    def between(self) -> frozenset[str]:
        """The axes that only one of the sides has, on the way."""
        read = [axis for chain in (self.left, self.right) for place in chain[:-1] for axis in place.axes]
        made = [axis for axis, _ in self.right[0].terms] if self.summed else []
        return frozenset(read + made)


@dataclass(frozen=True, slots=True)
class Goal:
    """A graph as terms: the nodes, what their numbers stand for, and the roots to be reached."""

    graph: Graph
    groups: tuple[tuple[str, ...], ...]
    nodes: tuple[Node, ...]
    leaves: tuple[Leaf, ...]
    functions: tuple[str, ...]
    accesses: tuple[tuple[str, tuple[tuple[str, str | int], ...]], ...]
    roots: tuple[int, ...]
    windows: tuple[Place, ...] = ()  # a window along several axes is one of each
    derivations: tuple[WindowRule, ...] = ()  # what holds of these windows alone

    def bit(self, axis: str) -> int:
        """Return the group number of an axis."""
        return next(i for i, group in enumerate(self.groups) if axis in group)

    def moves(self, access: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Return the bit set of groups that a rename or selection removes, and the (old, new) it renames."""
        mapping = self.accesses[access][1]
        renamed = tuple((self.bit(old), self.bit(new)) for old, new in mapping if isinstance(new, str))
        return sum(1 << self.bit(old) for old, _ in mapping), renamed

    def mask_after(self, op: str, attr: int, mask: int) -> int:
        """Return the axis groups of a term, as a bit set, from the union of its operands' groups."""
        if op in ("sum", "max"):
            return mask & ~(1 << attr)
        if op == "window":
            return mask & ~self.read_by(attr) | self.made_by(attr)
        if op != "access":
            return mask
        removed, renamed = self.moves(attr)
        return mask & ~removed | sum(1 << new for old, new in renamed if mask >> old & 1)

    def read_by(self, window: int) -> int:
        """Return the bit set of the axes that a window reads."""
        return sum(1 << self.bit(axis) for axis in self.windows[window].axes)

    def made_by(self, window: int) -> int:
        """Return the bit set of the axes that a window makes."""
        return sum(1 << self.bit(axis) for axis, _ in self.windows[window].terms)

    def with_constants(self, constants: Iterable[Fraction]) -> "Goal":
        """Return the goal with a leaf more for each of some constants."""
        return replace(self, leaves=(*self.leaves, *map(constant_leaf, constants)))


def constant_leaf(value: Fraction) -> Leaf:
    """Return the leaf of a constant."""
    return Leaf(None, value, 0, value >= 0)


def _plain_tensorless(graph: Graph) -> tuple[bool, ...]:
    """Return which values read no tensor, and no window either: those are leaves."""
    found = list(tensorless_values(graph))
    for value, step in graph.numbered:
        found[value] &= step.op != "window" and all(found[i] for i in step.inputs)
    return tuple(found)


def axis_groups(graph: Graph, apart: Iterable[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Return the axes of a graph in groups that no value and no step tells apart.

    The axes named in `apart` stay alone: halves of a split axis, to be reduced one by one.
    """
    marks: dict[str, list[int]] = {axis.name: [] for axis in graph.axes}
    alone = set(apart)
    for value, axes in enumerate(value_axes(graph)):
        for axis in axes:
            marks[axis].append(value)
    for position, step in enumerate(graph.steps):
        for axis in step.axes:
            marks[axis].append(-1 - position)
        if step.op in ("index", "size"):
            alone.update(step.axes)
        for old, new in step.mapping:
            alone.update({old, new} if isinstance(new, str) else {old})
        alone.update(axis for place in step.places for axis in place.named)
    groups: dict[object, list[str]] = {}
    for name, met in marks.items():
        groups.setdefault(name if name in alone else tuple(met), []).append(name)
    return tuple(tuple(group) for group in groups.values())


def goal_of(graph: Graph, apart: Iterable[str] = (), rules: Iterable[WindowRule] = ()) -> Goal:
    """Return the terms of a graph's outputs; the axes in `apart` are never grouped with others.

    `rules` are facts about windows of the graph, and about windows that it does not have yet.
    """
    bank = _Bank(graph, axis_groups(graph, apart))
    rules = tuple(rules)
    for rule in rules:
        for place in (*rule.left, *rule.right, *([rule.beside] if rule.beside else [])):
            bank.windows.setdefault(place, len(bank.windows))
    roots = tuple(bank.term(output.value) for output in graph.outputs)
    return Goal(
        graph,
        bank.groups,
        tuple(bank.nodes),
        tuple(bank.leaves),
        tuple(bank.functions),
        tuple(bank.accesses),
        roots,
        tuple(bank.windows),
        rules,
    )


@dataclass(slots=True)
class _Bank:
    """Builds terms, equal ones once: the `Scalars` arithmetic whose numbers are terms."""

    graph: Graph
    groups: tuple[tuple[str, ...], ...]
    nodes: list[Node] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    accesses: dict[tuple[str, tuple[tuple[str, str | int], ...]], int] = field(default_factory=dict)
    windows: dict[Place, int] = field(default_factory=dict)
    known: dict[object, int] = field(default_factory=dict)
    of_value: dict[int, int] = field(default_factory=dict)
    axes: tuple[frozenset[str], ...] = ()
    tensorless: tuple[bool, ...] = ()
    bits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bits = {axis: i for i, group in enumerate(self.groups) for axis in group}
        self.axes = value_axes(self.graph)
        self.tensorless = _plain_tensorless(self.graph)

    def term(self, value: int) -> int:
        """Return the term of a value of the graph."""
        pending = [value]
        while pending:  # an explicit stack: graphs may be deeper than Python's recursion limit
            top = pending[-1]
            step = self.graph.step_of(top)
            missing = (
                []
                if step is None or self.tensorless[top]
                else [i for i in step.inputs if i not in self.of_value]
            )
            if top in self.of_value:
                pending.pop()
            elif missing:
                pending.extend(missing)
            else:
                self.of_value[top] = self._build(top, step)
                pending.pop()
        return self.of_value[value]

    def _build(self, value: int, step: Step | None) -> int:
        if step is not None and step.value is not None:
            return self.const(step.value)
        if step is None or self.tensorless[value]:
            mask = sum(1 << bit for bit in {self.bits[axis] for axis in self.axes[value]})
            extent = self._extent(value)
            sign = extent is not None or self._is_nonnegative(value, step)
            once = step is not None or self._is_weight(value)
            return self._leaf(("value", value), Leaf(value, None, mask, sign, once, extent))
        args = [self.of_value[i] for i in step.inputs]
        if step.op in OPS:
            return int(OPS[step.op].scalar(self, *args))
        if step.op in ("rename", "select"):
            access = self.accesses.setdefault((step.op, step.mapping), len(self.accesses))
            return self._node("access", (args[0],), access)
        if step.op == "window":
            value = args[0]
            for place in step.places:
                number = self.windows.setdefault(place, len(self.windows))
                value = self._node("window", (value,), number)
            return value
        body = self.mul(args[0], args[1]) if step.op == "contract" else args[0]
        for bit in sorted({self.bits[axis] for axis in step.axes}):
            body = self._node("max" if step.op == "max" else "sum", (body,), bit)
        return body

    def _is_weight(self, value: int) -> bool:
        port = self.graph.inputs[value]
        return port.constant and port.dtype in FLOATS

    def _is_nonnegative(self, value: int, step: Step | None) -> bool:
        if step is None:
            return self.graph.inputs[value].dtype == "bool"
        return step.op == "index" or (step.op in OPS and OPS[step.op].mask)

    def _extent(self, value: int) -> int | None:
        """Return the axis groups whose extents multiply to a value, None where it is no such product."""
        extent = 0
        pending = [value]
        while pending:
            step = self.graph.step_of(pending.pop())
            if step is not None and step.op == "mul":
                pending.extend(step.inputs)
                continue
            if step is None or step.op != "size" or extent >> self.bits[step.axes[0]] & 1:
                return None
            extent |= 1 << self.bits[step.axes[0]]
        return extent

    def _leaf(self, key: object, leaf: Leaf) -> int:
        if key not in self.known:
            self.leaves.append(leaf)
            self.known[key] = self._node("leaf", (), len(self.leaves) - 1)
        return self.known[key]

    def _node(self, op: str, args: tuple[int, ...], attr: int = 0) -> int:
        node = Node(op, tuple(sorted(args)) if op in COMMUTATIVE else args, attr)
        if node not in self.known:
            self.nodes.append(node)
            self.known[node] = len(self.nodes) - 1
        return self.known[node]

    def const(self, value: Fraction) -> int:
        """Return the leaf of a constant."""
        return self._leaf(("const", value), constant_leaf(value))

    def infinity(self) -> int:
        """Return infinity, which the axioms take for a function that they know nothing about."""
        return self.function("infinity", self.const(Fraction(0)))

    def add(self, a: int, b: int) -> int:
        return self._node("add", (a, b))

    def mul(self, a: int, b: int) -> int:
        return self._node("mul", (a, b))

    def neg(self, a: int) -> int:
        return self._node("neg", (a,))

    def inv(self, a: int) -> int:
        return self._node("inv", (a,))

    def exp(self, a: int) -> int:
        return self._node("exp", (a,))

    def sqrt(self, a: int) -> int:
        return self._node("sqrt", (a,))

    def maximum(self, a: int, b: int) -> int:
        return self._node("maximum", (a, b))

    def less(self, a: int, b: int) -> int:
        return self.function("less", a, b)

    def equal(self, a: int, b: int) -> int:
        return self.function("equal", a, b)

    def where(self, mask: int, a: int, b: int) -> int:
        """Return the term of a selection; with zero on the other side it is a product."""
        return self.mul(mask, a) if b == self.const(Fraction(0)) else self.function("where", mask, a, b)

    def function(self, name: str, *args: int) -> int:
        """Return the application of a function; only the logarithm has axioms."""
        if name == "log":
            return self._node("log", args)
        number = self.functions.setdefault(name, len(self.functions))
        return self._node(f"call{len(args)}", args, number)
