"""Alike: what programs that follow each other along the innermost axis of a grid have in common.

    for (m_base ...)                      // a thread runs these programs one after the other
    for (n_base ...) {
        if (m_base != m_before) {...}     // what lacks n is made once for all programs along n
        ...
    }

So rows are normalized once and not for each tile of columns, and their packed copies stay.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from superopt.codegen.cpp.plan import Contraction, Fill, Item, Nest, Shift, Walk, changed_values, viewed
from superopt.codegen.statements import Compute, KernelProgram
from superopt.ir import value_axes

__all__ = ["MOST_PACKED", "Alike", "find_alike"]

MOST_PACKED = 1 << 20
"""Numbers of an operand that each thread packs at once, at most."""


def find_alike(
    program: KernelProgram, body: Sequence[Item], grid: Sequence[str], tiles: Mapping[str, int]
) -> "Alike | None":
    """Return what programs along the innermost axis of a grid have in common; None where that is nothing."""
    if not grid or tiles.get(grid[-1], 1) >= program.graph.sizes[grid[-1]]:
        return None
    alike = Alike(program, body, grid[-1], tiles)
    return alike if alike.items or alike.rows or alike.columns else None


class Alike:
    """The `items` that programs along an axis have in common, the `rest`, and operands that stay.

    These are `rows` or `columns` of contractions that are the same for all these programs, met in one way.
    """

    def __init__(
        self, program: KernelProgram, body: Sequence[Item], inner: str, tiles: Mapping[str, int]
    ) -> None:
        self._graph = program.graph
        self._axes = value_axes(program.graph)
        self._loaded = {tensor.value for tensor in program.loads}
        # The parts of an axis that is split along the innermost one end at different places.
        self._along = {inner, *(split.inner for split in program.splits if split.outer == inner)}
        differs = self._all_that_differ(body)
        self.items = [item for item, one in zip(body, differs, strict=True) if not one]
        self.rest = [item for item, one in zip(body, differs, strict=True) if one]
        self.rows: dict[int, Contraction] = {}
        self.columns: dict[int, Contraction] = {}
        self._find_staying(body, tiles)

    def _all_that_differ(self, body: Sequence[Item]) -> list[bool]:
        """Return which items differ between these programs, by themselves or by what others change."""
        differs = [self._differs(item) for item in body]
        while True:
            moved = changed_values(item for item, one in zip(body, differs, strict=True) if one)
            more = [
                one or not moved.isdisjoint(self._touched(item))
                for item, one in zip(body, differs, strict=True)
            ]
            if more == differs:
                return differs
            differs = more

    def _find_staying(self, body: Sequence[Item], tiles: Mapping[str, int]) -> None:
        """Note the operands that all these programs meet in one way, and that lie in one piece."""
        sizes = self._graph.sizes
        several = {axis for axis, tile in tiles.items() if tile < sizes[axis]}
        lies = self._loaded | changed_values(self.items)
        met = [*_contractions(body)]
        ways = {(one.a, one.m, one.k, "row") for one in met}
        ways |= {(one.b, one.n, one.k, "column") for one in met}
        for item, walked in self._inside(self.rest, several, frozenset()):
            summed = sizes[item.k] if item.k else 1
            for value, axis, stay in ((item.a, item.m, self.rows), (item.b, item.n, self.columns)):
                moves = self._axes[value] & walked.union(self._along, item.around)
                once = sum(one == value for one, *_ in ways) == 1
                fits = axis is None or min(tiles.get(axis, sizes[axis]), sizes[axis]) * summed <= MOST_PACKED
                if once and fits and not moves and viewed(self._graph, value) in lies:
                    stay[value] = item

    def _inside(
        self, items: Sequence[Item], several: Collection[str], walked: frozenset[str]
    ) -> Iterator[tuple[Contraction, frozenset[str]]]:
        """Yield contractions, and the axes around them that are walked along in several turns."""
        for item in items:
            if isinstance(item, Walk):
                inside = walked | {item.axis} if item.axis in several else walked
                yield from self._inside(item.body, several, inside)
            elif isinstance(item, Contraction) and item.gathered is None:
                yield item, walked

    def _differs(self, item: Item) -> bool:
        """Whether an item has to do with positions along the innermost axis."""
        if isinstance(item, Walk):
            masks = [self._axes[reach.mask] for reach in item.reaches]
            return any(map(self._differs, item.body)) or not self._along.isdisjoint({item.axis}.union(*masks))
        axes = item.axes if isinstance(item, Nest) else frozenset[str]()
        return not self._along.isdisjoint(axes.union(*(self._axes[value] for value in self._touched(item))))

    def _touched(self, item: Item) -> set[int]:
        """Return the values that an item reads or changes, and those that it sees through views."""
        match item:
            case Walk():
                return set[int]().union(*map(self._touched, item.body))
            case Fill():
                found = {item.value}
            case Contraction():
                found = {item.a, item.b, item.compute.value}
            case Shift():
                found = changed_values([item]) | set(item.move.step.inputs)
            case Nest():
                statements = (*item.statements, *item.rest)
                found = {one.value for one in statements}
                found |= {i for one in statements if isinstance(one, Compute) for i in one.step.inputs}
        return found | {viewed(self._graph, value) for value in found}


def _contractions(items: Sequence[Item]) -> Iterator[Contraction]:
    """Yield the contractions among items."""
    for item in items:
        if isinstance(item, Walk):
            yield from _contractions(item.body)
        elif isinstance(item, Contraction):
            yield item
