"""Choices: a sound configuration of a kernel, and the ones worth measuring.

Axes that only tell programs apart (batch, heads) have single positions. Rows of a matrix product are tiled;
if few rows share an operand, one tile holds them all, so that keys are read once per group of heads. Columns
and inner axes are tiled to match.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import prod

from superopt.codegen.statements import Compute, KernelProgram, Load
from superopt.codegen.triton.config import TritonConfig, next_power
from superopt.codegen.triton.footprint import LANE_REGISTERS, SHARED_BYTES, footprint, is_half
from superopt.codegen.triton.plan import (
    FEW_ROWS,
    contractions,
    inner_turns,
    kept_axes,
    kept_splits,
    read_once,
    reads_elsewhere,
    scaled_products,
    sources,
    taps_of,
)
from superopt.ir import Split, value_axes
from superopt.ir.graph import kept_by_identity

__all__ = ["configs", "default_config", "exact_axes", "misfit"]

SHARED_BYTES_EVERYWHERE = 160 << 10  # shared memory that one program may have on sm_80 as well
NEIGHBOURS = 64  # elements in a row that make whole lines of memory
GROUP = 8  # tiles of columns whose programs run together
USUAL_STAGES = 3
USUAL_WARPS = 4
FEWEST_ROWS = 8  # columns of an instruction that multiplies matrices in half precision
MANY_PROGRAMS = 512  # no device runs more programs at a time
MANY_ROWS = 64  # with so many rows and columns, a product keeps the matrix units busy
MORE_PROGRAMS = 128  # with so many registers for each thread, 16 warps share a processor
WARPS_TOGETHER = 4  # warps that multiply rows together
FLAT_TILE = 1024  # elements of a tile where there is no matrix product

# Rows, columns, warps, stages: the first that fits is the default.
_FROM_LARGE_TO_SMALL = (
    (64, 64, 4, 3),
    (64, 64, 4, 2),
    (64, 32, 4, 2),
    (32, 64, 4, 2),
    (32, 32, 4, 2),
    (16, 64, 4, 2),
    (16, 64, 8, 2),
    (16, 32, 8, 2),
    (16, 16, 8, 1),
)


_OVER_WINDOWS = (64, 64, 8, 2)  # addresses take many registers, which more warps share

# More tiles of rows, columns and inner axes, warps and stages: large tiles for tensor cores that read shared
# memory, and, for few rows, tiles that request much memory at a time.
_LARGE = tuple(combinations((64, 128), (256,), (32, 64), (8,), (3, 4)))
_FEW_ROWS = tuple(combinations((16,), (32, 64, 128), (64, 128, 256), (4,), (4, 5, 6)))
# Up to 8 rows are the columns of an instruction: no row of it is wasted.
_FEWEST_ROWS = tuple(
    combinations((FEWEST_ROWS,), (32, 64, 128, 256), (64, 128, 256), (2, 4, 8), (2, 3, 4, 6))
)


def misfit(program: KernelProgram, sizes: Mapping[str, int], shared_bytes: int) -> str | None:
    """Return why a program cannot hold the tiles of the default configuration; None where it can."""
    config = default_config(program, sizes, shared_bytes=shared_bytes)
    held = footprint(program, config)
    if held.fits(config, shared_bytes):
        return None
    wide = max(config.tiles, key=lambda one: one[1])
    registers = config.num_warps * 32 * 4 * LANE_REGISTERS
    return (
        f"its tiles take {held.register_bytes >> 10} KiB of {registers >> 10} of registers and"
        f" {held.shared_bytes >> 10} KiB of {shared_bytes >> 10} of shared memory; {wide[1]} positions of"
        f" {wide[0]!r} are the longest side"
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """The axes of a kernel by what they do in its contractions."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    inner: tuple[str, ...]
    matrix: bool


def default_config(
    program: KernelProgram, sizes: Mapping[str, int], *, shared_bytes: int = SHARED_BYTES_EVERYWHERE
) -> TritonConfig:
    """Return one sane configuration for these sizes, on a device with so much shared memory or more."""
    inner = 64 if is_half(program) else 32
    aligned = all(sizes[axis] % 16 == 0 for axis in _shape(program).rows[-1:])
    # Rows that are not aligned take more registers than the estimate says.
    first = [_OVER_WINDOWS] if any(step.places for step in program.steps()) else []
    found = [
        _config(program, sizes, rows, columns, min(inner, columns), warps, stages)
        for rows, columns, warps, stages in (*first, *_FROM_LARGE_TO_SMALL)
        if rows <= 32 or aligned
    ]
    limit = min(shared_bytes, SHARED_BYTES_EVERYWHERE)
    fitting = (one for one in found if footprint(program, one).fits(one, limit))
    return next(fitting, found[-1])


def configs(
    program: KernelProgram,
    sizes: Mapping[str, int],
    *,
    tf32: bool = False,
    shared_bytes: int = SHARED_BYTES,
) -> tuple[TritonConfig, ...]:
    """Return the configurations worth measuring, the default first; `tf32` allows products of fp32 in it.

    Loops ask for what they read ahead, and half-precision products of many rows have enough warps and stages,
    as far as any such configuration fits.
    """
    found = {default_config(program, sizes, shared_bytes=shared_bytes): None}
    for config in _enumerated(program, sizes, tf32=tf32):
        if footprint(program, config).fits(config, shared_bytes):
            found.setdefault(config)
    half = is_half(program)
    fed = [one for one in found if not (_hides_loads(program, one) or (half and _starves(program, one)))]
    return tuple(fed or found)


def _hides_loads(program: KernelProgram, config: TritonConfig) -> bool:
    """Return whether a loop within a loop makes too few turns for its loads to be asked for ahead."""
    return 0 < inner_turns(program, config.blocks) <= config.num_stages


def _starves(program: KernelProgram, config: TritonConfig) -> bool:
    """Return whether matrix units wait: for copies that are asked for too late, or for more warps."""
    if config.num_stages >= USUAL_STAGES and config.num_warps >= WARPS_TOGETHER:
        return False
    return any(
        all(prod(config.blocks.get(axis, 1) for axis in side) >= MANY_ROWS for side in (rows, columns))
        for rows, columns, _ in contractions(program)
    )


def _enumerated(program: KernelProgram, sizes: Mapping[str, int], *, tf32: bool) -> Iterator[TritonConfig]:
    if not _shape(program).matrix:
        looped = any(isinstance(one, Load) and loops for one, loops in program.flat())
        for flat, near, warps, stages in combinations(
            (256, 1024, 2048, 4096, 8192), (32, 64, 128), (1, 2, 4, 8), (2, 4, 6) if looped else (2,)
        ):
            config = _config(program, sizes, 64, 64, 32, warps, stages)
            yield (flattened := _flattened(program, sizes, config, flat, near))
            yield from _with_hints(program, flattened, sizes)
        return
    tiles = (16, 32, 64, 128)
    scaled = bool(scaled_products(program))
    usual = combinations(tiles, tiles, tiles, (2, 4, 8), (2, 3, 4))
    fewest = _FEWEST_ROWS if is_half(program) and _has_fewest(program, sizes) else ()
    for rows, columns, inner, warps, stages in (*usual, *_LARGE, *_FEW_ROWS, *fewest):
        config = _config(program, sizes, rows, columns, inner, warps, stages)
        yield config
        if stages == USUAL_STAGES:
            yield replace(config, most_registers=MORE_PROGRAMS)
            if _programs(program, config, sizes) >= MANY_PROGRAMS:
                yield from (replace(config, persistent=count) for count in (1, 2))
            if not is_half(program):  # also products on tensor cores that are nearly as accurate as fp32
                yield replace(config, precision="tf32x3")
                yield from [replace(config, precision="tf32")] if tf32 else []
        if config.group > 1:
            yield replace(config, group=1)
        if scaled:
            yield replace(config, half_products=True)


def _with_hints(
    program: KernelProgram, config: TritonConfig, sizes: Mapping[str, int]
) -> Iterator[TritonConfig]:
    """Yield a configuration that spares the cache what is read once, where other tensors are read again.

    Only outside of loops: Triton forgets the hint where a loop asks for its tiles ahead.
    """
    passing = read_once(program, config.blocks, sizes)
    if config.num_warps == USUAL_WARPS and 0 < len(passing) < len(program.loads):
        yield replace(config, passing=passing)


def exact_axes(
    config: TritonConfig, sizes: Mapping[str, int], splits: Sequence[Split] = ()
) -> frozenset[str]:
    """Return the axes whose tile divides their size: masks along them are left out.

    Of a split axis all parts must be equally long, too.
    """
    ragged = {split.inner for split in splits if sizes[split.outer] * sizes[split.inner] != sizes[split.axis]}
    return frozenset(
        axis for axis, tile in config.tiles if sizes[axis] and sizes[axis] % tile == 0 and axis not in ragged
    )


def _config(
    program: KernelProgram,
    sizes: Mapping[str, int],
    rows: int,
    columns: int,
    inner: int,
    warps: int,
    stages: int,
) -> TritonConfig:
    shape = _shape(program)
    looped = set(program.looped)
    kept = kept_axes(program)
    parts = {split.outer for split in kept_splits(program)}  # a program computes one part of each
    free = {axis for axis in kept if axis in program.grid or axis in looped} - parts
    tiles = {axis: next_power(sizes[axis]) for axis in kept if axis not in free} | dict.fromkeys(parts, 1)
    whole: set[str] = set()
    for axis in free:
        tiles[axis] = 1
    if not shape.matrix:
        config = TritonConfig(tuple(tiles.items()), num_warps=warps, num_stages=stages)
        return _flattened(program, sizes, config, FLAT_TILE, NEIGHBOURS)
    nearest = {tensor.axes[-1] for tensor in program.loads if tensor.axes}
    taps = taps_of(program)  # few, and no power of two: channels fill a tile before they do
    for side, group, want in ((1, shape.columns, columns), (2, shape.inner, inner)):
        want //= _held_beside(program, side, tiles, free)
        ordered = sorted(
            (axis for axis in group if axis in free), key=lambda axis: (axis not in taps, axis in nearest)
        )
        _tile_group(tiles, ordered, sizes, want)
    row_axes = [axis for axis in shape.rows if axis in free]
    few = prod(sizes[axis] for axis in row_axes[-1:]) < FEW_ROWS
    if row_axes and few and len(row_axes) > 1:
        last, shared = row_axes[-1], row_axes[-2]
        tiles[last] = next_power(sizes[last])
        tiles[shared] = min(next_power(sizes[shared]), max(rows // tiles[last], 1))
        if tiles[shared] >= sizes[shared]:
            whole.add(shared)
        row_axes = [shared, last]
    elif row_axes:
        shared = row_axes[-1]
        tiles[shared] = min(next_power(sizes[shared]), rows)
        if sizes[shared] <= tiles[shared] and shared in _parts(program) & set(program.grid):
            whole.add(shared)
    for axis in looped & free:
        if axis not in {*shape.rows, *shape.columns, *shape.inner}:
            tiles[axis] = min(next_power(sizes[axis]), columns)
    _pad(program, tiles, sizes, min(rows, FEW_ROWS))
    _pair(program, tiles)
    config = TritonConfig(
        tuple((axis, tiles[axis]) for axis in kept), frozenset(whole), num_warps=warps, num_stages=stages
    )
    exact = exact_axes(config, sizes, program.splits)
    return replace(config, exact=exact, group=_group(program, config, sizes))


def _group(program: KernelProgram, config: TritonConfig, sizes: Mapping[str, int]) -> int:
    """Return how many columns of tiles run together: several, if many rows read the same columns."""
    tiled = [axis for axis in program.grid if config.tile(axis) > 1 and axis not in config.whole]
    counts = [-(-sizes[axis] // config.tile(axis)) for axis in tiled]
    return GROUP if len(tiled) == 2 and min(counts) >= GROUP else 1


def _programs(program: KernelProgram, config: TritonConfig, sizes: Mapping[str, int]) -> int:
    """Return how many programs a kernel has."""
    spread = (axis for axis in program.grid if axis not in config.whole)
    return prod(-(-sizes[axis] // config.tile(axis)) for axis in spread)


def _parts(program: KernelProgram) -> frozenset[str]:
    """Return the axes that are part of a dimension, such as heads in a group; models fix their sizes."""
    ports = (*program.graph.inputs, *(output.port for output in program.graph.outputs))
    return frozenset(axis for port in ports for dim in port.dims if len(dim) > 1 for axis in dim)


def _held_beside(program: KernelProgram, side: int, tiles: Mapping[str, int], free: set[str]) -> int:
    """Return how many positions of whole axes lie beside the tiled axes on a side of a contraction."""
    sides = [one[side] for one in contractions(program) if one[0] and one[1]]
    return max(
        (
            prod(tiles[axis] for axis in one if axis in tiles and axis not in free)
            for one in sides
            if any(axis in free for axis in one)
        ),
        default=1,
    )


def _tile_group(tiles: dict[str, int], group: Sequence[str], sizes: Mapping[str, int], want: int) -> None:
    """Give a tile to the last axes of a group first, until together they are long enough."""
    for axis in reversed(group):
        tiles[axis] = min(next_power(sizes[axis]), max(want, 1))
        want = max(want // tiles[axis], 1)


def _has_fewest(program: KernelProgram, sizes: Mapping[str, int]) -> bool:
    """Return whether a matrix product has a side that is not longer than the columns of an instruction."""
    return any(
        1 < prod(sizes[axis] for axis in side) <= FEWEST_ROWS
        for rows, columns, _ in contractions(program)
        if rows and columns
        for side in (rows, columns)
    )


def _pad(program: KernelProgram, tiles: dict[str, int], sizes: Mapping[str, int], least: int) -> None:
    """Make every side of a matrix product long enough for the hardware, unless the product is of vectors.

    One of the free sides may be as short as `least`.
    """
    for rows, columns, inner in contractions(program):
        sides = [[axis for axis in side if axis in tiles] for side in (rows, columns, inner)]
        if any(prod(sizes[axis] for axis in side) <= 1 for side in sides):
            continue
        lengths = [prod(tiles[axis] for axis in side) for side in sides]
        shorter = lengths.index(min(lengths[:2]))
        for at, (side, size) in enumerate(zip(sides, lengths, strict=True)):
            wanted = least if at == shorter else FEW_ROWS
            if side and size < wanted:
                tiles[side[-1]] *= wanted // size


def _pair(program: KernelProgram, tiles: dict[str, int]) -> None:
    """Give equal tiles to axes that a step exchanges within a tile."""
    loaded = sources(program)
    for step in program.steps():
        if step.op == "rename" and step.inputs[0] not in loaded:
            for old, new in step.mapping:
                tiles[old] = tiles[str(new)] = max(tiles[old], tiles[str(new)])


@kept_by_identity
def _shape(program: KernelProgram) -> _Shape:
    rows: dict[str, None] = {}
    columns: dict[str, None] = {}
    inner: dict[str, None] = {}
    for first, second, summed in contractions(program):
        if first and second:
            rows |= dict.fromkeys(first)
            columns |= dict.fromkeys(second)
            inner |= dict.fromkeys(summed)
    return _Shape(
        tuple(rows),
        tuple(axis for axis in columns if axis not in rows),
        tuple(axis for axis in inner if axis not in rows and axis not in columns),
        bool(rows),
    )


def _flattened(
    program: KernelProgram, sizes: Mapping[str, int], config: TritonConfig, flat: int, near: int
) -> TritonConfig:
    """Return tiles of about so many elements: neighbours in memory first, then along loops and the grid."""
    tiles = dict(config.tiles)
    looped = set(program.looped)
    parts = {split.outer for split in kept_splits(program)}
    free = [axis for axis in tiles if (axis in looped or axis in program.grid) and axis not in parts]
    tiles |= dict.fromkeys(free, 1)
    together = _read_together(program)
    largest = max(program.loads, key=lambda one: prod(sizes[axis] for axis in one.axes), default=None)
    near_axes = {*largest.axes[-1:]} if largest else set()
    taps = taps_of(program)  # one at a time: next to each other, they read the same elements again
    near_axes |= {
        axis
        for step in program.steps()
        for place in step.places
        if near_axes & {*place.axes[-1:]}
        for axis, _ in place.terms
    }
    nearest = [axis for axis in free if axis in near_axes - taps]
    inwards = [
        *(axis for axis in free if axis in looped and axis not in taps),
        *reversed([axis for axis in program.grid if axis in free]),
    ]
    for axis, most in (*((axis, near) for axis in nearest), *((axis, flat) for axis in inwards)):
        beside = max(
            (prod(tiles.get(other, 1) for other in axes - {axis}) for axes in together if axis in axes),
            default=1,
        )
        room = max(flat // beside, 1)
        tiles[axis] = max(min(next_power(sizes[axis]), room, most), tiles[axis])
    kept = kept_axes(program)
    config = replace(config, tiles=tuple((axis, tiles[axis]) for axis in kept), exact=frozenset())
    return replace(config, exact=exact_axes(config, sizes, program.splits))


def _read_together(program: KernelProgram) -> set[frozenset[str]]:
    """Return the axes of each tile: of what is loaded, and of what a step reads and makes at a time."""
    axes = value_axes(program.graph)
    loaded = sources(program)
    found = {axes[tensor.value] for tensor in (*program.loads, *program.stores)}
    for statement, _ in program.flat():
        if isinstance(statement, Compute) and not (
            reads_elsewhere(statement.step) and statement.step.inputs[0] in loaded
        ):
            found.add(axes[statement.value].union(*(axes[i] for i in statement.step.inputs)))
    return found
