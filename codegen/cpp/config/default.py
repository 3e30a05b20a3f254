"""Default: a configuration that should do well for the sizes at hand, before any is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from superopt.codegen.cpp.config.config import FEW, CppConfig
from superopt.codegen.cpp.config.kernel import (
    LANES,
    count_programs,
    count_walks,
    equal_tile,
    is_cut_by_mask,
    is_little_work,
    part_axes,
    reads_along,
    shared_volume,
    tile_for_cores,
)
from superopt.codegen.cpp.config.products import (
    ROW_TILE,
    for_groups,
    for_halves,
    for_operand_that_stays,
    multiplies_halves,
)
from superopt.codegen.cpp.config.scratch import CACHED_SCRATCH, MOST_SCRATCH, Scratch
from superopt.codegen.statements import KernelProgram, Move
from superopt.ir import value_axes

__all__ = ["default_config"]

# Tiles of an axis.
_SHARING_TILE = 256  # the longest tile if programs share what they read; a multiple of a vector's lanes
_RESCALED_TILE = 96  # the same in kernels that rescale accumulators as they go on
_RESCALED_POSITIONS = 192  # the longest such tile times the axes that are one tile because of `FEW`
_SUM_TILES = (512, 256, 128, 64)  # tiles of a sum, whose accumulators are touched once for each tile
_MASKED_TILE = 256  # the longest tile of a loop that a mask ends early

# Convolutions.
_IMAGE_TILE = 256  # an axis of an image of at most so many positions is one tile
_MOST_FILTERS = 512  # filters that stay together
_IMAGE_SUMS = 4 * 32768  # sums in a tile, which are touched again after a part of their terms


def default_config(
    program: KernelProgram,
    sizes: Mapping[str, int],
    *,
    cores: int = 2,
    vectors: str = "avx512",
    scratch: Scratch | None = None,
) -> CppConfig:
    """Return a configuration that should do well for these sizes, on cores with such vectors."""
    scratch = scratch or Scratch(program, sizes)
    contiguous, rows = _contiguous_axes(program), _row_axes(program, sizes)
    slid, filters = _slid_outputs(program)
    tiles = _grid_tiles(program, sizes, cores, rows, slid)
    tiles |= _image_tiles(tiles, slid, filters, sizes, cores)
    is_little = is_little_work(program, sizes)
    if not is_little:
        tiles = _for_all_cores(program, tiles, rows, sizes, cores)
        tiles |= _shorter_lines(program, tiles, contiguous, sizes, cores)
    masked = {axis for axis in program.looped if is_cut_by_mask(program, axis)}
    config = CppConfig(
        tuple({**tiles, **_short_sums(program, sizes)}.items()),
        schedule="dynamic" if masked else "static",
        threads=1 if is_little else 0,
    )
    config = _with_long_sums(program, config, sizes, scratch, masked)
    if not _rescales(program) and not masked:
        if multiplies_halves(program):
            config = for_halves(program, config, sizes, scratch, cores, rows=rows, columns=contiguous)
        elif not slid:
            ways = for_groups(program, config, sizes, cores) if vectors == "avx2" else []
            ways += for_operand_that_stays(program, config, sizes, cores)
            for way in ways:
                if scratch.floats(way) <= MOST_SCRATCH:
                    return way
    return _with_whole_axes(program, config, scratch, masked)


# -- tiles of the grid


def _contiguous_axes(program: KernelProgram) -> set[str]:
    """Return the axes along which tensors that the kernel reads or writes are contiguous in memory."""
    tensors = (*program.readings(), *(tensor.axes for tensor in program.stores))
    return {axes[-1] for axes in tensors if axes}


def _row_axes(program: KernelProgram, sizes: Mapping[str, int]) -> list[str]:
    """Return the axes of the grid along which programs read the same, as the rows of a product do."""
    apart = _contiguous_axes(program) | part_axes(program)
    readings = program.readings()
    return [axis for axis in program.grid if axis not in apart and shared_volume(readings, axis, sizes)]


def _grid_tiles(
    program: KernelProgram, sizes: Mapping[str, int], cores: int, rows: Sequence[str], slid: Sequence[str]
) -> dict[str, int]:
    """Return the tiles of the grid: long ones where memory is contiguous, or where programs share reads."""
    tiles = dict.fromkeys(program.grid, 1)
    for axis in _contiguous_axes(program).intersection(program.grid) - part_axes(program):
        tiles[axis] = tile_for_cores(sizes[axis], ROW_TILE, cores)
    tiles |= {axis: max(1, sizes[axis]) for axis in rows}
    tiles |= {axis: sizes[axis] for axis in slid if 1 <= sizes[axis] <= _IMAGE_TILE}
    few = prod(tiles[axis] for axis in rows if tiles[axis] <= FEW)
    longest = _RESCALED_TILE if _rescales(program) else _SHARING_TILE
    if few > 1:
        longest = max(longest // 4, min(longest, _RESCALED_POSITIONS // few))
    return tiles | {axis: equal_tile(tiles[axis], longest) for axis in rows if tiles[axis] > FEW}


def _image_tiles(
    tiles: Mapping[str, int],
    slid: Sequence[str],
    filters: set[str],
    sizes: Mapping[str, int],
    cores: int,
) -> dict[str, int]:
    """Return the tiles of a convolution's filters, and of the outermost axis of its image."""
    positions = prod(sizes[axis] for axis in slid)
    together = min(positions, _MOST_FILTERS)  # each program copies what it reads of the image for all
    found = {axis: sizes[axis] for axis in filters if sizes[axis] <= together}
    return found | _shared_out({**tiles, **found}, slid, sizes, cores) if slid else found


def _for_all_cores(
    program: KernelProgram,
    tiles: Mapping[str, int],
    rows: Sequence[str],
    sizes: Mapping[str, int],
    cores: int,
) -> dict[str, int]:
    """Return tiles of rows that are halved until there is a program for each core."""
    tiles, readings = dict(tiles), program.readings()
    while count_programs(tiles, sizes) < cores:
        left = [axis for axis in rows if tiles[axis] > 1]
        if not left:
            break
        # What programs along an axis share, each of them reads: that should be the smaller operand.
        widest = min(left, key=lambda axis: (shared_volume(readings, axis, sizes), -tiles[axis]))
        tiles[widest] = -(-tiles[widest] // 2)
    return tiles


def _shorter_lines(
    program: KernelProgram,
    tiles: Mapping[str, int],
    contiguous: set[str],
    sizes: Mapping[str, int],
    cores: int,
) -> dict[str, int]:
    """Return shorter tiles along memory, of whole vectors, where there is no program for each core."""
    programs = count_programs(tiles, sizes)
    lines = [axis for axis in program.grid if axis in contiguous - part_axes(program)]
    if programs >= cores or not lines:
        return {}
    longest = max(lines, key=lambda axis: tiles[axis])
    return {longest: equal_tile(tiles[longest], max(tiles[longest] // (cores // programs), LANES))}


def _slid_outputs(program: KernelProgram) -> tuple[list[str], set[str]]:
    """Return the axes of the grid along which a contraction slides over many channels, outermost first.

    With them come those of its filters, which the image lacks.
    """
    axes = value_axes(program.graph)
    terms = {axis for step in program.steps() for place in step.places for axis, _ in place.terms}
    found, filters = set[str](), set[str]()
    for step in program.steps():
        if step.op == "contract" and terms & set(step.axes):
            a, b = (axes[i].difference(step.axes) for i in step.inputs)
            if a - b and b - a:
                found |= terms.difference(step.axes)
                filters |= set[str]().union(
                    *(one - other for one, other in ((a, b), (b, a)) if not one & terms)
                )
    return [axis for axis in program.grid if axis in found], filters.intersection(program.grid)


def _shared_out(
    tiles: Mapping[str, int], slid: Sequence[str], sizes: Mapping[str, int], cores: int
) -> dict[str, int]:
    """Return tiles of the outermost axis of an image, so that sums fit and each core gets equally many."""
    first = slid[0]
    rest = prod(tile for axis, tile in tiles.items() if axis != first)
    count = max(1, -(-rest * sizes[first] // _IMAGE_SUMS))
    if prod(-(-sizes[axis] // tile) for axis, tile in tiles.items() if axis != first) % cores:
        count = -(-count // cores) * cores
    return {first: max(1, -(-sizes[first] // min(count, max(1, sizes[first]))))}


# -- loops


def _rescales(program: KernelProgram) -> bool:
    """Whether a kernel rescales accumulators as it goes on, because a running maximum moves."""
    return any(isinstance(one, Move) for one, _ in program.flat())


def _short_sums(program: KernelProgram, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the shortest tiles that sums have, and longer ones where all is read along memory."""
    readings = program.readings()
    lengths = (
        (axis, 2 * ROW_TILE if reads_along(readings, axis) else _SUM_TILES[-1]) for axis in program.looped
    )
    return {axis: max(1, min(sizes[axis], length)) for axis, length in lengths}


def _with_long_sums(
    program: KernelProgram,
    config: CppConfig,
    sizes: Mapping[str, int],
    scratch: Scratch,
    masked: set[str],
) -> CppConfig:
    """Return a configuration with the longest tiles of sums for which scratch memory suffices."""
    readings = program.readings()
    summed = [axis for axis in program.looped if not reads_along(readings, axis)]
    for length in _SUM_TILES:
        most = {axis: min(length, _MASKED_TILE) if axis in masked else length for axis in summed}
        tiles = dict(config.tiles) | {axis: max(1, min(sizes[axis], most[axis])) for axis in summed}
        longer = replace(config, tiles=tuple(tiles.items()))
        if scratch.floats(longer) <= MOST_SCRATCH:
            return longer
    return config


def _with_whole_axes(
    program: KernelProgram, config: CppConfig, scratch: Scratch, masked: set[str]
) -> CppConfig:
    """Return a configuration in which axes that are walked along several times lie whole in the cache."""
    taps = {axis for step in program.steps() for place in step.places for axis, _ in place.terms}
    again = (axis for axis in program.looped if axis in taps or count_walks(program, axis) > 1)
    whole = tuple(axis for axis in again if axis not in masked)
    for axes in (whole, *((axis,) for axis in whole)):
        if axes and scratch.floats(replace(config, whole=axes)) <= CACHED_SCRATCH:
            return replace(config, whole=axes)
    return config
