"""Reference: a graph as a plain PyTorch function, and random inputs to call it on."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from superopt.dtypes import DTYPES, INTEGERS
from superopt.export.expressions import Expression, Printer, spread_text
from superopt.export.limits import Limits
from superopt.export.names import Names, tuple_text
from superopt.ir import Graph, Port, stabilize, value_names
from superopt.ir.compose import compose, contract_products
from superopt.ir.mugraph import Split
from superopt.verify.evaluation.orders import nonnegative_values

__all__ = [
    "entered",
    "input_lines",
    "left_text",
    "needed",
    "reference_lines",
    "shape_texts",
    "size_lines",
    "torch_dtype",
]

_INLINE = 60  # characters up to which an expression is written where it is used
_ROOTS = frozenset({"sqrt", "rsqrt", "log", "log2", "log1p", "pow"})


def torch_dtype(dtype: str) -> str:
    """Return a dtype as code."""
    return f"torch.{DTYPES[dtype].torch}"


def size_lines(
    graph: Graph,
    ports: Mapping[str, str],
    names: Names,
    splits: Sequence[Split] = (),
    multiples: Mapping[str, int] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the lines that read the size of each axis off the inputs, and the variable of each axis.

    The parts of a split axis are a multiple of some number long, by their axis, and none is empty.
    """
    sizes = {axis.name: names.take(axis.name) for axis in graph.axes}
    whole = {(split.outer, split.inner): split.axis for split in splits}
    known: set[str] = set()
    lines: list[str] = []
    for port in graph.inputs:
        dims = [(whole[dim],) if dim in whole else dim for dim in port.dims]
        new = [dim[0] if len(dim) == 1 and dim[0] not in known else None for dim in dims]
        if any(new):
            targets = [sizes[axis] if axis else "_" for axis in new]
            comma = "," if len(targets) == 1 else ""
            lines.append(f"{', '.join(targets)}{comma} = {ports[port.name]}.shape")
            known.update(axis for axis in new if axis)
    for split in splits:
        outer, inner, axis = sizes[split.outer], sizes[split.inner], sizes[split.axis]
        lines += [f"{outer} = {graph.sizes[split.outer]}", f"{inner} = -(-{axis} // {outer})"]
        multiple = (multiples or {}).get(split.inner, 1)
        if multiple > 1:
            lines.append(f"{inner} = -(-{inner} // {multiple}) * {multiple}")
        lines.append(f"{outer} = -(-{axis} // {inner})")
        known |= {split.outer, split.inner}
    for port in graph.inputs:
        for at, dim in enumerate(port.dims):
            if len(dim) < 2 or dim in whole:
                continue
            for axis in dim[1:]:
                if axis not in known:
                    lines.append(f"{sizes[axis]} = {graph.sizes[axis]}")
                    known.add(axis)
            if dim[0] not in known:
                inner = " * ".join(sizes[axis] for axis in dim[1:])
                inner = inner if len(dim) == 2 else f"({inner})"
                lines.append(f"{sizes[dim[0]]} = {ports[port.name]}.shape[{at}] // {inner}")
                known.add(dim[0])
    for old, other in [pair for step in graph.steps if step.op == "rename" for pair in step.mapping]:
        if str(other) not in known and old in known:
            lines.append(f"{sizes[str(other)]} = {sizes[old]}")
            known.add(str(other))
    lines += [f"{sizes[axis.name]} = {axis.size}" for axis in graph.axes if axis.name not in known]
    return lines, sizes


def shape_texts(port: Port, sizes: Mapping[str, str]) -> list[str]:
    """Return the extent of each dimension of a port."""
    return [" * ".join(sizes[axis] for axis in dim) or "1" for dim in port.dims]


def left_text(text: str, axes: Sequence[str], port: Port, sizes: Mapping[str, str]) -> str:
    """Return a value in the shape of the port it leaves at."""
    found = spread_text(text, axes, port.axes, sizes)
    if all(len(dim) == 1 for dim in port.dims):
        return found
    return f"{found}.reshape({', '.join(shape_texts(port, sizes)) or '()'})"


def entered(port: Port, variable: str, sizes: Mapping[str, str]) -> str:
    """Return an input with one dimension for each axis."""
    if all(len(dim) == 1 for dim in port.dims):
        return variable
    return f"{variable}.reshape({', '.join(sizes[axis] for axis in port.axes) or '()'})"


def reference_lines(
    graph: Graph,
    function: str = "reference",
    text: str = "The same in plain PyTorch, computed in one dtype.",
    dtype: str = "torch.float32",
    *,
    limits: Limits,
) -> list[str]:
    """Return a function, by default `reference`, which computes a graph in plain PyTorch."""
    graph = contract_products(compose(stabilize(graph)))
    names = Names()
    ports = {port.name: names.take(port.name) for port in graph.inputs}
    sized, sizes = size_lines(graph, ports, names)
    device = f"{next(iter(ports.values()))}.device" if ports else '"cpu"'
    printer = Printer(sizes, device, "dtype", graph.sizes)
    uses = Counter(i for step in graph.steps for i in step.inputs)
    uses.update(output.value for output in graph.outputs)
    body: list[str] = []
    values: dict[int, Expression] = {}
    for value, port in enumerate(graph.inputs):
        variable = ports[port.name]
        kind = "mask" if port.dtype == "bool" else "tensor"
        text = entered(port, variable, sizes)
        if kind == "tensor":
            text += ".to(dtype)"
        if text != variable:
            body.append(f"{variable} = {text}")
        values[value] = Expression(variable, port.axes, "mask" if kind == "mask" else "tensor")
    labels = value_names(graph)
    for value, step in graph.numbered:
        made = printer.step(step, [values[i] for i in step.inputs])
        is_plain = step.op in ("const", "infinity", "size", "rename")
        short = len(made.text) <= _INLINE and uses[value] == 1 and step.op not in ("contract", "sum", "max")
        if not (is_plain or short or made.kind == "number"):
            name = names.take(labels[value])
            body.append(f"{name} = {made.text}")
            made = Expression(name, made.axes, made.kind)
        values[value] = made
    results = []
    for output in graph.outputs:
        made = values[output.value]
        made = made if made.kind == "mask" else printer.as_float(made)
        text = left_text(made.inside, made.axes, output.port, sizes)
        results.append(f"{text}.to({torch_dtype(output.port.dtype)})")
    body.append(f"return {results[0] if len(results) == 1 else ', '.join(results)}")
    read = {axis for port in graph.inputs for axis in port.axes}
    body = [*limits.lines(graph, read, sizes, sized), *body]
    used = "\n".join(body)
    lines = [f"def {function}({', '.join([*ports.values(), f'dtype={dtype}'])}):", f'    """{text}"""']
    return [*lines, *(f"    {line}" for line in [*needed(sized, used), *body])]


def needed(definitions: list[str], text: str) -> list[str]:
    """Return the definitions of variables that a text, or a later definition, uses; others become `_`."""
    kept: list[str] = []
    for line in reversed(definitions):
        left, _, right = line.partition(" = ")
        targets = [one.strip() for one in left.split(",") if one.strip()]
        rest = "\n".join([text, *kept])
        live = [one if re.search(rf"\b{re.escape(one)}\b", rest) else "_" for one in targets]
        if any(one != "_" for one in live):
            kept.insert(
                0, f"{', '.join(live)}{',' if len(live) == 1 and left.endswith(',') else ''} = {right}"
            )
    return kept


def input_lines(graph: Graph) -> list[str]:
    """Return `SIZES` and `make_inputs`: random inputs of a graph, in the layout it was made for."""
    names = Names()
    ports = {port.name: names.take(port.name) for port in graph.inputs}
    sizes = {axis.name: names.take(axis.name) for axis in graph.axes}
    free = {axis for port in graph.inputs for axis in port.axes}
    listed = ", ".join(f'"{axis.name}": {axis.size}' for axis in graph.axes if axis.name in free)
    scales, positive = _scales(graph), _rooted(graph)
    body = ["sizes = {**SIZES, **sizes}"]
    targets = [sizes[axis.name] for axis in graph.axes if axis.name in free]
    if targets:
        comma = "," if len(targets) == 1 else ""
        body.append(f"{', '.join(targets)}{comma} = (sizes[axis] for axis in SIZES)")
    body.append("torch.manual_seed(seed)")
    for at, port in enumerate(graph.inputs):
        order, back = _order(port)
        shape = shape_texts(port, sizes)
        size = ", ".join(shape[dim] for dim in order)
        if port.dtype == "bool":
            text = f"torch.rand({tuple_text([shape[dim] for dim in order]) if order else '()'}) < 0.5"
            text = f"({text})"
        elif port.dtype in INTEGERS:
            text = f"torch.randint(0, 8, {tuple_text([shape[dim] for dim in order]) if order else '()'})"
        else:
            text = f"torch.randn({size})" if size else "torch.randn(())"
            text += ".abs()" if at in positive else ""
            if at and scales.get(at):
                summed = " * ".join(sizes[axis] for axis in scales[at])
                summed = summed if len(scales[at]) == 1 else f"({summed})"
                text = f"({text} * {summed}**-0.5)"
        text += f".to(device, {torch_dtype(port.dtype)})"
        if back:
            text += f".permute({', '.join(map(str, back))})"
        body.append(f"{ports[port.name]} = {text}")
    body.append(f"return {tuple_text(list(ports.values())) if ports else '()'}")
    return [
        f"SIZES = {{{listed}}}",
        "",
        "",
        'def make_inputs(device="cpu", seed=0, **sizes):',
        '    """Return random inputs, of the sizes in SIZES where no others are given."""',
        *(f"    {line}" for line in body),
    ]


def _scales(graph: Graph) -> dict[int, tuple[str, ...]]:
    """Return the axes along which inputs are multiplied and summed; scaled by them, results stay near 1."""
    graph = contract_products(graph)
    found: dict[int, tuple[str, ...]] = {}
    for step in graph.steps:
        if step.op == "contract":
            for i in step.inputs:
                if i < len(graph.inputs):
                    found.setdefault(i, step.axes)
    return found


def _rooted(graph: Graph) -> set[int]:
    """Return the inputs of which roots and logarithms are taken, which negative numbers have none of."""
    not_negative = nonnegative_values(graph)
    waiting = [step.inputs[0] for step in graph.steps if step.op in _ROOTS]
    found: set[int] = set()
    while waiting:
        value = waiting.pop()
        if not_negative[value] or value in found:
            continue
        found.add(value)
        waiting += graph.operands_of(value)
    return {value for value in found if value < len(graph.inputs)}


def _order(port: Port) -> tuple[list[int], list[int]]:
    """Return the dimensions as they lie in memory, outermost first, and the permutation back if any."""
    dims = range(len(port.dims))
    if port.strides is None:
        return list(dims), []
    order = sorted(dims, key=lambda dim: -(port.strides or ())[dim])
    back = [order.index(dim) for dim in dims]
    return order, [] if order == list(dims) else back
