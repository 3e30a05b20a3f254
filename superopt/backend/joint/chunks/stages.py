"""Stages: one chunk as large products of matrices, which libraries make, and what is computed between them.

logits = x @ w.t()          a product, into memory that all chunks share
d = softmax(logits) - ...   computed between products, over the logits
dx[rows] = d @ w            a product, into its rows of what leaves
dw += d.t() @ x             a product, added to those of earlier chunks
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from superopt.backend.joint.chunks.tiling import Tiling, part_of
from superopt.backend.joint.limits import limits
from superopt.ir import Graph, Output, Port, Step, mask_values, value_axes

__all__ = ["Between", "Multiply", "Operand", "Stages", "staged"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor by its name, and its axes in order, as a product calls them."""

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Multiply:
    """Products of two matrices, one for each position of the axes that both keep.

    `adds` says that they are added to those of earlier chunks.
    """

    left: Operand
    right: Operand
    made: Operand
    summed: tuple[str, ...]
    adds: bool = False

    @property
    def name(self) -> str:
        """The name of what it makes."""
        return self.made.name

    @property
    def batch(self) -> tuple[str, ...]:
        """The axes that both operands keep."""
        return tuple(axis for axis in self.made.axes if axis in self.left.axes and axis in self.right.axes)


@dataclass(frozen=True, slots=True)
class Between:
    """A graph that is computed between products, and those of its results that lie in shared memory."""

    graph: Graph
    kept: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its graph."""
        return self.graph.name

    @property
    def reads(self) -> list[str]:
        """The names of what it reads."""
        return [port.name for port in self.graph.inputs]


@dataclass(frozen=True, slots=True)
class Stages:
    """A chunk in order; tensors go from stage to stage by name, some in memory that all chunks share."""

    steps: tuple[Multiply | Between, ...]
    places: Mapping[str, int]  # the number of the shared memory in which a tensor lies
    axes: Mapping[str, tuple[str, ...]]  # of each of these tensors

    def sizes_at(self, sizes: Mapping[str, int]) -> list[int]:
        """Return the elements of each shared memory."""
        needed = [0] * (max(self.places.values(), default=-1) + 1)
        for name, place in self.places.items():
            size = prod(sizes[axis] for axis in self.axes[name])
            needed[place] = max(needed[place], size)
        return needed


def staged(tiling: Tiling, *, last: bool) -> Stages:
    """Return the stages of a tiling's chunks; products have the axis of the chunks first or last."""
    return _Stager(tiling, last=last).made()


class _Stager:
    """Sorts the values of a chunk: those of odd levels are products, those of even ones lie between them."""

    def __init__(self, tiling: Tiling, *, last: bool) -> None:
        self.tiling, self.graph, self.last = tiling, tiling.chunk, last
        self.axes, self.masks = value_axes(self.graph), mask_values(self.graph)
        self.first = len(self.graph.inputs)
        self.products = {value for value, step in self.graph.numbered if self._multiplies(step)}
        self.levels = [0] * self.first
        for value, step in self.graph.numbered:
            before = max((self.levels[one] for one in step.inputs), default=0)
            odd = before % 2
            self.levels.append(before + 1 + odd if value in self.products else before + odd)
        self.names = [port.name for port in self.graph.inputs]
        self.names += [f"{self.graph.name}_s{value}" for value, _ in self.graph.numbered]
        self.values = {one.port.name: one.value for one in self.graph.outputs}
        self.added = {name for one in tiling.products for name in (one.left.name, one.right.name)}
        self.last_level = max(self.levels) + 2
        leaving = [one for one in self.graph.outputs if one.port.name not in self.added]
        self.rows = {
            one.value: one.port
            for one in leaving
            if one.port.name in tiling.rows and one.value in self.products
        }
        written = {port.name for port in self.rows.values()}  # by the products themselves
        self.leaving = [one for one in leaving if one.port.name not in written]
        self.reads = self._reads()
        self.kept = self._kept()
        self.crossing = {
            value
            for value, level in self.reads.items()
            if 0 < self.levels[value] < level and value not in self.products | self.kept
        }
        self.order: dict[frozenset[str], tuple[str, ...]] = {}
        for value in sorted(self.kept, key=lambda one: (one not in self.products, one)):
            self.order.setdefault(self.axes[value], self._order(value))

    def _multiplies(self, step: Step) -> bool:
        """Whether a step is a large product of two matrices, or of several."""
        if step.op != "contract" or any(self.masks[one] for one in step.inputs):
            return False
        left, right = (self.axes[one] for one in step.inputs)
        summed, sizes = set(step.axes), self.graph.sizes
        flops = prod(sizes[axis] for axis in left | right)
        return (
            summed <= left & right and bool(left - right and right - left) and flops >= limits().product_flops
        )

    def _root(self, value: int) -> tuple[int, dict[str, str]]:
        """Return what a value is under other names of its axes, and these names."""
        step = self.graph.step_of(value)
        if step is None or step.op != "rename":
            return value, {axis: axis for axis in self.axes[value]}
        root, names = self._root(step.inputs[0])
        mapping = dict(step.mapping)
        return root, {axis: str(mapping.get(name, name)) for axis, name in names.items()}

    def _reads(self) -> dict[int, int]:
        """Return the last level at which each value is read."""
        reads = dict[int, int]()
        found = [(one, self.levels[value]) for value, step in self.graph.numbered for one in step.inputs]
        found += [(self.values[name], self.last_level + 1) for name in self.added]
        found += [(one.value, self._level_of(one)) for one in self.leaving]
        for value, level in found:
            root = self._root(value)[0]
            reads[root] = max(level, reads.get(root, 0))
        return reads

    def _level_of(self, output: Output) -> int:
        """Return the even level at which a result leaves; with the first products if it needs none."""
        level = self.levels[output.value]
        return max(level + level % 2, 2 if self.products else 0)

    def _kept(self) -> set[int]:
        """Return the values that lie in shared memory: products, and what products read."""
        read = {one for value in self.products for one in self.graph.step_at(value).inputs}
        read |= {self.values[name] for name in self.added}
        roots = {self._root(one)[0] for one in read}
        return {one for one in roots | self.products if one >= self.first and one not in self.rows}

    def _order(self, value: int) -> tuple[str, ...]:
        """Return the axes of a value in the order of memory."""
        axis = self.tiling.axis
        if value in self.products:
            step = self.graph.step_at(value)
            left, right = (self.axes[one] - set(step.axes) for one in step.inputs)
            batch, *sides = (self._sorted(one) for one in (left & right, left - right, right - left))
        else:
            batch = list[str]()
            sides = [[axis] * (axis in self.axes[value]), self._sorted(self.axes[value] - {axis})]
        sides.sort(key=lambda side: (axis in side) == self.last)
        return tuple(one for side in (batch, *sides) for one in side)

    def _sorted(self, axes: Collection[str]) -> list[str]:
        return [axis.name for axis in self.graph.axes if axis.name in axes]

    def made(self) -> Stages:
        """Return all stages."""
        steps = list[Multiply | Between]()
        for level in range(self.last_level + 1):
            if level % 2:
                steps += [self._product(one) for one in sorted(self.products) if self.levels[one] == level]
            elif (between := self._between(level)) is not None:
                steps.append(between)
        for product in self.tiling.products:
            left, right = (self._operand(self.values[one.name]) for one in (product.left, product.right))
            made = Operand(product.port.name, product.port.axes)
            steps.append(Multiply(left, right, made, (self.tiling.axis,), adds=True))
        names = {self.names[value]: self.order[self.axes[value]] for value in self.kept}
        return Stages(tuple(steps), self._places(), names)

    def _operand(self, value: int) -> Operand:
        root, names = self._root(value)
        if root < self.first:
            axes = self.graph.inputs[root].axes
        else:
            axes = self.rows[root].axes if root in self.rows else self.order[self.axes[root]]
        return Operand(self._name(root), tuple(names[axis] for axis in axes))

    def _name(self, value: int) -> str:
        return self.rows[value].name if value in self.rows else self.names[value]

    def _product(self, value: int) -> Multiply:
        step = self.graph.step_at(value)
        left, right = map(self._operand, step.inputs)
        return Multiply(left, right, self._operand(value), step.axes)

    def _between(self, level: int) -> Between | None:
        """Return what is computed at an even level, None where nothing is."""
        kept = {one for one in self.kept - self.products if self.levels[one] == level}
        outputs = [Output(self._port(value), value) for value in sorted(kept)]
        outputs += [
            Output(self._port(value), value) for value in sorted(self.crossing) if self.levels[value] == level
        ]
        outputs += [one for one in self.leaving if self._level_of(one) == level]
        if not outputs:
            return None
        made = sorted({*self.products, *self.kept, *self.crossing})
        there = [one for one in made if self.levels[one] < level <= self.reads.get(one, 0)]
        entering = {value: self._port(value) for value in there}
        graph = part_of(self.graph, f"{self.graph.name}_{level}", entering, outputs)
        return Between(graph, tuple(self.names[value] for value in sorted(kept)))

    def _port(self, value: int) -> Port:
        if value in self.rows:
            order = self.rows[value].axes
        else:
            order = self.order.get(self.axes[value]) or tuple(self._sorted(self.axes[value]))
        return Port(self._name(value), "bool" if self.masks[value] else "f32", tuple((one,) for one in order))

    def _places(self) -> dict[str, int]:
        """Return the number of the memory of each kept value; what is read no more gives way to others."""
        places, holds = dict[str, int](), list[int]()
        for value in sorted(self.kept, key=lambda one: (self.levels[one], one)):
            free = (at for at, old in enumerate(holds) if self._gives_way(old, value))
            at = next(free, len(holds))
            holds[at : at + 1] = [value]
            places[self.names[value]] = at
        return places

    def _gives_way(self, old: int, value: int) -> bool:
        """Whether a value may take the memory of an older one, even over which it is computed."""
        last, level = self.reads.get(old, 0), self.levels[value]
        over = value not in self.products and self.axes[old] == self.axes[value]
        return last < level or (over and last == level > self.levels[old])
