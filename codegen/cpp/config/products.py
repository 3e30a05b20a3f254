"""Products: configurations of kernels that multiply matrices."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from superopt.codegen.cpp.alike import MOST_PACKED
from superopt.codegen.cpp.config.config import FEW, GROUPED, CppConfig
from superopt.codegen.cpp.config.kernel import count_programs, equal_tile, reads_along, tile_for_cores
from superopt.codegen.cpp.config.scratch import MOST_SCRATCH, Scratch
from superopt.codegen.statements import KernelProgram
from superopt.ir import value_axes

__all__ = ["for_groups", "for_halves", "for_operand_that_stays", "multiplies_halves"]

ROW_TILE = 512
"""The longest tile of a grid axis that is contiguous in memory."""

_UNEVEN_ROUNDS = 4  # with so many programs for each core, one more on some cores does not matter

# Products in bf16.
_HALF_SUM_TILE = 4096  # the longest tile of a sum whose operands are read in place
_HALF_ROWS, _HALF_COLUMNS = 128, 2048  # rows and columns of a tile whose operands are read in place
_MANY_ROWS = 256  # with more rows, the columns are copied once for all of them; `pair_many` in the runtime
_HIGH_ROWS, _HIGH_COLUMNS = 512, 128  # rows and columns of a tile whose columns are copied
_CACHE_STRIDE = 4096  # rows whose length is a multiple of this compete for the same lines of the cache

# Products in which one operand stays packed while the other one passes.
_PANEL_ROWS = 64  # rows that are packed once for all columns
_PASSING_TILE = 256  # the most columns of a tile then
_LEAST_PASSING = 256  # rows for which it pays to pack the columns once
_STAYING_NUMBERS = 4 * 32768  # numbers of the columns that are packed once for all rows

# Products of many rows, which are copied in groups.
_GROUPED_TILES = ((512, 512), (256, 512), (256, 256), (128, 256))  # rows and columns of a tile, at most
_GROUPED_SUM, _GROUPED_COLUMNS = 512, 256  # the longest tile of a sum, and the least columns of the matrix


def multiplies_halves(program: KernelProgram) -> bool:
    """Whether all that a kernel reads is in bf16, and it multiplies matrices."""
    contracts = any(step.op == "contract" for step in program.steps())
    return contracts and all(tensor.dtype == "bf16" for tensor in program.loads)


def for_halves(
    program: KernelProgram,
    config: CppConfig,
    sizes: Mapping[str, int],
    scratch: Scratch,
    cores: int,
    *,
    rows: Collection[str],
    columns: Collection[str],
) -> CppConfig:
    """Return a configuration with longer tiles, which suit products in bf16.

    Along what they sum, operands that lie in memory need no tile. Rows are packed anew for each tile of
    columns, and the columns are read where they lie; of very many rows it is the other way around.
    """
    readings = program.readings()
    high = [axis for axis in rows if config.tile(axis) > FEW]
    if not all(reads_along(readings, axis) for axis in program.looped):
        return _with_high_tiles(program, config, sizes, scratch, high=high, columns=columns)
    config = _with_longer_sums(program, config, sizes, scratch)
    highest = {axis: equal_tile(sizes[axis], _HIGH_ROWS) for axis in high}
    lower = {axis: equal_tile(sizes[axis], min(config.tile(axis), _HALF_ROWS)) for axis in high}
    options = [(lower, _HALF_COLUMNS), (lower, _HALF_COLUMNS // 2)]
    if any(length > _MANY_ROWS for length in highest.values()):  # the columns are copied
        options = [(highest, _HIGH_COLUMNS), *options]
    for heights, length in options if high else ():
        wide = {axis: tile_for_cores(sizes[axis], length, cores) for axis in program.grid if axis in columns}
        wider = _with_tiles(config, heights | wide)
        if scratch.floats(wider) <= MOST_SCRATCH:
            return wider
    return config


def _with_tiles(config: CppConfig, tiles: Mapping[str, int]) -> CppConfig:
    """Return a configuration with other tiles of some axes."""
    return replace(config, tiles=tuple((dict(config.tiles) | dict(tiles)).items()))


def _with_high_tiles(
    program: KernelProgram,
    config: CppConfig,
    sizes: Mapping[str, int],
    scratch: Scratch,
    *,
    high: Collection[str],
    columns: Collection[str],
) -> CppConfig:
    """Return a configuration with tiles of many rows, if columns lie so far apart that they are copied."""
    readings = program.readings()
    apart = {axes[-1] for axes in readings if len(axes) > 1 and sizes[axes[-1]] % _CACHE_STRIDE == 0}
    if apart.isdisjoint(set(columns) - set(program.looped)):
        return config
    higher = _with_tiles(config, {axis: equal_tile(sizes[axis], _HIGH_ROWS) for axis in high})
    return higher if scratch.floats(higher) <= MOST_SCRATCH else config


def _with_longer_sums(
    program: KernelProgram, config: CppConfig, sizes: Mapping[str, int], scratch: Scratch
) -> CppConfig:
    """Return a configuration with longer tiles of sums, if they take no scratch memory."""
    longer = _with_tiles(config, {axis: min(sizes[axis], _HALF_SUM_TILE) for axis in program.looped})
    return longer if scratch.floats(longer) == scratch.floats(config) else config


def for_operand_that_stays(
    program: KernelProgram, config: CppConfig, sizes: Mapping[str, int], cores: int
) -> list[CppConfig]:
    """Return a configuration in which one operand is packed once while the other passes, if there is one.

    The rows of a tile fill one panel, with all that is summed, and columns are read where they lie.
    """
    row = _row_of_matrices(program, sizes)
    if row is None or sizes[row] <= FEW:
        return []
    readings, columns = program.readings(), program.grid[-1]
    summed = prod(sizes[axis] for axis in program.looped)
    if _PANEL_ROWS * summed > MOST_PACKED:
        return []
    length = ROW_TILE if sizes[row] <= _PANEL_ROWS else _PASSING_TILE
    order: tuple[str, ...] = ()
    if not all(reads_along(readings, axis) for axis in program.looped):
        # The columns stay, as many as have room in the second cache, and the rows pass.
        if sizes[row] < _LEAST_PASSING:
            return []
        order = (*(axis for axis in program.grid if axis != row), row)
        length = min(max(_STAYING_NUMBERS // max(1, summed) // _PANEL_ROWS, 1) * _PANEL_ROWS, _PASSING_TILE)
    tiles = {row: equal_tile(sizes[row], _PANEL_ROWS), columns: tile_for_cores(sizes[columns], length, cores)}
    other = replace(_with_tiles(config, tiles), whole=program.looped, order=order)
    programs = count_programs({axis: other.tile(axis) for axis in program.grid}, sizes)
    if programs % cores and programs < _UNEVEN_ROUNDS * cores:  # some cores would wait for the others
        return []
    return [other]


def for_groups(
    program: KernelProgram, config: CppConfig, sizes: Mapping[str, int], cores: int
) -> list[CppConfig]:
    """Return configurations for many rows, which are copied in groups: the largest tiles come first."""
    row, found = _row_of_matrices(program, sizes), list[CppConfig]()
    if row is None or sizes[row] < GROUPED or sizes[program.grid[-1]] < _GROUPED_COLUMNS:
        return found
    columns, summed = program.grid[-1], {axis: min(sizes[axis], _GROUPED_SUM) for axis in program.looped}
    for tall, wide in _GROUPED_TILES:
        lengths = {row: equal_tile(sizes[row], tall), columns: tile_for_cores(sizes[columns], wide, cores)}
        tiles = dict(config.tiles) | summed | lengths
        programs = count_programs({axis: tiles[axis] for axis in program.grid}, sizes)
        if tiles[columns] > _PANEL_ROWS and (programs % cores == 0 or programs >= _UNEVEN_ROUNDS * cores):
            found.append(replace(config, tiles=tuple(tiles.items())))
    return found


def _row_of_matrices(program: KernelProgram, sizes: Mapping[str, int]) -> str | None:
    """Return the axis of a program's rows where it multiplies rows by columns, along its last axis."""
    if not program.grid or not program.looped:
        return None
    columns, axes = program.grid[-1], value_axes(program.graph)
    steps = [step for step in program.steps() if step.op == "contract"]
    operands = [sorted((axes[i] for i in step.inputs), key=lambda one: columns in one) for step in steps]
    products = [(a, b) for a, b in operands if columns in b]
    rows = {axis for a, b in products for axis in a - b if axis in program.grid and sizes[axis] != 1}
    if len(rows) != 1 or any(columns in a or rows & b for a, b in products):
        return None
    return min(rows)
