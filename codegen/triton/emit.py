"""Emit: one block kernel as Triton source that a person would keep."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from superopt.codegen.statements import (
    Compute,
    KernelProgram,
    Load,
    LoopStatement,
    Start,
    Statement,
    Store,
    Tensor,
)
from superopt.codegen.triton.causal import Reach, find_reaches
from superopt.codegen.triton.config import TritonConfig
from superopt.codegen.triton.errors import UnsupportedError
from superopt.codegen.triton.expression import HELPERS, Expression, TritonText, apply, as_float, atom
from superopt.codegen.triton.lanes import Lanes, after_operator, after_product
from superopt.codegen.triton.plan import INTEGERS, Plan, Product, make_plan, sources
from superopt.codegen.triton.text import Lines, Names, index_of, used
from superopt.ir import Step, print_step, value_axes, value_names
from superopt.ir.text import format_constant

__all__ = ["Argument", "TritonSource", "emit"]

TYPES = {"f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16"}
FLOATS = frozenset({*TYPES, "f8e4m3", "f8e5m2"})
REDUCTIONS = ("sum", "max", "contract")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel and where its value comes from."""

    name: str
    kind: Literal["tensor", "stride", "extent", "block"]
    tensor: str | None = None  # name of the tensor, for `tensor` and `stride`
    axis: str | None = None
    dtype: str | None = None  # of the tensor
    innermost: bool = False  # of a stride: 1 where the tensor is contiguous


@dataclass(frozen=True, slots=True)
class TritonSource:
    """A module with one kernel, the kernel's name, and its arguments in order."""

    text: str
    name: str
    arguments: tuple[Argument, ...]
    grid: tuple[str, ...]  # the axes that programs are spread over, the fastest last
    config: TritonConfig


def emit(program: KernelProgram, config: TritonConfig) -> TritonSource:
    """Return the Triton source of a kernel under a configuration, or raise UnsupportedError."""
    return _Emitter(program, config).source()


@dataclass(frozen=True, slots=True)
class _Held:
    """A value as the kernel holds it: an expression, usually a name, and its tile."""

    expression: Expression
    axes: tuple[str, ...]
    dtype: str = "f32"  # of the tile in registers
    lanes: dict[str, Lanes] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.expression.text


class _Emitter:
    """The state of printing one kernel."""

    def __init__(self, program: KernelProgram, config: TritonConfig) -> None:
        self.program = program
        self.config = config
        self.plan: Plan = make_plan(program, config)
        self.graph = program.graph
        self.axes = value_axes(program.graph)
        self.names = value_names(program.graph)
        self.loaded = sources(program)
        self.held: dict[int, _Held] = {}
        self.shown = list(self.names)  # how comments name values
        names = self.unique = Names()
        tensors = {tensor.name: tensor for tensor in (*program.loads, *program.stores)}
        self.pointers = {name: names.take(f"{name}_ptr") for name in tensors}
        self.strides = {
            (tensor.name, axis): names.take(f"stride_{tensor.name}_{axis}")
            for tensor in tensors.values()
            for axis in self._memory_axes(tensor)
        }
        self.variables = {value: names.take(self.names[value]) for value in sorted(self._all_values())}
        sizes = self.graph.sizes
        self.extents = {axis: names.take(axis.upper(), f"size_{axis}") for axis in sizes}
        self.block = {axis: names.take(f"BLOCK_{axis.upper()}", f"BLOCK_{axis}") for axis in self.plan.roles}
        self.mask = {axis: names.take(f"mask_{axis}") for axis in self.plan.roles}
        self.place = {axis: names.take(f"offs_{axis}") for axis in self.plan.roles}
        self.pid = {axis: names.take(f"pid_{axis}") for axis in program.grid}
        self.counter = {axis: names.take(f"{axis}0") for axis in self.plan.roles}
        for axis in program.grid:
            if self.plan.roles[axis] == "single":
                self.place[axis] = self.pid[axis]
        self.raw = self._raw_loads()
        self.hoisted = {name: self._shared_places(tensor) for name, tensor in tensors.items()}

    # -- the module

    def source(self) -> TritonSource:
        body = self._statements(self.program.statements)
        body = [*self._head(body), *body]
        grid = self._grid_order()
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
        for one in tensors:
            axes = self._memory_axes(one)
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
        return [f'    """{made} from {read or "nothing"}."""']

    # -- where a program stands

    def _grid_order(self) -> tuple[str, ...]:
        """Return the grid axes that have several programs: single positions first, then tiles, rows last."""
        roles = self.plan.roles
        single = [axis for axis in self.program.grid if roles[axis] == "single"]
        tiled = [axis for axis in self.program.grid if roles[axis] == "tile"]
        return (*single, *reversed(tiled))

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
        places = _only_used(places, body)
        for name, axes in self.hoisted.items():
            if axes:
                steps = " + ".join(f"{self.pid[axis]} * {self.strides[name, axis]}" for axis in axes)
                places.append(f"{self.pointers[name]} += {steps}")
        grid = self._grid_order()
        if not grid:
            return [*places, *([""] if places else [])]
        lines = []
        pid = "pid" if len(grid) > 1 else self.pid[grid[0]]
        if len(grid) == 1:
            lines.append(f"{pid} = {self._wide('tl.program_id(0)')}")
        else:
            lines.append("pid = tl.program_id(0)")
            rest = "pid"
            for axis in reversed(grid):
                found = rest if axis == grid[0] else f"{rest} % {self._programs(axis)}"
                lines.append(f"{self.pid[axis]} = {self._wide(found)}")
                rest = f"{rest} // {self._programs(axis)}"
        return [*lines, *places, ""]

    def _place_lines(self, axis: str, start: str) -> list[str]:
        lanes = f"tl.arange(0, {self.block[axis]})"
        lines = [f"{self.place[axis]} = {self._wide(f'{start}{lanes}')}"]
        if self._masked(axis):
            lines.append(f"{self.mask[axis]} = {self.place[axis]} < {self.extents[axis]}")
        return lines

    def _wide(self, text: str) -> str:
        if not self.config.wide:
            return text
        return f"({text}).to(tl.int64)" if " " in text else f"{text}.to(tl.int64)"

    def _masked(self, axis: str) -> bool:
        return self.plan.roles[axis] != "single" and axis not in self.config.exact

    # -- statements

    def _statements(self, statements: Sequence[Statement]) -> list[str]:
        lines = Lines()
        for statement in statements:
            match statement:
                case Load():
                    self._load_statement(lines, statement.value)
                case Start():
                    self._start(lines, statement.value)
                case Compute():
                    self._compute(lines, statement)
                case Store():
                    self._store(lines, statement)
                case LoopStatement():
                    self._loop(lines, statement)
        return lines.found

    def _loop(self, lines: Lines, loop: LoopStatement) -> None:
        axis = loop.axis
        body = self._statements(loop.body)
        extent, block = self.extents[axis], self.block[axis]
        if self.plan.roles[axis] == "single":
            lines.add(f"for {self.place[axis]} in range({extent}):")
        elif self.plan.roles[axis] == "whole":
            raise UnsupportedError(f"{self.program.name}: axis {axis!r} is looped over; it cannot be whole")
        else:
            start, end = "0", extent
            for reach in find_reaches(self.program, loop):
                bound = self._bound(reach)
                if bound is not None:
                    seen = "Beyond this" if reach.upper else "Before this"
                    where = self._comment_of(reach.mask)
                    lines.add(f"# {seen}, {where} holds nowhere.")
                    if reach.upper:
                        end = f"tl.minimum({end}, {bound})"
                    else:
                        start = f"tl.maximum({start}, ({bound}) // {block} * {block})"
            lines.add(f"for {self.counter[axis]} in range({start}, {end}, {block}):")
            body = [*_only_used(self._place_lines(axis, f"{self.counter[axis]} + "), body), *body]
        lines.found += [f"    {line}" for line in body]

    def _bound(self, reach: Reach) -> str | None:
        """Return the end of what a program can reach, or its start; None where it is not known."""
        terms: list[str] = []
        offset = 1 if reach.upper else 0
        for (kind, axis), factor in reach.form:
            if kind == "one":
                offset += factor
                continue
            if abs(factor) != 1:
                return None
            text = self.extents[axis]
            if kind == "index":
                if axis not in self.program.grid or self.plan.roles[axis] == "whole":
                    return None
                text = self.pid[axis]
                if self.plan.roles[axis] == "tile":
                    last = (factor == 1) == reach.upper  # the last position of the tile counts
                    text = f"{text} * {self.block[axis]}"
                    if last:
                        offset -= factor
                        text = f"({self.pid[axis]} + 1) * {self.block[axis]}"
            terms.append(f"{'-' if factor < 0 else ''}{text}")
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
        arguments = [self._address(tensor, axes, places)]
        mask = self._mask_text(axes, axes)
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
        lines.call(f"{name} = ", "tl.load", arguments, tail, comment)
        lanes = {axis: Lanes.ZERO for axis in axes if self._masked(axis)}
        self.held[value] = _Held(atom(name, kind), axes, dtype, lanes)

    def _store(self, lines: Lines, store: Store) -> None:
        tensor, held = store.tensor, self.held[store.value]
        places: dict[str, str | int] = {axis: axis for axis in self._memory_axes(tensor)}
        axes = self.plan.tile_axes(str(place) for place in places.values())
        text = self._operand(store.value, axes)
        if tensor.dtype in TYPES:
            value = as_float(text).text if held.expression.kind != "constant" else text.text
            if tensor.dtype != "f32" and held.expression.kind != "constant":
                value = f"{as_float(text).inside(6)}.to({TYPES[tensor.dtype]})"
        elif tensor.dtype in INTEGERS | {"bool"}:
            value = text.text
        else:
            raise UnsupportedError(f"{self.program.name}: no stores of {tensor.name} in {tensor.dtype}")
        arguments = [self._address(tensor, axes, places), value]
        mask = self._mask_text(axes, axes)
        lines.call("", "tl.store", [*arguments, *([f"mask={mask}"] if mask else [])])

    def _start(self, lines: Lines, value: int) -> None:
        step = self.graph.step_of(value)
        assert step is not None
        axes = self.plan.tile_axes(self.axes[value])
        name = self.variables[value]
        shape = self._shape(axes)
        if step.op == "max":
            fill = 'float("-inf")'
            lines.add(f"{name} = tl.full({shape}, {fill}, dtype=tl.float32)" if axes else f"{name} = {fill}")
        else:
            lines.add(f"{name} = tl.zeros({shape}, dtype=tl.float32)" if axes else f"{name} = 0.0")
        self.held[value] = _Held(atom(name), axes)

    def _compute(self, lines: Lines, compute: Compute) -> None:
        step, value = compute.step, compute.value
        if step.op in ("const", "infinity", "size", "index"):
            self._closed(value, step)
            return
        if step.mapping:
            self._elsewhere(lines, value, step)
            return
        if step.op in REDUCTIONS:
            self._reduce(lines, compute)
            return
        axes = self.plan.tile_axes({axis for i in step.inputs for axis in self.axes[i]})
        result = apply(step.op, tuple(self._operand(i, axes) for i in step.inputs))
        lanes = {
            axis: after_operator(step.op, [self._lanes(i, axis) for i in step.inputs])
            for axis in axes
            if self._masked(axis)
        }
        name = self.variables[value]
        lines.assign(name, result.text, self._comment(step))
        self.held[value] = _Held(atom(name, result.kind), axes, "f32", lanes)

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
        self.held[value] = _Held(expression, axes, "f32", lanes)

    def _elsewhere(self, lines: Lines, value: int, step: Step) -> None:
        """A value at other places: read there from memory, or picked out of a tile."""
        source = step.inputs[0]
        mapping = dict(step.mapping)
        if source in self.loaded:
            tensor = replace(self.loaded[source])
            places = {axis: mapping.get(axis, axis) for axis in tensor.axes}
            self._load(lines, value, tensor, places, self._comment(step))
            return
        held = self.held[source]
        if step.op == "rename":
            self._rename(lines, value, step, held)
            return
        name, text, axes = self.variables[value], held, held.axes
        for axis, at in step.mapping:
            chosen = self._spread(f"{self.place[axis]} == {at}", (axis,), axes)
            fill = as_float(text.expression).text
            picked = f"tl.sum(tl.where({chosen}, {fill}, 0.0), axis={axes.index(axis)})"
            axes = tuple(one for one in axes if one != axis)
            text = _Held(atom(picked), axes)
        lines.assign(name, text.text, self._comment(step))
        kept = {axis: lanes for axis, lanes in held.lanes.items() if axis in axes}
        self.held[value] = _Held(atom(name), axes, "f32", kept)

    def _rename(self, lines: Lines, value: int, step: Step, held: _Held) -> None:
        mapping = {old: str(new) for old, new in step.mapping}
        for old, new in mapping.items():
            if self.plan.roles[old] != "whole" or self.config.tile(old) != self.config.tile(new):
                raise UnsupportedError(
                    f"{self.program.name}: {self._comment(step)} needs {old!r} and {new!r} whole,"
                    " in equal tiles"
                )
        now = tuple(mapping.get(axis, axis) for axis in held.axes)
        axes = self.plan.tile_axes(now)
        text = _transposed(held.text, now, axes)
        name = self.variables[value]
        lines.assign(name, text, self._comment(step))
        lanes = {mapping.get(axis, axis): lanes for axis, lanes in held.lanes.items()}
        self.held[value] = _Held(atom(name, held.expression.kind), axes, held.dtype, lanes)

    # -- reductions

    def _reduce(self, lines: Lines, compute: Compute) -> None:
        step, value = compute.step, compute.value
        product = self.plan.products.get(value)
        name = self.variables[value]
        comment = self._comment(step)
        axes = self.plan.tile_axes(self.axes[value])
        lanes = {axis: self._reduced_lanes(step, axis) for axis in axes if self._masked(axis)}
        if product is not None:
            self._dot(lines, compute, product, axes)
        else:
            text = self._folded(step)
            if not compute.accumulates:
                lines.assign(name, text.text, comment)
            elif step.op == "max":
                lines.assign(name, f"tl.maximum({name}, {text.text})", comment)
            else:
                lines.add(f"{name} += {text.text}", comment)
        self.held[value] = _Held(atom(name), axes, "f32", lanes)

    def _reduced_lanes(self, step: Step, axis: str) -> Lanes:
        if step.op == "contract":
            return after_product(*(self._lanes(i, axis) for i in step.inputs))
        return after_operator("sum", [self._lanes(step.inputs[0], axis)])

    def _folded(self, step: Step) -> Expression:
        """Return a reduction of elementwise products, or of one value, within the tile."""
        if step.op == "contract":
            a, b = step.inputs
            axes = self.plan.tile_axes(self.axes[a] | self.axes[b])
            hidden = self._hidden_of_product(a, b, step.axes)
            operand = apply(
                "mul", tuple(as_float(self._zeroed(i, axes, hidden[at])) for at, i in enumerate((a, b)))
            )
        else:
            axes = self.plan.tile_axes(self.axes[step.inputs[0]])
            reduced = [axis for axis in axes if axis in step.axes and self._masked(axis)]
            if step.op == "max":
                operand = as_float(self._zeroed(step.inputs[0], axes, reduced, 'float("-inf")'))
            else:
                hidden_axes = [a for a in reduced if self._lanes(step.inputs[0], a) != Lanes.ZERO]
                operand = as_float(self._zeroed(step.inputs[0], axes, hidden_axes))
        for axis in reversed(axes):
            if axis in step.axes:
                operand = atom(
                    f"tl.{'max' if step.op == 'max' else 'sum'}({operand.text}, axis={axes.index(axis)})"
                )
        return operand

    def _hidden_of_product(self, a: int, b: int, reduced: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the axes along which each factor needs zeros beyond the end, and does not have them."""
        hidden: tuple[list[str], list[str]] = ([], [])
        for axis in reduced:
            if axis not in self.plan.roles or not self._masked(axis):
                continue
            lanes = [self._lanes(i, axis) for i in (a, b)]
            for at, one in enumerate(lanes):
                if one == Lanes.ANY:
                    hidden[at].append(axis)
                    lanes[at] = Lanes.ZERO
            if Lanes.ZERO not in lanes:
                hidden[0 if lanes[0] is not None else 1].append(axis)
        return hidden

    def _zeroed(
        self, value: int, axes: tuple[str, ...], hidden: Sequence[str], fill: str = "0.0"
    ) -> Expression:
        """Return an operand with zeros in the lanes beyond the end of some axes."""
        text = self._operand(value, axes)
        if not hidden:
            return text
        mask = " & ".join(self._spread(self.mask[axis], (axis,), axes) for axis in hidden)
        return atom(f"tl.where({mask}, {as_float(text).text}, {fill})")

    def _dot(self, lines: Lines, compute: Compute, product: Product, axes: tuple[str, ...]) -> None:
        name, comment = self.variables[compute.value], self._comment(compute.step)
        dtype = self._dot_dtype(product)
        hidden = self._hidden_of_product(product.lhs, product.rhs, product.inner)
        lhs_axes = (product.batch, product.rows, product.inner)
        rhs_axes = (product.batch, product.inner, product.columns)
        arguments = [
            self._dot_operand(product.lhs, lhs_axes, hidden[0], dtype),
            self._dot_operand(product.rhs, rhs_axes, hidden[1], dtype),
        ]
        precision = [] if dtype != "f32" else [f'input_precision="{self.config.precision}"']
        groups = (product.rows, product.columns)
        made = (*product.batch, *product.rows, *product.columns)
        if made == axes and all(len(group) == 1 for group in groups):
            into = [name] if compute.accumulates else []
            lines.call(f"{name} = ", "tl.dot", [*arguments, *into, *precision], "", comment)
            return
        text = f"tl.dot({', '.join([*arguments, *precision])})"
        if any(len(group) > 1 for group in groups):
            text = f"tl.reshape({text}, {self._shape(made)})"
        text = _transposed(text, made, axes)
        if compute.accumulates:
            lines.add(f"{name} += {text}", comment)
        else:
            lines.assign(name, text, comment)

    def _dot_dtype(self, product: Product) -> str:
        """Return the dtype of a matrix product's operands: the program's half precision, or fp32."""
        dtypes = {self.held[i].dtype for i in (product.lhs, product.rhs)}
        low = dtypes & {"f16", "bf16"}
        if len(low) == 1:
            return next(iter(low))
        return self.plan.low or "f32"

    def _dot_operand(
        self, value: int, groups: tuple[tuple[str, ...], ...], hidden: Sequence[str], dtype: str
    ) -> str:
        held = self.held[value]
        text = held.expression
        if hidden:
            mask = " & ".join(self._spread(self.mask[axis], (axis,), held.axes) for axis in hidden)
            text = atom(f"tl.where({mask}, {as_float(text).text}, 0.0)")
        if held.dtype != dtype or text.kind != "float":
            text = atom(f"{text.inside(6)}.to({TYPES[dtype]})")
        wanted = tuple(axis for group in groups for axis in group)
        found = _transposed(text.text, held.axes, wanted)
        if any(len(group) > 1 for group in groups[-2:]):
            sizes = [" * ".join(self.block[axis] for axis in group) for group in groups if group]
            found = f"tl.reshape({found}, ({', '.join(sizes)}))"
        return found

    # -- pieces of text

    def _operand(self, value: int, axes: tuple[str, ...]) -> Expression:
        """Return a value as an operand of elementwise arithmetic over these axes."""
        held = self.held[value]
        text = held.expression
        if held.dtype != "f32":
            text = atom(f"{text.text}.to(tl.float32)")
        if not held.axes or held.axes == axes:
            return text
        return replace(text, text=self._spread(text.inside(6), held.axes, axes), level=6)

    def _spread(self, text: str, axes: tuple[str, ...], wanted: tuple[str, ...]) -> str:
        """Return text of a tile with these axes, with a dimension of 1 for each wanted axis it lacks."""
        if axes == wanted:
            return text
        text = text if re.fullmatch(r"[\w.]+(\(.*\))?", text) else f"({text})"
        return f"{text}[{index_of(axes, wanted)}]"

    def _lanes(self, value: int, axis: str) -> Lanes | None:
        held = self.held[value]
        if axis not in held.axes:
            return None
        return held.lanes.get(axis, Lanes.ANY)

    def _mask_text(self, masked: tuple[str, ...], axes: tuple[str, ...]) -> str:
        return " & ".join(
            self._spread(self.mask[axis], (axis,), axes) for axis in masked if self._masked(axis)
        )

    def _address(self, tensor: Tensor, axes: tuple[str, ...], places: dict[str, str | int]) -> str:
        """Return the addresses of a tile: single positions first, then its axes."""
        terms: list[tuple[int, str]] = []
        for axis, place in places.items():
            stride = self.strides[tensor.name, axis]
            if isinstance(place, int):
                if place:
                    terms.append((0, stride if place == 1 else f"{place} * {stride}"))
            elif place in axes:
                text = self._spread(self.place[place], (place,), axes)
                terms.append((1 + axes.index(place), f"{text} * {stride}"))
            elif axis not in self.hoisted[tensor.name]:
                terms.append((0, f"{self._position(place)} * {stride}"))
        ordered = [text for _, text in sorted(terms, key=lambda term: term[0])]
        return " + ".join([self.pointers[tensor.name], *ordered])

    def _shared_places(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the axes of a tensor along which a program stays at its one position on the grid."""
        fixed = {axis for axis in self.program.grid if self.plan.roles[axis] == "single"}
        for step in self.program.steps():
            if step.mapping and tensor.value in step.inputs:
                fixed -= {str(axis) for pair in step.mapping for axis in pair}
        return tuple(axis for axis in self._memory_axes(tensor) if axis in fixed)

    def _position(self, axis: str) -> str:
        wide = self.config.wide and axis not in self.program.grid
        return f"tl.cast({self.place[axis]}, tl.int64)" if wide else self.place[axis]

    def _shape(self, axes: tuple[str, ...]) -> str:
        blocks = ", ".join(self.block[axis] for axis in axes)
        return f"({blocks},)" if len(axes) == 1 else f"({blocks})"

    def _comment_of(self, value: int) -> str:
        step = self.graph.step_of(value)
        assert step is not None
        return self._comment(step)

    def _comment(self, step: Step) -> str:
        return print_step(step, self.shown)

    def _memory_axes(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the axes along which a tensor is really laid out: those of its value."""
        return tuple(axis for axis in tensor.axes if axis in self.axes[tensor.value])

    def _all_values(self) -> set[int]:
        return self.program.values() | {tensor.value for tensor in self.program.loads}

    def _raw_loads(self) -> set[int]:
        """Return the values that are kept in their own dtype, because a matrix product reads them."""
        renamed: dict[int, int] = {}
        for statement, _ in self.program.flat():
            if isinstance(statement, Compute) and statement.step.mapping:
                renamed[statement.value] = statement.step.inputs[0]
        found = set()
        for product in self.plan.products.values():
            for i in (product.lhs, product.rhs):
                tensor = self.loaded.get(renamed.get(i, i))
                if tensor is not None and tensor.dtype in ("f16", "bf16"):
                    found.add(i)
        return found


def _transposed(text: str, axes: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    if axes == wanted:
        return text
    order = ", ".join(str(axes.index(axis)) for axis in wanted)
    return f"tl.trans({text})" if len(axes) == 2 else f"tl.permute({text}, ({order}))"


def _only_used(definitions: list[str], body: list[str]) -> list[str]:
    """Return the definitions that the body, or a later kept one, uses."""
    kept: list[str] = []
    for line in reversed(definitions):
        name = line.split(" = ", 1)[0]
        if used(name, [*kept, *body]):
            kept.insert(0, line)
    return kept
