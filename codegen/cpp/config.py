"""CppConfig: what the tuner may choose about a C++ kernel: how long tiles are, how programs spread."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from superopt.codegen.cpp.plan import make_plan
from superopt.codegen.cpp.whole import keep_whole
from superopt.codegen.statements import KernelProgram, LoopStatement, Move, Statement, Tensor
from superopt.ir import value_axes

__all__ = ["CppConfig", "configs", "default_config", "loop_axes"]

_ROW = 512  # positions of an axis that lies contiguous in memory
_FEW = 16  # positions up to which a grid axis whose programs share what they read is one tile
_REUSE = 64  # positions of a longer one
_KEPT = 32768  # floats of scratch memory that stay in the second cache
_SUMMED = 64  # positions of a reduction between two touches of its accumulators


@dataclass(frozen=True, slots=True)
class CppConfig:
    """The tile length of each axis on the grid or looped over, and how OpenMP shares out the grid.

    The axes in `whole` are not looped over, but lie whole inside a tile.
    """

    tiles: tuple[tuple[str, int], ...]
    schedule: str = "static"
    whole: tuple[str, ...] = ()

    def tile(self, axis: str) -> int:
        """Return the tile length of an axis."""
        return dict(self.tiles)[axis]


def loop_axes(program: KernelProgram) -> tuple[str, ...]:
    """Return the axes that the kernel walks along tile by tile."""

    def found(statements: tuple[Statement, ...]) -> Iterator[str]:
        for one in statements:
            if isinstance(one, LoopStatement):
                yield one.axis
                yield from found(one.body)

    return tuple(dict.fromkeys(found(program.statements)))


def default_config(program: KernelProgram, sizes: Mapping[str, int], *, cores: int = 2) -> CppConfig:
    """Return a configuration that should do well for these sizes."""
    inner = {tensor.axes[-1] for tensor in (*program.loads, *program.stores) if tensor.axes}
    tiles: dict[str, int] = {}
    parts = {split.outer for split in program.splits if split.inner in program.axes}
    for axis in program.grid:
        if axis in parts:
            tiles[axis] = 1
            continue
        shared = _shared_volume(program, axis, sizes)
        if axis in inner:
            tiles[axis] = _whole_tiles(sizes[axis], _ROW, cores)
        elif shared:
            tiles[axis] = max(1, sizes[axis]) if sizes[axis] <= _FEW else _REUSE
        else:
            tiles[axis] = 1
    for axis in loop_axes(program):
        length = 2 * _ROW if _streams(program, axis) else _SUMMED
        tiles[axis] = max(1, min(sizes[axis], length))
    config = CppConfig(tuple(tiles.items()))
    whole = tuple(axis for axis in loop_axes(program) if _walks(program, axis) > 1)
    for axes in (whole, *((axis,) for axis in whole)):
        if axes and _floats(program, replace(config, whole=axes), sizes) <= _KEPT:
            return replace(config, whole=axes)
    return config


def configs(program: KernelProgram, sizes: Mapping[str, int], *, cores: int = 2) -> Iterator[CppConfig]:
    """Yield configurations worth a try, the default one first."""
    first = default_config(program, sizes, cores=cores)
    yield first
    seen = {first}
    options = []
    for axis, tile in first.tiles:
        longer = [tile // 4, tile // 2, tile, tile * 2, tile * 4] if tile > 1 else [1]
        options.append([max(1, min(length, max(1, sizes[axis]))) for length in longer])
    for schedule in ("static", "dynamic"):
        for lengths in product(*options):
            tiles = tuple((axis, length) for (axis, _), length in zip(first.tiles, lengths, strict=True))
            config = replace(first, tiles=tiles, schedule=schedule)
            if config not in seen:
                seen.add(config)
                yield config


def _walks(program: KernelProgram, axis: str) -> int:
    """Return how often the kernel walks along an axis; a walk with a running shift counts twice."""
    loops = [around for one, around in program.flat() if isinstance(one, Move)]
    count = sum(around[-1] == axis for around in loops)

    def found(statements: tuple[Statement, ...]) -> int:
        inner = [one for one in statements if isinstance(one, LoopStatement)]
        return sum((one.axis == axis) + found(one.body) for one in inner)

    return count + found(program.statements)


def _floats(program: KernelProgram, config: CppConfig, sizes: Mapping[str, int]) -> int:
    """Return how many floats of scratch memory a program of the grid takes."""
    axes = value_axes(program.graph)
    single = frozenset(axis for axis, tile in config.tiles if tile == 1 and axis in program.grid)
    plan = make_plan(keep_whole(program, config.whole), single)
    lengths = {**sizes, **{axis: tile for axis, tile in config.tiles if axis not in config.whole}}
    return sum(prod(max(1, lengths[axis]) for axis in axes[value] - single) for value in plan.kept)


def _volume(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    volume = 1
    for axis in tensor.axes:
        volume *= max(1, sizes[axis])
    return volume


def _shared_volume(program: KernelProgram, axis: str, sizes: Mapping[str, int]) -> int:
    """Return how much all programs along an axis read alike, where that is more than a few rows."""
    return sum(
        _volume(tensor, sizes) for tensor in program.loads if axis not in tensor.axes and len(tensor.axes) > 1
    )


def _streams(program: KernelProgram, axis: str) -> bool:
    """Whether nothing contracts along an axis but what lies in its direction."""
    return all(tensor.axes[-1] == axis for tensor in program.loads if axis in tensor.axes)


def _whole_tiles(size: int, longest: int, cores: int) -> int:
    """Return a tile length of which every core gets equally many."""
    if size <= 64 * cores:
        return max(1, min(size, 64))
    rounds = -(-size // (longest * cores))
    length = -(-size // (rounds * cores))
    return -(-length // 16) * 16
