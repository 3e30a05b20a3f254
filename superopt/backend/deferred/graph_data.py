"""Graph data: a whole functional graph as plain data, so that another process can race it, and read back.

It has what `portable` has of a region, and the operators that are no algebra beside them. The reader trusts
as little: it makes only operators of PyTorch's own that write to nothing but an input, on tensors without
data.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from superopt.backend.deferred.portable import (
    Reader,
    Unportable,
    input_data,
    plain_of,
    reading,
    require,
    size_data,
    size_of,
    target_name,
)
from superopt.rivals.aten import ROLES, hint_of, role_of, value_of

__all__ = ["data_of_graph", "digest_of", "graph_from"]

_WRITES = frozenset({"aten.copy_.default"})  # what a graph leaves in its inputs
_FILES = frozenset({"from_file"})  # an operator that reads and writes files
_NAME = re.compile(r"(aten|prims)\.([a-z_][a-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)")


def data_of_graph(graph: fx.Graph, weights: Collection[fx.Node] = ()) -> dict[str, Any]:
    """Return a functional graph, some of whose inputs are weights, as plain data, or raise Unportable."""
    constants = [node for node in graph.nodes if node.op == "get_attr"]
    inputs = [*(node for node in graph.nodes if node.op == "placeholder"), *constants]
    symbols: dict[str, int] = {}
    told = [_input(node, symbols) | {"constant": node in weights, "role": role_of(node)} for node in inputs]
    number = {node: at for at, node in enumerate(inputs)}
    steps: list[dict[str, Any]] = []
    results: Any = []
    for node in graph.nodes:
        if node.op == "output":
            results = [plain_of(node.args[0], number)]
        elif node not in number:
            args = [plain_of(one, number) for one in node.args]
            kwargs = {name: plain_of(one, number) for name, one in node.kwargs.items()}
            steps.append({"call": _called(node), "args": args, "kwargs": kwargs})
            number[node] = len(number)
    names = {symbol: f"s{at}" for at, symbol in enumerate(symbols)}
    return {
        "inputs": [{part: _renamed(value, names) for part, value in one.items()} for one in told],
        "symbols": {names[symbol]: size for symbol, size in symbols.items()},
        "steps": steps,
        "results": results,
        "weight_bytes": None,
    }


def _renamed(sizes: Any, names: Mapping[str, str]) -> Any:
    """Return sizes with other names of symbols, of which each process has its own."""
    if isinstance(sizes, list):
        return [_renamed(one, names) for one in sizes]
    return names.get(sizes, sizes) if isinstance(sizes, str) else sizes


def digest_of(graph: fx.Graph, weights: Collection[fx.Node] = ()) -> str:
    """Return a digest of all that a graph computes, and in which layouts, whatever its nodes are named."""
    try:
        text = json.dumps(data_of_graph(graph, weights), sort_keys=True)
    except Unportable:
        lines = [f"{node.format_node()} {_form(node)} {node in weights}" for node in graph.nodes]
        text = "\n".join(lines)
    return hashlib.sha256(text.encode()).hexdigest()


def graph_from(data: Any, device: str) -> tuple[fx.Graph, set[fx.Node]]:
    """Return the graph of some data, and which of its inputs are weights; or raise CheckpointError."""
    with reading("graph"):
        return _GraphReader(data).graph_of(device)


def _input(node: fx.Node, symbols: dict[str, int]) -> dict[str, Any]:
    value = value_of(node)
    if isinstance(value, Tensor):
        for size in (*value.shape, *value.stride()):
            _note(size, symbols)
        return input_data(value)
    if isinstance(value, torch.SymInt):
        _note(value, symbols)
        return {"size": size_data(value)}
    raise Unportable(f"an input is a {type(value).__name__}")


def _note(size: Any, symbols: dict[str, int]) -> None:
    """Note a size that is a symbol, and what it was when the graph was traced."""
    if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
        symbols[str(size.node.expr)] = hint_of(size)


def _called(node: fx.Node) -> str:
    name = target_name(node)
    known = name != str(node.target) or _operator(name) is node.target
    if not known:
        raise Unportable(f"it calls {name}")
    return name


def _operator(name: str) -> Any:
    """Return an operator that may be called, or None."""
    import torch._inductor.inductor_prims  # registers operators of Inductor's own

    told = _NAME.fullmatch(name[:120])
    if told is None or told[2] in _FILES:
        return None
    found = getattr(getattr(getattr(torch.ops, told[1]), told[2], None), told[3], None)
    sound = isinstance(found, torch._ops.OpOverload) and (name in _WRITES or not found._schema.is_mutable)
    return found if sound else None


def _form(node: fx.Node) -> str:
    value = value_of(node)
    return f"{value.dtype}{list(value.shape)}{list(value.stride())}" if isinstance(value, Tensor) else ""


class _GraphReader(Reader):
    most_nodes = 20_000

    def graph_of(self, device: str) -> tuple[fx.Graph, set[fx.Node]]:
        self.read(device)
        for node in self.nodes:
            written = node.args[0] if str(node.target) in _WRITES else None
            require(written is None or written in self.nodes[: len(self.inputs)], "it writes to no input")
        require(len(self.results) == 1, "its results are wrong")
        self.graph.output(self.argument(self.results[0]))
        fx.GraphModule(torch.nn.Module(), self.graph, "Whole")
        for at, (node, one) in enumerate(zip(self.nodes, self.inputs, strict=False)):
            if one.get("role") in ROLES:
                node._rename(f"{one['role']}_{at}")
        weights = {
            node for node, one in zip(self.nodes, self.inputs, strict=False) if one.get("constant") is True
        }
        return self.graph, weights

    def input_of(self, data: Mapping[str, Any], device: str, symbols: Mapping[str, Any]) -> Any:
        if "size" in data:
            return size_of(data["size"], symbols)
        return super().input_of(data, device, symbols)

    def operator_of(self, name: Any) -> Any:
        found = _operator(str(name))
        require(found is not None, f"{str(name)[:80]} is no operator of a graph")
        return found
