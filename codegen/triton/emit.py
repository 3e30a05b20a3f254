"""Emit: one block kernel as Triton source that a person would keep."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Literal

from superopt.codegen.causal import Reach, find_reaches, needless_masks
from superopt.codegen.statements import (
    Compute,
    KernelProgram,
    Load,
    LoopStatement,
    Move,
    Start,
    Statement,
    Store,
    Tensor,
)
from superopt.codegen.triton.basetwo import in_base_two
from superopt.codegen.triton.config import TritonConfig
from superopt.codegen.triton.descriptors import Descriptor
from superopt.codegen.triton.errors import UnsupportedError
from superopt.codegen.triton.expression import HELPERS, TritonText, apply, as_float, atom
from superopt.codegen.triton.lanes import Lanes, after_operator
from superopt.codegen.triton.plan import FP8, INTEGERS
from superopt.codegen.triton.reductions import TYPES, Reductions
from superopt.codegen.triton.source import Argument, TritonSource
from superopt.codegen.triton.text import WIDTH, Lines, used
from superopt.codegen.triton.tiles import Held, transposed
from superopt.ir import Step
from superopt.ir.text import format_constant

__all__ = ["emit"]

FLOATS = FP8.union(TYPES)
REDUCTIONS = ("sum", "max", "contract")


def emit(program: KernelProgram, config: TritonConfig, plain: frozenset[str] = frozenset()) -> TritonSource:
    """Return the Triton source of a kernel under a configuration, or raise UnsupportedError.

    Tensors in `plain` are read and written without descriptors, whatever the configuration says.
    """
    return _Emitter(program, config, plain).source()


class _Emitter(Reductions):
    """Printing one kernel: its statements in order, then what stands around them."""

    def __init__(self, program: KernelProgram, config: TritonConfig, plain: frozenset[str]) -> None:
        program, self.scaled = in_base_two(program)
        super().__init__(program, config, plain)
        self.needless = needless_masks(program.graph)
        self.holding: int | None = None  # a mask that holds everywhere in the loop that is being printed

    def source(self) -> TritonSource:
        body = self._statements(self.program.statements)
        body = self._repeated([*self._head(body), *body])
        grid = tuple(
            (axis, 1 if self.plan.roles[axis] == "single" else self.config.tile(axis))
            for axis in self._grid_order()
        )
        arguments = [one for one in self._arguments() if used(one.name, body)]
        helpers = [text for name, text in HELPERS.items() if any(f" {name}(" in line for line in body)]
        lines = ["import triton", "import triton.language as tl", "", ""]
        for text in helpers:
            lines += [*text.splitlines(), "", ""]
        lines += ["@triton.jit", *self._signature(arguments), *self._docstring()]
        lines += [f"    {line}" if line else "" for line in body]
        return TritonSource("\n".join(lines) + "\n", self.program.name, tuple(arguments), grid, self.config)

    def _arguments(self) -> list[Argument]:
        tensors = list(dict.fromkeys([*self.program.loads, *self.program.stores]))
        found = [Argument(self.pointers[one.name], "tensor", one.name, dtype=one.dtype) for one in tensors]
        found += self.described.values()
        for one in tensors:
            axes = self.memory_axes(one)
            for axis in axes:
                name = self.strides[one.name, axis]
                found.append(Argument(name, "stride", one.name, axis, innermost=axis == axes[-1]))
        found += [Argument(name, "extent", axis=axis) for axis, name in self.extents.items()]
        found += [Argument(name, "block", axis=axis) for axis, name in self.block.items()]
        return found

    def _signature(self, arguments: list[Argument]) -> list[str]:
        lines = [f"def {self.program.name}("]
        groups: dict[tuple[str, str | None], list[str]] = {}
        for one in arguments:
            group = one.tensor if one.kind == "stride" else None
            text = f"{one.name}: tl.constexpr" if one.kind == "block" else one.name
            groups.setdefault((one.kind, group), []).append(text)
        for members in groups.values():
            row = ""
            for text in members:
                if row and len(row) + len(text) > 100:
                    lines.append(f"    {row.rstrip()}")
                    row = ""
                row += f"{text}, "
            lines.append(f"    {row.rstrip()}")
        return [*lines, "):"]

    def _docstring(self) -> list[str]:
        read = ", ".join(f"{one.name}[{', '.join(one.axes)}]" for one in self.program.loads)
        made = ", ".join(dict.fromkeys(f"{one.name}[{', '.join(one.axes)}]" for one in self.program.stores))
        lines = wrap(f'"""{made} from {read or "nothing"}."""', WIDTH - 8)
        return [f"    {line}" for line in lines]

    def _grid_order(self) -> tuple[str, ...]:
        """Return the grid axes that have several programs: single positions first, then tiles, rows last."""
        roles = self.plan.roles
        single = [axis for axis in self.program.grid if roles[axis] == "single"]
        tiled = [axis for axis in self.program.grid if roles[axis] == "tile"]
        return (*single, *reversed(tiled))

    def _repeated(self, body: list[str]) -> list[str]:
        """Return the body, for one place on the grid after the other where programs are persistent."""
        grid = self._grid_order()
        if not self.persistent or not grid:
            return body
        programs = " * ".join(self._programs(axis) for axis in grid)
        return [
            f"for pid in range(tl.program_id(0), {programs}, tl.num_programs(0)):",
            *(f"    {line}" if line else "" for line in body),
        ]

    def _programs(self, axis: str) -> str:
        if self.plan.roles[axis] == "single":
            return self.extents[axis]
        return f"tl.cdiv({self.extents[axis]}, {self.block[axis]})"

    def _head(self, body: list[str]) -> list[str]:
        """Return the lines that say where a program stands: those that the body uses."""
        places: list[str] = []
        looped = {axis for _, loops in self.program.flat() for axis in loops}
        for axis, role in self.plan.roles.items():
            if axis not in looped and role != "single":
                start = f"{self.pid[axis]} * {self.block[axis]} + " if role == "tile" else ""
                places += self._place_lines(axis, start)
        ends = [
            f"{end} = tl.minimum({self.extents[axis]},"
            f" {self.extents[self.splits[axis].axis]} - {self.pid[self.splits[axis].outer]}"
            f" * {self.extents[axis]})"
            for axis, end in self.ends.items()
        ]
        places = _only_used([*ends, *places], body)
        for name, axes in self.hoisted.items():
            if axes and used(self.bases[name], body):
                steps = " + ".join(f"{self.pid[axis]} * {self.strides[name, axis]}" for axis in axes)
                pointer, base = self.pointers[name], self.bases[name]
                places.append(f"{pointer} += {steps}" if pointer == base else f"{base} = {pointer} + {steps}")
        grid = self._grid_order()
        if not grid:
            return [*places, *([""] if places else [])]
        lines = []
        pid = "pid" if len(grid) > 1 else self.pid[grid[0]]
        start = "pid" if self.persistent else "tl.program_id(0)"
        if len(grid) == 1:
            lines.append(f"{pid} = {self.wide(start)}")
        else:
            lines += [] if self.persistent else [f"pid = {start}"]
            rest = "pid"
            if self._grouped():
                lines += self._group_lines(grid[-2], grid[-1], last=len(grid) == 2)
                rest = f"pid // ({self._programs(grid[-1])} * {self._programs(grid[-2])})"
                grid = grid[:-2]
            for axis in reversed(grid):
                found = rest if axis == grid[0] else f"{rest} % {self._programs(axis)}"
                lines.append(f"{self.pid[axis]} = {self.wide(found)}")
                rest = f"{rest} // {self._programs(axis)}"
        return [*lines, *places, ""]

    def _grouped(self) -> bool:
        """Return whether programs run in groups: where exactly two axes of the grid are tiled."""
        tiled = [axis for axis in self.program.grid if self.plan.roles[axis] == "tile"]
        return self.config.group > 1 and len(tiled) == 2

    def _group_lines(self, slow: str, fast: str, *, last: bool) -> list[str]:
        """Return where a program stands when so many tiles of the slow axis take turns with the fast one."""
        names = self.unique
        within, width, first, count = (names.take(one) for one in ("within", "width", "first", "count"))
        number, group = self._programs(slow), self.config.group
        return [
            f"{within} = pid" if last else f"{within} = pid % ({self._programs(fast)} * {number})",
            f"{width} = {group} * {self._programs(fast)}",
            f"{first} = {within} // {width} * {group}",
            f"{count} = tl.minimum({number} - {first}, {group})",
            f"{self.pid[slow]} = {self.wide(f'{first} + {within} % {width} % {count}')}",
            f"{self.pid[fast]} = {self.wide(f'{within} % {width} // {count}')}",
        ]

    def _place_lines(self, axis: str, start: str) -> list[str]:
        lanes = f"tl.arange(0, {self.block[axis]})"
        lines = [f"{self.place[axis]} = {self.wide(f'{start}{lanes}')}"]
        if self.masked(axis):
            lines.append(f"{self.mask[axis]} = {self.place[axis]} < {self.end(axis)}")
        return lines

    def _statements(self, statements: Sequence[Statement]) -> list[str]:
        lines = Lines()
        started: list[int] = []
        for statement in statements:
            match statement:
                case Load():
                    self._load_statement(lines, statement.value)
                case Start():
                    self._start(lines, statement.value)
                    started.append(statement.value)
                case Compute():
                    self._compute(lines, statement)
                case Move():
                    self._move(lines, statement)
                case Store():
                    self._store(lines, statement)
                case LoopStatement():
                    self._loop(lines, statement)
                    filled = {one.value for one in _computes(statement)}
                    for value in [value for value in started if value in filled]:
                        started.remove(value)
                        if value in self.late:
                            self.finish(lines, value)
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
        reaches = [
            (reach, bound)
            for reach in find_reaches(self.program, loop)
            if (bound := self._bound(reach)) is not None
        ]
        for reach, bound in reaches:
            if not reach.upper:
                start = f"tl.maximum({start}, ({bound}) // {block} * {block})"
                continue
            if free is None and self._only_hides(reach.mask, loop):
                free = reach, f"tl.minimum({end}, {self._bound(reach, everywhere=True)}) // {block} * {block}"
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
        body = self._statements(loop.body)
        places = _only_used(self._place_lines(axis, f"{counter} + "), body)
        head = f"for {counter} in range({start}, {end}, {self.block[axis]}):"
        return [head, *(f"    {line}" for line in (*places, *body))]

    def _only_hides(self, mask: int, loop: LoopStatement) -> bool:
        """Return whether a loop uses a mask only as `_unmasked` leaves it out."""
        computes = [one for one in loop.body if isinstance(one, Compute)]
        readers = [one.value for one in computes if mask in one.step.inputs]
        inside = any(one.value == mask for one in computes)
        return inside and all(self._unmasked(value, mask) is not None for value in readers)

    def _unmasked(self, value: int, mask: int) -> int | None:
        """Return what a step makes where a mask holds, if that is one of its operands."""
        step = self.graph.step_of(value)
        assert step is not None
        others = [i for i in step.inputs if i != mask]
        fits = (step.op == "where" and step.inputs[0] == mask) or (step.op == "mul" and len(others) == 1)
        return others[0] if fits and others and self.axes[others[0]] == self.axes[value] else None

    def _bound(self, reach: Reach, *, everywhere: bool = False) -> str | None:
        """Return the end of what a program can reach, or its start; None where it is not known.

        With `everywhere` it is the end of what all positions of the program's tile can reach.
        """
        terms: list[str] = []
        offset = 1 if reach.upper else 0
        for term, factor in reach.form:
            if not term:
                offset += factor
                continue
            if abs(factor) != 1:
                return None
            texts: list[str] = []
            for kind, axis in term:
                if kind == "size":
                    texts.append(self.extents[axis])
                    continue
                if axis not in self.program.grid or self.plan.roles[axis] == "whole":
                    return None
                if self.plan.roles[axis] == "single":
                    texts.append(self.pid[axis])
                    continue
                if len(term) > 1:
                    return None
                last = ((factor == 1) == reach.upper) != everywhere  # the last position of the tile counts
                offset -= factor if last else 0
                first = f"({self.pid[axis]} + 1)" if last else self.pid[axis]
                texts.append(f"{first} * {self.block[axis]}")
            terms.append(f"{'-' if factor < 0 else ''}{' * '.join(texts)}")
        terms.sort(key=lambda text: text.startswith("-"))
        total = " + ".join([*terms, *([str(offset)] if offset else [])]).replace("+ -", "- ")
        return total or "0"

    def _load_statement(self, lines: Lines, value: int) -> None:
        tensor = self.loaded[value]
        if self._read_plainly(value):
            self._load(lines, value, tensor, {axis: axis for axis in tensor.axes}, None)

    def _read_plainly(self, value: int) -> bool:
        """Return whether a step reads the value where it stands, not only at other places."""
        return any(value in step.inputs and not step.mapping for step in self.program.steps()) or any(
            isinstance(one, Store) and one.value == value for one, _ in self.program.flat()
        )

    def _load(
        self, lines: Lines, value: int, tensor: Tensor, places: dict[str, str | int], comment: str | None
    ) -> None:
        """Read a tile, each axis of the tensor at an axis of the kernel or at one position."""
        if tensor.dtype not in FLOATS | INTEGERS | {"bool"}:
            raise UnsupportedError(f"{self.program.name}: no loads of {tensor.name} in {tensor.dtype}")
        axes = self.plan.tile_axes(str(place) for place in places.values())
        name = self.variables[value]
        seen = self.descriptor(tensor, places)
        arguments = [self.address(tensor, axes, places)]
        mask = self.mask_text(axes, axes)
        if mask:
            arguments += [f"mask={mask}", f"other={0 if tensor.dtype in INTEGERS else '0.0'}"]
        kind: Literal["float", "int", "mask"] = "float"
        dtype, tail = "f32", ""
        if tensor.dtype in INTEGERS:
            kind = "int"
        elif self.plan.masks[value]:
            kind, tail = "mask", " != 0"
            arguments = [one.replace("other=0.0", "other=0") for one in arguments]
        elif tensor.dtype != "f32" and value in self.raw:
            dtype = tensor.dtype
        elif tensor.dtype != "f32":
            tail = ".to(tl.float32)"
        if seen is None:
            lines.call(f"{name} = ", "tl.load", arguments, tail, comment)
        else:
            self._read_by_descriptor(lines, name, tensor, seen, axes, tail, comment)
        lanes = {axis: Lanes.ZERO for axis in axes if self.masked(axis)}
        self.held[value] = Held(atom(name, kind), axes, dtype, lanes)

    def _read_by_descriptor(
        self,
        lines: Lines,
        name: str,
        tensor: Tensor,
        seen: Descriptor,
        axes: tuple[str, ...],
        tail: str,
        comment: str | None,
    ) -> None:
        """Read a tile by a descriptor, without the dimensions along which a program is at one position."""
        read = self.tile_of(seen)

        def shaped(tile: str) -> str:
            text = tile if len(read) == len(seen.axes) else f"tl.reshape({tile}, {self.shape(read)})"
            return transposed(text, read, axes) + tail

        tile = f"{self.named(tensor, seen)}.load({self.corner(seen)})"
        if shaped(tile) != tile and len(f"{name} = {shaped(tile)}") > WIDTH - 8:
            lines.add(f"{name} = {tile}", comment)
            lines.add(f"{name} = {shaped(name)}")
        else:
            lines.add(f"{name} = {shaped(tile)}", comment)

    def _store(self, lines: Lines, store: Store) -> None:
        tensor, held = store.tensor, self.held[store.value]
        places: dict[str, str | int] = {axis: axis for axis in self.memory_axes(tensor)}
        axes = self.plan.tile_axes(str(place) for place in places.values())
        text = self.operand(store.value, axes)
        if tensor.dtype in TYPES:
            value = as_float(text).text if held.expression.kind != "constant" else text.text
            if tensor.dtype != "f32" and held.expression.kind != "constant":
                value = f"{as_float(text).inside(6)}.to({TYPES[tensor.dtype]})"
        elif tensor.dtype in INTEGERS | {"bool"}:
            value = text.text
        else:
            raise UnsupportedError(f"{self.program.name}: no stores of {tensor.name} in {tensor.dtype}")
        seen = self.descriptor(tensor, places)
        if seen is not None and held.axes == axes and not self.program.repeated(store.value):
            wanted = self.tile_of(seen)
            value = transposed(value, axes, wanted)
            if len(wanted) < len(seen.axes):
                value = f"tl.reshape({value}, ({', '.join(self._sides(seen))}))"
            lines.call("", f"{self.named(tensor, seen)}.store", [self.corner(seen), value])
            return
        arguments = [self.address(tensor, axes, places), value]
        repeated = [axis for axis in self.program.repeated(store.value) if self.plan.roles[axis] != "whole"]
        first = [f"({self.pid[axis]} == 0)" for axis in repeated]
        mask = " & ".join([text for text in [self.mask_text(axes, axes), *first] if text])
        lines.call("", "tl.store", [*arguments, *([f"mask={mask}"] if mask else [])])

    def _sides(self, seen: Descriptor) -> list[str]:
        wanted = self.tile_of(seen)
        return [self.block[place] if place in wanted else "1" for place in map(str, seen.places)]

    def _start(self, lines: Lines, value: int) -> None:
        step = self.graph.step_of(value)
        assert step is not None
        axes = self.accumulator_axes(value)
        name = self.variables[value]
        shape = self.shape(axes)
        if step.op == "max":
            fill = 'float("-inf")'
            lines.add(f"{name} = tl.full({shape}, {fill}, dtype=tl.float32)")
        else:
            lines.add(f"{name} = tl.zeros({shape}, dtype=tl.float32)")
        self.held[value] = Held(atom(name), axes)

    def _compute(self, lines: Lines, compute: Compute) -> None:
        step, value = compute.step, compute.value
        if step.op in ("const", "infinity", "size", "index"):
            self._closed(value, step)
            return
        if step.mapping:
            self._elsewhere(lines, value, step)
            return
        if step.op in REDUCTIONS:
            self.reduce(lines, compute)
            return
        if value == self.holding:
            return
        same = self.needless.get(value)
        if self.holding is not None and self.holding in step.inputs:
            same = self._unmasked(value, self.holding)
        if same is not None:
            self.held[value], self.shown[value] = self.held[same], self.shown[same]
            return
        name = self.variables[value]
        result = self._elementwise(step)
        if result.text == TritonText().neg(TritonText().infinity()).text:
            self.shown[value], self.held[value] = "-infinity", result
            return
        lines.assign(name, result.text, self.comment(step))
        self.held[value] = replace(result, expression=atom(name, result.expression.kind))

    def _elementwise(self, step: Step) -> Held:
        """Return what a scalar operator makes of tiles, without a name."""
        axes = self.plan.tile_axes({axis for i in step.inputs for axis in self.axes[i]})
        result = apply(step.op, tuple(self.operand(i, axes) for i in step.inputs))
        lanes = {
            axis: after_operator(step.op, [self.lanes(i, axis) for i in step.inputs])
            for axis in axes
            if self.masked(axis)
        }
        return Held(result, axes, "f32", lanes)

    def _move(self, lines: Lines, move: Move) -> None:
        """A running shift anew; what was added up under the old one is brought to the new one."""
        old, made = self.held[move.value], self._elementwise(move.step)
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
            power = "tl.exp2" if move.value in self.scaled else "tl.exp"
            lines.add(f"{scale} = {power}({difference})")
            for value in (value for value, other in move.rescales if other == degree):
                held = self.held[value]
                lines.add(f"{held.text} *= {self.spread(scale, old.axes, held.axes) if old.axes else scale}")
                self.held[value] = replace(held, lanes={})
        lines.add(f"{old.text} = {name}")
        self.held[move.value] = replace(old, lanes=made.lanes)

    def _closed(self, value: int, step: Step) -> None:
        """A constant, an extent or a running index: written where it is used, without a name."""
        axes: tuple[str, ...] = ()
        lanes: dict[str, Lanes] = {}
        if step.op == "const":
            assert step.value is not None
            expression = TritonText().const(step.value)
            self.shown[value] = format_constant(step.value)
        elif step.op == "infinity":
            expression, self.shown[value] = TritonText().infinity(), "infinity"
        elif step.op == "size":
            expression = atom(self.extents[step.axes[0]], "int")
            self.shown[value] = f"size[{step.axes[0]}]"
        else:
            axes = self.plan.tile_axes(step.axes)
            expression = atom(self.place[step.axes[0]], "int")
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
            self._load(lines, value, tensor, places, self.comment(step))
            return
        held = self.held[source]
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


def _only_used(definitions: list[str], body: list[str]) -> list[str]:
    """Return the definitions that the body, or a later kept one, uses."""
    kept: list[str] = []
    for line in reversed(definitions):
        name = line.split(" = ", 1)[0]
        if used(name, [*kept, *body]):
            kept.insert(0, line)
    return kept
