"""Portable: a region as plain data, so that another process can search it; and the region of such data.

The data are the operators of the region, their numbers, and the layouts of its inputs: no tensor, no name of
the user's, no code. The reader trusts nothing: it makes only functional ATen operators for which superopt has
a lowering, on tensors without data, and the result must be the region of the key.
"""

import contextlib
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from superopt.backend.subgraph import Subgraph, SubgraphRoom
from superopt.errors import CheckpointError
from superopt.rivals.aten import operator_name, value_of
from superopt.rivals.composites import COMPOSITE
from superopt.rivals.kinds import kinds_of
from superopt.targets import Target
from superopt.trace.lowering.table import LOWERINGS, REASONS

__all__ = [
    *("Reader", "Unportable", "data_of", "input_data", "plain_of", "reading", "region_from"),
    *("require", "sequence", "size_data", "size_of", "subgraph_from", "target_name"),
]

ARITHMETIC: Mapping[str, Callable[..., Any]] = {
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
        input_data(value_of(node), strides) | {"constant": at in subgraph.constant}
        for at, (node, (_, strides)) in enumerate(zip(subgraph.inputs, subgraph.layouts(), strict=True))
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
                "room": None if subgraph.room is None else [subgraph.room.bytes, *subgraph.room.ending],
            }
        step = {
            "call": target_name(node),
            "args": [plain_of(one, number) for one in node.args],
            "kwargs": {name: plain_of(one, number) for name, one in node.kwargs.items()},
        }
        if COMPOSITE in node.meta:
            step["part_of"] = list(node.meta[COMPOSITE])
        steps.append(step)
    raise Unportable("it has no results")


def input_data(value: Any, strides: Any = None) -> dict[str, Any]:
    """Return a tensor's layout, or one with other strides, as plain data."""
    return {
        "shape": [size_data(one) for one in value.shape],
        "stride": [size_data(one) for one in strides or value.stride()],
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": value.device.type,
    }


def size_data(size: Any) -> Any:
    """Return a size, which may be symbolic, as plain data."""
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


def target_name(node: fx.Node) -> str:
    """Return the name of what a node calls, or raise Unportable."""
    if node.op == "call_method" and node.target == "size":
        return "size"
    for name, function in ARITHMETIC.items():
        if node.target is function:
            return name
    if operator_name(node) is None or not isinstance(node.target, torch._ops.OpOverload):
        raise Unportable(f"it calls {node.target}")
    return str(node.target)


def plain_of(value: Any, number: Mapping[fx.Node, int]) -> Any:
    """Return an argument as plain data, or raise Unportable."""
    if isinstance(value, fx.Node):
        return {"node": number[value]}
    if isinstance(value, list | tuple):
        return [plain_of(one, number) for one in value]
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


@contextlib.contextmanager
def reading(kind: str) -> Iterator[None]:
    """Raise CheckpointError for whatever data that is no such thing leads to."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # PyTorch raises many kinds of errors for operators that do not fit together
        raise CheckpointError(f"it is no {kind}: {type(error).__name__}: {error}") from error


def subgraph_from(data: Any, device: str) -> Subgraph:
    """Return the subgraph of some data, or raise CheckpointError."""
    with reading("region"):
        return Reader(data).subgraph(device)


def region_from(data: Any, target: Target, ledger: Ledger) -> Region:
    """Return the region of some data, or raise CheckpointError; its key tells whether it is the one meant."""
    subgraph = subgraph_from(data, target.torch_device)
    with reading("region"):
        return region_of(subgraph, target, ledger)


def _is_room(room: Any, inputs: int) -> bool:
    """Whether data are some bytes, and then places of inputs."""
    sound = isinstance(room, list) and bool(room) and all(type(one) is int for one in room)
    return sound and all(0 <= at < inputs for at in room[1:])


class Reader:
    """Makes a graph of data, of nothing but what it knows, every node with a value that has no data."""

    most_nodes = 2000

    def __init__(self, data: Any) -> None:
        require(isinstance(data, dict), "it is no mapping")
        self.inputs = sequence(data.get("inputs"))
        self.steps = sequence(data.get("steps"))
        self.results = sequence(data.get("results"))
        self.hints: Any = data.get("symbols")
        self.weight_bytes: Any = data.get("weight_bytes")
        self.room: Any = data.get("room")
        require(isinstance(self.hints, dict), "its symbols are no mapping")
        require(self.room is None or _is_room(self.room, len(self.inputs)), "its room in memory is wrong")
        require(self.weight_bytes is None or type(self.weight_bytes) is int, "its weights have no size")
        require(0 < len(self.inputs) + len(self.steps) <= self.most_nodes, "it is empty or too large")
        self.graph = fx.Graph()
        self.nodes: list[fx.Node] = []

    def read(self, device: str) -> None:
        """Make all nodes but the output."""
        shapes = ShapeEnv()
        mode = FakeTensorMode(shape_env=shapes)
        symbols = self._symbols(shapes)
        with mode, torch.no_grad():
            for at, one in enumerate(self.inputs):
                require(isinstance(one, dict), "an input is wrong")
                node = self.graph.placeholder(f"x{at}")
                node.meta["val"] = self.input_of(one, device, symbols)
                self.nodes.append(node)
            for step in self.steps:
                self.nodes.append(self._step(step))

    def input_of(self, data: Mapping[str, Any], device: str, symbols: Mapping[str, Any]) -> Any:
        """Return an input without data."""
        require(data.get("device") == device, "it is for another device")
        shape, stride = (
            [size_of(size, symbols) for size in sequence(data.get(part))] for part in ("shape", "stride")
        )
        return torch.empty_strided(shape, stride, dtype=_named("dtype", data.get("dtype")), device=device)

    def operator_of(self, name: Any) -> Any:
        """Return the operator of a name, where it is one that may be called."""
        return _operator(name)

    def subgraph(self, device: str) -> Subgraph:
        """Return the operators as a subgraph."""
        self.read(device)
        self.graph.output(tuple(self._node(at) for at in self.results))
        module = fx.GraphModule(torch.nn.Module(), self.graph, "Region")
        kinds = kinds_of(self.graph, device)
        computing = [node for node in self.nodes if kinds[node] == "compute"]
        require(bool(computing), "it computes nothing")
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
            room=None if self.room is None else SubgraphRoom(self.room[0], tuple(self.room[1:])),
        )

    def _symbols(self, shapes: Any) -> dict[str, Any]:
        """Return a symbolic number for each symbol, with the size that was seen."""
        from torch._dynamo.source import ConstantSource

        found = {}
        for name, hint in self.hints.items():
            require(
                bool(_SYMBOL.fullmatch(str(name))) and type(hint) is int and 1 < hint < 1 << 40,
                "a symbol is wrong",
            )
            source = ConstantSource(str(name))
            symbol = shapes.create_symbol(hint, source, DimDynamic.DYNAMIC)
            found[name] = shapes.create_symintnode(symbol, hint=hint, source=source)
        return found

    def _step(self, step: Any) -> fx.Node:
        require(isinstance(step, dict) and isinstance(step.get("kwargs"), dict), "a step is wrong")
        name = step.get("call")
        args = tuple(self.argument(one) for one in sequence(step.get("args")))
        kwargs = {str(key): self.argument(one) for key, one in step["kwargs"].items()}
        if name == "size":
            require(len(args) == 2 and isinstance(args[0], fx.Node) and not kwargs, "a size is wrong")
            node = self.graph.call_method("size", args)
        else:
            node = self.graph.call_function(ARITHMETIC.get(str(name)) or self.operator_of(name), args, kwargs)
        known: Any = map_arg((args, kwargs), value_of)
        part_of = step.get("part_of")
        if part_of is not None:
            sound = isinstance(part_of, list) and len(part_of) == 2
            require(sound and all(isinstance(one, str) for one in part_of), "a part is wrong")
            node.meta[COMPOSITE] = tuple(part_of)
        call: Any = torch.Tensor.size if name == "size" else node.target
        node.meta["val"] = call(*known[0], **known[1])
        return node

    def argument(self, value: Any) -> Any:
        """Return an argument of a call, where it is one that may be given."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, list):
            return [self.argument(one) for one in value]
        require(isinstance(value, dict) and len(value) == 1, "an argument is wrong")
        [(kind, told)] = value.items()
        if kind == "node":
            return self._node(told)
        if kind == "text":
            require(isinstance(told, str) and len(told) < 40, "a text is wrong")
            return told
        if kind == "float":
            require(told in ("inf", "-inf", "nan"), "a number is wrong")
            return float(told)
        if kind == "device":
            require(told in ("cpu", "cuda"), "a device is wrong")
            return torch.device(told)
        return _named(kind, told)

    def _node(self, at: Any) -> fx.Node:
        require(type(at) is int and 0 <= at < len(self.nodes), "a step reads what is not there")
        found: fx.Node = self.nodes[at]
        return found


def _operator(name: Any) -> Any:
    """Return a functional operator that has a lowering; only these are ever called."""
    namespace, _, rest = str(name)[:80].partition(".")
    operation, _, overload = rest.partition(".")
    known = operation in LOWERINGS and operation not in REASONS and _NAME.fullmatch(overload.lower())
    require(namespace == "aten" and bool(known), f"{str(name)[:80]} is no algebra")
    found: Any = getattr(getattr(torch.ops.aten, operation, None), overload, None)
    require(isinstance(found, torch._ops.OpOverload), f"there is no {str(name)[:80]}")
    require(not found._schema.is_mutable, f"{str(name)[:80]} is no algebra")
    return found


def _named(kind: Any, name: Any) -> Any:
    """Return what PyTorch has of a kind under a name, as torch.float32 of the dtypes."""
    types = _KINDS.get(str(kind))
    found = getattr(torch, str(name), None) if _NAME.fullmatch(str(name)) else None
    require(
        types is not None and isinstance(found, types), f"there is no {str(kind)[:20]} {str(name)[:20]!r}"
    )
    return found


def size_of(data: Any, symbols: Mapping[str, Any]) -> Any:
    """Return a size of data."""
    if type(data) is int and 0 <= data < 1 << 40:
        return data
    if isinstance(data, str):
        require(data in symbols, "a size has an unknown symbol")
        return symbols[data]
    require(isinstance(data, list) and len(data) > 1, "a size is wrong")
    name, *parts = data
    require(name in ("add", "mul", "floordiv", "pow"), "a size is wrong")
    made = _number(parts[0], symbols)
    for one in parts[1:]:
        made = ARITHMETIC[name](made, _number(one, symbols))
    return made


def _number(data: Any, symbols: Mapping[str, Any]) -> Any:
    """Return a part of a size, which may be below zero."""
    return data if type(data) is int and abs(data) < 1 << 40 else size_of(data, symbols)


def sequence(value: Any) -> Sequence[Any]:
    """Return a list, or raise CheckpointError."""
    require(isinstance(value, list), "a list is missing")
    return list(value)


def require(sound: bool, why: str) -> None:
    """Raise CheckpointError where something is not sound."""
    if not sound:
        raise CheckpointError(f"it is no region: {why}")
