"""Written: a sharded program as a Python module that needs only torch, for processes of torch.distributed."""

from __future__ import annotations

import inspect
from dataclasses import replace
from math import prod
from typing import Literal

from superopt.dtypes import DTYPES
from superopt.export.expressions import Expression, Printer
from superopt.ir import Port, Step, value_names
from superopt.shard.costs import Costs
from superopt.shard.output import runtime
from superopt.shard.search import Plan, Plans
from superopt.shard.sharded import Instruction, Layout, Placement, Sharded, is_partial

__all__ = ["tightened", "write_module"]


def tightened(sharded: Sharded) -> Sharded:
    """Return the same program with axes in pieces only where it splits them."""
    layout = sharded.layout
    used: dict[str, set[int]] = {axis: set() for axis in layout.splits}
    for one in sharded.instructions:
        for dim, tag in enumerate(one.placement):
            if tag is not None and not is_partial(tag):
                used[tag].add(dim)
    pairs = [pair for step in layout.graph.steps if step.op == "rename" for pair in step.mapping]
    for call in layout.calls:
        for before, after in call.splits:
            own = [axis for axis in (*before, *after) if axis is not None]
            pairs += [(own[0], axis) for axis in own[1:]]
    changed = True
    while changed:
        changed = False
        for old, new in pairs:
            joined = used[old] | used[str(new)]
            changed |= len(joined) > min(len(used[old]), len(used[str(new)]))
            used[old] = used[str(new)] = joined
    splits = {axis: tuple(dim for dim in dims if dim in used[axis]) for axis, dims in layout.splits.items()}
    return replace(sharded, layout=replace(layout, splits=splits))


def write_module(plans: Plans, plan: Plan | None = None) -> str:
    """Return the text of a module with the program of a plan, the fastest unless another one is given."""
    sharded = tightened((plan or plans.best).sharded)
    writer = _Writer(sharded, Costs(sharded.layout, plans.machine))
    layout = sharded.layout
    graph = layout.graph
    body = writer.lines()
    names = [port.name for port in layout.entering]
    listed = ", ".join(
        f'"{name}": {size}' for name, size in zip(layout.mesh.names, layout.mesh.sizes, strict=True)
    )
    parts = [
        f'    "{port.name}": {writer.part(port)},'
        for port in (*layout.entering, *(output.port for output in layout.leaving))
    ]
    source = inspect.getsource(runtime).partition('"""\n\n')[2]
    source = (
        source.replace('__all__ = ["ProcessMesh", "ReductionStep"]\n\n', "")
        .replace("from collections.abc", "import math\nfrom collections.abc", 1)
        .replace(
            "import torch.distributed as dist\n",
            "import torch.distributed as dist\nimport torch.nn.functional as F\n",
            1,
        )
    )
    return "\n".join(
        [
            f'"""{graph.name} on {layout.mesh.devices} devices, as processes of torch.distributed.',
            "",
            "Every process calls `program` with its parts of tensors; `local_part` makes them of whole ones.",
            '"""',
            "",
            source.rstrip(),
            "",
            "",
            f"MESH = {{{listed}}}",
            "",
            "# of each tensor: its pieces, which dimension of the mesh holds a piece, the shape of a part",
            "PARTS: dict[str, tuple[tuple[int, ...], dict[int, int], tuple[int, ...]]] = {",
            *parts,
            "}",
            "",
            "",
            "def local_part(mesh: ProcessMesh, name: str, tensor: Tensor) -> Tensor:",
            '    """Return this process\'s part of a whole tensor that enters or leaves."""',
            "    return mesh.part_of(tensor, *PARTS[name])",
            "",
            "",
            f"def program({', '.join(['mesh: ProcessMesh', *(f'{name}: Tensor' for name in names)])})"
            " -> tuple[Tensor, ...]:",
            '    """Return this process\'s parts of the results."""',
            *(f"    {line}" for line in body),
            "",
        ]
    )


class _Writer:
    """Writes each instruction as a line; a value is an expression whose axes are local pieces."""

    def __init__(self, sharded: Sharded, costs: Costs) -> None:
        self.sharded = sharded
        self.layout: Layout = sharded.layout
        self.costs = costs
        graph = self.layout.graph
        self.names = value_names(graph)
        self.sizes = {one.name: one.size for axis in graph.axes for one in self.layout.pieces(axis.name)}
        floats = [port.dtype for port in graph.inputs if port.dtype.startswith(("f", "bf"))]
        dtype = f"torch.{DTYPES[floats[0]].torch}" if floats else "torch.float32"
        device = f"{graph.inputs[0].name}.device" if graph.inputs else '"cpu"'
        self.printer = Printer({name: str(size) for name, size in self.sizes.items()}, device, dtype)
        self.made: list[Expression] = []
        self.called: set[str] = set()

    def part(self, port: Port) -> str:
        """Return how a tensor is taken apart: its pieces, who holds them, and a part's shape."""
        placement = self.sharded.placement_of(port.name)
        onto = self._onto(placement)
        pieces = [one.name for dim in port.dims for axis in dim for one in self.layout.pieces(axis)]
        held = {at: onto[name] for at, name in enumerate(pieces) if name in onto}
        whole = _tuple([self.sizes[name] for name in pieces])
        return f"({whole}, {held}, {_tuple(self._shape(port, placement))})"

    def _onto(self, placement: Placement) -> dict[str, int]:
        return {
            self.layout.chunk(tag, dim): dim
            for dim, tag in enumerate(placement)
            if tag is not None and not is_partial(tag)
        }

    def _local(self, axes: tuple[str, ...], placement: Placement) -> tuple[str, ...]:
        """Return the pieces of axes that a device has."""
        onto = self._onto(placement)
        return tuple(one.name for axis in axes for one in self.layout.pieces(axis) if one.name not in onto)

    def _shape(self, port: Port, placement: Placement) -> list[int]:
        return [prod(self.sizes[name] for name in self._local(dim, placement)) for dim in port.dims]

    def lines(self) -> list[str]:
        """Return the lines of the function."""
        lines: list[str] = []
        beside = self._moves_beside()
        running: dict[int, str] = {}  # moves that have begun, and their variables
        for at, one in enumerate(self.sharded.instructions):
            lines += [f"{running[i]} = {running.pop(i)}.result()" for i in one.inputs if i in running]
            if one.kind == "call":
                lines += self._called(one)
            expression = self._expression(one)
            if expression.kind == "number":
                self.made.append(replace(expression, atom=False) if not expression.atom else expression)
                continue
            variable = self._variable(one, at)
            comment = f"  # {self.sharded.placed(one.placement)}"
            if beside and one.moves:
                move, _, arguments = expression.text.partition("(")
                lines.append(f"{variable} = mesh.begin({move}, {arguments}{comment}")
                running[at] = variable
            elif expression.text != variable:
                lines.append(f"{variable} = {expression.text}{comment}")
            self.made.append(Expression(variable, expression.axes, expression.kind))
        lines += [f"{variable} = {variable}.result()" for variable in running.values()]
        results = [
            self._left(self.made[at], output.port, self.sharded.instructions[at].placement)
            for output, at in zip(self.layout.graph.outputs, self.sharded.outputs, strict=True)
            if output in self.layout.leaving
        ]
        return [*lines, f"return ({', '.join(results)},)"]

    def _moves_beside(self) -> bool:
        """Return whether some move has more than its own reader to run beside."""
        found = self.sharded.instructions
        return any(
            one.moves and at + 1 < len(found) and at not in found[at + 1].inputs
            for at, one in enumerate(found)
        )

    def _variable(self, one: Instruction, at: int) -> str:
        name = self.names[one.value]
        first = next(i for i, other in enumerate(self.sharded.instructions) if other.value == one.value)
        return f"{name}_" if first == at else f"{name}_{at}"

    def _expression(self, one: Instruction) -> Expression:
        inputs = [self.made[i] for i in one.inputs]
        if one.kind in ("enter", "call"):
            port = self.layout.graph.inputs[one.value]
            axes = self._local(port.axes, one.placement)
            kind: Literal["tensor", "mask"] = "mask" if port.dtype == "bool" else "tensor"
            made = port.name
            if one.kind == "call":
                call, place = self.layout.made_by[one.value]
                taken = call.taken[place]
                made = f"{call.name}{taken}" if isinstance(taken, str) else f"{call.name}_in{taken}"
            text = f"{made}.reshape({_tuple([self.sizes[name] for name in axes])})"
            return Expression(text, axes, kind)
        if one.kind == "step":
            return self._step(self.layout.graph.step_at(one.value), inputs, one)
        return self._move(one, self.printer.as_float(inputs[0]))

    def _called(self, one: Instruction) -> list[str]:
        """Return the lines that make a call, at its first result."""
        call, _ = self.layout.made_by[one.value]
        if call.name in self.called:
            return []
        self.called.add(call.name)
        ports = [self.layout.graph.outputs[at].port for at in call.arguments]
        instructions = self.sharded.instructions
        arguments = [
            self._left(self.made[at], port, instructions[at].placement)
            for at, port in zip(one.inputs, ports, strict=True)
        ]
        lines = []
        for at in call.written:
            lines.append(f"{call.name}_in{at} = {arguments[at]}.clone()")
            arguments[at] = f"{call.name}_in{at}"
        text = "".join(part if isinstance(part, str) else arguments[part] for part in call.text)
        return [*lines, f"{call.name} = {text}"]

    def _step(self, step: Step, inputs: list[Expression], one: Instruction) -> Expression:
        onto = self._onto(one.placement)
        pieces = {axis.name: self.layout.pieces(axis.name) for axis in self.layout.graph.axes}
        if step.op == "size":
            return Expression(str(self.layout.graph.sizes[step.axes[0]]), (), "number")
        if step.op == "index":
            found: Expression | None = None
            for piece in pieces[step.axes[0]]:
                own = (
                    Expression(f"mesh.place[{onto[piece.name]}]", (), "number")
                    if piece.name in onto
                    else self.printer.step(Step("index", axes=(piece.name,)), ())
                )
                if found is not None:
                    size = Expression(str(piece.size), (), "number")
                    found = self.printer.step(Step("mul", (0, 1)), (found, size))
                    own = self.printer.step(Step("add", (0, 1)), (found, own))
                found = own
            assert found is not None
            return self.printer.as_float(found)
        held = {axis for value in inputs for axis in value.axes}
        axes = tuple(part.name for axis in step.axes for part in pieces[axis] if part.name in held)
        mapping: list[tuple[str, str | int]] = []
        for old, new in step.mapping:
            if isinstance(new, str):
                pairs = zip(pieces[old], pieces[new], strict=True)
                mapping += [(a.name, b.name) for a, b in pairs if a.name in held]
            else:
                for part in reversed(pieces[old]):
                    new, place = divmod(new, part.size)
                    mapping.append((part.name, place))
        return self.printer.step(replace(step, axes=axes, mapping=tuple(mapping)), inputs)

    def _move(self, one: Instruction, value: Expression) -> Expression:
        layout = self.layout
        if one.kind == "all-reduce":
            source = self.sharded.instructions[one.inputs[0]]
            size = self.costs.bytes(one.value, source.placement)
            many = tuple(dim for dim in one.dims if layout.mesh.sizes[dim] > 1)
            steps = [
                (step.collective, many[step.first : step.last], many[step.last :] if step.masters else ())
                for step in self.costs.reduction(many, size)[1]
            ]
            how = "" if one.how == "+" else f', "{one.how}"'
            return replace(value, text=f"mesh.reduce({value.text}, {steps}{how})", atom=True)
        (dim,) = one.dims
        chunk = layout.chunk(one.onto or one.axis, dim)
        if one.kind == "all-gather":
            return Expression(f"mesh.gather({value.text}, {dim})", (chunk, *value.axes))
        place = value.axes.index(chunk)
        rest = tuple(axis for axis in value.axes if axis != chunk)
        if one.kind == "slice":
            return Expression(f"{value.inside}.select({place}, mesh.place[{dim}])", rest)
        front = f"{value.inside}.movedim({place}, 0)" if place else value.text
        if one.kind == "reduce-scatter":
            return Expression(f"mesh.scatter({front}, {dim})", rest)
        return Expression(f"mesh.exchange({front}, {dim})", (layout.chunk(one.axis, dim), *rest))

    def _left(self, value: Expression, port: Port, placement: Placement) -> str:
        """Return a value as the part of a tensor that leaves."""
        axes = self._local(port.axes, placement)
        laid = self.printer.as_float(value)
        missing = [axis for axis in axes if axis not in laid.axes]
        own = (*missing, *laid.axes)
        text = laid.text
        if missing:
            text += f".expand({_tuple([self.sizes[axis] for axis in own])})"
        order = [own.index(axis) for axis in axes]
        if order != list(range(len(order))):
            text += f".permute({', '.join(map(str, order))})"
        dtype = f"torch.{DTYPES[port.dtype].torch}"
        return f"{text}.reshape({_tuple(self._shape(port, placement))}).to({dtype})"


def _tuple(values: list[int]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"
