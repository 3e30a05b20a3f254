"""Plan: the facts about a kernel's values that its printers need.

Which axes a tile has and in which order, which contractions are matrix products and on which side
their operands stand, and what the lanes of a tile beyond the end of an axis hold. Loads put zeros there. What
is computed from zeros may be zero, finite, or anything (1 / 0); only a reduction cares, and hides exactly the
lanes that would spoil it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import prod

from superopt.codegen.errors import UnsupportedError
from superopt.codegen.statements import Compute, KernelProgram, Load, LoopStatement, Tensor
from superopt.codegen.triton.config import Role, TritonConfig
from superopt.ir import Graph, Split, Step, mask_values, selects, value_axes
from superopt.ir.graph import kept_by_identity
from superopt.ops import OPS
from superopt.precision import is_wide, operand_dtypes, product_dtype

__all__ = [
    "FEW_ROWS",
    "Lanes",
    "Plan",
    "Product",
    "after_operator",
    "compared_quotients",
    "contractions",
    "inner_turns",
    "kept_axes",
    "kept_splits",
    "long_sums",
    "make_plan",
    "read_dtypes",
    "read_once",
    "reads_elsewhere",
    "scaled_products",
    "sources",
    "taps_of",
]

# Operators after which the last digit of what they read still decides a comparison.
_MOVES = frozenset(
    {"add", "sub", "neg", "abs", "relu", "maximum", "minimum", "max", "where", "rename", "select"}
)
_KEEPS_USUAL = frozenset({"mul", "div", "square", "reciprocal", "neg"})
LONG = 1 << 12
"""Turns of loops beyond which what rounding takes from a sum is kept beside it."""
FEW_ROWS = 16  # an instruction that multiplies matrices has at least so many rows, and 8 columns


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction as a matrix product of tiles: its operands, and the axes in each role."""

    lhs: int
    rhs: int
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    inner: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The facts about one kernel under one configuration."""

    roles: dict[str, Role]
    order: tuple[str, ...]  # the order of the axes in every tile
    products: dict[int, Product]  # value of a contraction -> the matrix product that computes it
    masks: tuple[bool, ...]  # whether each value holds only zeros and ones
    dtypes: dict[int, str]  # dtypes of the tensors and the rounded values that the kernel reads

    def tile_axes(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return the axes that a tile of a value with these axes has, in order."""
        kept = set(axes)
        return tuple(axis for axis in self.order if axis in kept)


def sources(program: KernelProgram) -> dict[int, Tensor]:
    """Return the tensors that the kernel reads, by value."""
    return {tensor.value: tensor for tensor in program.loads}


def reads_elsewhere(step: Step) -> bool:
    """Return whether a step only reads its operand, at other places than its own."""
    return bool(step.mapping or step.places)


@kept_by_identity
def taps_of(program: KernelProgram) -> frozenset[str]:
    """Return the axes of places of windows that are reduced over: those within a window."""
    steps = program.steps()
    made = {axis for step in steps for place in step.places for axis, _ in place.terms}
    return frozenset(axis for step in steps if not step.places for axis in step.axes if axis in made)


@kept_by_identity
def kept_axes(program: KernelProgram) -> tuple[str, ...]:
    """Return the axes of the kernel's tiles, without axes along which a step only reads other places."""
    axes = value_axes(program.graph)
    loaded = sources(program)
    used = set(program.grid) | set(program.looped)
    for statement, _ in program.flat():
        if isinstance(statement, Compute):
            step = statement.step
            used |= axes[statement.value]
            for i in step.inputs:
                if i not in loaded or not reads_elsewhere(step):
                    used |= axes[i]
    return tuple(axis.name for axis in program.graph.axes if axis.name in used)


def kept_splits(program: KernelProgram) -> tuple[Split, ...]:
    """Return the splits of which each program walks along one part."""
    kept = kept_axes(program)
    return tuple(split for split in program.splits if split.inner in kept)


def inner_turns(program: KernelProgram, blocks: Mapping[str, int]) -> int:
    """Return how many turns a loop within a loop makes, given the tiles; 0 where there is none."""
    inner = [one.axis for loop in program.loops() for one in loop.body if isinstance(one, LoopStatement)]
    return max((-(-program.graph.sizes[axis] // blocks.get(axis, 1)) for axis in inner), default=0)


def long_sums(program: KernelProgram, blocks: Mapping[str, int], sizes: Mapping[str, int]) -> frozenset[int]:
    """Return the sums to which loops add so often, given the tiles, that rounding takes much from them."""
    return frozenset(
        one.value
        for one, _ in program.flat()
        if isinstance(one, Compute) and one.step.op != "max"
        if prod(-(-sizes[axis] // blocks.get(axis, 1)) for axis in one.accumulates) > LONG
    )


def read_once(program: KernelProgram, blocks: Mapping[str, int], sizes: Mapping[str, int]) -> frozenset[str]:
    """Return the names of the tensors of which a kernel with these tiles reads nothing in loops, or twice."""
    in_tiles = {axis for axis, size in sizes.items() if blocks.get(axis, 1) < size}
    found = sources(program)
    moved = {i for step in program.steps() if reads_elsewhere(step) for i in step.inputs}
    loads = [(one.value, in_tiles & set(loops)) for one, loops in program.flat() if isinstance(one, Load)]
    several = Counter(value for value, _ in loads)
    spread = in_tiles & set(program.grid)
    return frozenset(
        found[value].name
        for value, loops in loads
        if not loops and several[value] == 1 and value not in moved and spread <= set(found[value].axes)
    )


def make_plan(program: KernelProgram, config: TritonConfig) -> Plan:
    """Return the plan, or raise UnsupportedError."""
    grid, looped = set(program.grid), set(program.looped)
    splits = kept_splits(program)
    parts = {split.outer for split in splits}
    ragged = {split.inner for split in splits}
    roles: dict[str, Role] = {}
    for axis in kept_axes(program):
        if axis not in config.blocks:
            raise UnsupportedError(f"{program.name}: the configuration has no tile for axis {axis!r}")
        tile = config.tile(axis)
        if axis in parts and tile != 1:
            raise UnsupportedError(
                f"{program.name}: the tile of {axis!r} is {tile}; a program is in one part"
            )
        if tile < 1 or tile & (tile - 1):
            raise UnsupportedError(f"{program.name}: the tile of {axis!r} is {tile}, not a power of two")
        if (axis not in grid and axis not in looped) or axis in config.whole:
            roles[axis] = "whole"
        else:
            # A single position is never masked, so a position of a part that may be short is a tile of 1.
            roles[axis] = "single" if tile == 1 and axis not in ragged & grid else "tile"
    _check_loops(program, looped)
    tiled = [axis for axis in roles if roles[axis] != "single"]
    base = _base_order(program, tiled)
    products = _products(program, base, config)
    return Plan(roles, _order(base, products), products, mask_values(program.graph), read_dtypes(program))


def _check_loops(program: KernelProgram, looped: set[str]) -> None:
    """Refuse an axis that is looped over in one place and whole in another."""
    axes = value_axes(program.graph)
    loaded = sources(program)
    for statement, around in program.flat():
        if isinstance(statement, Compute):
            used = set(axes[statement.value])
            for i in statement.step.inputs:
                used |= set() if i in loaded and reads_elsewhere(statement.step) else axes[i]
            for axis in used & looped - set(around):
                raise UnsupportedError(
                    f"{program.name}: axis {axis!r} is walked along by a loop and used outside it;"
                    " loop over it there too"
                )


def _base_order(program: KernelProgram, tiled: list[str]) -> list[str]:
    """Return the axes as results have them, then the others."""
    stored = [axis for tensor in program.stores for axis in tensor.axes]
    return sorted(tiled, key=[*dict.fromkeys([*stored, *tiled])].index)


def _products(program: KernelProgram, base: list[str], config: TritonConfig) -> dict[int, Product]:
    """Return the matrix products; a side too short for the rows of an instruction takes its columns."""
    axes = value_axes(program.graph)
    blocks = config.blocks
    found: dict[int, Product] = {}
    for statement, _ in program.flat():
        if not isinstance(statement, Compute) or statement.step.op != "contract":
            continue
        if selects(program.graph, statement.step):
            continue  # a matrix product would multiply the zeros of the mask by infinities
        a, b = statement.step.inputs
        inner = tuple(axis for axis in base if axis in statement.step.axes)
        batch = tuple(axis for axis in base if axis in axes[a] & axes[b] and axis not in inner)
        free_a = tuple(axis for axis in base if axis in axes[a] - axes[b])
        free_b = tuple(axis for axis in base if axis in axes[b] - axes[a])
        if not (free_a and free_b and inner and set(inner) <= axes[a] & axes[b]):
            continue
        short_a, short_b = (prod(blocks[axis] for axis in free) < FEW_ROWS for free in (free_a, free_b))
        if short_a > short_b or (short_a == short_b and base.index(free_a[0]) > base.index(free_b[0])):
            a, b, free_a, free_b = b, a, free_b, free_a
        found[statement.value] = Product(a, b, batch, free_a, inner, free_b)
    return found


def _order(base: list[str], products: dict[int, Product]) -> tuple[str, ...]:
    """Return an order of axes in which as many operands as possible need no transposing."""
    after: dict[str, set[str]] = {axis: set() for axis in base}

    def reaches(start: str, end: str) -> bool:
        return start == end or any(reaches(axis, end) for axis in after[start])

    for product in products.values():
        groups = [group for group in (product.batch, product.rows, product.inner, product.columns) if group]
        for before, behind in pairwise(groups):
            for a in before:
                for b in behind:
                    if not reaches(b, a):
                        after[a].add(b)
    order: list[str] = []
    while len(order) < len(base):
        ready = (
            axis
            for axis in base
            if axis not in order and not any(axis in after[other] for other in base if other not in order)
        )
        order.append(next(ready))
    return tuple(order)


def compared_quotients(graph: Graph) -> frozenset[int]:
    """Return the quotients that are compared or rounded down: their last digit may decide."""
    found, read = set[int](), set[int]()
    for value, step in reversed(list(graph.numbered)):
        decides = step.op == "floor" or (step.op in OPS and OPS[step.op].sign)
        if decides or (value in read and step.op in _MOVES):
            read.update(step.inputs)
        elif value in read and step.op in ("div", "reciprocal"):
            found.add(value)
    return frozenset(found)


def read_dtypes(program: KernelProgram) -> dict[int, str]:
    """Return the dtypes of the program's tensors, and of what was rounded, that a kernel reads."""
    steps = ((one.value, one.step) for one, _ in program.flat() if isinstance(one, Compute))
    return operand_dtypes(program.graph, steps, {one.value: one.dtype for one in program.loads})


@kept_by_identity
def scaled_products(program: KernelProgram) -> frozenset[int]:
    """Return the products of fp16 with an operand that is computed and may be of any size.

    The rows of such an operand are scaled, unless a configuration rounds them as they are.
    """
    dtypes = read_dtypes(program)
    return frozenset(
        one.value
        for one, _ in program.flat()
        if isinstance(one, Compute) and one.step.op == "contract"
        if product_dtype(program.graph, one.step, dtypes) == "f16"
        and any(is_wide(program.graph, i, dtypes) for i in one.step.inputs)
    )


@kept_by_identity
def contractions(
    program: KernelProgram,
) -> tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]:
    """Return the free axes of the two operands, the one of earlier results first, and the inner axes."""
    axes = value_axes(program.graph)
    parts = [split.outer for split in program.splits]  # a program is within one part of each split
    stored = [axis for tensor in program.stores for axis in tensor.axes]
    order = list(dict.fromkeys([*parts, *stored, *(axis.name for axis in program.graph.axes)]))
    found = []
    for statement, _ in program.flat():
        if not isinstance(statement, Compute) or selects(program.graph, statement.step):
            continue
        if statement.step.op == "contract":
            a, b = statement.step.inputs
            first, second = (
                tuple(axis for axis in order if axis in free)
                for free in (axes[a] - axes[b], axes[b] - axes[a])
            )
            places = [[order.index(axis) for axis in side if axis not in parts] for side in (first, second)]
            if all(places) and places[0] > places[1]:
                first, second = second, first
            found.append((first, second, tuple(axis for axis in order if axis in statement.step.axes)))
    return tuple(found)


class Lanes(IntEnum):
    """What lanes beyond the end of an axis hold."""

    ANY = 0
    FINITE = 1
    ZERO = 2
    USUAL = 3  # finite numbers other than 0


def after_operator(op: str, operands: Sequence[Lanes]) -> Lanes:
    """Return what an operator leaves along an axis, given what its operands hold there."""
    facts = OPS[op]
    if op == "guard" and Lanes.ZERO in operands:
        return Lanes.ZERO
    if op == "guard":
        return Lanes.ANY if operands[1] == Lanes.ANY else Lanes.FINITE
    if facts.keeps_zero and all(lanes == Lanes.ZERO for lanes in operands):
        return Lanes.ZERO
    if facts.absorbs_zero and Lanes.ZERO in operands and Lanes.ANY not in operands:
        return Lanes.ZERO
    if op == "where" and list(operands[1:]) == [Lanes.ZERO, Lanes.ZERO]:
        return Lanes.ZERO
    if op == "div" and list(operands) == [Lanes.ZERO, Lanes.USUAL]:
        return Lanes.ZERO
    if op in _KEEPS_USUAL and all(lanes == Lanes.USUAL for lanes in operands):
        return Lanes.USUAL
    if op in ("exp", "exp2") and list(operands) == [Lanes.ZERO]:
        return Lanes.FINITE
    if facts.mask or (facts.finite and Lanes.ANY not in operands):
        return Lanes.FINITE
    return Lanes.ANY
