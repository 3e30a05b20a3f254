"""Contraction: the time of C[m, n] += A[m, k] B[k, n] by the runtime's micro-kernels, operands in a cache.

The runtime chooses among eight ways by the sizes and by how the operands lie (`contract_floats` in
codegen/cpp/runtime/contraction.hpp); this module chooses alike, and knows what each of them takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from superopt.codegen.cpp.config import FEW, GROUPED
from superopt.cost.cpu.rates import ALTERNATE, CALLED, CONVERT, GATHER, LOAD, REST, STORE, Core

__all__ = ["Shape", "contraction_time", "filtered_time", "gathered_time"]

_CHAIN = 4.0  # cycles until a product is complete, and another can be added to the same sum
_DEEP = 256  # numbers of a sum that are packed at a time
_SHALLOW = 64
_TURN_LANES = 1.5  # as a multiple of a load and a store: a square block is transposed on the way
_FOLD = 8.0  # cycles to sum the lanes of a vector, where several vectors are summed together
_WINDOW = 7.0  # cycles to copy a vector of a window, parts of which may lie outside
_SPLIT, _SPLIT_TAPS = 4.0, 12.0  # the time to make a vector of sums of neighbours, or of taps
_PRODUCTS, _SUMS = {1: 4.0, 2: 5.0}, {1: 4.0, 2: 3.0}  # of two results with three taps, by their step
_WEIGHTS = (
    4.0  # sums of three taps, as the products above by `Way` in codegen/cpp/runtime/windows/filtered.hpp
)
_REACHED = (
    1.25  # the time of a block of registers, with its loop and cache misses, over that of its products alone
)
_REACHED_IN_PANELS = 1.1  # likewise of blocks of four vectors, with 32 registers
_PANEL_COLUMNS = 64  # columns of B for which rows are not copied in groups
_IN_TURNS = 96  # numbers of a sum after which another panel has its turn
_BROADCAST = 0.5  # the time to read a number from the first cache into all lanes


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a contraction, and how its operands lie."""

    m: float
    n: float
    k: float
    a_along_k: bool  # neighbours along k lie side by side in A
    b_along_k: bool
    b_along_n: bool
    a_half: bool = False  # A is in half precision, or less
    b_half: bool = False
    pairs: bool = False  # the processor multiplies in bf16
    b_panel: bool = False  # all columns of B lie in one piece
    packed_before: float = 0.0  # the share of calls that find A packed by an earlier call
    columns_before: float | None = None  # that find B packed, where its columns stay


def contraction_time(shape: Shape, core: Core) -> float:
    """Return the time of one call, in multiply-adds of vectors."""
    time = CALLED * core.cycle
    if not (shape.m and shape.n and shape.k):
        return time
    if shape.pairs:
        return time + _pairs(shape, core)
    if shape.a_half:
        time += _copied(shape.m * shape.k, core) * (1 if shape.a_along_k else _TURN_LANES)
        shape = _with_copied_rows(shape)
    if shape.b_panel:
        return time + _in_panel(shape, core)
    if shape.b_along_k and not shape.b_along_n and shape.a_along_k and shape.m <= FEW:
        return time + _dots(shape, core)
    if shape.columns_before is not None and shape.m > FEW:
        return time + _staying(shape, shape.columns_before, core)
    if core.registers < 32 and core.lanes == 8 and shape.m >= GROUPED:
        if shape.n > _PANEL_COLUMNS:
            return time + _grouped(shape, core)
    elif _is_turned(shape):
        return time + _turned(shape, core)
    if not shape.b_along_n or shape.m > FEW:
        return time + _packed(shape, core)
    return time + (_streams(shape, core) if shape.m <= 2 else _direct(shape, core))


def gathered_time(m: float, n: float, k: float, core: Core, *, b_step: int, a_along_k: bool) -> float:
    """Return the time of a contraction of windows: panels of columns, or else blocks of rows, are copied.

    Columns are copied that are neighbours, or every other number: `b_step` is 1 or 2.
    """
    called = CALLED * core.cycle
    if not (m and n and k):
        return called
    if b_step in (1, 2):
        each = _WINDOW + (ALTERNATE if b_step == 2 else 0.0)
        return called + n * k / core.lanes * each * core.cycle + _panel(m, n, k, core)
    copied = m * k / core.lanes * (_WINDOW if a_along_k else GATHER) * core.cycle
    along = Shape(m, n, k, a_along_k=True, b_along_k=True, b_along_n=False)
    return copied + ceil(m / _DEEP) * contraction_time(replace(along, m=min(m, _DEEP)), core)


def filtered_time(slid: Sequence[tuple[float, int]], filters: float, channels: float, core: Core) -> float:
    """Return the time of a convolution with three taps along each axis, in fewer products.

    Of each axis it takes how many results there are, and how many places lie between their windows.
    """
    called = CALLED * core.cycle
    if not (all(size for size, _ in slid) and filters and channels):
        return called
    tiles = prod(ceil(size / 2) for size, _ in slid)
    products, sums = prod(_PRODUCTS[step] for _, step in slid), prod(_SUMS[step] for _, step in slid)
    split = tiles * (products * channels + sums * filters) * _SPLIT
    split += _WEIGHTS ** len(slid) * filters * channels * _SPLIT_TAPS
    return called + split / core.lanes + products * _panel(tiles, filters, channels, core)


def _with_copied_rows(shape: Shape) -> Shape:
    return replace(shape, a_along_k=True, a_half=False, packed_before=0.0)


def _is_turned(shape: Shape) -> bool:
    """Whether C is computed transposed, so that only A is packed."""
    return (
        shape.b_along_k
        and not shape.b_along_n
        and shape.m > FEW
        and shape.k >= _DEEP
        and 2 * shape.n * shape.k >= shape.m * (shape.n + shape.k)
    )


def _block(rows: float, vectors: float, core: Core, load: float, reached: float) -> float:
    """Return the time of a block of accumulators for one position of the sum."""
    return max(reached * max(rows * vectors, load * vectors + _BROADCAST * rows), _CHAIN * core.cycle)


def _rows(
    m: float, tallest: int, vectors: float, core: Core, *, load: float = LOAD, reached: float = _REACHED
) -> float:
    """Return the time of all rows, in equal blocks of at most so many, for one position of the sum."""
    blocks = ceil(m / tallest)
    return blocks * _block(m / blocks, vectors, core, load, reached)


def _columns(n: float, core: Core, vectors: int) -> tuple[float, float]:
    """Return how many whole groups of so many vectors there are, and how many single vectors after them."""
    groups = n // (vectors * core.lanes)
    return groups, ceil((n - groups * vectors * core.lanes) / core.lanes)


def _dots(shape: Shape, core: Core) -> float:
    """Both operands lie along k: dot products, some rows and columns at a time."""
    wide = 2 if core.registers == 32 else 1
    load = LOAD + (CONVERT if shape.b_half else 0)
    fold = _FOLD * core.cycle
    steps = ceil(shape.k / core.lanes)
    time, left = 0.0, shape.m
    for rows, columns in ((4, 2 * wide), (2, 2 * wide)):
        times, left = left // rows, left % rows
        groups, single = shape.n // columns, shape.n % columns
        block = max(rows * columns, load * columns + LOAD * rows)
        alone = max(rows, _CHAIN * core.cycle, load + LOAD * rows)
        time += times * (groups * (steps * block + rows * columns * fold))
        time += times * (single * (steps * alone + rows * fold))
    return time + left * shape.n * (steps * max(1.0, load + LOAD) + fold)


def _streams(shape: Shape, core: Core) -> float:
    """One row or two: rows of B stream past, four at a time."""
    vectors = shape.n / core.lanes
    load = LOAD + (CONVERT if shape.b_half else 0)
    return _REACHED * shape.m * ceil(shape.k / 4) * (vectors * (4 * load + LOAD + STORE) + REST * core.cycle)


def _direct(shape: Shape, core: Core) -> float:
    """Few rows: B is read as it lies."""
    vectors = 4 if core.registers == 32 else 2
    load = LOAD + (CONVERT if shape.b_half else 0)
    groups, single = _columns(shape.n, core, vectors)
    one = _rows(shape.m, 6, vectors, core, load=load)
    rest = _rows(shape.m, 6, 1, core, load=load)
    touched = ceil(shape.k / _SHALLOW) * shape.m * (LOAD + STORE)  # C, for each vector of it
    return shape.k * (groups * one + single * rest) + touched * (groups * vectors + single)


def _panel(m: float, n: float, k: float, core: Core) -> float:
    """Return the time in which rows meet panels of two vectors of columns."""
    tall = 12 if core.registers == 32 else 6
    groups, single = _columns(n, core, 2)
    touched = ceil(k / _DEEP) * m * (LOAD + STORE)
    products = groups * _rows(m, tall, 2, core) + single * _rows(m, tall, 1, core)
    return k * products + touched * (2 * groups + single)


def _in_panel(shape: Shape, core: Core) -> float:
    """B lies in panels: rows meet them as they lie, few rows more columns at a time."""
    tall = 12 if core.registers == 32 else 6
    load = LOAD + (CONVERT if shape.b_half else 0)
    vectors = max(ceil(shape.n / core.lanes), 1)
    if shape.m <= tall / 2:
        products = _rows(shape.m, tall // 2, vectors, core, load=load)
    else:
        products = vectors / 2 * _rows(shape.m, tall, 2, core, load=load)
    return shape.k * products + shape.m * vectors * (LOAD + STORE)


def _copied(numbers: float, core: Core) -> float:
    """Return the time in which numbers of half precision become floats."""
    return numbers / core.lanes * (LOAD + STORE + CONVERT)


def _packed_columns(shape: Shape, core: Core) -> float:
    """Return the time in which B is packed."""
    each = LOAD + STORE + (CONVERT if shape.b_half else 0)
    if not shape.b_along_n:
        each = each * _TURN_LANES if shape.b_along_k else each + GATHER * core.cycle
    return shape.n * shape.k / core.lanes * each


def _packed(shape: Shape, core: Core) -> float:
    """Many rows: B is packed, and all rows are multiplied with it."""
    time = _packed_columns(shape, core)
    if not shape.a_along_k:
        time += shape.m * shape.k / core.lanes * (LOAD + STORE) * _TURN_LANES
    return time + _panel(shape.m, shape.n, shape.k, core)


def _grouped(shape: Shape, core: Core) -> float:
    """Many rows, and few registers: B is packed, and the rows are copied in groups."""
    time = _packed_columns(shape, core)
    time += shape.m * shape.k / core.lanes * (LOAD + STORE) * (_TURN_LANES if shape.a_along_k else 1)
    vectors = ceil(shape.n / core.lanes)
    products = vectors / 2 * _rows(shape.m, 6, 2, core, reached=_REACHED_IN_PANELS)
    return time + shape.k * products + ceil(shape.k / _DEEP) * shape.m * vectors * (LOAD + STORE)


def _turned(shape: Shape, core: Core) -> float:
    """Many rows, and B contiguous along k: A is packed, and C is computed transposed."""
    padded = ceil(shape.m / core.lanes) * core.lanes
    packing = padded * shape.k / core.lanes * (LOAD + STORE) * (_TURN_LANES if shape.a_along_k else 1)
    time = packing * (1 - shape.packed_before)
    if shape.b_half:
        time += _copied(shape.n * shape.k, core)
    added = ceil(shape.k / 1024) * shape.m * shape.n / core.lanes * (LOAD + STORE) * (1 + _TURN_LANES)
    return time + added + _panels(shape.n, padded / core.lanes, shape.k, core, turns=True)


def _staying(shape: Shape, before: float, core: Core) -> float:
    """Rows meet columns that are packed once; rows that do not lie along the sum are copied."""
    time = (1 - before) * _packed_columns(shape, core)
    if not shape.a_along_k:
        time += shape.m * shape.k / core.lanes * (LOAD + STORE) * _TURN_LANES
    return time + _panels(shape.m, ceil(shape.n / core.lanes), shape.k, core, turns=False)


def _panels(rows: float, vectors: float, k: float, core: Core, *, turns: bool) -> float:
    """Return the time in which rows meet panels as wide as the registers allow, which may take turns."""
    if core.registers < 32:
        return _panel(rows, vectors * core.lanes, k, core)
    whole, rest = divmod(vectors, 4)
    products = whole * _rows(rows, 6, 4, core, reached=_REACHED_IN_PANELS)
    products += _rows(rows, 8, rest, core, reached=_REACHED_IN_PANELS) if rest else 0.0
    touched = ceil(k / (_IN_TURNS if turns and vectors > 4.5 else _DEEP)) * rows * (LOAD + STORE)
    return k * products + touched * vectors


def _pairs(shape: Shape, core: Core) -> float:
    """Operands in bf16, multiplied as pairs: an operand is copied unless its layout suits the instruction."""
    packing = shape.n * shape.k / core.lanes * (LOAD + STORE) / 2
    if not shape.b_along_k:
        packing *= _TURN_LANES
    rows = shape.m * shape.k / core.lanes * (LOAD + STORE) / 2
    products = _panel(shape.m, shape.n, shape.k, core) * core.half_fma_s / core.fma_s
    return (packing if shape.m > FEW else 0.0) + rows + max(products, shape.n * shape.k / core.lanes / 2)
