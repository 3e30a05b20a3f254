"""Plan: statements grouped into what becomes loops of C++: fills, nests of fused steps, contractions."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from math import prod

from superopt.codegen.order import axes_in_order
from superopt.codegen.statements import (
    Compute,
    KernelProgram,
    Load,
    LoopStatement,
    Move,
    Reach,
    Start,
    Statement,
    Store,
    traced_strides,
)
from superopt.ir import REDUCTIONS, Graph, Step, mask_values, value_axes
from superopt.ir.windows.place import reads_outside

__all__ = [
    "LEAVES",
    "VIEWS",
    "Contraction",
    "Fill",
    "Item",
    "Nest",
    "Plan",
    "Shift",
    "Walk",
    "changed_values",
    "is_written_out",
    "make_plan",
    "viewed",
]

LEAVES = frozenset({"const", "infinity", "size", "index"})
"""Steps that are written where they are read."""

VIEWS = frozenset({"rename", "select", "window"})
"""Steps that read other places of a value, and compute nothing."""


def viewed(graph: Graph, value: int) -> int:
    """Return the value behind renames, selections and windows: what is read where a view is asked for."""
    step = graph.step_of(value)
    while step is not None and step.op in VIEWS:
        value = step.inputs[0]
        step = graph.step_of(value)
    return value


def is_written_out(graph: Graph, value: int) -> bool:
    """Whether a value is a constant, an extent or an index, or a view of one, which no memory holds."""
    step = graph.step_of(viewed(graph, value))
    return step is not None and step.op in LEAVES


_LANES = 16  # lanes of the widest vectors
_PANEL = 64  # columns of a panel
_MOST_TAPS = 128  # sums over so many positions of windows stay in registers
_FEWEST = 4  # with fewer rows or columns, copies of windows do not pay


@dataclass(slots=True)
class Nest:
    """Steps fused into one nest of loops over the same axes."""

    axes: frozenset[str]
    statements: list[Compute | Store] = field(default_factory=list)
    # Whether it sums over the short axes of windows in registers; `rest` are the steps on these sums.
    slides_over_windows: bool = False
    # Whether it sums products of one row with a matrix that is made on the way, each sum in a register.
    sums_in_registers: bool = False
    rest: list[Compute | Store] = field(default_factory=list)

    @property
    def made(self) -> set[int]:
        """The values it computes."""
        return {one.value for one in (*self.statements, *self.rest) if isinstance(one, Compute)}

    @property
    def reduced(self) -> frozenset[str]:
        """The axes over which it reduces."""
        return frozenset(axis for one in self.reductions for axis in one.step.axes)

    @property
    def reductions(self) -> list[Compute]:
        """The steps that reduce."""
        return [one for one in self.statements if isinstance(one, Compute) and one.step.op in REDUCTIONS]


@dataclass(slots=True)
class Contraction:
    """A contraction by the runtime's micro-kernel: C[m, n] += sum over k of A[m, k] B[k, n]."""

    compute: Compute
    a: int
    b: int
    m: str | None
    n: str
    k: str | None
    around: tuple[str, ...]  # axes of loops around it
    # How many enclosing loops must advance before operand A changes; its packed panel is reused until then.
    walks: int | None = None
    # The axes of the rows, of the columns and of the sum, where parts of windows are copied.
    gathered: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None = None


@dataclass(slots=True)
class Fill:
    """Set an accumulator to the neutral element of its reduction."""

    value: int


@dataclass(slots=True)
class Shift:
    """A running shift moves: sums under the old shift are rescaled."""

    move: Move


@dataclass(slots=True)
class Walk:
    """A loop along an axis, tile by tile."""

    axis: str
    body: list["Item"]
    reaches: tuple[Reach, ...] = ()  # masks that bound the loop more tightly than the extent of the axis


Item = Nest | Contraction | Fill | Shift | Walk


@dataclass(slots=True)
class Plan:
    """The body of a kernel, and which values need a tile in memory."""

    body: list[Item]
    kept: set[int]
    added: set[int]  # reductions by nests of loops, which are no contractions
    order: tuple[str, ...]  # all axes; those along which memory runs come last


def make_plan(program: KernelProgram, single: frozenset[str]) -> Plan:
    """Return the plan of a kernel in which tiles have one position of the `single` axes."""
    planner = _Planner(program, single)
    body = planner.sliding(planner.body(program.statements))
    planner.find_reused_rows(body)
    return Plan(body, planner.kept(body), _reduced(body), planner.order)


class _Planner:
    def __init__(self, program: KernelProgram, single: frozenset[str]) -> None:
        self.program = program
        self.graph = program.graph
        self.axes = value_axes(self.graph)
        self.single = single
        self.order = axes_in_order(program)
        self.rank = {axis: i for i, axis in enumerate(self.order)}
        self.masks = mask_values(self.graph)
        self.stored = {tensor.value for tensor in program.stores}
        places = [place for step in program.steps() for place in step.places]
        self.taps = {axis for place in places for axis, _ in place.terms}
        # Products of one row with matrices in panels that are made on the way.
        self.register_sums: set[int] = set()

    def body(self, statements: tuple[Statement, ...]) -> list[Item]:
        items: list[Item] = []
        first = 0  # a statement joins no nest before this item, since a loop or a fill came between
        for one in statements:
            if isinstance(one, LoopStatement):
                items.append(Walk(one.axis, self.body(one.body), one.reaches))
                first = len(items)
            elif isinstance(one, Start):
                items.append(Fill(one.value))
                first = len(items)
            elif isinstance(one, Move):
                items.append(Shift(one))
                first = len(items)
            elif isinstance(one, Store):
                self._place(items, first, one, self.axes[one.value] | set(one.tensor.axes))
            elif isinstance(one, Compute) and one.step.op not in LEAVES | VIEWS:
                contraction = self._contraction(one)
                if contraction is not None:
                    items += [contraction] if one.accumulates else [Fill(one.value), contraction]
                else:
                    work = self.axes[one.value].union(*(self.axes[i] for i in one.step.inputs))
                    self._place(items, first, one, work)
            else:
                assert isinstance(one, (Load, Compute))
        return items

    def sliding(self, items: list[Item]) -> list[Item]:
        """Return items in which sums over windows stay in registers, with the steps that follow them."""
        found: list[Item] = []
        for item in items:
            before = found[-1] if found else None
            if isinstance(item, Walk):
                found.append(replace(item, body=self.sliding(item.body)))
            elif isinstance(item, Nest) and self._slides_over_windows(item):
                found.append(replace(item, slides_over_windows=True))
            elif isinstance(item, Nest) and self._sums_in_registers(item):
                found.append(replace(item, sums_in_registers=True))
            elif isinstance(before, Nest) and isinstance(item, Nest) and self._follows(before, item):
                found[-1] = replace(before, rest=[*before.rest, *item.statements])
            elif isinstance(before, Nest) and isinstance(item, Nest) and self._goes_before(before, item):
                found.insert(-1, item)
            else:
                found.append(item)
        return found

    def _slides_over_windows(self, nest: Nest) -> bool:
        """Whether a nest reduces over few positions of windows, in one tile, and runs along another axis."""
        computed = [one for one in nest.statements if isinstance(one, Compute)]
        kept = [axis for axis in self.order if axis in nest.axes - self.single]
        return (
            bool(nest.reduced & self.taps)
            and prod(self.graph.sizes[axis] for axis in nest.reduced) <= _MOST_TAPS
            and bool(kept)
            and kept[-1] not in nest.reduced
            and not any(one.accumulates for one in computed)
            and all(one.step.op in REDUCTIONS or one.value not in self.stored for one in computed)
        )

    def _sums_in_registers(self, nest: Nest) -> bool:
        """Whether all that a nest reduces are products of one row with matrices that are made on the way."""
        reduced = {one.value for one in nest.reductions}
        return bool(reduced) and reduced <= self.register_sums

    def _follows(self, before: Nest, item: Nest) -> bool:
        """Whether a nest runs along what is left of a nest over windows, and reduces nothing."""
        moved = set[int]().union(*map(self.elsewhere, item.statements))
        along = item.axes == before.axes - before.reduced and moved.isdisjoint(before.made)
        return before.slides_over_windows and not item.reduced and along

    def _goes_before(self, before: Nest, item: Nest) -> bool:
        """Whether a nest reads nothing of a nest over windows, whose further steps may read the item."""
        reads = set[int]().union(*(self.sources(one) for one in item.statements))
        return before.slides_over_windows and reads.isdisjoint(before.made)

    def _place(self, items: list[Item], first: int, one: Compute | Store, work: frozenset[str]) -> None:
        """Add a statement to the earliest nest over its axes that comes after all it reads."""
        reads = self.sources(one)
        earliest = first
        for at in range(len(items) - 1, first - 1, -1):
            item = items[at]
            if isinstance(item, Contraction) and item.compute.value in reads:
                earliest = at + 1
                break
            if isinstance(item, Nest) and item.made & reads:
                reduces = {one.value for one in item.reductions}
                apart = reduces | self.elsewhere(one)
                earliest = at + 1 if apart & reads & item.made else at
                break
        reduced = (
            frozenset(one.step.axes)
            if isinstance(one, Compute) and one.step.op in REDUCTIONS
            else frozenset()
        )
        for item in items[earliest:]:
            if isinstance(item, Nest) and item.axes == work:
                if one.value in item.made and isinstance(one, Compute):
                    continue
                if not (reduced and item.reduced and reduced != item.reduced):
                    item.statements.append(one)
                    return
        items.append(Nest(work, [one]))

    def sources(self, one: Compute | Store) -> set[int]:
        """Return the values that a statement reads, seen through renames."""
        return set(map(self.source, _inputs(one)))

    def elsewhere(self, one: Compute | Store) -> set[int]:
        """Return the values that a statement reads at other places than its own."""
        return {self.source(i) for i in _inputs(one) if self.source(i) != i}

    def source(self, value: int) -> int:
        """Return the value behind renames and selections."""
        return viewed(self.graph, value)

    def _contraction(self, one: Compute) -> Contraction | None:
        """Return how the micro-kernel computes a step, or None where plain loops must."""
        step: Step = one.step
        if step.op != "contract" or any(self.masks[i] or is_written_out(self.graph, i) for i in step.inputs):
            return None
        a, b = step.inputs
        result = [axis for axis in self.order if axis in self.axes[one.value] and axis not in self.single]
        if not result or (result[-1] in self.axes[a]) == (result[-1] in self.axes[b]):
            return None
        n = result[-1]
        if n in self.axes[a]:
            a, b = b, a
        rows = [axis for axis in result if axis in self.axes[a] and axis not in self.axes[b]]
        summed = [axis for axis in self.order if axis in step.axes and axis not in self.single]
        slides = any(self._reads_taps(i, step.axes) for i in (a, b))
        if slides or any(map(self._reaches_outside, (a, b))):
            return self._gathered(one, a, b, rows, result, summed) if slides else None
        if not rows and self._is_made_in_panels(one, b, n):
            self.register_sums.add(one.value)
            return None
        m = rows[-1] if rows else None
        # The last axis is that along which memory runs, and others may continue it; a short one is no loop.
        long = [axis for axis in summed if self.graph.sizes[axis] >= _LANES]
        k = long[-1] if long else max(summed, key=self.graph.sizes.__getitem__, default=None)
        around = [axis for axis in (*result, *summed) if axis not in (m, n, k)]
        return Contraction(one, a, b, m, n, k, tuple(around))

    def _is_made_in_panels(self, one: Compute, matrix: int, column: str) -> bool:
        """Whether a matrix is made on the way, and has few columns, along which memory runs."""
        loaded = {tensor.value for tensor in self.program.loads}
        work = self.axes[one.value].union(*(self.axes[i] for i in one.step.inputs)) - self.single
        last = next(axis for axis in reversed(self.order) if axis in work)
        few = self.graph.sizes[column] <= _PANEL
        return few and last == column and self.source(matrix) not in loaded

    def _gathered(
        self, one: Compute, a: int, b: int, rows: list[str], result: list[str], summed: list[str]
    ) -> Contraction | None:
        """Return a contraction of windows, if so many rows meet each that copies of them are worth it."""
        sizes = self.graph.sizes
        columns = [axis for axis in result if axis in self.axes[b] and axis not in self.axes[a]]
        if min(prod(sizes[axis] for axis in part) for part in (rows, columns)) < _FEWEST:
            return None
        # A sum runs along the memory of the operand that is no window, which then is a plain matrix.
        plain = next((i for i in (a, b) if not self._reads_taps(i, one.step.axes)), a)
        tensor = next((found for found in self.program.loads if found.value == plain), None)
        if tensor is not None:
            strides = traced_strides(tensor, sizes)
            summed = sorted(summed, key=lambda axis: -strides.get(axis, 0))
        around = tuple(axis for axis in result if axis not in (*rows, *columns))
        groups = tuple(rows), tuple(columns), tuple(summed)
        return Contraction(one, a, b, rows[-1], columns[-1], summed[-1], around, gathered=groups)

    def _reads_taps(self, value: int, summed: Collection[str]) -> bool:
        """Whether a view of a tensor is a window whose places move with an axis of a sum."""
        step = self.graph.step_of(value)
        while step is not None and step.op in VIEWS:
            if any(axis in summed for place in step.places for axis, _ in place.terms):
                return True
            step = self.graph.step_of(step.inputs[0])
        return False

    def find_reused_rows(self, body: list[Item]) -> None:
        """Note which contractions read the same rows several times, so that they are packed once for all."""
        rescaled = {
            value for one, _ in self.program.flat() if isinstance(one, Move) for value, _ in one.rescales
        }
        readers: dict[tuple[int, int], list[Contraction]] = {}

        def visit(items: list[Item], walks: list[Walk]) -> None:
            for item in items:
                if isinstance(item, Walk):
                    visit(item.body, [*walks, item])
                elif isinstance(item, Contraction) and self._is_packed(item):
                    if self.source(item.a) in rescaled:
                        continue
                    changed = [
                        depth
                        for depth, walk in enumerate(walks, 1)
                        if walk.axis in self.axes[item.a] or self.source(item.a) in changed_values(walk.body)
                    ]
                    item.walks = max(changed, default=0)
                    again = item.walks < len(walks) or bool(item.around)
                    where = id(walks[item.walks - 1]) if item.walks else 0
                    readers.setdefault((item.a, where), []).extend([item] * (1 + again))

        visit(body, [])
        for items in readers.values():
            if len(items) == 1 or len({(item.m, item.k) for item in items}) > 1:
                for item in items:
                    item.walks = None

    def _is_packed(self, item: Contraction) -> bool:
        """Whether a contraction may pack its rows once for several turns of the loops around it."""
        return item.gathered is None and not self.axes[item.a] & set(item.around)

    def _reaches_outside(self, value: int) -> bool:
        """Whether a view of a tensor is 0 somewhere because it reads outside."""
        step = self.graph.step_of(value)
        while step is not None and step.op in VIEWS:
            if any(reads_outside(place, self.graph.sizes) for place in step.places):
                return True
            step = self.graph.step_of(step.inputs[0])
        return False

    def kept(self, body: list[Item]) -> set[int]:
        """Return the computed values that are read outside the nest that makes them."""
        found: set[int] = set()
        for item in body:
            if isinstance(item, Walk):
                found |= self.kept(item.body)
            elif isinstance(item, Contraction):
                found |= {self.source(item.a), self.source(item.b), item.compute.value}
            elif isinstance(item, Fill):
                found.add(item.value)
            elif isinstance(item, Shift):
                found |= {self.source(i) for i in item.move.step.inputs} | {item.move.value}
            else:
                for one in (*item.statements, *item.rest):
                    direct = {one.value} if isinstance(one, Store) else set(one.step.inputs)
                    found |= {self.source(i) for i in direct if i not in item.made}
                    reduces = isinstance(one, Compute) and one.step.op in REDUCTIONS
                    if reduces and not item.slides_over_windows:
                        found.add(one.value)
        return {
            value
            for value in found
            if (step := self.graph.step_of(value)) is not None and step.op not in LEAVES
        }


def _reduced(items: list[Item]) -> set[int]:
    """Return the reductions that nests compute."""
    found: set[int] = set()
    for item in items:
        if isinstance(item, Walk):
            found |= _reduced(item.body)
        elif isinstance(item, Nest):
            found |= {one.value for one in item.reductions}
    return found


def changed_values(items: Iterable[Item]) -> set[int]:
    """Return the values that items make, or change."""
    found: set[int] = set()
    for item in items:
        match item:
            case Walk():
                found |= changed_values(item.body)
            case Fill():
                found.add(item.value)
            case Contraction():
                found.add(item.compute.value)
            case Shift():
                found |= {item.move.value, *(value for value, _ in item.move.rescales)}
            case Nest():
                found |= item.made
    return found


def _inputs(one: Compute | Store) -> tuple[int, ...]:
    return (one.value,) if isinstance(one, Store) else tuple(one.step.inputs)
