"""ATen: what a node of a functional ATen graph calls, reads and makes."""

import operator
from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

__all__ = [
    "ATTENTION",
    "MATMULS",
    "ROLES",
    "VIEWS",
    "add_call",
    "bytes_of",
    "flops_of",
    "heavy",
    "hint_of",
    "is_attention",
    "is_dense",
    "is_matmul",
    "is_maximum",
    "is_window",
    "operator_name",
    "operators_text",
    "pass_of",
    "read_by",
    "role_of",
    "runs_on_anything",
    "tensor_bytes",
    "tensors_in",
    "value_of",
    "window_flops",
]

_NAMES = """
view reshape _unsafe_view permute transpose t unsqueeze squeeze expand slice select split split_with_sizes
unbind alias detach as_strided
"""
VIEWS = frozenset(_NAMES.split())
"""Operators that compute nothing."""

MATMULS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot"})
"""Products of matrices."""

ROLES = ("primals", "tangents")
"""How names of inputs of a training pass begin that were not kept for it."""

_SUMS = """
sum mean amax amin max min all any var var_mean std std_mean logsumexp norm linalg_vector_norm
native_layer_norm _fused_rms_norm _softmax _log_softmax _safe_softmax
"""
_REDUCTIONS = frozenset(_SUMS.split())
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_MAXIMA = {"max_pool2d_with_indices", "max_pool3d_with_indices"}
_POOLS = {"avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", *_MAXIMA}
_WINDOWS = frozenset({"convolution", *_POOLS})
_FEW_PRODUCTS = 64  # for each result of a convolution, as depthwise ones have
_ATTENTION_WEIGHT = 3  # two products and a softmax


_KNOWN = frozenset({"aten", "prims", "superopt"})
_QUOTIENTS = frozenset({"div", "floor_divide", "remainder", "fmod"})
_OF_GRAPHS = frozenset({"cond", "flex_attention", "invoke_subgraph"})  # these call only the graphs given

_PRIMS = {"convert_element_type": "_to_copy", "fma": "addcmul", "iota": "arange"}
"""Operators that Inductor makes of others, and what computes the same in ATen when called in its way."""


def role_of(node: fx.Node) -> str:
    """Return what PyTorch's name says of an input of a training pass: `primals`, `tangents`, or nothing."""
    return next((role for role in ROLES if node.op == "placeholder" and node.name.startswith(role)), "")


def pass_of(graph: fx.Graph) -> str:
    """Return of which pass a graph is: `forward`, `backward`, or `inference` where nothing is trained."""
    roles = {role_of(node) for node in graph.nodes}
    return "backward" if "tangents" in roles else "forward" if "primals" in roles else "inference"


def operator_name(node: fx.Node) -> str | None:
    """Return the name of an ATen operator, as the tracer knows it, or None for anything else."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return None
    if target.namespace == "prims":
        if target._opname == "_low_memory_max_pool_with_offsets":
            return f"max_pool{len(node.args[1])}d_with_indices"  # type: ignore[arg-type]
        return _PRIMS.get(target._opname)
    if target.namespace != "aten" or target._schema.is_mutable:
        return None
    return target._schema.name.partition("::")[2]


def operators_text(nodes: Iterable[fx.Node]) -> str:
    """Return the operators of nodes in words, as `mm x2, relu`."""
    short = {ATTENTION: "attention", "_to_copy": "cast"}
    names = [name for name in map(operator_name, nodes) if name is not None]
    counted = Counter(short.get(name, name) for name in names)
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counted.items())


def heavy(node: fx.Node) -> int:
    """Return how many products of matrices and reductions a node is."""
    if is_attention(node):
        return _ATTENTION_WEIGHT
    return int(operator_name(node) in MATMULS | _REDUCTIONS or is_window(node))


def is_window(node: fx.Node) -> bool:
    """Whether a node slides over an image: a convolution or a pool."""
    return operator_name(node) in _WINDOWS


def is_maximum(node: fx.Node) -> bool:
    """Whether a node is a pool of maxima, which also makes where they are."""
    return operator_name(node) in _MAXIMA


def is_dense(node: fx.Node) -> bool:
    """Whether a node is a convolution that sums over many products along windows."""
    if operator_name(node) != "convolution":
        return False
    weight = value_of(node.args[1])  # type: ignore[arg-type]
    taps = _product(weight.shape[2:])
    products = taps * (weight.shape[0] // node.args[8] if node.args[6] else weight.shape[1])
    return taps > 1 and products > _FEW_PRODUCTS


def window_flops(node: fx.Node) -> int:
    """Return the operations of a convolution at the sizes that were seen; else 0."""
    if operator_name(node) != "convolution":
        return 0
    image, weight = (value_of(one) for one in node.args[:2])  # type: ignore[arg-type]
    transposed = node.args[6]
    return 2 * _product((image if transposed else value_of(node)).shape) * _product(weight.shape[1:])


def is_matmul(node: fx.Node) -> bool:
    """Whether a node multiplies matrices."""
    return operator_name(node) in MATMULS


def is_attention(node: fx.Node) -> bool:
    """Whether a node is the attention that PyTorch has one kernel for."""
    return operator_name(node) == ATTENTION


def flops_of(node: fx.Node) -> int:
    """Return the operations of a matmul, or the two of attention, at the sizes that were seen; else 0."""
    if is_attention(node):
        query, key, value = (value_of(one) for one in node.args[:3])  # type: ignore[arg-type]
        sizes = (*query.shape[:-1], key.shape[-2], query.shape[-1] + value.shape[-1])
        return 2 * _product(sizes)
    if not is_matmul(node):
        return 0
    args = node.args[1:] if operator_name(node) in ("addmm", "baddbmm", "addmv") else node.args
    first = value_of(args[0]) if isinstance(args[0], fx.Node) else None
    made = value_of(node)
    if not isinstance(first, Tensor) or not isinstance(made, Tensor):
        return 0
    sizes = (*made.shape, first.shape[-1])
    return 2 * _product(sizes)


def bytes_of(node: fx.Node) -> int:
    """Return the bytes that an operator by itself reads and writes at the sizes seen; a view moves none."""
    if node.op != "call_function" or node.target is operator.getitem or operator_name(node) in VIEWS:
        return 0
    moved = (*read_by(node), *tensors_in(value_of(node)))
    return sum(map(tensor_bytes, moved))


def runs_on_anything(graph: fx.Graph) -> bool:
    """Whether a graph may be called on made-up numbers, with 0 for integers, as often as a race likes.

    Operators of users may keep count, also where a node calls them by name, as `auto_functionalized_v2` does.
    Those between processes wait for others, loops may never end, and to divide an integer by 0 ends the
    process in Inductor's code.
    """
    return all(map(_takes_anything, graph.nodes))


def _takes_anything(node: fx.Node) -> bool:
    target = node.target
    if node.op == "get_attr":  # what a condition chooses from, for example
        held = getattr(node.graph.owning_module, str(target), None)
        if held is None:
            return not any(isinstance(one.target, torch._ops.HigherOrderOperator) for one in node.users)
        return not isinstance(held, fx.GraphModule) or runs_on_anything(held.graph)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.__name__ in _OF_GRAPHS
    if not isinstance(target, torch._ops.OpOverload):
        return not isinstance(target, torch._ops.OpOverloadPacket)
    whole = [one for one in tensors_in(value_of(node)) if not one.dtype.is_floating_point]
    return target.namespace in _KNOWN and not (operator_name(node) in _QUOTIENTS and whole)


def tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements at the sizes that were seen."""
    return _product(tensor.shape) * tensor.itemsize


def read_by(node: fx.Node) -> list[Tensor]:
    """Return the tensors that a node reads."""
    return [tensor for one in node.all_input_nodes for tensor in tensors_in(value_of(one))]


def _product(sizes: Iterable[Any]) -> int:
    """Return the product of sizes as they were seen, 0 where one depends on data."""
    hints = [one if isinstance(one, int) else one.node.hint for one in sizes]
    return 0 if None in hints else prod(map(int, hints))


def hint_of(size: Any) -> int:
    """Return a size as a number: one that is symbolic as it was when the graph was traced."""
    return size if isinstance(size, int) else int(size.node.hint)


def value_of(node: fx.Node) -> Any:
    """Return what a node makes, as a fake tensor, a symbolic number, or a tuple of these."""
    return node.meta.get("val")


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of a node's value."""
    items = value if isinstance(value, tuple | list) else (value,)
    return [one for one in items if isinstance(one, Tensor)]


def add_call(graph: fx.Graph, mode: Any, target: Any, *arguments: Any, **named: Any) -> fx.Node:
    """Add a call to a graph, and note what it makes: fake tensors in a mode of these, if there is one."""
    made = graph.call_function(target, arguments, named)
    known: Any = fx.map_arg((arguments, named), value_of)
    with mode or torch.no_grad():
        made.meta["val"] = target(*known[0], **known[1])
    return made
