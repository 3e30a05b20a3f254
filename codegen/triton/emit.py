"""Emit: one block kernel as Triton source that a person would keep."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from superopt.codegen.errors import UnsupportedError
from superopt.codegen.lowering import lower_for_triton
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
)
from superopt.codegen.triton.config import TritonConfig
from superopt.codegen.triton.expression import HELPERS, TritonText, apply, as_float, atom, quotient
from superopt.codegen.triton.frame import Frame
from superopt.codegen.triton.memory import Memory
from superopt.codegen.triton.plan import Lanes, long_sums
from superopt.codegen.triton.reductions import Reductions
from superopt.codegen.triton.source import TritonSource
from superopt.codegen.triton.text import Lines
from superopt.codegen.triton.tiles import Held, transposed
from superopt.ir import REDUCTIONS, Step, format_constant
from superopt.ops import OPS

__all__ = ["EARLY_IMPORT", "emit"]

EARLY_IMPORT = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
_EARLY = (
    "gdc_wait()  # nothing is read or written before the kernel before this one has ended",
    "gdc_launch_dependents()",
)
_ENDLESS = 'float("-inf")'


def emit(
    program: KernelProgram,
    config: TritonConfig,
    plain: frozenset[str] = frozenset(),
    long: frozenset[int] | None = None,
) -> TritonSource:
    """Return the Triton source of a kernel under a configuration, or raise UnsupportedError.

    Tensors in `plain` are read and written without descriptors, whatever the configuration says. What
    rounding takes from `long` sums is kept beside them; by default these are the long ones of the graph.
    """
    if long is None:
        long = long_sums(program, config.blocks, program.graph.sizes)
    return _Emitter(program, config, plain, long).source()


class _Emitter(Frame, Memory, Reductions):
    """Prints one kernel: its statements in order, then what stands around them."""

    def __init__(
        self, program: KernelProgram, config: TritonConfig, plain: frozenset[str], long: frozenset[int]
    ) -> None:
        super().__init__(lower_for_triton(program), config, plain, long)
        self.holding: int | None = None  # the mask that holds everywhere in the loop being printed

    def source(self) -> TritonSource:
        body = self._statements(self.program.statements)
        body = [*(_EARLY if self.config.early else []), *self.repeated([*self.head(), *body])]
        grid = tuple(
            (axis, 1 if self.plan.roles[axis] == "single" else self.config.tile(axis))
            for axis in self.grid_order()
        )
        arguments = self.arguments()
        self.helpers |= {
            OPS[step.op].triton.partition("(")[0] for step in self.program.steps() if step.op in OPS
        }
        helpers = [text for name, text in HELPERS.items() if name in self.helpers]
        lines = ["import triton", "import triton.language as tl"]
        lines += [EARLY_IMPORT] if self.config.early else []
        lines += ["", ""]
        for text in helpers:
            lines += [*text.splitlines(), "", ""]
        lines += ["@triton.jit", *self.signature(arguments), *self.docstring()]
        lines += [f"    {line}" if line else "" for line in body]
        return TritonSource("\n".join(lines) + "\n", self.program.name, tuple(arguments), grid, self.config)

    def _statements(self, statements: Sequence[Statement]) -> list[str]:
        lines = Lines()
        started: list[int] = []
        for statement in statements:
            match statement:
                case Load():
                    self.load_statement(lines, statement.value)
                    self.scale(lines, statement.value)
                case Start():
                    self._start(lines, statement.value)
                    started.append(statement.value)
                case Compute():
                    self._compute(lines, statement)
                    if not statement.accumulates:
                        self.scale(lines, statement.value)
                case Move():
                    self._move(lines, statement)
                case Store():
                    self.store(lines, statement)
                case LoopStatement():
                    self._loop(lines, statement)
                    filled = {one.value for one in _computes(statement)}
                    for value in [value for value in started if value in filled]:
                        started.remove(value)
                        if value in self.late:
                            self.finish(lines, value)
                        self.scale(lines, value)
        return lines.found

    def _loop(self, lines: Lines, loop: LoopStatement) -> None:
        axis = loop.axis
        if self.plan.roles[axis] == "whole":
            raise UnsupportedError(f"{self.program.name}: axis {axis!r} is looped over; it cannot be whole")
        if self.plan.roles[axis] == "single":
            lines.add(f"for {self.place[axis]} in range({self.end(axis)}):")
            lines.found += [f"    {line}" for line in self._statements(loop.body)]
            return
        block = self.block[axis]
        start, end, free = "0", self.end(axis), None
        reaches = [(reach, bound) for reach in loop.reaches if (bound := self.bound(reach)) is not None]
        for reach, bound in reaches:
            if not reach.upper:
                start = f"tl.maximum({start}, ({bound}) // {block} * {block})"
                continue
            if free is None and self._only_hides(reach.mask, loop):
                free = reach, f"tl.minimum({end}, {self.bound(reach, everywhere=True)}) // {block} * {block}"
            end = f"tl.minimum({end}, {bound})"
        if free is not None:
            start = self._free(lines, loop, free[0], start, free[1])
        walked = self._walk(loop, start, end)
        for reach, _ in reaches:
            place = "Beyond" if reach.upper else "Before"
            lines.add(f"# {place} this, {self.comment_of(reach.mask)} holds nowhere.")
        lines.found += walked

    def _free(self, lines: Lines, loop: LoopStatement, reach: Reach, start: str, middle: str) -> str:
        """Print the loop over tiles where a mask holds everywhere; return where the rest starts."""
        axis = loop.axis
        name = self.unique.take(f"{self.counter[axis]}_masked")
        ahead = start == "0" and all(factor > 0 for _, factor in reach.form)
        held, shown, names = self.held.copy(), self.shown.copy(), self.unique.taken.copy()
        self.holding, self.inside = reach.mask, axis
        walked = self._walk(loop, start, name)
        lines.add(f"# Before this, {self.comment_of(reach.mask)} holds everywhere.")
        lines.add(f"{name} = {middle if ahead else f'tl.maximum({start}, {middle})'}")
        lines.found += walked
        self.holding, self.inside = None, None
        self.held, self.shown, self.unique.taken = held, shown, names
        return name

    def _walk(self, loop: LoopStatement, start: str, end: str) -> list[str]:
        """Return a loop over tiles."""
        axis, counter = loop.axis, self.counter[loop.axis]
        outside, self.mentions.found = self.mentions.found, set()
        body = self._statements(loop.body)
        places = self.mentioned(self.place_definitions(axis, lambda: f"{counter} + "))
        self.mentions.found |= outside
        reach = f"{start}, {end}, {self.block[axis]}"
        # Triton prefetches the operands of a product by itself; other loops must ask for stages.
        ahead = self.config.num_stages > 1 and self._only_loads(loop)
        ranged = f"tl.range({reach}, num_stages={self.config.num_stages})" if ahead else f"range({reach})"
        head = f"for {counter} in {ranged}:"
        return [head, *(f"    {line}" for line in (*places, *body))]

    def _only_loads(self, loop: LoopStatement) -> bool:
        """Return whether a loop reads tiles, and has neither a matrix product nor another loop in it."""
        return (
            any(isinstance(one, Load) for one in loop.body)
            and not any(isinstance(one, LoopStatement) for one in loop.body)
            and not any(one.value in self.plan.products for one in _computes(loop))
        )

    def _only_hides(self, mask: int, loop: LoopStatement) -> bool:
        """Return whether a loop uses a mask only in steps from which `_unmasked` removes it."""
        computes = [one for one in loop.body if isinstance(one, Compute)]
        readers = [one.value for one in computes if mask in one.step.inputs]
        inside = any(one.value == mask for one in computes)
        return inside and all(self._unmasked(value, mask) is not None for value in readers)

    def _unmasked(self, value: int, mask: int) -> int | None:
        """Return what a step makes where a mask holds, if that is one of its operands."""
        step = self.graph.step_at(value)
        others = [i for i in step.inputs if i != mask]
        fits = (step.op == "where" and step.inputs[0] == mask) or (step.op == "mul" and len(others) == 1)
        return others[0] if fits and others and self.axes[others[0]] == self.axes[value] else None

    def _start(self, lines: Lines, value: int) -> None:
        step = self.graph.step_at(value)
        axes = self.accumulator_axes(value)
        name = self.variables[value]
        shape = self.shape(axes)
        if step.op == "max" and not self.plan.masks[value]:  # among no masks, none is true
            lines.add(f"{name} = tl.full({shape}, {_ENDLESS}, dtype=tl.float32)")
        else:
            lines.add(f"{name} = tl.zeros({shape}, dtype=tl.float32)")
        if value in self.long:
            lost = self.lost[value] = self.unique.take(f"{name}_lost")
            lines.add(f"{lost} = tl.zeros({shape}, dtype=tl.float32)")
        self.held[value] = Held(atom(name), axes)

    def _compute(self, lines: Lines, compute: Compute) -> None:
        step, value = compute.step, compute.value
        if step.op in ("const", "infinity", "size", "index"):
            self._tensorless(value, step)
            return
        if step.places:
            self.window(lines, value, step)
            return
        if step.mapping:
            self._elsewhere(lines, value, step)
            return
        if step.op in REDUCTIONS:
            self.reduce(lines, compute)
            return
        if value == self.holding:
            return
        same = None
        if self.holding is not None and self.holding in step.inputs:
            same = self._unmasked(value, self.holding)
        if same is not None:
            self.held[value], self.shown[value] = self.held[same], self.shown[same]
            return
        name = self.variables[value]
        result = self._elementwise(step, dict(compute.factors), exact=value in self.compared)
        if result.text == TritonText().neg(TritonText().infinity()).text:
            self.shown[value], self.held[value] = "-infinity", result
            return
        lines.assign(name, result.text, self.comment(step))
        self.held[value] = replace(result, expression=atom(name, result.expression.kind))

    def _elementwise(self, step: Step, factors: Mapping[int, Fraction], *, exact: bool = False) -> Held:
        """Return what a scalar operator makes of tiles, some of them times numbers, without a name.

        A quotient that is `exact` is rounded as PyTorch rounds it.
        """
        axes = self.plan.tile_axes({axis for i in step.inputs for axis in self.axes[i]})
        operands = [self.operand(i, axes) for i in step.inputs]
        for at, i in enumerate(step.inputs):
            if i in factors:
                operands[at] = apply("mul", (operands[at], TritonText().const(factors[i])))
        made = quotient if exact else partial(apply, step.op)
        result = made(self.selecting(step, operands))
        lanes = {axis: self.lanes_after(step, axis) for axis in axes if self.masked(axis)}
        return Held(result, axes, "f32", lanes)

    def _move(self, lines: Lines, move: Move) -> None:
        """Print the new value of a running shift, and rescale the sums made under the old one."""
        old, made = self.held[move.value], self._elementwise(move.step, dict(move.factors))
        comment = self.comment(move.step)
        if not move.rescales:
            lines.assign(old.text, made.text, comment)
            return
        name = self.unique.take(f"{old.text}_new")
        lines.assign(name, made.text, comment)
        for degree in sorted({degree for _, degree in move.rescales}):
            difference = f"{name} - {old.text}" if degree > 0 else f"{old.text} - {name}"
            if abs(degree) != 1:
                difference = f"{float(abs(degree))!r} * ({difference})"
            scale = self.unique.take(f"scale_{old.text}")
            power = "tl.exp2" if move.base_two else "tl.exp"
            lines.add(f"{scale} = {power}({difference})")
            for value in (value for value, other in move.rescales if other == degree):
                held = self.held[value]
                factor = self.spread(scale, old.axes, held.axes) if old.axes else scale
                for name_of in filter(None, (held.text, self.lost.get(value))):
                    lines.add(self._rescaled(value, name_of, factor, degree))
                self.held[value] = replace(held, lanes={})
        lines.add(f"{old.text} = {name}")
        self.held[move.value] = replace(old, lanes=made.lanes)

    def _rescaled(self, value: int, name: str, factor: str, degree: Fraction) -> str:
        """Return the line that multiplies what was added up; what is still at its start stays there."""
        start = _ENDLESS if self.graph.step_at(value).op == "max" else "0.0"
        if degree < 0 and start == "0.0":  # the factor of the first turn is 0, not infinite
            return f"{name} *= {factor}"
        return f"{name} = tl.where({name} == {start}, {start}, {name} * {factor})"

    def _tensorless(self, value: int, step: Step) -> None:
        """A constant, an extent or a running index: written where it is used, without a name."""
        axes: tuple[str, ...] = ()
        lanes: dict[str, Lanes] = {}
        if step.value is not None:
            expression = TritonText().const(step.value)
            self.shown[value] = format_constant(step.value)
        elif step.op == "infinity":
            expression, self.shown[value] = TritonText().infinity(), "infinity"
        elif step.op == "size":
            expression = atom(self.extents.get(step.axes[0], ""), "int")
            self.shown[value] = f"size[{step.axes[0]}]"
        else:
            axes = self.plan.tile_axes(step.axes)
            expression = atom(self.place.get(step.axes[0], ""), "int")
            self.shown[value] = f"index[{step.axes[0]}]"
            lanes = dict.fromkeys(axes, Lanes.FINITE)
        self.held[value] = Held(expression, axes, "f32", lanes)

    def _elsewhere(self, lines: Lines, value: int, step: Step) -> None:
        """A value at other places: read there from memory, or picked out of a tile."""
        source = step.inputs[0]
        mapping = dict(step.mapping)
        if source in self.loaded:
            tensor = replace(self.loaded[source])
            places = {axis: mapping.get(axis, axis) for axis in tensor.axes}
            self.load(lines, value, tensor, places, self.comment(step))
            return
        held = self.read(source)
        if step.op == "rename":
            self._rename(lines, value, step, held)
            return
        name, text, axes = self.variables[value], held, held.axes
        for axis, at in step.mapping:
            chosen = self.spread(f"{self.place[axis]} == {at}", (axis,), axes)
            fill = as_float(text.expression).text
            picked = f"tl.sum(tl.where({chosen}, {fill}, 0.0), axis={axes.index(axis)})"
            axes = tuple(one for one in axes if one != axis)
            text = Held(atom(picked), axes)
        lines.assign(name, text.text, self.comment(step))
        kept = {axis: lanes for axis, lanes in held.lanes.items() if axis in axes}
        self.held[value] = Held(atom(name), axes, "f32", kept)

    def _rename(self, lines: Lines, value: int, step: Step, held: Held) -> None:
        mapping = {old: str(new) for old, new in step.mapping}
        for old, new in mapping.items():
            if self.plan.roles[old] != "whole" or self.config.tile(old) != self.config.tile(new):
                raise UnsupportedError(
                    f"{self.program.name}: {self.comment(step)} needs {old!r} and {new!r} whole,"
                    " in equal tiles"
                )
        now = tuple(mapping.get(axis, axis) for axis in held.axes)
        axes = self.plan.tile_axes(now)
        text = transposed(held.text, now, axes)
        name = self.variables[value]
        lines.assign(name, text, self.comment(step))
        lanes = {mapping.get(axis, axis): lanes for axis, lanes in held.lanes.items()}
        self.held[value] = Held(atom(name, held.expression.kind), axes, held.dtype, lanes)


def _computes(loop: LoopStatement) -> Iterator[Compute]:
    for statement in loop.body:
        if isinstance(statement, LoopStatement):
            yield from _computes(statement)
        elif isinstance(statement, Compute):
            yield statement
