"""CppConfig: what the tuner may choose about a C++ kernel: how long tiles are, how programs spread."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

from superopt.codegen.cpp.alike import MOST_PACKED
from superopt.codegen.cpp.plan import make_plan
from superopt.codegen.cpp.windows.filtering import is_filterable
from superopt.codegen.lowering import lower_for_cpp, unloop_short_axes
from superopt.codegen.statements import Compute, KernelProgram, Move
from superopt.ir import value_axes

__all__ = ["FEW", "GROUPED", "CppConfig", "configs", "default_config"]

FEW = 16
"""Positions up to which an axis whose programs share what they read is one tile; `few` in the runtime."""

GROUPED = 96
"""Rows from which on they are copied in groups where registers are few; `worth_groups` in the runtime."""

_MOST_CONFIGS = 24  # configurations that are tried
_LANES = 16  # lanes of the widest vectors
_LITTLE_WORK = 32768  # so many element operations take less time than starting a second thread
_MOST_SCRATCH = 10 * 32768  # floats of scratch memory that a program may take
_CACHED_SCRATCH = 32768  # floats of scratch memory that stay in the second-level cache
_UNEVEN_ROUNDS = 4  # with so many programs for each core, one more on some cores does not matter

# Tiles of an axis.
_ROW_TILE = 512  # the longest tile of a grid axis that is contiguous in memory
_SHARING_TILE = 256  # the same if programs share what they read; a multiple of a vector's lanes
_RESCALED_TILE = 96  # the same in kernels that rescale accumulators as they go on
_RESCALED_POSITIONS = 192  # the longest such tile times the axes that are one tile because of `FEW`
_SUM_TILES = (512, 256, 128, 64)  # tiles of a sum, whose accumulators are touched once for each tile
_MASKED_TILE = 256  # the longest tile of a loop that a mask ends early

# Products in bf16.
_HALF_SUM_TILE = 4096  # the longest tile of a sum whose operands are read in place
_HALF_ROWS, _HALF_COLUMNS = 128, 2048  # rows and columns of a tile whose operands are read in place
_MANY_ROWS = 256  # with more rows, the columns are copied once for all of them; `pair_many` in the runtime
_TALL_ROWS, _TALL_COLUMNS = 512, 128  # rows and columns of a tile whose columns are copied
_CACHE_STRIDE = 4096  # rows whose length is a multiple of this compete for the same lines of the cache

# Products in which one operand stays packed while the other one passes.
_PANEL_ROWS = 64  # rows that are packed once for all columns
_PASSING_TILE = 256  # the most columns of a tile then
_LEAST_PASSING = 256  # rows for which it pays to pack the columns once
_STAYING_NUMBERS = 4 * 32768  # numbers of the columns that are packed once for all rows

# Products of many rows, which are copied in groups.
_GROUPED_TILES = ((512, 512), (256, 512), (256, 256), (128, 256))  # rows and columns of a tile, at most
_GROUPED_SUM, _GROUPED_COLUMNS = 512, 256  # the longest tile of a sum, and the least columns of the matrix

# Convolutions.
_IMAGE_TILE = 256  # an axis of an image of at most so many positions is one tile
_MOST_FILTERS = 512  # filters that stay together
_IMAGE_SUMS = 4 * 32768  # sums in a tile, which are touched again after a part of their terms


@dataclass(frozen=True, slots=True)
class CppConfig:
    """The tile length of each axis on the grid or looped over, and how OpenMP shares out the grid.

    The axes in `whole` are not looped over, but lie whole inside a tile. `order` is that of the loops
    over the grid, outermost first, where it is not the program's; `threads` is how many run at most,
    0 being all. Convolutions with three taps take fewer products where they are `filtered`.
    """

    tiles: tuple[tuple[str, int], ...]
    schedule: str = "static"
    whole: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    threads: int = 0
    filtered: bool = False

    def tile(self, axis: str) -> int:
        """Return the tile length of an axis."""
        return dict(self.tiles)[axis]

    @property
    def rounds_operands(self) -> bool:
        """Whether operands are rounded to fp16 that may not fit: they never are."""
        return False

    @property
    def rounding(self) -> tuple[bool]:
        """How products are rounded, as far as that is not decided by the processor and the program."""
        return (self.filtered,)


def default_config(
    program: KernelProgram,
    sizes: Mapping[str, int],
    *,
    cores: int = 2,
    vectors: str = "avx512",
    memory: "_Memory | None" = None,
) -> CppConfig:
    """Return a configuration that should do well for these sizes, on cores with such vectors."""
    memory = memory or _Memory(program, sizes)
    readings = program.readings()
    inner = {axes[-1] for axes in (*readings, *(tensor.axes for tensor in program.stores)) if axes}
    tiles: dict[str, int] = {}
    several: list[str] = []
    parts = {split.outer for split in program.splits if split.inner in program.axes}
    for axis in program.grid:
        if axis in parts:
            tiles[axis] = 1
            continue
        shared = _shared_volume(readings, axis, sizes)
        if axis in inner:
            tiles[axis] = _whole_tiles(sizes[axis], _ROW_TILE, cores)
        elif shared:
            tiles[axis] = max(1, sizes[axis])
            several += [axis]
        else:
            tiles[axis] = 1
    slid, filters = _slid_outputs(program)
    tiles |= {axis: sizes[axis] for axis in slid if 1 <= sizes[axis] <= _IMAGE_TILE}
    few = prod(tiles[axis] for axis in several if tiles[axis] <= FEW)
    runs = any(isinstance(one, Move) for one, _ in program.flat())
    for axis in several:
        if tiles[axis] > FEW:
            alone = _RESCALED_TILE if runs else _SHARING_TILE
            most = alone if few == 1 else max(alone // 4, min(alone, _RESCALED_POSITIONS // few))
            tiles[axis] = _equal_tiles(tiles[axis], most)
    positions = prod(sizes[axis] for axis in slid)
    together = min(positions, _MOST_FILTERS)  # each program copies what it reads of the image for all
    tiles |= {axis: sizes[axis] for axis in filters if sizes[axis] <= together}
    if slid:
        tiles |= _shared_out(tiles, slid, sizes, cores)
    little = _little(program, sizes)
    while not little and several and _programs(tiles, sizes) < cores:
        left = [axis for axis in several if tiles[axis] > 1]
        if not left:
            break
        # What programs along an axis share, each of them reads: that should be the smaller operand.
        widest = min(left, key=lambda axis: (_shared_volume(readings, axis, sizes), -tiles[axis]))
        tiles[widest] = -(-tiles[widest] // 2)
    for axis in program.looped:
        length = 2 * _ROW_TILE if _streams(readings, axis) else _SUM_TILES[-1]
        tiles[axis] = max(1, min(sizes[axis], length))
    threads = 1 if little else 0
    stops = {axis: _MASKED_TILE for axis in program.looped if _stops(program, axis)}
    config = CppConfig(tuple(tiles.items()), schedule="dynamic" if stops else "static", threads=threads)
    for length in _SUM_TILES:
        longer = {
            axis: tile
            if _streams(readings, axis)
            else max(1, min(sizes[axis], length, stops.get(axis, length)))
            for axis, tile in tiles.items()
            if axis not in program.grid
        }
        longest = replace(config, tiles=tuple({**tiles, **longer}.items()))
        if memory.floats(longest) <= _MOST_SCRATCH:
            config = longest
            break
    if not runs and not stops and _multiplies_halves(program):
        config = _for_halves(program, config, sizes, memory, cores, rows=several, columns=inner)
    elif not runs and not stops and not slid:
        ways = _for_groups(program, config, sizes, cores) if vectors == "avx2" else []
        ways += _for_operand_that_stays(program, config, sizes, cores)
        for way in ways:
            if memory.floats(way) <= _MOST_SCRATCH:
                return way
    taps = {axis for step in program.steps() for place in step.places for axis, _ in place.terms}
    whole = tuple(
        axis
        for axis in program.looped
        if (axis in taps or _walks(program, axis) > 1) and not _stops(program, axis)
    )
    for axes in (whole, *((axis,) for axis in whole)):
        if axes and memory.floats(replace(config, whole=axes)) <= _CACHED_SCRATCH:
            return replace(config, whole=axes)
    return config


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


def _multiplies_halves(program: KernelProgram) -> bool:
    """Whether all that a kernel reads is in bf16, and it multiplies matrices."""
    contracts = any(step.op == "contract" for step in program.steps())
    return contracts and all(tensor.dtype == "bf16" for tensor in program.loads)


def _for_halves(
    program: KernelProgram,
    config: CppConfig,
    sizes: Mapping[str, int],
    memory: "_Memory",
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
    tiles = dict(config.tiles)
    if not all(_streams(readings, axis) for axis in program.looped):
        apart = {axes[-1] for axes in readings if len(axes) > 1 and sizes[axes[-1]] % _CACHE_STRIDE == 0}
        if apart.isdisjoint(set(columns) - set(program.looped)):
            return config
        taller = {axis: _equal_tiles(sizes[axis], _TALL_ROWS) for axis in rows if tiles[axis] > FEW}
        tall = replace(config, tiles=tuple((tiles | taller).items()))
        return tall if memory.floats(tall) <= _MOST_SCRATCH else config
    summed = {axis: min(sizes[axis], _HALF_SUM_TILE) for axis in program.looped}
    longer = replace(config, tiles=tuple((tiles | summed).items()))
    if memory.floats(longer) == memory.floats(config):
        config, tiles = longer, tiles | summed
    several = [axis for axis in rows if tiles[axis] > FEW]
    most = {axis: _equal_tiles(sizes[axis], _TALL_ROWS) for axis in several}
    copied = any(length > _MANY_ROWS for length in most.values())
    many = {axis: _equal_tiles(sizes[axis], min(tiles[axis], _HALF_ROWS)) for axis in several}
    options = [(most, _TALL_COLUMNS)] if copied else []
    options += [(many, _HALF_COLUMNS), (many, _HALF_COLUMNS // 2)]
    for heights, length in options if several else ():
        wide = {axis: _whole_tiles(sizes[axis], length, cores) for axis in program.grid if axis in columns}
        wider = replace(config, tiles=tuple((tiles | heights | wide).items()))
        if memory.floats(wider) <= _MOST_SCRATCH:
            return wider
    return config


def _for_operand_that_stays(
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
    length = _ROW_TILE if sizes[row] <= _PANEL_ROWS else _PASSING_TILE
    order: tuple[str, ...] = ()
    if not all(_streams(readings, axis) for axis in program.looped):
        # The columns stay, as many as have room in the second cache, and the rows pass.
        if sizes[row] < _LEAST_PASSING:
            return []
        order = (*(axis for axis in program.grid if axis != row), row)
        length = min(max(_STAYING_NUMBERS // max(1, summed) // _PANEL_ROWS, 1) * _PANEL_ROWS, _PASSING_TILE)
    tiles = {row: _equal_tiles(sizes[row], _PANEL_ROWS), columns: _whole_tiles(sizes[columns], length, cores)}
    tiles = dict(config.tiles) | tiles
    programs = _programs({axis: tiles[axis] for axis in program.grid}, sizes)
    if programs % cores and programs < _UNEVEN_ROUNDS * cores:  # some cores would wait for the others
        return []
    return [replace(config, tiles=tuple(tiles.items()), whole=program.looped, order=order)]


def _for_groups(
    program: KernelProgram, config: CppConfig, sizes: Mapping[str, int], cores: int
) -> list[CppConfig]:
    """Return configurations for many rows, which are copied in groups: the largest tiles come first."""
    row, found = _row_of_matrices(program, sizes), list[CppConfig]()
    if row is None or sizes[row] < GROUPED or sizes[program.grid[-1]] < _GROUPED_COLUMNS:
        return found
    columns, summed = program.grid[-1], {axis: min(sizes[axis], _GROUPED_SUM) for axis in program.looped}
    for tall, wide in _GROUPED_TILES:
        lengths = {row: _equal_tiles(sizes[row], tall), columns: _whole_tiles(sizes[columns], wide, cores)}
        tiles = dict(config.tiles) | summed | lengths
        programs = _programs({axis: tiles[axis] for axis in program.grid}, sizes)
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


def configs(
    program: KernelProgram, sizes: Mapping[str, int], *, cores: int = 2, vectors: str = "avx512"
) -> Iterator[CppConfig]:
    """Yield configurations worth a try, the default one first, at most `_MOST_CONFIGS` of them.

    Each differs from the default in one choice, the later ones in two.
    """
    memory = _Memory(program, sizes)
    first = default_config(program, sizes, cores=cores, vectors=vectors, memory=memory)
    found: dict[CppConfig, None] = {first: None}
    single = list(_other_choices(program, first, sizes, memory))
    if is_filterable(program, dict(first.tiles), first.whole):
        both = ((one, replace(one, filtered=True)) for one in single)
        single = [replace(first, filtered=True), *chain.from_iterable(both)]
    found |= dict.fromkeys(single)
    for one in single:
        if len(found) >= _MOST_CONFIGS:
            break
        others = _other_choices(program, one, sizes, memory)
        found |= dict.fromkeys(two for two in others if _distance(first, two) == 2)
    yield from list(found)[:_MOST_CONFIGS]


def _other_choices(
    program: KernelProgram, first: CppConfig, sizes: Mapping[str, int], memory: "_Memory"
) -> Iterator[CppConfig]:
    """Yield configurations that make one choice otherwise."""
    parts = {split.outer for split in program.splits if split.inner in program.axes}
    tiles = dict(first.tiles)
    for factor in (2, 0.5, 4, 0.25):
        for axis, tile in first.tiles:
            length = max(1, min(int(tile * factor), max(1, sizes[axis])))
            if length != tile and axis not in parts and axis not in first.whole:
                other = replace(first, tiles=tuple({**tiles, axis: length}.items()))
                if memory.floats(other) <= _MOST_SCRATCH:
                    yield other
    if program.grid:
        yield replace(first, schedule="dynamic" if first.schedule == "static" else "static")
        yield replace(first, threads=0 if first.threads else 1)
    if len(program.grid) > 1:
        yield replace(first, order=() if first.order else tuple(reversed(program.grid)))
    looped = program.looped
    for whole in dict.fromkeys([(), looped, *((axis,) for axis in looped)]):
        other = replace(first, whole=whole)
        if other != first and memory.floats(other) <= _MOST_SCRATCH:
            yield other


def _distance(a: CppConfig, b: CppConfig) -> int:
    """Return how many choices differ."""
    rest = (a.schedule != b.schedule) + (a.whole != b.whole) + (a.order != b.order) + (a.threads != b.threads)
    rest += a.filtered != b.filtered
    return rest + sum(one != two for one, two in zip(a.tiles, b.tiles, strict=True))


def _little(program: KernelProgram, sizes: Mapping[str, int]) -> bool:
    """Whether the kernel takes less time than starting threads does."""
    axes = value_axes(program.graph)
    work = [
        axes[one.value].union(*(axes[i] for i in one.step.inputs))
        for one, _ in program.flat()
        if isinstance(one, (Compute, Move))
    ]
    return sum(prod(max(1, sizes[axis]) for axis in every) for every in work) <= _LITTLE_WORK


def _programs(tiles: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """Return how many programs tiles of these lengths make."""
    return prod(-(-max(1, sizes[axis]) // tile) for axis, tile in tiles.items())


def _walks(program: KernelProgram, axis: str) -> int:
    """Return how often the kernel walks along an axis; a walk with a running shift counts twice."""
    moves = [around for one, around in program.flat() if isinstance(one, Move)]
    return sum(around[-1] == axis for around in moves) + sum(loop.axis == axis for loop in program.loops())


def _stops(program: KernelProgram, axis: str) -> bool:
    """Return whether a mask makes a walk along an axis stop early, or start late."""
    return any(loop.axis == axis and loop.reaches for loop in lower_for_cpp(program).loops())


class _Memory:
    """The scratch memory that a program of the grid takes, in some configuration of a kernel."""

    def __init__(self, program: KernelProgram, sizes: Mapping[str, int]) -> None:
        self._program = program
        self._sizes = sizes
        self._axes = value_axes(program.graph)
        self._kept: dict[object, set[int]] = {}  # values with tiles there, however long these are

    def floats(self, config: CppConfig) -> int:
        """Return how many floats there are."""
        grid = self._program.grid
        single = frozenset(axis for axis, tile in config.tiles if tile == 1 and axis in grid)
        key = config.whole, single
        if key not in self._kept:
            plan = make_plan(unloop_short_axes(self._program, config.whole), single)
            self._kept[key] = plan.kept.difference(tensor.value for tensor in self._program.loads)
        tiles = {axis: tile for axis, tile in config.tiles if axis not in config.whole}
        lengths = {**self._sizes, **tiles}
        return sum(
            prod(max(1, lengths[axis]) for axis in self._axes[value] - single) for value in self._kept[key]
        )


def _shared_volume(readings: Collection[tuple[str, ...]], axis: str, sizes: Mapping[str, int]) -> int:
    """Return the volume that all programs along an axis read in common; vectors do not count."""
    alike = [axes for axes in readings if axis not in axes and len(axes) > 1]
    return sum(prod(max(1, sizes[one]) for one in axes) for axes in alike)


def _streams(readings: Collection[tuple[str, ...]], axis: str) -> bool:
    """Whether nothing contracts along an axis but what lies in its direction."""
    return all(axes[-1] == axis for axes in readings if axis in axes)


def _equal_tiles(size: int, longest: int) -> int:
    """Return a tile length of at most `longest` so that whole tiles hardly exceed the size."""
    length = -(-size // -(-size // longest))
    return min(-(-length // _LANES) * _LANES, longest // _LANES * _LANES)


def _whole_tiles(size: int, longest: int, cores: int) -> int:
    """Return a tile length of which every core gets equally many."""
    if size <= 64 * cores:
        return max(1, min(size, 64))
    rounds = -(-size // (longest * cores))
    length = -(-size // (rounds * cores))
    return -(-length // _LANES) * _LANES
