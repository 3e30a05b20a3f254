"""Calls: the operators between the regions of a program, which are no algebra, and how each may be split.

Every device makes a call on whole tensors. Along a dimension of its tensors in which an operator treats each
place by itself, such as the rows that a sort leaves apart, a device may also have a chunk of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from superopt.dtypes import DTYPES
from superopt.errors import InputError
from superopt.ir import Graph, Port, Region, stabilize
from superopt.shard.sharded import DEVICE, Call, Split
from superopt.trace import Traced
from superopt.trace.algebra import OpaqueCall
from superopt.trace.capture.tape import Ref, is_view
from superopt.trace.run import dtype_name
from superopt.verify.programs.whole import OpaqueUse, whole_program

__all__ = ["Whole", "whole_of"]

_ALONG = {
    *("argmax", "argmin", "argsort", "cummax", "cummin", "cumprod", "cumsum", "kthvalue"),
    *("logcumsumexp", "median", "mode", "nanmedian", "sort", "topk"),
}
"""Operators of ATen that mix the places of one dimension of their first argument, and no others."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A program as one graph: its regions, one behind the other, and the calls between them.

    What calls make enters the graph, and what they read leaves it. `original` is the graph as it was traced.
    """

    graph: Graph
    original: Graph
    calls: tuple[Call, ...] = ()


def whole_of(traced: Traced, shapes: Mapping[str, tuple[int, ...]]) -> Whole:
    """Return a program as one graph; `shapes` has the shape of each tensor that enters."""
    if not traced.program.regions:
        raise InputError(f"{traced.program.name} has no algebra to share out among devices")
    if not traced.program.opaque:
        return Whole(stabilize(traced.graph), traced.graph)
    for node in traced.program.opaque:
        _check(traced.calls[node.name])
    # Regions are stabilized one by one: a shift shared by two of them might depend on itself through a call.
    nodes = tuple(
        Region(stabilize(node.graph)) if isinstance(node, Region) else node for node in traced.program.nodes
    )
    stable = replace(traced, program=replace(traced.program, nodes=nodes))
    whole = whole_program(stable, shapes)
    graph = _named(whole.graph, whole.calls, traced)
    random = next((call for call in whole.calls if call.random), None)
    if random is not None:
        raise InputError(
            f"{random.target} draws random numbers, of which each device would draw its own;"
            " draw them outside of the function, and pass them as a tensor"
        )
    calls = tuple(_call(traced.calls[use.name], use, graph, traced) for use in whole.calls)
    return Whole(graph, _named(whole_program(traced, shapes).graph, whole.calls, traced), calls)


def _check(opaque: OpaqueCall) -> None:
    """Raise InputError where a call cannot be written as Python on a part of the tensors."""
    call = opaque.call
    foreign = sorted({str(meta) for meta in opaque.metas.values() if dtype_name(meta.dtype) not in DTYPES})
    if foreign:
        known = ", ".join(DTYPES)
        raise InputError(f"{call.target} reads or makes {foreign[0]}; devices exchange {known} only")
    if not isinstance(call.function, torch._ops.OpOverload):
        raise InputError(f"{call.target} is no operator of torch.ops, so that no module can call it")
    if is_view(call.function) and not all(meta.contiguous for meta in opaque.metas.values()):
        raise InputError(
            f"{call.target} reads memory by its strides, which devices lay out anew; "
            "call .contiguous() before it"
        )


def _named(graph: Graph, calls: tuple[OpaqueUse, ...], traced: Traced) -> Graph:
    """Return the graph with inputs in the program's order, and outputs named as there where that is clear."""
    places = {port.name: at for at, port in enumerate(graph.inputs)}
    made = [name for call in calls for name in call.results]
    names = [*(port.name for port in traced.program.inputs), *made]
    moved = {places[name]: at for at, name in enumerate(names)}
    leaving = [f"{call.name}_in{at}" for call in calls for at in range(len(call.arguments))]
    results = traced.program.outputs
    clear = {name for name in results if results.count(name) == 1} - {*names, *leaving}
    leaving += [name if name in clear else f"out_{at}" for at, name in enumerate(results)]
    taken = {*names}
    for at, name in enumerate(leaving):
        while name in taken:
            name += "_"
        leaving[at] = name
        taken.add(name)
    return replace(
        graph,
        inputs=tuple(graph.inputs[places[name]] for name in names),
        steps=tuple(step.reading(moved.get(i, i) for i in step.inputs) for step in graph.steps),
        outputs=tuple(
            replace(output, port=replace(output.port, name=name), value=moved.get(output.value, output.value))
            for name, output in zip(leaving, graph.outputs, strict=True)
        ),
    )


def _call(opaque: OpaqueCall, use: OpaqueUse, graph: Graph, traced: Traced) -> Call:
    call = opaque.call
    text = _Text()
    arguments = [text.of(one) for one in call.args]
    arguments += [[f"{name}=", *text.of(one)] for name, one in call.kwargs.items()]
    parts: list[str | int] = [f"torch.ops.{call.function}("]
    for at, one in enumerate(arguments):
        parts += ([", "] if at else []) + one
    written = [text.reads.index(index) for index in call.mutated]
    returns = call.function._schema.returns  # type: ignore[attr-defined]
    several = len(returns) != 1 or "[]" in str(returns[0].type)
    fresh = (
        [at for at, one in enumerate(returns) if one.alias_info is None]
        if written
        else range(len(call.outputs))
    )
    made: list[str | int] = [*written, *(f"[{at}]" if several else "" for at in fresh)]
    ports = {port.name: port for port in graph.inputs}
    reads = [graph.outputs[at].port for at in use.arguments]
    makes = [ports[name] for name in use.results]
    return Call(
        use.name,
        use.target,
        use.arguments,
        use.results,
        _splits(opaque, reads, makes),
        (*parts, ")"),
        tuple(written),
        tuple(one for one, index in zip(made, call.outputs, strict=True) if index is not None),
    )


class _Text:
    """Writes the arguments of a call; `reads` are the tensors in their order."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def of(self, value: Any) -> list[str | int]:
        """Return an argument as pieces of text, and numbers for tensors and the device."""
        if isinstance(value, Ref):
            self.reads.append(value.index)
            return [self.reads.index(value.index)]
        if isinstance(value, list | tuple):
            items = [self.of(one) for one in value]
            inner = [part for at, one in enumerate(items) for part in ([", "] if at else []) + one]
            return ["[", *inner, "]"]
        if isinstance(value, torch.device):
            return [DEVICE]
        if isinstance(value, float) and repr(value) in ("inf", "-inf", "nan"):
            return [f'float("{value!r}")']
        if value is None or isinstance(
            value, bool | int | float | str | torch.dtype | torch.layout | torch.memory_format
        ):
            return [repr(value)]
        raise InputError(f"an operator takes {value!r}, which cannot be written as Python")


def _splits(opaque: OpaqueCall, reads: list[Port], makes: list[Port]) -> tuple[Split, ...]:
    """Return the axes along which a call may be split."""
    call = opaque.call
    name = call.function._schema.name.removeprefix("aten::")  # type: ignore[attr-defined]
    if call.mutated or not call.function._schema.name.startswith("aten::"):  # type: ignore[attr-defined]
        return ()
    pairs: list[tuple[tuple[int | None, ...], int]] = []  # dimensions of the arguments and of all results
    if name in _ALONG and len(reads) == 1:
        given = _argument(call, "dim")
        many = len(reads[0].dims)
        if given is None or not many:  # over all elements
            return ()
        own = int(given) % many
        keeps = all(len(port.dims) == many for port in makes)
        for dim in range(many):
            if dim != own:
                pairs.append(((dim,), dim if keeps or dim < own else dim - 1))
    elif name == "embedding" and len(reads) == 2:
        indices = len(reads[1].dims)
        pairs += [((None, dim), dim) for dim in range(indices)] + [((1, None), indices)]
    found = []
    for dims, made in pairs:
        before = [
            None if dim is None else _outermost(port, dim) for port, dim in zip(reads, dims, strict=True)
        ]
        after = [_outermost(port, made) for port in makes]
        if None not in after and all(axis for axis, dim in zip(before, dims, strict=True) if dim is not None):
            found.append((tuple(before), tuple(after)))
    return tuple(found)


def _outermost(port: Port, dim: int) -> str | None:
    return next(iter(port.dims[dim]), None)


def _argument(call: Any, name: str) -> Any:
    """Return the value that a call gives an argument, or its default."""
    for at, one in enumerate(call.function._schema.arguments):
        if one.name == name:
            given = call.args[at] if at < len(call.args) else call.kwargs.get(name)
            return one.default_value if given is None and one.has_default_value() else given
    return None
