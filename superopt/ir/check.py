"""The rules a Graph must keep, each with an error that names the step and the remedy."""

from collections import Counter

from superopt.dtypes import DTYPES
from superopt.errors import GraphError
from superopt.ir.graph import REDUCTIONS, STRUCTURAL, Graph, Port, Step, arity, value_axes
from superopt.ops import OPS

__all__ = ["check_graph"]


def check_graph(graph: Graph) -> Graph:
    """Return the graph unchanged, or raise GraphError naming the first rule it breaks."""
    names = Counter(axis.name for axis in graph.axes)
    for name, count in names.items():
        _require(count == 1, graph, f"axis {name!r} is declared {count} times")
    for axis in graph.axes:
        _require(axis.size >= 0, graph, f"axis {axis.name!r} has the negative size {axis.size}")
    known = set(names)
    ports = Counter(port.name for port in graph.inputs)
    for port in graph.inputs:
        _require(ports[port.name] == 1, graph, f"two inputs are called {port.name!r}")
        _check_port(graph, port, known)
    for position, step in enumerate(graph.steps):
        _check_step(graph, step, len(graph.inputs) + position, known)
    axes = value_axes(graph)
    for position, step in enumerate(graph.steps):
        _check_axes(graph, step, len(graph.inputs) + position, axes)
    _require(bool(graph.outputs), graph, "there is no output")
    for output in graph.outputs:
        _check_port(graph, output.port, known)
        _require(not output.port.constant, graph, f"output {output.port.name!r} is constant; only inputs are")
        _require(
            0 <= output.value < len(axes),
            graph,
            f"output {output.port.name!r} takes value {output.value}, but there are {len(axes)} values",
        )
        missing = axes[output.value] - set(output.port.axes)
        _require(
            not missing,
            graph,
            f"output {output.port.name!r} has no dimension for {_names(missing)}; sum over it or add it",
        )
    return graph


def _check_port(graph: Graph, port: Port, known: set[str]) -> None:
    _require(
        port.dtype in DTYPES,
        graph,
        f"tensor {port.name!r} has the unknown dtype {port.dtype!r}; known: {', '.join(DTYPES)}",
    )
    for axis, count in Counter(port.axes).items():
        _require(axis in known, graph, f"tensor {port.name!r} uses the undeclared axis {axis!r}")
        _require(count == 1, graph, f"tensor {port.name!r} uses axis {axis!r} twice; rename one of them")
    if port.strides is not None:
        _require(
            len(port.strides) == len(port.dims),
            graph,
            f"tensor {port.name!r} has {len(port.dims)} dimensions but {len(port.strides)} strides",
        )


def _check_step(graph: Graph, step: Step, value: int, known: set[str]) -> None:
    where = f"step {value} ({step.op})"
    expected = arity(step.op)
    _require(
        expected is not None,
        graph,
        f"step {value} uses the unknown operator {step.op!r}; known: {', '.join([*STRUCTURAL, *OPS])}",
    )
    _require(len(step.inputs) == expected, graph, f"{where} takes {expected} values, not {len(step.inputs)}")
    for i in step.inputs:
        _require(0 <= i < value, graph, f"{where} uses value {i}, which is not an earlier one")
    _require((step.value is not None) == (step.op == "const"), graph, f"{where}: only const has a value")
    _require(
        bool(step.mapping) == (step.op in ("rename", "select")),
        graph,
        f"{where}: rename and select need a mapping, nothing else has one",
    )
    reduces = step.op in REDUCTIONS
    _require(
        bool(step.axes) == (reduces or step.op in ("size", "index")),
        graph,
        f"{where}: reductions, size and index name their axes, nothing else does",
    )
    _require(
        step.op not in ("size", "index") or len(step.axes) == 1, graph, f"{where} names exactly one axis"
    )
    _require(
        bool(step.places) == (step.op == "window"), graph, f"{where}: windows name places, nothing else does"
    )
    for axis in (*step.axes, *(axis for place in step.places for axis in place.named)):
        _require(axis in known, graph, f"{where} uses the undeclared axis {axis!r}")
    for old, new in step.mapping:
        _require(old in known, graph, f"{where} uses the undeclared axis {old!r}")
        if isinstance(new, str):
            _require(step.op == "rename", graph, f"{where} selects at {new!r}, which is not a position")
            _require(new in known, graph, f"{where} uses the undeclared axis {new!r}")
        else:
            _require(step.op == "select", graph, f"{where} renames {old!r} to the number {new}")


def _check_axes(graph: Graph, step: Step, value: int, axes: tuple[frozenset[str], ...]) -> None:
    where = f"step {value} ({step.op})"
    union = frozenset[str]().union(*(axes[i] for i in step.inputs))
    sizes = graph.sizes
    for axis, count in Counter(step.axes).items():
        _require(count == 1, graph, f"{where} names axis {axis!r} twice")
        if step.op in REDUCTIONS:
            _require(
                axis in union, graph, f"{where} reduces {axis!r}, but its values only have {_names(union)}"
            )
    for old, new in step.mapping:
        _require(old in union, graph, f"{where} maps {old!r}, but its value only has {_names(union)}")
        if isinstance(new, str):
            _require(
                sizes[old] == sizes[new],
                graph,
                f"{where} maps {old!r} of size {sizes[old]} to {new!r} of size {sizes[new]}",
            )
        else:
            _require(
                0 <= new < sizes[old],
                graph,
                f"{where} selects position {new} of {old!r}, whose size is {sizes[old]}",
            )
    if step.op == "window":
        _check_places(graph, step, where, union)
    if step.op == "rename":
        _require(
            len(axes[value]) == len(union), graph, f"{where} maps two axes to one; a diagonal is not a rename"
        )


def _check_places(graph: Graph, step: Step, where: str, union: frozenset[str]) -> None:
    read = [axis for place in step.places for axis in place.axes]
    made = [axis for place in step.places for axis, _ in place.terms]
    for axis, count in Counter(read + made).items():
        _require(count == 1, graph, f"{where} names axis {axis!r} twice")
    for axis in read:
        _require(
            axis in union, graph, f"{where} reads along {axis!r}, but its value only has {_names(union)}"
        )
    for place in step.places:
        _require(bool(place.axes), graph, f"{where} has a place along no axis")
        for axis, factor in place.terms:
            _require(factor != 0, graph, f"{where} reads the same at all positions of {axis!r}; leave it out")


def _require(condition: bool, graph: Graph, message: str) -> None:
    if not condition:
        raise GraphError(f"graph {graph.name!r}: {message}")


def _names(axes: frozenset[str] | set[str]) -> str:
    return ", ".join(repr(axis) for axis in sorted(axes)) or "no axes"
