"""Border: about what a region costs the graph around it, as Inductor fuses nothing across its border.

What Inductor would keep in registers is written by one kernel and read by another, and where a kernel would
have gone across, there are two.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import fx

from superopt.backend.pieces import reads_of
from superopt.backend.region import Region
from superopt.rivals.aten import is_attention, is_matmul, operator_name, tensors_in, value_of
from superopt.rivals.kinds import Kind
from superopt.targets import Target
from superopt.tune.measure import bytes_of

__all__ = ["border_us"]

_CALL_US = 5.0  # what Python takes to make a tensor and call its kernel; a GPU does not wait for Python

# Operators that Inductor has a lowering for, but no code that it fuses: it calls PyTorch's, or sorts.
_APART = frozenset({"sort", "topk", "scatter", "index_put", "cumsum", "cumprod", "convolution", "copy_"})


def border_us(region: Region, kinds: Mapping[fx.Node, Kind], target: Target) -> float:
    """Return how long it takes to write and read again what Inductor could fuse across a region's border.

    What others read too is written anyway. A kernel more, on each side where there is any, is a launch more,
    and a call more.
    """
    members = set(region.subgraph.piece.nodes)
    fused = {node for node in members if _is_fusable(node, kinds)}
    entering = {
        read
        for node in fused
        for read in reads_of(node, kinds)
        if read not in members and _is_fusable(read, kinds)
    }
    moved = sum(_bytes(node) * (1 if set(node.users) - members else 2) for node in entering)
    enters, leaves = bool(entering), False
    for node in fused.intersection(result.node for result in region.subgraph.results):
        readers = [user for user in _readers(node, kinds) if user not in members]
        fusable = [user for user in readers if _is_fusable(user, kinds)]
        if fusable:
            moved += _bytes(node) * (2 if fusable == readers else 1)
            leaves = True
    device = target.cost_device()
    rate = device.l2_gbs if moved < device.l2_bytes else device.memory_gbs
    each = device.launch_us + (_CALL_US if target.torch_device == "cpu" else 0.0)
    return moved / (rate * 1e3) + (enters + leaves) * each


def _is_fusable(node: fx.Node, kinds: Mapping[fx.Node, Kind]) -> bool:
    """Whether Inductor makes code of its own for a node, also of look-ups and of integers."""
    if is_matmul(node) or is_attention(node) or kinds[node] == "free":
        return False
    if kinds[node] == "compute":
        return operator_name(node) not in _APART
    from torch._inductor import lowering

    known = isinstance(node.target, torch._ops.OpOverload) and node.target in lowering.lowerings
    return (
        known
        and node.target not in lowering.fallbacks
        and node.target not in lowering.needs_realized_inputs
        and operator_name(node) not in _APART
    )


def _readers(node: fx.Node, kinds: Mapping[fx.Node, Kind]) -> Iterator[fx.Node]:
    """Yield what reads a node, also through views."""
    for user in node.users:
        if kinds[user] == "free":
            yield from _readers(user, kinds)
        else:
            yield user


def _bytes(node: fx.Node) -> int:
    return bytes_of(one for one in tensors_in(value_of(node)) if all(isinstance(n, int) for n in one.shape))
