"""Moves: from one recipe to recipes that differ in one decision, where that decision can matter."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from superopt.cost import Device, Estimate
from superopt.ir import (
    REDUCTIONS,
    Block,
    Graph,
    Loop,
    MuGraph,
    Tile,
    tensorless_values,
    value_axes,
)
from superopt.ir.mugraph import is_called, leaving_products, walk
from superopt.schedule.recipe import Prepared, Recipe

__all__ = ["Refused", "matmuls_of", "moves_from", "shapes_of", "splits_from"]

_FULL = 4  # a grid of this many programs for each core fills the device several times over
_LEAST = 64  # positions that a part has at least
_PARTS = 4  # an axis too short for so many parts stays whole
# Numbers of parts that are tried, in multiples of what gives every core a program.
_FACTORS = (0.5, 1.0, 2.0, 4.0)
_TILES = (8, 128, 1024)
_LOOPED = 64  # positions: a shorter axis of a grid is not worth a loop


@dataclass(frozen=True, slots=True)
class Refused:
    """A decision that is not tried: what is changed, and the reason."""

    recipe: Recipe
    reason: str


def matmuls_of(graph: Graph) -> frozenset[int]:
    """Return the values that a library can compute."""
    return frozenset(
        value
        for value in range(len(graph.inputs), len(graph.inputs) + len(graph.steps))
        if is_called(graph, value)
    )


def shapes_of(ready: Prepared) -> list[Recipe]:
    """Return the recipes to start from: with shifts that run or wait, reductions joined, products late."""
    graph = ready.graph
    made = [Recipe()]
    steps = [(step, graph.step_of(step.inputs[0])) for step in graph.steps if step.op in ("sum", "max")]
    if any(below is not None and below.op in REDUCTIONS for _, below in steps):
        made.append(Recipe(joined=True))
    if any(step.op == "max" for step in graph.steps):
        made += [replace(one, online=False) for one in made]
    if len(graph.outputs) > 1 and leaving_products(graph):
        made += [replace(one, late=True) for one in made]
    return made


def splits_from(
    ready: Prepared, recipe: Recipe, mugraph: MuGraph, cost: Estimate, device: Device
) -> Iterator[Recipe | Refused]:
    """Yield the recipe with one more reduced axis in as many parts as give all cores of the device work."""
    if recipe.called:
        return  # a library computes no parts
    graph = ready.graph
    sizes = graph.sizes
    split_axes = {name for split in ready.splits for name in (split.axis, split.outer, split.inner)}
    programs: dict[str, int] = {}  # axis -> the fewest programs of a kernel that reduces it
    for number, kernel in enumerate(mugraph.kernels):
        if isinstance(kernel, Block):
            for axis in {axis for tile, _ in walk(kernel) for axis in _reduced(graph, tile.value)}:
                found = max(cost.kernels[number].programs, 1)
                programs[axis] = min(found, programs.get(axis, found))
    for axis in sizes:
        if axis not in programs or axis in split_axes:
            continue
        plain = replace(recipe, splits=(*recipe.splits, (axis, 0)))
        most = sizes[axis] // _LEAST
        if programs[axis] >= _FULL * device.cores:
            yield Refused(plain, f"the grid already fills the device: {programs[axis]:,} programs")
        elif most < _PARTS:
            yield Refused(plain, f"{sizes[axis]} positions are too few for parts")
        else:
            fill = 1 << (ceil(device.cores / programs[axis]) - 1).bit_length()
            wanted = {min(max(int(fill * factor), 2), most) for factor in _FACTORS}
            for parts in sorted({_even(sizes[axis], parts) for parts in wanted}):
                yield replace(recipe, splits=(*recipe.splits, (axis, parts)), cuts=frozenset())


def _even(size: int, parts: int) -> int:
    """Return the number of parts nearest to the wanted one that are of whole lines of memory and all alike.

    Other parts start at odd addresses, which wide copies cannot reach. Where there is none within a factor
    of 2, the wanted number stays.
    """
    lines = size // _LEAST
    near = range(max(ceil(parts / 2), 2), min(2 * parts, lines) + 1)
    even = [one for one in near if size % _LEAST == 0 and lines % one == 0]
    return min(even, key=lambda one: max(one / parts, parts / one), default=parts)


def moves_from(
    ready: Prepared, recipe: Recipe, mugraph: MuGraph, cost: Estimate, device: Device, *, library: bool
) -> Iterator[Recipe]:
    """Yield the recipes that differ in one decision other than a split."""
    graph = ready.graph
    if library and not ready.splits:
        matmuls = matmuls_of(graph)
        if matmuls:
            yield replace(recipe, called=matmuls)
        projections = _projections(graph, matmuls)
        if projections and projections != matmuls:
            yield replace(recipe, called=projections)  # attention to what they make stays fused
        for value in sorted(matmuls) if len(matmuls) > 1 else ():
            yield replace(recipe, called=frozenset({value}))
    for value in _cuts(graph, mugraph):
        yield replace(recipe, cuts=recipe.cuts | {value})
    for tile in _TILES:
        yield replace(recipe, tile=tile)
    for axis in sorted(_inner_loops(mugraph)):
        yield replace(recipe, whole=recipe.whole | {axis}, looped=recipe.looped - {axis})
    for axis in sorted(_unlooped(graph, mugraph, cost, device)):
        yield replace(recipe, looped=recipe.looped | {axis}, whole=recipe.whole - {axis})


def _projections(graph: Graph, matmuls: frozenset[int]) -> frozenset[int]:
    """Return the products with an input of the graph that depend on no product of two computed values."""
    first = len(graph.inputs)
    late = [False] * first
    for value, step in graph.numbered:
        late.append((value in matmuls and min(step.inputs) >= first) or any(late[i] for i in step.inputs))
    return frozenset(value for value in matmuls if not late[value])


def _reduced(graph: Graph, value: int) -> tuple[str, ...]:
    step = graph.step_of(value)
    return step.axes if step is not None and step.op in REDUCTIONS else ()


def _cuts(graph: Graph, mugraph: MuGraph) -> list[int]:
    """Return values worth storing: results and operands of contractions, and small values read often."""
    axes = value_axes(graph)
    tensorless = tensorless_values(graph)
    wanted: set[int] = set()
    reduced = [False] * len(graph.inputs)
    for value, step in graph.numbered:
        reduced.append(step.op in REDUCTIONS or any(reduced[i] for i in step.inputs))
        if step.op == "contract":
            wanted |= {value, *step.inputs}
        wanted |= {i for i in step.inputs if reduced[i] and axes[i] < axes[value]}
    last = {_last_tile(kernel.body) for kernel in mugraph.kernels}
    first = len(graph.inputs)
    return [
        value for value in sorted(wanted) if value >= first and not tensorless[value] and value not in last
    ]


def _last_tile(body: tuple[Tile | Loop, ...]) -> int:
    last = body[-1]
    return last.value if isinstance(last, Tile) else _last_tile(last.body)


def _inner_loops(mugraph: MuGraph) -> set[str]:
    """Return the axes of loops inside loops."""
    return {
        loop.axis
        for kernel in mugraph.kernels
        if isinstance(kernel, Block)
        for _, loops in walk(kernel)
        for loop in loops[1:]
    }


def _unlooped(graph: Graph, mugraph: MuGraph, cost: Estimate, device: Device) -> set[str]:
    """Return axes that a program may loop over instead: whole axes, and the axes of too large a grid."""
    axes = value_axes(graph)
    found: set[str] = set()
    for number, kernel in enumerate(mugraph.kernels):
        if isinstance(kernel, Block):
            steps = [(tile, {loop.axis for loop in loops}) for tile, loops in walk(kernel)]
            reduced = {axis for tile, _ in steps for axis in _reduced(graph, tile.value)}
            walked = {axis for _, loops in steps for axis in loops}
            found |= reduced - walked - set(kernel.grid)
            if cost.kernels[number].programs >= _FULL * device.cores:
                shared = [frozenset(kernel.grid) - axes[value] for value in mugraph.loads(kernel)]
                found |= frozenset[str]().union(*shared)
    return {axis for axis in found if graph.sizes[axis] >= _LOOPED}
