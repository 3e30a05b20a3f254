"""Portable: a region as plain data, so that another process can search it; and the region of such data.

The data are the operators of the region, their numbers, and the layouts of its inputs: no tensor, no name of
the user's, no code. The reader trusts nothing: it makes only functional ATen operators for which superopt has
a lowering, on tensors without data, and the result must be the region of the key.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.fx.node import map_arg
from torch.utils._sympy.functions import FloorDiv

from superopt.backend.decision import Ledger
from superopt.backend.pieces import Piece
from superopt.backend.region import Region, region_of
from superopt.backend.subgraph import Subgraph
from superopt.errors import CheckpointError
from superopt.rivals.aten import operator_name, value_of
from superopt.rivals.composites import COMPOSITE
from superopt.rivals.kinds import kinds_of
from superopt.targets import Target
from superopt.trace.lowering.table import LOWERINGS, REASONS

__all__ = ["Unportable", "data_of", "region_from", "subgraph_from"]

_MOST_NODES = 2000
_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "pow": operator.pow,
    "getitem": operator.getitem,
}
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_SYMBOL = re.compile(r"[a-z][a-z0-9_]*")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "dtype": (torch.dtype,),
    "layout": (torch.layout,),
    "memory_format": (torch.memory_format,),
}


class Unportable(Exception):  # noqa: N818 - no error of anybody's: the region is not queued
    """A region holds something that has no form as data."""


# -- a region as data


def data_of(subgraph: Subgraph) -> dict[str, Any]:
    """Return a subgraph as plain data, or raise Unportable."""
    nodes = list(subgraph.module.graph.nodes)
    number = {node: at for at, node in enumerate(nodes)}
    inputs = [
        _input_data(value_of(node)) | {"constant": at in subgraph.constant}
        for at, node in enumerate(subgraph.inputs)
    ]
    steps: list[dict[str, Any]] = []
    for node in nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            results = [number[one] for one in node.args[0]]
            return {
                "inputs": inputs,
                "symbols": {str(symbol): size for symbol, size in subgraph.hints().items()},
                "steps": steps,
                "results": results,
                "weight_bytes": subgraph.weight_bytes,
            }
        step = {
            "call": _target_name(node),
            "args": [_plain(one, number) for one in node.args],
            "kwargs": {name: _plain(one, number) for name, one in node.kwargs.items()},
        }
        if COMPOSITE in node.meta:
            step["part_of"] = list(node.meta[COMPOSITE])
        steps.append(step)
    raise Unportable("it has no results")


def _input_data(value: Any) -> dict[str, Any]:
    return {
        "shape": [_size_data(one) for one in value.shape],
        "stride": [_size_data(one) for one in value.stride()],
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": value.device.type,
    }


def _size_data(size: Any) -> Any:
    return size if isinstance(size, int) else _expression_data(size.node.expr)


def _expression_data(expr: sympy.Expr) -> Any:
    if expr.is_Integer:
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        return str(expr)
    names = {sympy.Add: "add", sympy.Mul: "mul", FloorDiv: "floordiv", sympy.Pow: "pow"}
    name = names.get(expr.func)
    if name is None:
        raise Unportable(f"a size is {expr}")
    return [name, *(_expression_data(one) for one in expr.args)]


def _target_name(node: fx.Node) -> str:
    if node.op == "call_method" and node.target == "size":
        return "size"
    for name, function in _ARITHMETIC.items():
        if node.target is function:
            return name
    if operator_name(node) is None or not isinstance(node.target, torch._ops.OpOverload):
        raise Unportable(f"it calls {node.target}")
    return str(node.target)


def _plain(value: Any, number: Mapping[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return {"node": number[value]}
    if isinstance(value, list | tuple):
        return [_plain(one, number) for one in value]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str) and len(value) < 40:
        return {"text": value}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, torch.device):
        return {"device": value.type}
    for kind, types in _KINDS.items():
        if isinstance(value, types):
            return {kind: str(value).removeprefix("torch.")}
    raise Unportable(f"it has a {type(value).__name__}")


# -- the region of data


def subgraph_from(data: Any, device: str) -> Subgraph:
    """Return the subgraph of some data, or raise CheckpointError."""
    try:
        return _Reader(data).subgraph(device)
    except CheckpointError:
        raise
    except Exception as error:  # PyTorch raises many kinds of errors for operators that do not fit together
        raise CheckpointError(f"it is no region: {type(error).__name__}: {error}") from error


def region_from(data: Any, target: Target, ledger: Ledger) -> Region:
    """Return the region of some data, or raise CheckpointError; its key tells whether it is the one meant."""
    subgraph = subgraph_from(data, target.torch_device)
    try:
        return region_of(subgraph, target, ledger)
    except CheckpointError:
        raise
    except Exception as error:  # PyTorch raises many kinds of errors for operators that do not fit together
        raise CheckpointError(f"it is no region: {type(error).__name__}: {error}") from error


class _Reader:
    def __init__(self, data: Any) -> None:
        _require(isinstance(data, dict), "it is no mapping")
        self.inputs = _sequence(data.get("inputs"))
        self.steps = _sequence(data.get("steps"))
        self.results = _sequence(data.get("results"))
        self.hints: Any = data.get("symbols")
        self.weight_bytes: Any = data.get("weight_bytes")
        _require(isinstance(self.hints, dict), "its symbols are no mapping")
        _require(self.weight_bytes is None or type(self.weight_bytes) is int, "its weights have no size")
        _require(0 < len(self.inputs) + len(self.steps) <= _MOST_NODES, "it is empty or too large")
        self.graph = fx.Graph()
        self.nodes: list[fx.Node] = []

    def subgraph(self, device: str) -> Subgraph:
        """Return the operators as a subgraph, every node with a value that has no data."""
        shapes = ShapeEnv()
        mode = FakeTensorMode(shape_env=shapes)
        symbols = self._symbols(shapes)
        with mode, torch.no_grad():
            for at, one in enumerate(self.inputs):
                _require(isinstance(one, dict) and one.get("device") == device, "it is for another device")
                shape, stride = (
                    [_size(size, symbols) for size in _sequence(one.get(part))]
                    for part in ("shape", "stride")
                )
                node = self.graph.placeholder(f"x{at}")
                dtype = _named("dtype", one.get("dtype"))
                node.meta["val"] = torch.empty_strided(shape, stride, dtype=dtype, device=device)
                self.nodes.append(node)
            for step in self.steps:
                self.nodes.append(self._step(step))
        self.graph.output(tuple(self._node(at) for at in self.results))
        module = fx.GraphModule(torch.nn.Module(), self.graph, "Region")
        kinds = kinds_of(self.graph, device)
        computing = [node for node in self.nodes if kinds[node] == "compute"]
        _require(bool(computing), "it computes nothing")
        found = {
            size.node.expr: None
            for node in self.nodes[: len(self.inputs)]
            for size in (*value_of(node).shape, *value_of(node).stride())
            if isinstance(size, torch.SymInt)
        }
        free = {symbol for expr in found for symbol in expr.free_symbols}
        return Subgraph(
            Piece(tuple(computing)),
            module,
            tuple(self.nodes[: len(self.inputs)]),
            (),
            tuple(sorted(free, key=lambda one: str(one))),
            tuple(at for at, one in enumerate(self.inputs) if one.get("constant") is True),
            self.weight_bytes,
        )

    def _symbols(self, shapes: Any) -> dict[str, Any]:
        """Return a symbolic number for each symbol, with the size that was seen."""
        from torch._dynamo.source import ConstantSource

        found = {}
        for name, hint in self.hints.items():
            _require(
                bool(_SYMBOL.fullmatch(str(name))) and type(hint) is int and 1 < hint < 1 << 40,
                "a symbol is wrong",
            )
            source = ConstantSource(str(name))
            symbol = shapes.create_symbol(hint, source, DimDynamic.DYNAMIC)
            found[name] = shapes.create_symintnode(symbol, hint=hint, source=source)
        return found

    def _step(self, step: Any) -> fx.Node:
        _require(isinstance(step, dict) and isinstance(step.get("kwargs"), dict), "a step is wrong")
        name = step.get("call")
        args = tuple(self._argument(one) for one in _sequence(step.get("args")))
        kwargs = {str(key): self._argument(one) for key, one in step["kwargs"].items()}
        if name == "size":
            _require(len(args) == 2 and isinstance(args[0], fx.Node) and not kwargs, "a size is wrong")
            node = self.graph.call_method("size", args)
        else:
            node = self.graph.call_function(_ARITHMETIC.get(str(name)) or _operator(name), args, kwargs)
        known: Any = map_arg((args, kwargs), value_of)
        part_of = step.get("part_of")
        if part_of is not None:
            sound = isinstance(part_of, list) and len(part_of) == 2
            _require(sound and all(isinstance(one, str) for one in part_of), "a part is wrong")
            node.meta[COMPOSITE] = tuple(part_of)
        call: Any = torch.Tensor.size if name == "size" else node.target
        node.meta["val"] = call(*known[0], **known[1])
        return node

    def _argument(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, list):
            return [self._argument(one) for one in value]
        _require(isinstance(value, dict) and len(value) == 1, "an argument is wrong")
        [(kind, told)] = value.items()
        if kind == "node":
            return self._node(told)
        if kind == "text":
            _require(isinstance(told, str) and len(told) < 40, "a text is wrong")
            return told
        if kind == "float":
            _require(told in ("inf", "-inf", "nan"), "a number is wrong")
            return float(told)
        if kind == "device":
            _require(told in ("cpu", "cuda"), "a device is wrong")
            return torch.device(told)
        return _named(kind, told)

    def _node(self, at: Any) -> fx.Node:
        _require(type(at) is int and 0 <= at < len(self.nodes), "a step reads what is not there")
        found: fx.Node = self.nodes[at]
        return found


def _operator(name: Any) -> Any:
    """Return a functional operator that has a lowering; only these are ever called."""
    namespace, _, rest = str(name)[:80].partition(".")
    operation, _, overload = rest.partition(".")
    known = operation in LOWERINGS and operation not in REASONS and _NAME.fullmatch(overload.lower())
    _require(namespace == "aten" and bool(known), f"{str(name)[:80]} is no algebra")
    found: Any = getattr(getattr(torch.ops.aten, operation, None), overload, None)
    _require(isinstance(found, torch._ops.OpOverload), f"there is no {str(name)[:80]}")
    _require(not found._schema.is_mutable, f"{str(name)[:80]} is no algebra")
    return found


def _named(kind: Any, name: Any) -> Any:
    """Return what PyTorch has of a kind under a name, as torch.float32 of the dtypes."""
    types = _KINDS.get(str(kind))
    found = getattr(torch, str(name), None) if _NAME.fullmatch(str(name)) else None
    _require(
        types is not None and isinstance(found, types), f"there is no {str(kind)[:20]} {str(name)[:20]!r}"
    )
    return found


def _size(data: Any, symbols: Mapping[str, Any]) -> Any:
    if type(data) is int and 0 <= data < 1 << 40:
        return data
    if isinstance(data, str):
        _require(data in symbols, "a size has an unknown symbol")
        return symbols[data]
    _require(isinstance(data, list) and len(data) > 1, "a size is wrong")
    name, *parts = data
    _require(name in ("add", "mul", "floordiv", "pow"), "a size is wrong")
    made = _number(parts[0], symbols)
    for one in parts[1:]:
        made = _ARITHMETIC[name](made, _number(one, symbols))
    return made


def _number(data: Any, symbols: Mapping[str, Any]) -> Any:
    """Return a part of a size, which may be below zero."""
    return data if type(data) is int and abs(data) < 1 << 40 else _size(data, symbols)


def _sequence(value: Any) -> Sequence[Any]:
    _require(isinstance(value, list), "a list is missing")
    return list(value)


def _require(sound: bool, why: str) -> None:
    if not sound:
        raise CheckpointError(f"it is no region: {why}")
