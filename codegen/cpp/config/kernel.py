"""Kernel: what the choice of a configuration asks of a kernel and its sizes."""

from collections.abc import Collection, Mapping
from math import prod

from superopt.codegen.lowering import lower_for_cpp
from superopt.codegen.statements import Compute, KernelProgram, Move
from superopt.ir import value_axes

__all__ = [
    "LANES",
    "count_programs",
    "count_walks",
    "equal_tile",
    "is_cut_by_mask",
    "is_little_work",
    "is_much_more_work",
    "part_axes",
    "reads_along",
    "shared_volume",
    "tile_for_cores",
]

LANES = 16
"""Lanes of the widest vectors."""

_LITTLE_WORK = 32768  # so many element operations take less time than starting a second thread
_MUCH_MORE = 4  # times as much work is worth threads for a kernel that is fastest without


def is_little_work(program: KernelProgram, sizes: Mapping[str, int]) -> bool:
    """Whether the kernel takes less time than starting threads does."""
    return _count_operations(program, sizes) <= _LITTLE_WORK


def is_much_more_work(program: KernelProgram, sizes: Mapping[str, int]) -> bool:
    """Whether the kernel has so much more work for these sizes than for its own that threads are worth it."""
    own = _count_operations(program, program.graph.sizes)
    return _count_operations(program, sizes) > max(_LITTLE_WORK, _MUCH_MORE * own)


def _count_operations(program: KernelProgram, sizes: Mapping[str, int]) -> int:
    """Return about how many operations on single elements the kernel takes."""
    axes = value_axes(program.graph)
    work = [
        axes[one.value].union(*(axes[i] for i in one.step.inputs))
        for one, _ in program.flat()
        if isinstance(one, (Compute, Move))
    ]
    return sum(prod(max(1, sizes[axis]) for axis in every) for every in work)


def count_programs(tiles: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """Return how many programs tiles of these lengths make."""
    return prod(-(-max(1, sizes[axis]) // tile) for axis, tile in tiles.items())


def count_walks(program: KernelProgram, axis: str) -> int:
    """Return how often the kernel walks along an axis; a walk with a running shift counts twice."""
    moves = [around for one, around in program.flat() if isinstance(one, Move)]
    return sum(around[-1] == axis for around in moves) + sum(loop.axis == axis for loop in program.loops())


def is_cut_by_mask(program: KernelProgram, axis: str) -> bool:
    """Return whether a mask makes a walk along an axis stop early, or start late."""
    return any(loop.axis == axis and loop.reaches for loop in lower_for_cpp(program).loops())


def part_axes(program: KernelProgram) -> set[str]:
    """Return the axes of the parts into which sums are split; a program computes one part."""
    return {split.outer for split in program.splits if split.inner in program.axes}


def shared_volume(readings: Collection[tuple[str, ...]], axis: str, sizes: Mapping[str, int]) -> int:
    """Return the volume that all programs along an axis read in common; vectors do not count."""
    alike = [axes for axes in readings if axis not in axes and len(axes) > 1]
    return sum(prod(max(1, sizes[one]) for one in axes) for axes in alike)


def reads_along(readings: Collection[tuple[str, ...]], axis: str) -> bool:
    """Whether nothing contracts along an axis but what lies in its direction."""
    return all(axes[-1] == axis for axes in readings if axis in axes)


def equal_tile(size: int, longest: int) -> int:
    """Return a tile length of at most `longest` so that whole tiles hardly exceed the size."""
    length = -(-size // -(-size // longest))
    return min(-(-length // LANES) * LANES, longest // LANES * LANES)


def tile_for_cores(size: int, longest: int, cores: int) -> int:
    """Return a tile length of which every core gets equally many."""
    if size <= 64 * cores:
        return max(1, min(size, 64))
    rounds = -(-size // (longest * cores))
    length = -(-size // (rounds * cores))
    return -(-length // LANES) * LANES
