"""Choices: a sound configuration of a kernel, and the ones worth measuring.

Axes that only tell programs apart (batch, heads) have single positions. Rows of a matrix product are tiled;
if few rows share an operand, one tile holds them all, so that keys are read once per group of heads. Columns
and inner axes are tiled to match.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import prod, sqrt

from superopt.codegen.statements import Compute, KernelProgram, Load, Start
from superopt.codegen.triton.config import TritonConfig, next_power
from superopt.codegen.triton.plan import kept_axes, kept_splits, scaled_products, sources
from superopt.dtypes import DTYPES, FP8, HALVES
from superopt.ir import Split, selects, value_axes

__all__ = ["Footprint", "configs", "default_config", "exact_axes", "footprint", "misfit"]

SHARED_BYTES = 227 << 10  # shared memory that one program may have on sm_90
SHARED_BYTES_EVERYWHERE = 160 << 10  # shared memory that one program may have on sm_80 as well
LANE_REGISTERS = 196  # registers of a thread, of 255, that tiles may take
FEW_ROWS = 16  # a matrix product has at least so many rows
NEIGHBOURS = 64  # elements in a row that make whole lines of memory
GROUP = 8  # tiles of columns whose programs run together
USUAL_STAGES = 3
MANY_PROGRAMS = 512  # more than any device runs at a time
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


# More tiles of rows, columns and inner axes, warps and stages: large tiles for tensor cores that read shared
# memory, and, for few rows, tiles that request much memory at a time.
_LARGE = tuple(combinations((64, 128), (256,), (32, 64), (8,), (3, 4)))
_FEW_ROWS = tuple(combinations((16,), (64, 128), (64, 128), (4,), (5, 6)))


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a program of a kernel holds on chip."""

    shared_bytes: int  # tiles that loops prefetch
    # Accumulators, and beside them the two largest tiles or the operands of a product. Values computed from
    # accumulators after their loop take the registers of the accumulators.
    register_bytes: int

    def fits(self, config: TritonConfig, shared_bytes: int = SHARED_BYTES) -> bool:
        """Return whether it can run without spilling, as far as an estimate can say."""
        lanes = config.num_warps * 32
        return self.shared_bytes <= shared_bytes and self.register_bytes <= lanes * 4 * LANE_REGISTERS


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
    inner = 64 if _half(program) else 32
    aligned = all(sizes[axis] % 16 == 0 for axis in _shape(program).rows[-1:])
    # Rows that do not align take more registers than the estimate says.
    found = [
        _config(program, sizes, rows, columns, min(inner, columns), warps, stages)
        for rows, columns, warps, stages in _FROM_LARGE_TO_SMALL
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
    """Return the configurations worth measuring, the default first; `tf32` allows products of fp32 in it."""
    found = {default_config(program, sizes, shared_bytes=shared_bytes): None}
    for config in _enumerated(program, sizes, tf32=tf32):
        if footprint(program, config).fits(config, shared_bytes):
            found.setdefault(config)
    return tuple(found)


def _enumerated(program: KernelProgram, sizes: Mapping[str, int], *, tf32: bool) -> Iterator[TritonConfig]:
    if not _shape(program).matrix:
        looped = any(isinstance(one, Load) and loops for one, loops in program.flat())
        for flat, near, warps, stages in combinations(
            (256, 1024, 2048, 4096, 8192), (32, 64, 128), (1, 2, 4, 8), (2, 4, 6) if looped else (2,)
        ):
            config = _config(program, sizes, 64, 64, 32, warps, stages)
            yield _flattened(program, sizes, config, flat, near)
        return
    tiles = (16, 32, 64, 128)
    scaled = bool(scaled_products(program))
    usual = combinations(tiles, tiles, tiles, (2, 4, 8), (2, 3, 4))
    for rows, columns, inner, warps, stages in (*usual, *_LARGE, *_FEW_ROWS):
        config = _config(program, sizes, rows, columns, inner, warps, stages)
        yield config
        if stages == USUAL_STAGES:
            if _programs(program, config, sizes) >= MANY_PROGRAMS:
                yield from (replace(config, persistent=count) for count in (1, 2))
            if not _half(program):  # products on tensor cores that are nearly as accurate as fp32
                yield replace(config, precision="tf32x3")
                yield from [replace(config, precision="tf32")] if tf32 else []
        if config.group > 1:
            yield replace(config, group=1)
        if scaled:
            yield replace(config, half_products=True)


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
    for side, group, want in ((1, shape.columns, columns), (2, shape.inner, inner)):
        want //= _held_beside(program, side, tiles, free)
        ordered = sorted((axis for axis in group if axis in free), key=nearest.__contains__)
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
    _pad(program, tiles, sizes)
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
    sides = [one[side] for one in _contractions(program) if one[0] and one[1]]
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


def _pad(program: KernelProgram, tiles: dict[str, int], sizes: Mapping[str, int]) -> None:
    """Make every side of a matrix product long enough for the hardware, unless the product is of vectors."""
    for rows, columns, inner in _contractions(program):
        sides = [[axis for axis in side if axis in tiles] for side in (rows, columns, inner)]
        if any(prod(sizes[axis] for axis in side) <= 1 for side in sides):
            continue
        for side in sides:
            size = prod(tiles[axis] for axis in side)
            if side and size < FEW_ROWS:
                tiles[side[-1]] *= FEW_ROWS // size


def _pair(program: KernelProgram, tiles: dict[str, int]) -> None:
    """Give equal tiles to axes that a step exchanges within a tile."""
    loaded = sources(program)
    for step in program.steps():
        if step.op == "rename" and step.inputs[0] not in loaded:
            for old, new in step.mapping:
                tiles[old] = tiles[str(new)] = max(tiles[old], tiles[str(new)])


def _contractions(
    program: KernelProgram,
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
    """Yield the free axes of both operands, those that come first in results first, and the inner axes."""
    axes = value_axes(program.graph)
    stored = [axis for tensor in program.stores for axis in tensor.axes]
    order = list(dict.fromkeys([*stored, *(axis.name for axis in program.graph.axes)]))
    for statement, _ in program.flat():
        if not isinstance(statement, Compute) or selects(program.graph, statement.step):
            continue
        if statement.step.op == "contract":
            a, b = statement.step.inputs
            first, second = (
                tuple(axis for axis in order if axis in free)
                for free in (axes[a] - axes[b], axes[b] - axes[a])
            )
            if first and second and order.index(first[0]) > order.index(second[0]):
                first, second = second, first
            yield first, second, tuple(axis for axis in order if axis in statement.step.axes)


def _shape(program: KernelProgram) -> _Shape:
    rows: dict[str, None] = {}
    columns: dict[str, None] = {}
    inner: dict[str, None] = {}
    for first, second, summed in _contractions(program):
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
    held = prod(tiles.values())
    largest = max(program.loads, key=lambda one: prod(sizes[axis] for axis in one.axes), default=None)
    nearest = [axis for axis in (largest.axes[-1:] if largest else ()) if axis in free]
    inwards = [
        *(axis for axis in free if axis in looped),
        *reversed([axis for axis in program.grid if axis in free]),
    ]
    for axis, most in (*((axis, near) for axis in nearest), *((axis, flat) for axis in inwards)):
        room = max(flat * tiles[axis] // held, 1)
        held //= tiles[axis]
        tiles[axis] = max(min(next_power(sizes[axis]), room, most), tiles[axis])
        held *= tiles[axis]
    kept = kept_axes(program)
    config = replace(config, tiles=tuple((axis, tiles[axis]) for axis in kept), exact=frozenset())
    return replace(config, exact=exact_axes(config, sizes, program.splits))


def footprint(program: KernelProgram, config: TritonConfig) -> Footprint:
    """Return an estimate of what a program holds on chip."""
    axes = value_axes(program.graph)
    tensors = sources(program)
    blocks = config.blocks

    def elements(value: int) -> int:
        return prod(blocks.get(axis, 1) for axis in axes[value])

    shared = largest = beside = fresh = 0
    filled = False  # whether the accumulators are filled by now
    kept = _kept_operands(program, config)
    products = _products(program)
    scaled = frozenset() if config.half_products else scaled_products(program)
    for rows, columns, inner in _contractions(program) if not _half(program) else ():
        if rows and columns and config.precision == "ieee":
            made = prod(blocks.get(axis, 1) for axis in (*rows, *columns))
            summed = prod(blocks.get(axis, 1) for axis in inner)
            largest = max(largest, _multiplied(made, summed, config.num_warps * 32) // 2)
    for statement, loops in program.flat():
        if isinstance(statement, Load):
            size = elements(statement.value) * DTYPES[tensors[statement.value].dtype].bytes
            shared += size * (config.num_stages if loops else 1)
            beside += 0 if loops or not filled else size
        elif isinstance(statement, Start):
            size = elements(statement.value)
            if statement.value not in products:
                size = max(size, _late(program, config, statement.value, beside_products=bool(products)))
            kept += size * 4
        elif isinstance(statement, Compute):
            filled |= bool(statement.accumulates)
            if filled and not loops:
                continue
            if statement.value in products and statement.accumulates:
                if statement.value in scaled:  # the operands of a turn are multiplied first
                    fresh = max(fresh, elements(statement.value) * 4)
                continue  # the accumulator itself
            size = elements(statement.value)
            if statement.step.op == "contract" and selects(program.graph, statement.step):
                size = prod(
                    blocks.get(axis, 1)
                    for axis in axes[statement.step.inputs[0]] | axes[statement.step.inputs[1]]
                )
            largest = max(largest, size * 4)
    return Footprint(shared, kept + fresh + max(2 * largest, beside))


def _products(program: KernelProgram) -> frozenset[int]:
    """Return the values of contractions that are matrix products."""
    axes = value_axes(program.graph)
    return frozenset(
        one.value
        for one, _ in program.flat()
        if isinstance(one, Compute) and one.step.op == "contract" and not selects(program.graph, one.step)
        if axes[one.step.inputs[0]] - axes[one.step.inputs[1]]
        if axes[one.step.inputs[1]] - axes[one.step.inputs[0]]
    )


def _late(program: KernelProgram, config: TritonConfig, value: int, *, beside_products: bool) -> int:
    """Return the elements of an accumulator that is reduced after its loop; 0 where it is reduced in it."""
    step = program.graph.step_at(value)
    axes = value_axes(program.graph)
    wide = frozenset[str]().union(*(axes[i] for i in step.inputs))
    size = prod(config.blocks.get(axis, 1) for axis in wide)
    return size if config.is_late(size, beside_products=beside_products) else 0


def _multiplied(made: int, summed: int, lanes: int) -> int:
    """Return the bytes of registers that a product of fp32 numbers without tensor cores takes.

    Each thread holds the rows and columns of its elements, of which the compiler saves about a third.
    """
    side = sqrt(max(made / lanes, 1))
    return int(2 * side * summed * 0.7) * 4 * lanes


def _kept_operands(program: KernelProgram, config: TritonConfig) -> int:
    """Return the bytes of registers in which operands of fp32 products on tensor cores stay for a loop.

    An operand that does not change in a loop is split once, into as many numbers as the precision has. A warp
    holds at least as many rows as the hardware multiplies, so several warps may hold the same rows.
    """
    parts = {"ieee": 0, "tf32": 1, "tf32x3": 2}[config.precision]
    if _half(program) or not parts:
        return 0
    axes = value_axes(program.graph)
    made: dict[int, tuple[str, ...]] = {}
    total = 0
    for statement, loops in program.flat():
        if isinstance(statement, (Load, Compute)):
            made[statement.value] = loops
        if isinstance(statement, Compute) and statement.step.op == "contract":
            for i in statement.step.inputs:
                if len(made.get(i, loops)) < len(loops):
                    inner = prod(config.blocks.get(axis, 1) for axis in statement.step.axes)
                    free = axes[i] - frozenset(statement.step.axes)
                    rows = prod(config.blocks.get(axis, 1) for axis in free)
                    total += max(rows, FEW_ROWS * config.num_warps) * inner * parts * 4
    return total


def _half(program: KernelProgram) -> bool:
    """Return whether products are of half precision, as they also are for operands of eight bits."""
    if any(port.dtype in HALVES for port in program.graph.inputs):
        return True
    loaded = sources(program)
    operands = [step.inputs for step in program.steps() if step.op == "contract"]
    return bool(operands) and all(i in loaded and loaded[i].dtype in FP8 for pair in operands for i in pair)
