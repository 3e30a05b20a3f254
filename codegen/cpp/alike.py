"""Alike: what programs that follow each other along the innermost axis of a grid have in common.

    for (m_base ...)                      // a thread runs these programs one after the other
    for (n_base ...) {
        if (m_base != m_before) {...}     // what lacks n is made once for all programs along n
        ...
    }

So rows are normalized once and not for each tile of columns, and their packed copies stay.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from superopt.codegen.cpp.plan import Contraction, Fill, Item, Nest, Shift, Walk, viewed
from superopt.codegen.statements import Compute, KernelProgram
from superopt.ir import value_axes

__all__ = ["Alike", "find_alike"]


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
        # The parts of an axis that is split along the innermost one end at different places.
        self._along = {inner, *(split.inner for split in program.splits if split.outer == inner)}
        differs = [self._differs(item) for item in body]
        while True:  # what has to do with a value that differs does so as well
            changed = set[int]().union(
                *(_changed(item) for item, one in zip(body, differs, strict=True) if one)
            )
            more = [
                one or not changed.isdisjoint(self._touched(item))
                for item, one in zip(body, differs, strict=True)
            ]
            if more == differs:
                break
            differs = more
        self.items = [item for item, one in zip(body, differs, strict=True) if not one]
        self.rest = [item for item, one in zip(body, differs, strict=True) if one]
        several = {axis for axis, tile in tiles.items() if tile < self._graph.sizes[axis]}
        lies = {tensor.value for tensor in program.loads}.union(*map(_changed, self.items))
        self.rows: dict[int, Contraction] = {}
        self.columns: dict[int, Contraction] = {}
        met = [*_contractions(body)]
        ways = {(one.a, one.m, one.k, "row") for one in met} | {
            (one.b, one.n, one.k, "column") for one in met
        }
        for item, walked in self._inside(self.rest, several, frozenset()):
            for value, stay in ((item.a, self.rows), (item.b, self.columns)):
                moves = self._axes[value] & walked.union(self._along, item.around)
                once = sum(one == value for one, *_ in ways) == 1
                if once and not moves and viewed(self._graph, value) in lies:
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
                found = _changed(item) | set(item.move.step.inputs)
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


def _changed(item: Item) -> set[int]:
    """Return the values that an item makes, or changes."""
    match item:
        case Walk():
            return set[int]().union(*map(_changed, item.body))
        case Fill():
            return {item.value}
        case Contraction():
            return {item.compute.value}
        case Shift():
            return {item.move.value, *(value for value, _ in item.move.rescales)}
    return item.made
