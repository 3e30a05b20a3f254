"""Statements: a block graph written out as loads, computations and stores, for every code generator.

    load w in loop[k]            each tensor is read where its tile is first complete, so a tensor
    start t4                     that does not depend on a loop is read before it
    t4 += contract[k](t3, w)     accumulators start before the loop that fills them
    move t8, rescale t12         a running shift is computed anew, and sums under the old shift are
    store t11                    rescaled; results leave where they are complete

Every tile has the axes of its value. The code generator and the tuner decide along which axes it has a single
position, and how long it is along the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from superopt.ir import (
    REDUCTIONS,
    Graph,
    Port,
    Split,
    Step,
    growths,
    made_from,
    tensorless_values,
    value_axes,
    value_names,
)
from superopt.ir.mugraph import Block, Call, Loop, MuGraph, Tile, called_order, running_path
from superopt.ir.mugraph.kernels import seen_through
from superopt.ir.running import rescaled_by
from superopt.ir.windows.apart import read_as_lines

__all__ = [
    "Compute",
    "Factors",
    "KernelProgram",
    "Load",
    "LoopStatement",
    "Move",
    "Reach",
    "Start",
    "Statement",
    "Store",
    "Tensor",
    "Term",
    "axis_strides",
    "contiguous_strides",
    "lower_block",
    "split_extents",
    "traced_strides",
]


Factors = tuple[tuple[int, Fraction], ...]  # operands, and the numbers that multiply them as they are read


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in memory that a kernel reads or writes: a port of the program, or a value between kernels."""

    value: int
    name: str
    dtype: str
    axes: tuple[str, ...]  # outermost first; each has a stride of its own at run time
    port: Port | None  # None for a value between kernels, which is laid out contiguously
    is_read_later: bool = False  # whether kernels that run later read this result as a value between kernels

    @property
    def crosses(self) -> bool:
        """Whether kernels that run later read it."""
        return self.port is None or self.is_read_later


@dataclass(frozen=True, slots=True)
class Load:
    """Read the tile of a tensor."""

    value: int


@dataclass(frozen=True, slots=True)
class Start:
    """Set an accumulator to the neutral element of its reduction."""

    value: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute a step on tiles; one that accumulates adds to what `Start` began."""

    value: int
    step: Step
    accumulates: tuple[str, ...] = ()  # the axes of loops around it that it reduces over
    inside: tuple[str, ...] = ()  # the axes it reduces over within the tile
    factors: Factors = ()


@dataclass(frozen=True, slots=True)
class Move:
    """Compute a running shift anew, in a loop; before the loop it was computed once, by `Compute`.

    Every accumulator in `rescales` is then multiplied by exp(degree * (new - old)), or the power of two.
    """

    value: int
    step: Step
    rescales: tuple[tuple[int, Fraction], ...]
    base_two: bool = False
    factors: Factors = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Write the tile of a value to memory, once for each output that carries it."""

    value: int
    tensor: Tensor


Term = tuple[tuple[str, str], ...]  # a product of ("index" or "size", axis); empty for 1


@dataclass(frozen=True, slots=True)
class Reach:
    """A mask that holds only where the loop's position is below, or above, a form in other positions."""

    mask: int
    upper: bool  # position <= form, else position >= form
    form: tuple[tuple[Term, int], ...]


@dataclass(frozen=True, slots=True)
class LoopStatement:
    """Walk along one axis, tile by tile, where the masks of `reaches` hold."""

    axis: str
    body: tuple["Statement", ...]
    reaches: tuple[Reach, ...] = ()


Statement = Load | Start | Compute | Move | Store | LoopStatement


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """One kernel, ready to be printed in any language."""

    name: str
    graph: Graph
    grid: tuple[str, ...]
    loads: tuple[Tensor, ...]
    stores: tuple[Tensor, ...]
    statements: tuple[Statement, ...]
    splits: tuple[Split, ...] = ()  # splits whose parts are on the grid: `inner` ends where the axis does
    # Values that kernels leave for other kernels, with their dtypes.
    crossing: frozenset[tuple[int, str]] = frozenset()

    def repeated(self, value: int) -> tuple[str, ...]:
        """Return the axes of the grid that a stored value lacks: only the first program along them stores."""
        axes = value_axes(self.graph)[value]
        return tuple(axis for axis in self.grid if axis not in axes)

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis that the kernel walks along, spreads over the grid, or keeps whole."""
        used = {axis for value in self.values() for axis in value_axes(self.graph)[value]}
        used |= {axis for step in self.steps() for axis in step.axes}
        return tuple(axis.name for axis in self.graph.axes if axis.name in used)

    @property
    def looped(self) -> tuple[str, ...]:
        """The axes that its loops walk along."""
        return tuple(dict.fromkeys(loop.axis for loop in self.loops()))

    def loops(self) -> Iterator[LoopStatement]:
        """Yield its loops, outer ones first."""
        pending = list(reversed(self.statements))
        while pending:
            statement = pending.pop()
            if isinstance(statement, LoopStatement):
                yield statement
                pending += reversed(statement.body)

    def flat(self) -> Iterator[tuple[Statement, tuple[str, ...]]]:
        """Yield every statement but loops, in order, with the axes of the loops around it."""
        pending: list[tuple[Statement, tuple[str, ...]]] = [(one, ()) for one in reversed(self.statements)]
        while pending:
            statement, loops = pending.pop()
            if isinstance(statement, LoopStatement):
                around = (*loops, statement.axis)
                pending += [(inner, around) for inner in reversed(statement.body)]
            else:
                yield statement, loops

    def readings(self) -> tuple[tuple[str, ...], ...]:
        """Return the axes of the tensors it loads as they are read, outermost first, once for each way.

        Keys that one step made along `m` are read along `m2` by scores of `m` and `m2`.
        """
        ways: dict[int, dict[tuple[str, ...], None]] = {one.value: {one.axes: None} for one in self.loads}
        direct: set[int] = set()
        for statement, _ in self.flat():
            if isinstance(statement, Compute) and statement.step.op in ("rename", "select", "window"):
                for axes in ways.get(statement.step.inputs[0], ()):
                    ways.setdefault(statement.value, {})[seen_through(axes, statement.step)] = None
            elif isinstance(statement, (Compute, Move)):
                direct.update(statement.step.inputs)
            elif isinstance(statement, Store):
                direct.add(statement.value)
        return tuple(axes for value, found in ways.items() if value in direct for axes in found)

    def values(self) -> set[int]:
        """Return the values whose tiles the kernel holds."""
        return {one.value for one, _ in self.flat() if isinstance(one, (Load, Compute, Move))}

    def steps(self) -> tuple[Step, ...]:
        """Return the steps it computes."""
        return tuple(one.step for one, _ in self.flat() if isinstance(one, (Compute, Move)))


def lower_block(mugraph: MuGraph, number: int, *, alike: bool = False) -> KernelProgram:
    """Return one block kernel of a muGraph as statements.

    The axes of values between kernels lie in memory in the order of the graph, or `alike` those of what they
    are read with.
    """
    block = mugraph.kernels[number]
    assert isinstance(block, Block)
    return _Lowering(mugraph, block, alike).program(f"{mugraph.graph.name.replace('.', '_')}_{number}")


def axis_strides(port: Port, strides: Sequence[int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the stride of each axis of a tensor, from the strides of its dimensions at a port."""
    found: dict[str, int] = {}
    for dim, stride in zip(port.dims, strides, strict=True):
        for axis in reversed(dim):
            found[axis] = stride
            stride *= sizes[axis]
    return found


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(prod(max(size, 1) for size in shape[at + 1 :]) for at in range(len(shape)))


def traced_strides(tensor: Tensor, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the strides that a tensor had when it was traced, or the strides of a contiguous tensor."""
    if tensor.port is not None and tensor.port.strides is not None:
        return axis_strides(tensor.port, tensor.port.strides, sizes)
    return dict(zip(tensor.axes, contiguous_strides([sizes[axis] for axis in tensor.axes]), strict=True))


def split_extents(split: Split, sizes: Mapping[str, int], multiple: int = 1) -> dict[str, int]:
    """Return sizes with the parts of a split axis made for its extent.

    `sizes` has the extent of the axis and how many parts are wanted; each part is a multiple of
    `multiple` long, so that tiles do not cross parts, and no part but the last is short.
    """
    size, parts = sizes[split.axis], max(sizes[split.outer], 1)
    place = max(-(-size // (parts * multiple)), 1) * multiple
    return {**sizes, split.outer: max(-(-size // place), 1), split.inner: place}


class _Lowering:
    """What one kernel's statements are made from."""

    def __init__(self, mugraph: MuGraph, block: Block, alike: bool) -> None:
        self.mugraph = mugraph
        self.graph = mugraph.graph
        self.block = block
        self.axes = value_axes(self.graph)
        self.names = value_names(self.graph)
        self.tensorless = tensorless_values(self.graph)
        self.rounded = dict(mugraph.rounded)
        self.alike = alike
        self.loads = set(mugraph.loads(block))
        self.stored = set(mugraph.stores(block))
        self.read_later = {value for other in mugraph.kernels for value in mugraph.loads(other)}
        calls = [kernel for kernel in mugraph.kernels if isinstance(kernel, Call)]
        self.called = {value for call in calls for value in (*mugraph.loads(call), *mugraph.stores(call))}
        self.ready: set[int] = set()
        self.moves: dict[int, Move] = {}

    def program(self, name: str) -> KernelProgram:
        statements = self._body(self.block.body, ())
        splits = tuple(split for split in self.mugraph.splits if split.outer in self.block.grid)
        stores = tuple(tensor for value in sorted(self.stored) for tensor in self._stored_tensors(value))
        loads = tuple(self._loaded_tensor(value) for value in sorted(self.loads))
        made = (value for value in self.read_later if value >= len(self.graph.inputs))
        crossing = frozenset((value, self.rounded.get(value, "f32")) for value in made)
        return KernelProgram(
            name, self.graph, self.block.grid, loads, stores, tuple(statements), splits, crossing
        )

    def _body(self, items: tuple[Tile | Loop, ...], loops: tuple[str, ...]) -> list[Statement]:
        found: list[Statement] = []
        for item in items:
            if isinstance(item, Loop):
                around = (*loops, item.axis)
                inner = list(_tiles(item))
                outer_loads = [
                    i
                    for tile in inner
                    for i in self._operands(tile.value)
                    if i in self.loads and not self.axes[i] & self._looped(item)
                ]
                found += [self._load(i) for i in dict.fromkeys(outer_loads) if i not in self.ready]
                started = [
                    tile.value
                    for tile in inner
                    if self._accumulated(tile.value, (item.axis,))
                    and not self._accumulated(tile.value, loops)
                ]
                found += [Start(value) for value in dict.fromkeys(started)]
                path = running_path(self.graph, item) if item.running else ()
                found += self._run(item, path)
                before = set(self.ready)
                found.append(LoopStatement(item.axis, tuple(self._body(item.body, around))))
                # A tile read inside a loop is gone after it; what was accumulated stays.
                self.ready = before | set(started)
                found += self._finished([*started, *path], loops)
            else:
                found += self._tile(item, loops)
        return found

    def _run(self, loop: Loop, path: tuple[int, ...]) -> list[Statement]:
        """Return what starts the running shifts of a loop, and note how they move in it."""
        tensorless = [i for value in path for i in self._operands(value) if self.tensorless[i]]
        found: list[Statement] = []
        for value in dict.fromkeys([*sorted(made_from(tensorless, self._operands)), *path]):
            step = self.graph.step_at(value)
            found += [self._load(i) for i in step.inputs if i in self.loads and i not in self.ready]
            if value not in self.ready:
                found.append(Compute(value, step))
                self.ready.add(value)
        filled = [tile.value for tile in _tiles(loop) if self._accumulated(tile.value, (loop.axis,))]
        for shift in loop.running:
            growth = growths(self.graph, shift)
            degrees = [(value, rescaled_by(growth[value])) for value in filled if value in growth]
            step = self.graph.step_at(shift)
            self.moves[shift] = Move(shift, step, tuple((value, d) for value, d in degrees if d))
        return found

    def _tile(self, tile: Tile, loops: tuple[str, ...]) -> list[Statement]:
        value = tile.value
        step = self.graph.step_at(value)
        found: list[Statement] = [
            self._load(i) for i in dict.fromkeys(step.inputs) if i in self.loads and i not in self.ready
        ]
        accumulates = self._accumulated(value, loops)
        inside = tuple(axis for axis in step.axes if axis not in accumulates) if step.op in REDUCTIONS else ()
        if value in self.moves:
            return [*found, self.moves[value]]
        found.append(Compute(value, step, accumulates, inside))
        if value in self.ready:
            return found  # a value on the path of a running shift is known since before the loop
        self.ready.add(value)
        if not accumulates and not tile.recomputed:
            found += self._finished([value], loops)
        return found

    def _finished(self, values: list[int], loops: tuple[str, ...]) -> list[Statement]:
        """Return the stores of values that are now complete."""
        done: list[Statement] = []
        for value in dict.fromkeys(values):
            if value in self.stored and not self._accumulated(value, loops):
                done += [Store(value, tensor) for tensor in self._stored_tensors(value)]
        return done

    def _load(self, value: int) -> Load:
        self.ready.add(value)
        return Load(value)

    def _operands(self, value: int) -> tuple[int, ...]:
        step = self.graph.step_of(value)
        return () if step is None else step.inputs

    def _looped(self, loop: Loop) -> set[str]:
        return {loop.axis} | {
            axis for item in loop.body if isinstance(item, Loop) for axis in self._looped(item)
        }

    def _accumulated(self, value: int, loops: tuple[str, ...]) -> tuple[str, ...]:
        step = self.graph.step_of(value)
        if step is None or step.op not in REDUCTIONS:
            return ()
        return tuple(axis for axis in loops if axis in step.axes)

    def _stored_tensors(self, value: int) -> list[Tensor]:
        outputs = [output.port for output in self.graph.outputs if output.value == value]
        between = self._between(value) if value in self.read_later else None
        lies = between and (between.dtype, tuple((axis,) for axis in between.axes), None)
        both = next((port for port in outputs if (port.dtype, port.dims, port.strides) == lies), None)
        found = [Tensor(value, port.name, port.dtype, port.axes, port, port is both) for port in outputs]
        return found if both or between is None else [*found, between]

    def _loaded_tensor(self, value: int) -> Tensor:
        if value < len(self.graph.inputs):
            port = self.graph.inputs[value]
            return Tensor(value, port.name, port.dtype, port.axes, port)
        return self._between(value)

    def _between(self, value: int) -> Tensor:
        dtype = self.rounded.get(value, "f32")
        order = self._order(value)
        if value not in self.called:
            order = read_as_lines(self.graph, value, order)
        return Tensor(value, self.names[value], dtype, order, None)

    def _order(self, value: int) -> tuple[str, ...]:
        """Return the axes of a value in memory, in the order of the graph or `alike` what it is read with.

        Parts come first: what a program leaves of its part lies in one piece.
        What a contraction reads along several axes lies alike in both operands, where the other one is a
        tensor of the program: these axes come last. Those first that contractions only repeat over.
        """
        if value in self.called:
            return called_order(self.mugraph, value)
        axes = [axis.name for axis in self.graph.axes if axis.name in self.axes[value]]
        parts = {split.outer for split in self.mugraph.splits}
        if not self.alike:
            return tuple(sorted(axes, key=lambda axis: axis not in parts))
        repeated: set[str] = set()
        last: list[str] = []
        for step in self.graph.steps:
            if step.op != "contract":
                continue
            a, b = (self.axes[i] for i in step.inputs)
            if a != b:
                repeated |= (a & b) - set(step.axes)
            if value not in step.inputs:
                continue
            for port in (self.graph.inputs[i] for i in step.inputs if i < len(self.graph.inputs)):
                joint = [axis for axis in port.axes if axis in step.axes and axis not in parts]
                last = max(last, joint, key=len)
        rest = [axis for axis in axes if axis not in last]
        return (*sorted(rest, key=lambda axis: axis not in parts | repeated), *last)  # sorting is stable


def _tiles(loop: Loop) -> Iterator[Tile]:
    for item in loop.body:
        if isinstance(item, Loop):
            yield from _tiles(item)
        else:
            yield item
