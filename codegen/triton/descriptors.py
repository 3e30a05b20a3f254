"""Descriptors: which tiles a device can copy on its own (TMA), and which tensors it can copy them from.

A descriptor states a tensor's extents and strides once, and is an argument of the kernel. A load then
names the corner of a tile: there are no addresses and no masks, and zeros arrive from beyond the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from superopt.codegen.statements import KernelProgram, Load, Tensor, traced_strides
from superopt.codegen.triton.config import TritonConfig
from superopt.codegen.triton.plan import Plan, kept_splits, make_plan
from superopt.dtypes import DTYPES, FLOATS, FP8
from superopt.ir import Graph

__all__ = ["Descriptor", "describe", "described", "layout_refusal", "memory_order", "normal_strides"]

_READ = frozenset(name for name in FLOATS | FP8 if DTYPES[name].triton)
MOST_DIMS = 5
LONGEST_SIDE = 512  # elements of a side of a tile: Triton copies a longer side piece by piece
LEAST_BYTES = 16  # bytes that a row of a tile has at least
ALIGNED = 16  # bytes: what a tensor's start, and its strides, are multiples of
MOST_BYTES = 2**40  # bytes that a stride may have
LARGE_BYTES = 8 << 10  # bytes of a tile that is worth its descriptor
STAGES = (3, 4, 6)
WARPS = (4, 8)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """How a descriptor sees a tensor: its axes, the positions of each in a tile, and where a tile starts."""

    axes: tuple[str, ...]  # the one along which elements are neighbours is last
    block: tuple[int, ...]
    places: tuple[str | int, ...]  # an axis of the kernel, or one position


def describe(
    program: KernelProgram,
    plan: Plan,
    config: TritonConfig,
    tensor: Tensor,
    places: Mapping[str, str | int],
) -> Descriptor | str:
    """Return the descriptor for a tile of a tensor, each axis at a place; or why there can be none."""
    if tensor.dtype not in _READ:
        return f"{tensor.name} holds {tensor.dtype}; descriptors are for floating point"
    if len(places) > MOST_DIMS:
        return f"{tensor.name} has {len(places)} axes; a descriptor has at most {MOST_DIMS}"
    axes = memory_order(program.graph, tensor, tuple(places))
    at = tuple(places[axis] for axis in axes)
    block = tuple(
        1 if isinstance(place, int) or plan.roles[place] == "single" else config.tile(place) for place in at
    )
    if sum(side > 1 for side in block) < 2:
        return f"the tile of {tensor.name} is no matrix"
    if max(block) > LONGEST_SIDE:
        return f"the tile of {tensor.name} is {max(block)} long; a side has at most {LONGEST_SIDE}"
    if block[-1] * DTYPES[tensor.dtype].bytes < LEAST_BYTES:
        return f"rows of the tile of {tensor.name} have less than {LEAST_BYTES} bytes"
    for split in kept_splits(program):
        if split.inner in at and split.inner not in config.exact:
            return f"a tile of {tensor.name} may reach beyond its part of {split.axis!r}"
    return Descriptor(axes, block, at)


def layout_refusal(
    name: str,
    dtype: str,
    sizes: Mapping[str, int],
    strides: Mapping[str, int],
    axes: Sequence[str],
    *,
    aligned: bool,
) -> str | None:
    """Return why a tensor with these axes, the innermost last, has no descriptor; None where it has one.

    `aligned` states that the tensor starts at a multiple of 16 bytes.
    """
    if not aligned:
        return f"{name} does not start at a multiple of {ALIGNED} bytes"
    empty = next((axis for axis in axes if not sizes[axis]), None)
    if empty is not None:
        return f"axis {empty!r} of {name} is empty"
    long = next((axis for axis in axes if sizes[axis] >= 2**31), None)
    if long is not None:
        return f"axis {long!r} of {name} is too long"
    steps = normal_strides(dtype, sizes, strides, axes)
    if steps[-1] != 1:
        return f"elements of {name} along {axes[-1]!r} are {steps[-1]} apart, not neighbours"
    for axis, stride in zip(axes[:-1], steps[:-1], strict=True):
        moved = stride * DTYPES[dtype].bytes
        if not 0 < moved < MOST_BYTES or moved % ALIGNED:
            return f"the stride of {name} along {axis!r} is {moved} bytes, no multiple of {ALIGNED}"
    return None


def normal_strides(
    dtype: str, sizes: Mapping[str, int], strides: Mapping[str, int], axes: Sequence[str]
) -> tuple[int, ...]:
    """Return the strides of axes in order, one that suits where an axis has a single position."""
    step = ALIGNED // DTYPES[dtype].bytes
    return tuple(strides[axis] if sizes[axis] > 1 else 1 if axis == axes[-1] else step for axis in axes)


def described(program: KernelProgram, config: TritonConfig, sizes: Mapping[str, int]) -> TritonConfig | None:
    """Return the configuration with descriptors, where they are likely to be faster; else None.

    That is where a loop waits for large tiles, several turns ahead, and the tensors allow it at these sizes.
    """
    ahead = config.num_stages in STAGES and config.num_warps in WARPS
    if not ahead or _largest_loop_tile(program, config, sizes) < LARGE_BYTES:
        return None
    return replace(config, descriptors=True)


def _largest_loop_tile(program: KernelProgram, config: TritonConfig, sizes: Mapping[str, int]) -> int:
    """Return the bytes of the largest tile that a loop reads by a descriptor; 0 where none is."""
    plan = make_plan(program, config)
    tensors = {tensor.value: tensor for tensor in program.loads}
    largest = 0
    for statement, loops in program.flat():
        if isinstance(statement, Load) and loops:
            tensor = tensors[statement.value]
            if not set(tensor.axes) <= plan.roles.keys():
                continue  # it is read at other places alone
            seen = describe(program, plan, config, tensor, {axis: axis for axis in tensor.axes})
            if isinstance(seen, Descriptor) and not layout_refusal(
                tensor.name, tensor.dtype, sizes, traced_strides(tensor, sizes), seen.axes, aligned=True
            ):
                largest = max(largest, prod(seen.block) * DTYPES[tensor.dtype].bytes)
    return largest


def memory_order(graph: Graph, tensor: Tensor, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return axes as the tensor lay in memory when the program was traced, neighbours last."""
    strides = traced_strides(tensor, graph.sizes)
    return tuple(sorted(axes, key=lambda axis: -strides[axis]))
