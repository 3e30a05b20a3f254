"""Tiles: the names and places of one kernel's values, and the text of what a statement reads."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from superopt.codegen.statements import Compute, KernelProgram, LoopStatement, Move, Statement, Store, Tensor
from superopt.codegen.triton.config import TritonConfig
from superopt.codegen.triton.descriptors import Descriptor, describe, memory_order
from superopt.codegen.triton.expression import Expression, as_float, as_mask, atom
from superopt.codegen.triton.plan import (
    Lanes,
    Plan,
    after_operator,
    compared_quotients,
    kept_splits,
    make_plan,
    sources,
)
from superopt.codegen.triton.source import Argument
from superopt.codegen.triton.text import Mentions, Names, index_of
from superopt.dtypes import DTYPES, FP8, HALVES, INTEGERS
from superopt.ir import Step, print_step, selects, value_axes, value_names
from superopt.ops import OPS

__all__ = ["At", "Held", "Tiles", "transposed"]

BYTES = frozenset(name for name in INTEGERS if DTYPES[name].bytes == 1)  # exact in every half precision


@dataclass(frozen=True, slots=True)
class Held:
    """A value as the kernel holds it: an expression, usually a name, and its tile."""

    expression: Expression
    axes: tuple[str, ...]
    dtype: str = "f32"  # the dtype of the tile in registers
    lanes: dict[str, Lanes] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The expression's text."""
        return self.expression.text


@dataclass(frozen=True, slots=True)
class At:
    """A fact of the places of a window, as a position or whether it lies inside, and the axes of its tile."""

    text: str
    axes: tuple[str, ...]


class Tiles:
    """What one kernel holds while it is printed."""

    def __init__(
        self, program: KernelProgram, config: TritonConfig, plain: frozenset[str], long: frozenset[int]
    ) -> None:
        self.program = program
        self.config = config
        self.plain = plain  # tensors without descriptors
        self.plan: Plan = make_plan(program, config)
        self.long = long - self.plan.products.keys()  # sums beside which is kept what rounding takes
        self.lost: dict[int, str] = {}  # the names of what is kept
        self.graph = program.graph
        self.compared = compared_quotients(program.graph)
        self.axes = value_axes(program.graph)
        self.names = value_names(program.graph)
        self.loaded = sources(program)
        self.held: dict[int, Held] = {}
        self.scaled: dict[tuple[int, tuple[str, ...]], tuple[Held, Held]] = {}  # operands, and by what
        self.late: set[int] = set()  # accumulators whose lanes are added up after their loop
        self.helpers: set[str] = set()  # functions that the kernel calls, and that Triton lacks
        self.watched = _watched(program.statements)
        self.shown = list(self.names)  # how comments name values
        self.inside: str | None = None  # an axis beyond whose end no tile of this loop reaches
        names = self.unique = Names()
        tensors = {tensor.name: tensor for tensor in (*program.loads, *program.stores)}
        self.mentions = Mentions()
        table = self.mentions.table
        self.pointers = table({name: names.take(f"{name}_ptr") for name in tensors})
        self.strides = table(
            {
                (tensor.name, axis): names.take(f"stride_{tensor.name}_{axis}")
                for tensor in tensors.values()
                for axis in self.memory_axes(tensor)
            }
        )
        held = program.values() | {tensor.value for tensor in program.loads}
        self.variables = {value: names.take(self.names[value]) for value in sorted(held)}
        roles = self.plan.roles
        self.extents = table({axis: names.take(axis.upper(), f"size_{axis}") for axis in self.graph.sizes})
        self.block = table({axis: names.take(f"BLOCK_{axis.upper()}", f"BLOCK_{axis}") for axis in roles})
        self.splits = {split.inner: split for split in kept_splits(program)}
        # The extents of parts, the last of which may be short.
        self.ends = table(
            {axis: names.take(f"end_{axis}") for axis in self.splits if axis not in config.exact}
        )
        self.mask = table({axis: names.take(f"mask_{axis}") for axis in roles})
        self.place = table({axis: names.take(f"offs_{axis}") for axis in roles})
        self.pid = table({axis: names.take(f"pid_{axis}") for axis in program.grid})
        self.counter = table({axis: names.take(f"{axis}0") for axis in roles})
        for axis in program.grid:
            if self.plan.roles[axis] == "single":
                self.place[axis] = self.pid[axis]
        self.looped = set(program.looped)
        self.raw = self._raw_loads()
        self.turned = self._turned_loads()
        self.hoisted = {name: self.shared_places(tensor) for name, tensor in tensors.items()}
        self.described: dict[tuple[str, tuple[tuple[str, int], ...]], Argument] = {}
        self.bases = table(self.pointers)  # the address from which a program counts its places
        if self.persistent:
            self.bases.update({name: names.take(f"{name}_at") for name, axes in self.hoisted.items() if axes})

    @property
    def persistent(self) -> bool:
        """Whether a program moves from place to place on the grid."""
        return bool(self.config.persistent and self.program.grid)

    def masked(self, axis: str) -> bool:
        """Return whether tiles reach beyond the end of an axis."""
        return self.plan.roles[axis] != "single" and axis not in self.config.exact and axis != self.inside

    def end(self, axis: str) -> str:
        """Return the name of where an axis ends for this program."""
        return self.ends[axis] if axis in self.ends else self.extents[axis]

    def wide(self, text: str) -> str:
        """Return positions as 64-bit integers where offsets need them."""
        if not self.config.wide:
            return text
        return f"({text}).to(tl.int64)" if " " in text else f"{text}.to(tl.int64)"

    def operand(self, value: int, axes: tuple[str, ...]) -> Expression:
        """Return a value as an operand of elementwise arithmetic over these axes."""
        held = self.read(value)
        text = held.expression
        if held.dtype != "f32":
            text = atom(f"{text.text}.to(tl.float32)")
        if not held.axes or held.axes == axes:
            return text
        return replace(text, text=self.spread(text.inside(6), held.axes, axes), level=6)

    def read(self, value: int) -> Held:
        """Return what the kernel holds of a value that is about to be printed."""
        step = self.graph.step_of(value)
        if step is not None and step.op in ("index", "size"):
            self.mentions.found.add(self.held[value].text)
        return self.held[value]

    def selecting(self, step: Step, operands: Sequence[Expression]) -> tuple[Expression, ...]:
        """Return operands, the mask of a product as a truth value: its zeros hide even infinities."""
        if not selects(self.graph, step):
            return tuple(operands)
        pairs = zip(step.inputs, operands, strict=True)
        return tuple(as_mask(one) if self.plan.masks[i] else as_float(one) for i, one in pairs)

    def spread(self, text: str, axes: tuple[str, ...], wanted: tuple[str, ...]) -> str:
        """Return text of a tile with these axes, with a dimension of 1 for each wanted axis it lacks."""
        if axes == wanted:
            return text
        text = text if re.fullmatch(r"[\w.]+(\(.*\))?", text) else f"({text})"
        return f"{text}[{index_of(axes, wanted)}]"

    def seen(self, at: At, axes: tuple[str, ...]) -> str:
        """Return what holds for the places of a window, spread over the axes of its tile."""
        if at.axes and at.axes != axes:
            return self.spread(at.text, at.axes, axes)
        return at.text if at.text.isidentifier() else f"({at.text})"

    def zeroed(
        self, value: int, axes: tuple[str, ...], hidden: Sequence[str], fill: str = "0.0"
    ) -> Expression:
        """Return an operand with zeros in the lanes beyond the end of some axes."""
        text = self.operand(value, axes)
        if not hidden:
            return text
        mask = " & ".join(self.spread(self.mask[axis], (axis,), axes) for axis in hidden)
        return atom(f"tl.where({mask}, {as_float(text).text}, {fill})")

    def lanes(self, value: int, axis: str) -> Lanes | None:
        """Return what a value's tile holds beyond the end of an axis; None where it lacks the axis."""
        held = self.held[value]
        if axis not in held.axes:
            return None
        return held.lanes.get(axis, Lanes.ANY)

    def lanes_after(self, step: Step, axis: str) -> Lanes:
        """Return what a scalar operator, or a sum of products, leaves beyond the end of an axis."""
        inputs, op = step.inputs, "mul" if step.op == "contract" else step.op
        if selects(self.graph, step):
            inputs, op = tuple(sorted(inputs, key=lambda i: not self.plan.masks[i])), "guard"
        return after_operator(op, [self._lanes_read(i, axis) for i in inputs])

    def _lanes_read(self, value: int, axis: str) -> Lanes:
        """Return what an operand holds beyond the end of an axis; where it lacks the axis, its numbers."""
        lanes, step = self.lanes(value, axis), self.graph.step_of(value)
        if lanes is not None:
            return lanes
        if self.graph.constant(value) == 0:
            return Lanes.ZERO
        if step is not None and step.op in ("const", "size"):
            return Lanes.USUAL
        if self.plan.masks[value] or (step is not None and step.op == "index"):
            return Lanes.FINITE
        if value in self.loaded:
            return Lanes.FINITE if self.loaded[value].dtype in INTEGERS else Lanes.ANY
        if step is None or step.op not in OPS or self.axes[value]:
            return Lanes.ANY
        return self.lanes_after(step, axis)

    def mask_text(self, masked: tuple[str, ...], axes: tuple[str, ...]) -> str:
        """Return which lanes of a tile are within the axes; empty where all are."""
        return " & ".join(self.spread(self.mask[axis], (axis,), axes) for axis in masked if self.masked(axis))

    def address(self, tensor: Tensor, axes: tuple[str, ...], places: Mapping[str, str | int | At]) -> str:
        """Return the addresses of a tile: single positions first, then its axes."""
        terms: list[tuple[int, str]] = []
        for axis, place in places.items():
            stride = self.strides[tensor.name, axis]
            if isinstance(place, At):
                last = max((1 + axes.index(one) for one in place.axes), default=0)
                terms.append((last, f"{self.seen(place, axes)} * {stride}"))
            elif isinstance(place, int):
                if place:
                    step = f"tl.cast({stride}, tl.int64)" if self.config.wide else stride
                    terms.append((0, stride if place == 1 else f"{place} * {step}"))
            elif place in axes:
                text = self.spread(self.place[place], (place,), axes)
                terms.append((1 + axes.index(place), f"{text} * {stride}"))
            elif axis not in self.hoisted[tensor.name]:
                terms.append((0, f"{self.position(place)} * {stride}"))
        ordered = [text for _, text in sorted(terms, key=lambda term: term[0])]
        return " + ".join([self.bases[tensor.name], *ordered])

    def descriptor(self, tensor: Tensor, places: dict[str, str | int]) -> Descriptor | None:
        """Return the descriptor by which a tile comes or goes, if it does."""
        if not self.config.descriptors or tensor.name in self.plain:
            return None
        found = describe(self.program, self.plan, self.config, tensor, places)
        return found if isinstance(found, Descriptor) else None

    def named(self, tensor: Tensor, seen: Descriptor) -> str:
        """Return the name of a descriptor, which becomes an argument."""
        key = tensor.name, tuple(zip(seen.axes, seen.block, strict=True))
        if key not in self.described:
            name = self.unique.take(f"{tensor.name}_desc")
            self.described[key] = Argument(name, "descriptor", tensor.name, dtype=tensor.dtype, seen=key[1])
        self.mentions.found.add(self.described[key].name)
        return self.described[key].name

    def corner(self, seen: Descriptor) -> str:
        """Return where the tile of a descriptor starts."""
        return f"[{', '.join(self._start_along(place) for place in seen.places)}]"

    def _start_along(self, place: str | int) -> str:
        if isinstance(place, int):
            return str(place)
        role = self.plan.roles[place]
        if role == "whole":
            return "0"
        if role == "single":
            text = self.place[place]
        elif place in self.looped:
            text = self.counter[place]
        else:
            text = f"{self.pid[place]} * {self.block[place]}"
        return f"tl.cast({text}, tl.int32)" if self.config.wide else text

    def tile_of(self, seen: Descriptor) -> tuple[str, ...]:
        """Return the axes of the tile that a descriptor leads to, in the order of memory."""
        return tuple(
            place for place in seen.places if isinstance(place, str) and self.plan.roles[place] != "single"
        )

    def shared_places(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the axes of a tensor along which a program stays at its one position on the grid."""
        fixed = {axis for axis in self.program.grid if self.plan.roles[axis] == "single"}
        for step in self.program.steps():
            if step.mapping and tensor.value in step.inputs:
                fixed -= {str(axis) for pair in step.mapping for axis in pair}
            if tensor.value in step.inputs:
                fixed -= {axis for place in step.places for axis in place.axes}
        return tuple(axis for axis in self.memory_axes(tensor) if axis in fixed)

    def position(self, axis: str) -> str:
        """Return the text of the one position that a program, or a turn of a loop, is at."""
        wide = self.config.wide and axis not in self.program.grid
        return f"tl.cast({self.place[axis]}, tl.int64)" if wide else self.place[axis]

    def shape(self, axes: tuple[str, ...]) -> str:
        """Return the shape of a tile."""
        blocks = ", ".join(self.block[axis] for axis in axes)
        return f"({blocks},)" if len(axes) == 1 else f"({blocks})"

    def comment_of(self, value: int) -> str:
        """Return the graph's own text of the step that makes a value."""
        step = self.graph.step_at(value)
        return self.comment(step)

    def comment(self, step: Step) -> str:
        """Return the graph's own text of a step."""
        return print_step(step, self.shown)

    def memory_axes(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the axes along which a tensor is really laid out, which are the axes of its value."""
        return tuple(axis for axis in tensor.axes if axis in self.axes[tensor.value])

    def _raw_loads(self) -> set[int]:
        """Return the values that are kept in their own dtype, because a matrix product reads them."""
        products = self.plan.products.values()
        operands = {i for product in products for i in (product.lhs, product.rhs)}
        return {i for i in operands if self.plan.dtypes.get(i) in HALVES | FP8 | BYTES}

    def _turned_loads(self) -> dict[int, tuple[str, ...]]:
        """Return the tiles that matrix products read in several orders, in the order of memory.

        Each product then reads them where they are on chip, as they are or transposed.
        """
        orders: dict[int, set[tuple[str, ...]]] = {}
        for one in self.plan.products.values():
            orders.setdefault(one.lhs, set()).add((*one.batch, *one.rows, *one.inner))
            orders.setdefault(one.rhs, set()).add((*one.batch, *one.inner, *one.columns))
        products = self.plan.products
        elsewhere = {
            i
            for one, _ in self.program.flat()
            if isinstance(one, (Compute, Move)) and one.value not in products
            for i in one.step.inputs
        } | {one.value for one, _ in self.program.flat() if isinstance(one, Store)}
        found = {}
        for value, several in orders.items():
            if len(several) > 1 and value in self.raw - elsewhere and value in self.loaded:
                tensor = self.loaded[value]
                kept = self.plan.tile_axes(tensor.axes)
                order = memory_order(self.graph, tensor, tensor.axes)
                found[value] = tuple(axis for axis in order if axis in kept)
        return found


def _watched(statements: Sequence[Statement]) -> frozenset[int]:
    """Return the accumulators that are read in the loop that fills them: maxima of running shifts."""
    found = frozenset[int]()
    for loop in statements:
        if isinstance(loop, LoopStatement):
            steps = [one for one in loop.body if isinstance(one, (Compute, Move))]
            grown = {one.value for one in steps if isinstance(one, Compute) and one.accumulates}
            found |= {i for one in steps for i in one.step.inputs if i in grown} | _watched(loop.body)
    return found


def transposed(text: str, axes: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    """Return the text of a tile with its axes in another order."""
    if axes == wanted:
        return text
    order = ", ".join(str(axes.index(axis)) for axis in wanted)
    return f"tl.trans({text})" if len(axes) == 2 else f"tl.permute({text}, ({order}))"
