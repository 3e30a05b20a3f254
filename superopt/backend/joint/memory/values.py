"""Values: what a value of a joint graph takes, if it is kept in bytes, if it is made again in seconds."""

import operator
from collections.abc import Collection, Iterable
from math import inf, prod

import torch
from torch import Tensor, fx

from superopt.cost.device import Device
from superopt.rivals.aten import (
    VIEWS,
    flops_of,
    operator_name,
    read_by,
    role_of,
    tensor_bytes,
    tensors_in,
    value_of,
    window_flops,
)
from superopt.trace.capture.tape import is_view as makes_view

__all__ = [
    "is_pure",
    "is_view",
    "kept_bytes",
    "kept_inputs",
    "makes_several",
    "readers_of",
    "seconds_of",
    "source_of",
    "writes",
]

_FUSED = 0.35  # the time of an operator that is fused with others, over that of writing its result
_LIBRARY = 0.6  # the share of the peak rate that libraries reach
_FUNCTIONS = frozenset({"exp", "tanh", "erf", "sigmoid", "sin", "cos", "log", "pow", "gelu", "silu"})
_FUNCTION_WEIGHT = 3.0  # times an addition
_ATTENTION_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


def is_view(node: fx.Node) -> bool:
    """Whether a node is the memory of another one, seen otherwise, or such views of it."""
    made_by = node.all_input_nodes[0] if node.target is operator.getitem else node
    return operator_name(made_by) in VIEWS or makes_view(made_by.target)


def makes_several(node: fx.Node) -> bool:
    """Whether a node makes a group of tensors, which are taken out of it one by one."""
    return isinstance(value_of(node), tuple | list)


def source_of(node: fx.Node) -> fx.Node:
    """Return the node that made the memory of a value: an operator, or an input of the graph."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def kept_inputs(graph: fx.Graph) -> list[fx.Node]:
    """Return the inputs that were kept for a pass alone, so that they can go after their last read."""
    inputs = graph.find_nodes(op="placeholder")
    return [node for node in inputs if not role_of(node) and isinstance(value_of(node), Tensor)]


def readers_of(nodes: Collection[fx.Node]) -> set[fx.Node]:
    """Return what reads some nodes, through views as well."""
    found, left = set[fx.Node](), [user for node in nodes for user in node.users]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.users if is_view(node) else ()
    return found


def writes(node: fx.Node) -> bool:
    """Whether a node writes into what it is given."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_pure(node: fx.Node) -> bool:
    """Whether a node is the same whenever it is computed, and does nothing else."""
    if node.target is operator.getitem:
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    random = torch.Tag.nondeterministic_seeded in target.tags
    return target.namespace in ("aten", "prims") and not target._schema.is_mutable and not random


def kept_bytes(node: fx.Node) -> float:
    """Return the bytes that are kept with a node; no views of what is computed are kept, and no groups."""
    value, source = value_of(node), source_of(node)
    if not isinstance(value, Tensor) or (source is not node and source.op == "call_function"):
        return inf
    return tensor_bytes(value)


def seconds_of(node: fx.Node, device: Device) -> float:
    """Return about how long an operator takes."""
    if is_view(node) or node.target is operator.getitem:
        return 0.0
    flops = _library_flops(node)
    if flops:
        dtype = next((one.dtype for one in tensors_in(value_of(node))), torch.float32)
        name = {torch.bfloat16: "bf16", torch.float16: "f16"}.get(dtype, "")
        rate = device.matrix_flops.get(name, device.vector_flops)
        return flops / (rate * _LIBRARY)
    written = _bytes(tensors_in(value_of(node)))
    read = _bytes(read_by(node))
    moved = max(written, min(read, 4 * written) if written else 0, read if written * 4 < read else 0)
    fused = all(_is_fused(user) for user in node.users)
    weight = _FUNCTION_WEIGHT if operator_name(node) in _FUNCTIONS else 1.0
    return moved * (_FUSED * weight if fused else 1.0 + _FUSED * weight) / (device.memory_gbs * 1e9)


def _is_fused(node: fx.Node) -> bool:
    """Whether Inductor's own code computes a node, so that what it reads need not be written to memory."""
    return node.op == "call_function" and operator_name(node) is not None and not _library_flops(node)


def _library_flops(node: fx.Node) -> int:
    """Return the operations of what a library computes, forward or backward; else 0."""
    name = operator_name(node)
    if name == "convolution_backward":
        gradient, _, weight = (value_of(one) for one in node.args[:3])  # type: ignore[arg-type]
        wanted = sum(map(bool, node.args[-1][:2]))  # type: ignore[arg-type, index]
        return 2 * wanted * prod(map(int, gradient.shape)) * prod(map(int, weight.shape[1:]))
    if name == _ATTENTION_BACKWARD:  # five products in place of two
        query, key, value = (value_of(one) for one in node.args[1:4])  # type: ignore[arg-type]
        sizes = (*query.shape[:-1], key.shape[-2], query.shape[-1] + value.shape[-1])
        return 5 * prod(map(int, sizes))
    return flops_of(node) or window_flops(node)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(map(tensor_bytes, tensors))
