"""ATen: which calls of a functional ATen graph are algebra, and of what kind."""

import operator
from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, fx

from superopt.trace.lowering.table import INTEGERS, LOWERINGS, REASONS, widens
from superopt.trace.lowering.windows import why_dense

__all__ = [
    "MATMULS",
    "VIEWS",
    "Kind",
    "bytes_of",
    "flops_of",
    "heavy",
    "is_attention",
    "is_matmul",
    "is_window",
    "kinds_of",
    "listed",
    "operator_name",
    "tensors_in",
    "value_of",
    "why_outside",
]

Kind = Literal["free", "compute", "outside"]
"""Free: a view, or a tensor made of nothing, repeated wherever it is read. Outside: left to Inductor."""

_NAMES = """
view reshape _unsafe_view permute transpose t unsqueeze squeeze expand slice select split split_with_sizes
unbind alias detach
"""
VIEWS = frozenset(_NAMES.split())
"""Operators that compute nothing."""

_MADE = frozenset(
    {"full", "ones", "zeros", "scalar_tensor", "arange", "full_like", "ones_like", "zeros_like"}
)
MATMULS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot"})
"""Products of matrices."""

_SUMS = """
sum mean amax amin max min all any var var_mean std std_mean logsumexp norm linalg_vector_norm
native_layer_norm _fused_rms_norm _softmax _log_softmax _safe_softmax
"""
_REDUCTIONS = frozenset(_SUMS.split())
_POOLS = {"avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"}
_WINDOWS = frozenset({"convolution", *_POOLS})
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_ATTENTION_WEIGHT = 3  # two products and a softmax
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.bool)


def operator_name(node: fx.Node) -> str | None:
    """Return the name of an ATen operator, as the tracer knows it, or None for anything else."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return None
    if target is torch.ops.prims.convert_element_type.default:
        return "_to_copy"
    if target.namespace != "aten" or target._schema.is_mutable:
        return None
    return target._schema.name.partition("::")[2]


def listed(nodes: Iterable[fx.Node]) -> str:
    """Return the operators of nodes in words, as `mm x2, relu`."""
    short = {_ATTENTION: "attention", "_to_copy": "cast"}
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


def is_matmul(node: fx.Node) -> bool:
    """Whether a node multiplies matrices."""
    return operator_name(node) in MATMULS


def is_attention(node: fx.Node) -> bool:
    """Whether a node is the attention that PyTorch has one kernel for."""
    return operator_name(node) == _ATTENTION


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
    read = [tensor for one in node.all_input_nodes for tensor in tensors_in(value_of(one))]
    return sum(_product(one.shape) * one.itemsize for one in (*read, *tensors_in(value_of(node))))


def _product(sizes: Iterable[Any]) -> int:
    """Return the product of sizes as they were seen, 0 where one depends on data."""
    hints = [one if isinstance(one, int) else one.node.hint for one in sizes]
    return 0 if None in hints else prod(map(int, hints))


def value_of(node: fx.Node) -> Any:
    """Return what a node makes, as a fake tensor, a symbolic number, or a tuple of these."""
    return node.meta.get("val")


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of a node's value."""
    items = value if isinstance(value, tuple | list) else (value,)
    return [one for one in items if isinstance(one, Tensor)]


def kinds_of(graph: fx.Graph, device: str) -> dict[fx.Node, Kind]:
    """Return the kind of every node, for kernels on a type of device."""
    kinds: dict[fx.Node, Kind] = {}
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0] in kinds:
            kinds[node] = kinds[node.args[0]]
        else:
            kinds[node] = _kind(node, device)
    return kinds


def _kind(node: fx.Node, device: str) -> Kind:
    if why_outside(node, device) is not None:
        return "outside"
    name = operator_name(node)
    return "free" if name in VIEWS or (name in _MADE and not _read(node)) else "compute"


def why_outside(node: fx.Node, device: str) -> str | None:
    """Return why a node is left to Inductor, for kernels on a type of device; None where it is not."""
    name = operator_name(node)
    made, read = tensors_in(value_of(node)), _read(node)
    if name is None or name not in LOWERINGS or name in REASONS or not made:
        return REASONS.get(name or "", "no rule makes algebra of it")
    if name == _ATTENTION and _item_read(node, 1):
        return "its second result is read"
    if name == "convolution" and (why := _why_no_windows(node, device)) is not None:
        return why
    if not all(_plain(tensor, device) for tensor in (*made, *read)):
        return "a tensor on another device, of another layout, or of a size that depends on data"
    if name in VIEWS or (name in _MADE and not read):
        return None
    told = [one.dtype for one in made]
    if name not in INTEGERS and name not in _MADE:
        told += [one.dtype for one in read if not widens(name, one.dtype, told)]
    other = next((dtype for dtype in told if dtype not in _DTYPES), None)
    return None if other is None else f"it is of {str(other).removeprefix('torch.')}"


def _why_no_windows(node: fx.Node, device: str) -> str | None:
    """Return why a convolution is left to libraries, or None where it is not."""
    if device != "cpu":
        return "a sliding window over an axis"
    if node.args[6]:
        return "a transposed convolution"
    weight = value_of(node.args[1])  # type: ignore[arg-type]
    if any(not isinstance(size, int) for size in weight.shape):
        return "a kernel of a size that is not known"
    return why_dense(weight.shape)


def _read(node: fx.Node) -> list[Tensor]:
    """Return the tensors that a node reads."""
    return [tensor for one in node.all_input_nodes for tensor in tensors_in(value_of(one))]


def _item_read(node: fx.Node, item: int) -> bool:
    """Whether anything reads an item of what a node makes, as backward passes do of some."""
    return any(user.target is not operator.getitem or user.args[1] == item for user in node.users)


def _plain(tensor: Tensor, device: str) -> bool:
    """Whether a tensor is one that kernels take: strided, of sizes that are known or have a hint."""
    if tensor.layout != torch.strided or tensor.device.type != device:
        return False
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return all(isinstance(one, int) or one.node.hint is not None for one in numbers)
