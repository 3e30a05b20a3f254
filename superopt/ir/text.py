"""The text form of a Graph, as errors, tests, reports and result files show it, read back.

    graph rmsnorm
    axes m=16 k=4096
    in x: f16[m, k]
    in g: f16[k]
    t2 = square(x)
    t3 = sum[k](t2)
    ...
    out y: f16[m, k] = t9

A dimension that is a product of axes stands in parentheses, `[b, s, (h d)]`; one of extent 1 that
no axis owns is `1`; strides follow as `strides(1, 4096)`. A tensor that the function holds itself, such as
a weight, is `constant`: `in w: f16[k, n] constant`.
"""

import re
from fractions import Fraction

from superopt.errors import GraphError
from superopt.ir.check import check_graph
from superopt.ir.graph import Axis, Graph, Output, Port, Step
from superopt.ir.windows.place import parse_place

__all__ = ["parse_graph", "parse_port", "plain_name"]

_NAME = r"[A-Za-z_][A-Za-z0-9_.]*"
_PORT = re.compile(
    rf"(?P<name>{_NAME}): (?P<dtype>\w+)\[(?P<dims>[^\]]*)\](?: strides\((?P<strides>[-\d, ]*)\))?"
    r"(?P<constant> constant)?"
)
_STEP = re.compile(rf"(?P<name>{_NAME}) = (?P<op>\w+)(?:\[(?P<attrs>[^\]]*)\])?\((?P<inputs>[^)]*)\)")


def plain_name(text: str) -> str:
    """Return a name that the text form reads back, near to a given one: letters of ASCII, digits and `_`."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if re.match(r"_*[A-Za-z]", name) else f"x{name}"


def parse_graph(text: str) -> Graph:
    """Return the graph that a text describes, checked."""
    name: str | None = None
    axes: list[Axis] = []
    inputs: list[Port] = []
    steps: list[Step] = []
    outputs: list[Output] = []
    position: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        head, _, rest = line.partition(" ")
        if head == "graph":
            name = rest.strip()
        elif head == "axes":
            axes += [_parse_axis(item, number) for item in rest.split()]
        elif head == "in":
            port = parse_port(rest, number)
            _define(position, port.name, number)
            inputs.append(port)
        elif head == "out":
            body, _, source = rest.rpartition(" = ")
            outputs.append(Output(parse_port(body, number), _lookup(position, source.strip(), number)))
        else:
            match = _STEP.fullmatch(line)
            if match is None:
                raise GraphError(
                    f"line {number}: {line!r} is none of 'graph', 'axes', 'in', 'out', 'name = op(...)'"
                )
            sources = [item.strip() for item in match["inputs"].split(",") if item.strip()]
            found = tuple(_lookup(position, source, number) for source in sources)
            steps.append(_parse_step(match["op"], match["attrs"], found, number))
            _define(position, match["name"], number)
    if name is None:
        raise GraphError("the text has no 'graph NAME' line")
    return check_graph(Graph(name, tuple(axes), tuple(inputs), tuple(steps), tuple(outputs)))


def _parse_axis(item: str, line: int) -> Axis:
    name, _, size = item.partition("=")
    if not size.isdigit():
        raise GraphError(f"line {line}: {item!r} is not an axis; write name=size")
    return Axis(name, int(size))


def parse_port(text: str, line: int) -> Port:
    """Return the tensor that a text describes."""
    match = _PORT.fullmatch(text.strip())
    if match is None:
        raise GraphError(f"line {line}: {text.strip()!r} is not a tensor; write name: dtype[dims]")
    dims: list[tuple[str, ...]] = []
    for item in filter(None, (dim.strip() for dim in match["dims"].split(","))):
        dims.append(() if item == "1" else tuple(item.strip("()").split()))
    strides = match["strides"]
    return Port(
        match["name"],
        match["dtype"],
        tuple(dims),
        None if strides is None else tuple(int(stride) for stride in strides.split(",") if stride.strip()),
        constant=match["constant"] is not None,
    )


def _parse_step(op: str, attrs: str | None, inputs: tuple[int, ...], line: int) -> Step:
    items = [item.strip() for item in (attrs or "").split(",") if item.strip()]
    if op == "const":
        if len(items) != 1:
            raise GraphError(f"line {line}: const takes one number, as in const[0.5]()")
        return Step(op, inputs, value=_parse_constant(items[0], line))
    if op == "rename":
        pairs = [item.split("->") for item in items]
        if any(len(pair) != 2 for pair in pairs):
            raise GraphError(f"line {line}: rename takes old->new, as in rename[i->j](x)")
        return Step(op, inputs, mapping=tuple((old, new) for old, new in pairs))
    if op == "select":
        pairs = [item.split("=") for item in items]
        if any(len(pair) != 2 or not pair[1].isdigit() for pair in pairs):
            raise GraphError(f"line {line}: select takes axis=position, as in select[t=0](x)")
        return Step(op, inputs, mapping=tuple((axis, int(at)) for axis, at in pairs))
    if op == "window":
        places = tuple(place for item in items if (place := parse_place(item)) is not None)
        if len(places) != len(items):
            raise GraphError(f"line {line}: window takes axis = places, as in window[h = 2*ho + r - 1](x)")
        return Step(op, inputs, places=places)
    return Step(op, inputs, axes=tuple(items))


def _parse_constant(text: str, line: int) -> Fraction:
    try:
        return Fraction(float(text)) if "." in text or "e" in text else Fraction(text)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise GraphError(f"line {line}: {text!r} is not a finite number") from error


def _define(position: dict[str, int], name: str, line: int) -> None:
    if name in position:
        raise GraphError(f"line {line}: {name!r} is already defined")
    position[name] = len(position)


def _lookup(position: dict[str, int], name: str, line: int) -> int:
    if name not in position:
        raise GraphError(f"line {line}: {name!r} is not defined above")
    return position[name]
