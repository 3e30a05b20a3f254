"""Written: a sharded program as a Python module that needs only torch, for processes of torch.distributed.

All devices compute in float32, or in float64 where the program has it, since a graph does not say where its
program casts. Halves stay halves where they are only moved, and where they are multiplied: their products are
added up in float32.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, prod
from typing import Literal

from superopt.dtypes import DTYPES, EXACT, HALVES, INTEGERS
from superopt.errors import InputError
from superopt.export.expressions import Expression, Printer, equation
from superopt.export.masked import SOURCE
from superopt.export.names import Names
from superopt.ir import Port, Step, mask_values, value_names
from superopt.ops import OPS
from superopt.precision import is_wide, operand_dtypes, product_dtype
from superopt.shard.costs import Costs
from superopt.shard.output import runtime
from superopt.shard.search import Plan, Plans
from superopt.shard.sharded import DEVICE, SUM, Instruction, Layout, Placement, Sharded, is_partial
from superopt.trace.capture.tape import Ref

__all__ = ["tightened", "write_module"]

_USED = ("F", "contracted", "float", "masked_sum", "math", "mesh", "torch")  # in the lines of a program
_VIEWS = frozenset({"rename", "select"})
_REDUCING = frozenset({"all-reduce", "reduce-scatter"})
_WIDE = INTEGERS - EXACT  # float32 does not hold all of these integers


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


def write_module(plans: Plans, plan: Plan | None = None, *, returned: Sequence[object] = ()) -> str:
    """Return the text of a module with the program of a plan, the fastest unless another one is given.

    Where its function returns more than tensors, `returned` has all of it in order, with Refs for tensors.
    """
    sharded = tightened((plan or plans.best).sharded)
    writer = _Writer(sharded, Costs(sharded.layout, plans.machine), returned)
    kind = "Tensor" if all(isinstance(one, Ref) for one in returned) else "Any"
    layout = sharded.layout
    graph = layout.graph
    body = writer.lines()
    listed = ", ".join(
        f'"{name}": {size}' for name, size in zip(layout.mesh.names, layout.mesh.sizes, strict=True)
    )
    parts = [
        f'    "{port.name}": {writer.part(port)},'
        for port in (*layout.entering, *(output.port for output in layout.leaving))
    ]
    source = inspect.getsource(runtime).partition('"""\n\n')[2]
    source = (
        re.sub(r"__all__ = .*\n\n", "", source, count=1)
        .replace("from collections.abc", "import math\nfrom collections.abc", 1)
        .replace(
            "import torch.distributed as dist\n",
            "import torch.distributed as dist\nimport torch.nn.functional as F\n",
            1,
        )
    )
    if any("masked_sum(" in line for line in body):
        source = f"{source.rstrip()}\n\n\n{SOURCE}"
    given = ["mesh: ProcessMesh", *(f"{name}: Tensor" for name in writer.ports.values())]
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
            "@torch.no_grad()  # collectives have no gradients",
            f"def program({', '.join(given)}) -> tuple[{kind}, ...]:",
            '    """Return this process\'s parts of the results."""',
            *(f"    {line}" for line in body),
            "",
        ]
    )


class _Writer:
    """Writes each instruction as a line; a value is an expression whose axes are local pieces.

    `dtypes` are those of what instructions make, `sources` the instructions whose memory it is.
    """

    def __init__(self, sharded: Sharded, costs: Costs, returned: Sequence[object] = ()) -> None:
        self.sharded = sharded
        self.layout: Layout = sharded.layout
        self.costs = costs
        self.returned = returned
        graph = self.layout.graph
        self.labels, self.masks = value_names(graph), mask_values(graph)
        self.names = Names(used=_USED)
        self.ports = {port.name: self.names.take(port.name) for port in self.layout.entering}
        self.sizes = {one.name: one.size for axis in graph.axes for one in self.layout.pieces(axis.name)}
        ports = (*graph.inputs, *(output.port for output in graph.outputs))
        self.dtype = "f64" if "f64" in {port.dtype for port in ports} else "f32"
        self.stored = operand_dtypes(
            graph, graph.numbered, {at: port.dtype for at, port in enumerate(graph.inputs)}
        )
        self.rounded = self._rounded()
        device = f"{next(iter(self.ports.values()))}.device" if self.ports else '"cpu"'
        sizes = {name: str(size) for name, size in self.sizes.items()}
        self.printer = Printer(sizes, device, _torch(self.dtype), self.sizes)
        self.body: list[str] = []
        self.made: list[Expression] = []
        self.dtypes: list[str] = []
        self.sources: list[int] = []
        self.casts: dict[tuple[int, str], Expression] = {}
        self.called: dict[str, str] = {}

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
        beside = self._moves_beside()
        running: dict[int, str] = {}  # moves that have begun, and their variables
        for at, one in enumerate(self.sharded.instructions):
            self.body += [f"{running[i]} = {running.pop(i)}.result()" for i in one.inputs if i in running]
            expression, dtype = self._expression(one, at)
            self.dtypes.append(dtype)
            self.sources.append(self.sources[one.inputs[0]] if self._is_view(one) else at)
            if expression.kind == "number":
                self.made.append(replace(expression, atom=False) if not expression.atom else expression)
                continue
            variable = self._variable(one, at)
            comment = f"  # {self.sharded.placed(one.placement)}"
            if beside and one.moves:
                move, _, arguments = expression.text.partition("(")
                self.body.append(f"{variable} = mesh.begin({move}, {arguments}{comment}")
                running[at] = variable
            else:
                self.body.append(f"{variable} = {expression.text}{comment}")
            made = Expression(variable, expression.axes, expression.kind)
            if one.moves and made.kind == "mask":  # it moves as integers
                made = replace(made, text=f"{variable} != 0", atom=False)
            self.made.append(made)
        self.body += [f"{variable} = {variable}.result()" for variable in running.values()]
        results = self._results()
        if self.returned:
            tensors = iter(results)
            results = [next(tensors) if isinstance(one, Ref) else _literal(one) for one in self.returned]
        return [*self.body, f"return ({', '.join(results)},)"]

    def _results(self) -> list[str]:
        """Return what leaves; no two results, nor a result and an input, are the same memory."""
        results = []
        taken = {at for at, one in enumerate(self.sharded.instructions) if one.kind == "enter"}
        for output, at in zip(self.layout.graph.outputs, self.sharded.outputs, strict=True):
            if output in self.layout.leaving:
                results.append(self._left(at, output.port, copy=self.sources[at] in taken))
                taken.add(self.sources[at])
        return results

    def _moves_beside(self) -> bool:
        """Return whether some move has more than its own reader to run beside."""
        found = self.sharded.instructions
        return any(
            one.moves and at + 1 < len(found) and at not in found[at + 1].inputs
            for at, one in enumerate(found)
        )

    def _is_view(self, one: Instruction) -> bool:
        step = self.layout.graph.step_of(one.value)
        return one.kind == "slice" or (one.kind == "step" and step is not None and step.op in _VIEWS)

    def _variable(self, one: Instruction, at: int) -> str:
        name = self.labels[one.value]
        first = next(i for i, other in enumerate(self.sharded.instructions) if other.value == one.value)
        return self.names.take(f"{name}_" if first == at else f"{name}_{at}")

    def _expression(self, one: Instruction, at: int) -> tuple[Expression, str]:
        """Return what an instruction makes, and its dtype."""
        if one.kind == "step":
            return self._step(self.layout.graph.step_at(one.value), one)
        if one.kind not in ("enter", "call"):
            return self._move(one, at)
        port = self.layout.graph.inputs[one.value]
        axes = self._local(port.axes, one.placement)
        kind: Literal["tensor", "mask"] = "mask" if port.dtype == "bool" else "tensor"
        made = self._called(one) if one.kind == "call" else self.ports[port.name]
        text = f"{made}.reshape({_tuple([self.sizes[name] for name in axes])})"
        return Expression(text, axes, kind), port.dtype

    def _called(self, one: Instruction) -> str:
        """Return a result of a call; its first result adds the lines that make the call."""
        call, place = self.layout.made_by[one.value]
        if call.name not in self.called:
            ports = [self.layout.graph.outputs[at].port for at in call.arguments]
            arguments = [self._left(at, port) for at, port in zip(one.inputs, ports, strict=True)]
            self.called[call.name] = variable = self.names.take(call.name)
            for at in call.written:
                self.called[f"{call.name}_in{at}"] = copied = self.names.take(f"{variable}_in{at}")
                self.body.append(f"{copied} = {arguments[at]}.clone()")
                arguments[at] = copied
            known = {**dict(enumerate(arguments)), DEVICE: self.printer.device}
            text = "".join(part if isinstance(part, str) else known[part] for part in call.text)
            self.body.append(f"{variable} = {text}")
        taken = call.taken[place]
        return (
            f"{self.called[call.name]}{taken}"
            if isinstance(taken, str)
            else self.called[f"{call.name}_in{taken}"]
        )

    def _cast(self, at: int, dtype: str) -> Expression:
        """Return what an instruction makes in a dtype; masks and numbers have none."""
        one = self.made[at]
        if one.kind != "tensor" or self.dtypes[at] == dtype:
            return one
        if (at, dtype) not in self.casts:
            variable = self.names.take(f"{one.text.strip('_')}_{dtype}")
            self.body.append(f"{variable} = {one.text}.to({_torch(dtype)})")
            self.casts[at, dtype] = replace(one, text=variable)
        return self.casts[at, dtype]

    def _half(self, step: Step) -> str | None:
        """Return the half precision in which a contraction's operands are multiplied, if that is right.

        Tensors that the program has in other floats are not rounded, nor to fp16 what may not fit.
        """
        graph = self.layout.graph
        a, b = (self.costs.axes[i] for i in step.inputs)
        if self.dtype == "f64" or not (a - b and b - a) or any(self.masks[i] for i in step.inputs):
            return None
        stored = {self.stored[i] for i in step.inputs if i in self.stored}
        dtype = product_dtype(graph, step, self.stored)
        if dtype not in HALVES or any(one not in HALVES and DTYPES[one].bytes > 1 for one in stored):
            return None
        too_large = dtype == "f16" and any(is_wide(graph, i, self.stored) for i in step.inputs)
        return None if too_large else dtype

    def _rounded(self) -> dict[int, str]:
        """Return the instructions whose values all that reads them rounds to one half precision."""
        instructions = self.sharded.instructions
        read: list[set[str]] = [set() for _ in instructions]
        for output, at in zip(self.layout.graph.outputs, self.sharded.outputs, strict=True):
            read[at].add(output.port.dtype)  # what calls read is an output, too
        for at, one in reversed(list(enumerate(instructions))):
            own = {self.dtype}
            if self._is_view(one) or (one.kind not in ("step", "call") and one.kind not in _REDUCING):
                own = read[at]
            elif one.kind == "step" and self.layout.graph.step_at(one.value).op == "contract":
                own = {self._half(self.layout.graph.step_at(one.value)) or self.dtype}
            for i in one.inputs if one.kind != "call" else ():
                read[i] |= own
        return {at: next(iter(own)) for at, own in enumerate(read) if len(own) == 1 and own <= HALVES}

    def _step(self, step: Step, one: Instruction) -> tuple[Expression, str]:
        pieces = {axis.name: self.layout.pieces(axis.name) for axis in self.layout.graph.axes}
        if step.op == "size":
            return Expression(str(self.layout.graph.sizes[step.axes[0]]), (), "number"), self.dtype
        if step.op == "index":
            return self._index(step, one)
        own = {self.dtypes[i] for i in one.inputs if self.made[i].kind == "tensor"}
        compares = step.op in OPS and bool(OPS[step.op].sign)
        as_it_is = step.op in _VIEWS or (compares and own <= _WIDE)
        half = self._half(step) if step.op == "contract" else None
        inputs = [self.made[i] if as_it_is else self._cast(i, half or self.dtype) for i in one.inputs]
        held = {axis for value in inputs for axis in value.axes}
        axes = tuple(part.name for axis in step.axes for part in pieces[axis] if part.name in held)
        if half:
            a, b = inputs
            kept = tuple(axis for axis in dict.fromkeys((*a.axes, *b.axes)) if axis not in axes)
            text = f'contracted("{equation(a, b, kept)}", {a.text}, {b.text})'
            return Expression(text, kept), self.dtype
        mapping: list[tuple[str, str | int]] = []
        for old, new in step.mapping:
            if isinstance(new, str):
                pairs = zip(pieces[old], pieces[new], strict=True)
                mapping += [(a.name, b.name) for a, b in pairs if a.name in held]
            else:
                for part in reversed(pieces[old]):
                    new, place = divmod(new, part.size)
                    mapping.append((part.name, place))
        places = tuple(map(self.layout.place_of, step.places))
        step = replace(step, axes=axes, mapping=tuple(mapping), places=places)
        return self.printer.step(step, inputs), self.dtypes[one.inputs[0]] if as_it_is else self.dtype

    def _index(self, step: Step, one: Instruction) -> tuple[Expression, str]:
        """Return the positions along an axis that a device has."""
        onto = self._onto(one.placement)
        found: Expression | None = None
        for piece in self.layout.pieces(step.axes[0]):
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
        return self.printer.as_float(found), self.dtype if found.kind == "number" else "i64"

    def _move(self, one: Instruction, at: int) -> tuple[Expression, str]:
        layout = self.layout
        (source,) = one.inputs
        value, dtype = self.made[source], self.dtypes[source]
        is_mask = value.kind == "mask" and (one.kind not in _REDUCING or one.how != SUM)
        rounded = self.rounded.get(at, dtype)
        if is_mask:
            if one.moves:
                value = Expression(f"{value.inside}.to(torch.uint8)", value.axes)
        elif value.kind != "tensor":
            value, dtype = self.printer.as_float(value), self.dtype
        elif one.kind in _REDUCING:
            value, dtype = self._cast(source, self.dtype), self.dtype
        elif one.moves and DTYPES[rounded].bytes < DTYPES[dtype].bytes:
            value, dtype = self._cast(source, rounded), rounded
        kind: Literal["tensor", "mask"] = "mask" if is_mask else "tensor"
        if one.kind == "all-reduce":
            size = self.costs.bytes(one.value, self.sharded.instructions[source].placement)
            many = tuple(dim for dim in one.dims if layout.mesh.sizes[dim] > 1)
            steps = [
                (step.collective, many[step.first : step.last], many[step.last :] if step.masters else ())
                for step in self.costs.reduction(many, size)[1]
            ]
            how = "" if one.how == SUM else f', "{one.how}"'
            return Expression(f"mesh.reduce({value.text}, {steps}{how})", value.axes, kind), dtype
        (dim,) = one.dims
        chunk = layout.chunk(one.onto or one.axis, dim)
        if one.kind == "all-gather":
            return Expression(f"mesh.gather({value.text}, {dim})", (chunk, *value.axes), kind), dtype
        place = value.axes.index(chunk)
        rest = tuple(axis for axis in value.axes if axis != chunk)
        if one.kind == "slice":
            return Expression(f"{value.inside}.select({place}, mesh.place[{dim}])", rest, kind), dtype
        front = f"{value.inside}.movedim({place}, 0)" if place else value.text
        if one.kind == "reduce-scatter":
            return Expression(f"mesh.scatter({front}, {dim})", rest), dtype
        return Expression(f"mesh.exchange({front}, {dim})", (layout.chunk(one.axis, dim), *rest), kind), dtype

    def _left(self, at: int, port: Port, *, copy: bool = False) -> str:
        """Return what an instruction makes as the part of a tensor that leaves."""
        placement = self.sharded.instructions[at].placement
        axes = self._local(port.axes, placement)
        laid = self.printer.as_float(self.made[at])
        missing = [axis for axis in axes if axis not in laid.axes]
        own = (*missing, *laid.axes)
        text = laid.text
        if missing:
            text += f".expand({_tuple([self.sizes[axis] for axis in own])})"
        order = [own.index(axis) for axis in axes]
        if order != list(range(len(order))):
            text += f".permute({', '.join(map(str, order))})"
        copied = ", copy=True" if copy else ""
        return f"{text}.reshape({_tuple(self._shape(port, placement))}).to({_torch(port.dtype)}{copied})"


def _literal(value: object) -> str:
    """Return a result that is no tensor as Python text."""
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value!r}")'
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    raise InputError(f"a written program cannot return {value!r}; leave it out of the function's results")


def _torch(dtype: str) -> str:
    return f"torch.{DTYPES[dtype].torch}"


def _tuple(values: list[int]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"
