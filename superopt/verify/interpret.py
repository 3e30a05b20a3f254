"""Evaluates a Graph over a Field on tiny axes, and chooses the tiny sizes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from superopt.ir import Graph, Port, Step
from superopt.ops import OPS, Op
from superopt.verify.field import INTEGERS, LARGE_INTEGER, Field, Residues
from superopt.verify.residues import TOWER

__all__ = ["Tiny", "axes_of", "demanded_levels", "drawn_integers", "interpret", "levels_of", "tiny_sizes"]

_SIZES = (2, 3)
_NEAR = 6  # a constant up to which axes are made long enough to compare with
_SELECT_LIMIT = 32


@dataclass(frozen=True, slots=True)
class Tiny:
    """How each axis is evaluated: on how many positions, weighed how, together with which others."""

    sizes: dict[str, int]
    extents: dict[str, int]  # what the weights of an axis add up to; absent where it is a symbol
    groups: dict[str, str]  # a leader for each axis; renaming relates the axes of one group
    positions: dict[str, tuple[int, ...]]  # what an axis' indices are drawn from, where not 0, 1, ...
    integers: tuple[int, ...]  # what tensors of integers are drawn from

    def field(
        self,
        seed: int = 0,
        *,
        trials: int = 1,
        levels: int = 2,
        tower: tuple[int, ...] = TOWER,
        sealed: bool = False,
    ) -> Field:
        """Return a field that weighs these axes."""
        return Field(
            seed,
            trials=trials,
            levels=levels,
            tower=tower,
            extents=self.extents,
            groups=self.groups,
            positions=self.positions,
            integers=self.integers,
            sealed=sealed,
        )


def drawn_integers(*graphs: Graph) -> tuple[int, ...]:
    """Return what tensors of integers are drawn from: tiny positions, what they are compared with, others.

    There are as many as some power of two, all equally likely.
    """
    found = {0, 1, 2}
    for graph in graphs:
        integers = {i for i, port in enumerate(graph.inputs) if port.dtype in INTEGERS}
        for step in graph.steps:
            if integers & set(step.inputs):
                made = [graph.step_of(i) for i in step.inputs]
                numbers = [one.value for one in made if one is not None and one.value is not None]
                found |= {int(number) for number in numbers if number.denominator == 1}
    others = (number for number in range(3, 3 + len(found)) if number not in found)
    while len(found) & (len(found) - 1):
        found.add(next(others))
    return tuple(sorted(found))


def tiny_sizes(
    *graphs: Graph,
    variant: int = 0,
    symbolic: bool = False,
    links: Iterable[tuple[str, str]] = (),
    narrow: bool = False,
    smallest: bool = False,
) -> Tiny:
    """Return sizes for all axes of some graphs: neighbours differ, and every variant differs.

    An axis that is selected from keeps its extent. One whose index is compared is cut short, but not
    below small constants in the comparison; for large ones its indices are drawn from around 0, the
    constants and the end. Any other is evaluated on two or three positions that stand for all of its
    extent (`Field.weights`). With `symbolic` the extent is left open too. `links` are further
    pairs of axes to treat alike. With `narrow`, an axis whose positions never meet (nothing
    reduces, renames, selects or indexes it) is evaluated on one position, unless two axes of one
    graph are linked, where a swap must show. `smallest` gives every axis the least that says much.
    """
    real: dict[str, int] = {}
    for graph in graphs:
        real = graph.sizes | real
    leader = {axis: axis for axis in real}

    def find(axis: str) -> str:
        while leader[axis] != axis:
            axis = leader[axis]
        return axis

    selected: dict[str, int] = {}
    indexed: set[str] = set()
    for graph in graphs:
        for step in graph.steps:
            for old, new in step.mapping:
                if isinstance(new, str):
                    leader[find(old)] = find(new)
                else:
                    selected[old] = max(selected.get(old, 0), new + 1)
            if step.op == "index":
                indexed.update(step.axes)
    for a, b in links:
        leader[find(a)] = find(b)
    groups = {axis: find(axis) for axis in real}
    meeting = _meeting_groups(graphs, groups) if narrow else frozenset(groups.values())
    least: dict[str, int] = {}
    for axis, size in selected.items():
        least[groups[axis]] = max(least.get(groups[axis], 0), size)
    indexed = {groups[axis] for axis in indexed}
    compared = set().union(*map(_compared_integers, graphs))
    far = any(number > _NEAR for number in compared)
    around = {0, 1, 2, 3} | {number + i for number in compared if number > 1 for i in (-1, 0, 1, 2)}
    chosen: dict[str, int] = {}
    extents: dict[str, int] = {}
    for axis, size in real.items():
        group = groups[axis]
        if group not in chosen:
            tiny = _SIZES[0] if smallest else _SIZES[(len(chosen) + variant) % len(_SIZES)]
            if group in indexed and not far:
                tiny = max(tiny, max(compared, default=0) + 2)
            if group in least:
                tiny = size if size <= _SELECT_LIMIT else max(tiny, least[group])
            chosen[group] = min(size, tiny if group in meeting else 1)
        if chosen[group] == size or group in indexed or group in least:
            extents[axis] = chosen[group]
        elif not symbolic:
            extents[axis] = size
    positions = {
        axis: tuple(i for i in sorted(around | {size - 2, size - 1}) if 0 <= i < size)
        for axis, size in real.items()
        if far and groups[axis] in indexed
    }
    evaluated = {axis: chosen[groups[axis]] for axis in real}
    return Tiny(evaluated, extents, groups, positions, drawn_integers(*graphs))


def _compared_integers(graph: Graph) -> set[int]:
    """Return the magnitudes of integers in comparisons between what only indices and constants make."""
    first = len(graph.inputs)
    integers: list[set[int] | None] = [None] * first
    found: set[int] = set()
    for step in graph.steps:
        made: set[int] | None = None
        if step.op in ("const", "index"):
            value = abs(step.value or Fraction(0))
            made = {int(value)} if value.denominator == 1 and value <= LARGE_INTEGER else set()
        elif step.op in OPS or step.op == "rename":
            known = [integers[i] for i in step.inputs]
            if all(numbers is not None for numbers in known):
                made = set().union(*(numbers or set() for numbers in known))
                if step.op in OPS and OPS[step.op].mask:
                    found |= made
        integers.append(made)
    return found


def _meeting_groups(graphs: Iterable[Graph], groups: Mapping[str, str]) -> frozenset[str]:
    """Return the groups of axes along which some step moves or gathers, or that hold twins."""
    found: set[str] = set()
    for graph in graphs:
        for step in graph.steps:
            if step.op != "size":
                found.update(groups[axis] for axis in step.axes)
            found.update(groups[axis] for pair in step.mapping for axis in pair if isinstance(axis, str))
        members = Counter(groups[axis.name] for axis in graph.axes)
        found.update(group for group, count in members.items() if count > 1)
    return frozenset(found)


def interpret(
    graph: Graph,
    field: Field,
    sizes: Mapping[str, int],
    *,
    leaves: Mapping[str, Residues] | None = None,
    axes: tuple[str, ...] | None = None,
    only: frozenset[int] | None = None,
) -> list[Residues]:
    """Return every value of the graph, each with one grid dimension for each of the axes.

    The axes are the graph's unless named (to compare two graphs, name them in one order); a value
    has extent 1 along those it lacks. `leaves` replaces inputs, given in the order of their ports'
    axes. With `only`, other values are left empty.
    """
    order = {axis: i for i, axis in enumerate(axes or tuple(axis.name for axis in graph.axes))}
    demanded = demanded_levels(graph, field.levels)
    values: list[Residues] = []
    nothing = np.empty((field.levels, field.trials, *(0 for _ in order)), dtype=np.uint64)
    for port in graph.inputs:
        if only is not None and len(values) not in only:
            values.append(nothing)
            continue
        leaf = (leaves or {}).get(port.name)
        if leaf is None:
            leaf = _leaf(field, port, sizes)
        values.append(_place(leaf, port.axes, order))
    for step in graph.steps:
        if only is not None and len(values) not in only:
            values.append(nothing)
            continue
        field.watched[:] = False
        field.watched[list(demanded[len(values)])] = True
        values.append(_evaluate(step, field, sizes, order, [values[i] for i in step.inputs]))
    field.watched[:] = True
    return values


def _leaf(field: Field, port: Port, sizes: Mapping[str, int]) -> Residues:
    return field.leaf(port.name, tuple(sizes[axis] for axis in port.axes), port.dtype)


def _place(values: Residues, axes: tuple[str, ...], order: Mapping[str, int]) -> Residues:
    """Return values whose grid dimensions are `axes`, moved to their places in the common order."""
    ranked = sorted(range(len(axes)), key=lambda i: order[axes[i]])
    moved = values.transpose(0, 1, *(2 + i for i in ranked))
    shape = [1] * len(order)
    for i in ranked:
        shape[order[axes[i]]] = values.shape[2 + i]
    return moved.reshape(*values.shape[:2], *shape)


def _evaluate(
    step: Step, field: Field, sizes: Mapping[str, int], order: Mapping[str, int], args: list[Residues]
) -> Residues:
    if step.op in OPS:
        result: Residues = OPS[step.op].scalar(field, *args)
        return result
    scalar = (1,) * len(order)
    dims = tuple(2 + order[axis] for axis in step.axes)
    match step.op:
        case "const":
            assert step.value is not None
            return _widen(field.const(step.value), scalar)
        case "infinity":
            return _widen(field.infinity(), scalar)
        case "size":
            return _widen(field.size(step.axes[0], sizes[step.axes[0]]), scalar)
        case "index":
            return _place(field.index(sizes[step.axes[0]], step.axes[0]), step.axes, order)
        case "sum" | "contract":
            product = args[0] if step.op == "sum" else field.mul(*args)
            for axis in step.axes:
                if field.extents.get(axis) != sizes[axis]:
                    weights = _place(field.weights(axis, sizes[axis]), (axis,), order)
                    product = field.mul(product, weights)
            return field.sum_mod(product, dims, keepdims=True)
        case "max":
            return field.max_over(args[0], dims, keepdims=True)
        case "rename":
            # All at once: the dimension that goes to `new` is `old`, whatever `new` held before.
            source = list(range(args[0].ndim))
            moves = {2 + order[str(new)]: 2 + order[old] for old, new in step.mapping}
            vacated = [dim for dim in moves.values() if dim not in moves]
            for new_dim, old_dim in moves.items():
                source[new_dim] = old_dim
            # What moves leave behind is filled by the empty dimensions they replace.
            for dim, empty in zip(vacated, (dim for dim in moves if dim not in moves.values()), strict=True):
                source[dim] = empty
            return args[0].transpose(source)
        case "select":
            at = [slice(None)] * args[0].ndim
            for axis, position in step.mapping:
                dim = 2 + order[axis]
                at[dim] = slice(int(position), int(position) + 1)
            return args[0][tuple(at)]
    raise AssertionError(step.op)


def _widen(a: Residues, scalar: tuple[int, ...]) -> Residues:
    return a.reshape(*a.shape[:2], *scalar)


# Which levels of the tower matter. An exponential at level i reads level i + 1 of its argument; an
# oracle or a comparison reads level 0. Zeros and non-squares at other levels change no output.


class _Reads:
    """Scalars whose values are sets of (argument, levels above the result's own; None is level 0)."""

    Reads = frozenset[tuple[int, int | None]]

    def const(self, value: Fraction) -> Reads:
        return frozenset()

    def infinity(self) -> Reads:
        return frozenset()

    def add(self, a: Reads, b: Reads) -> Reads:
        return a | b

    mul = add

    def neg(self, a: Reads) -> Reads:
        return a

    inv = sqrt = neg

    def exp(self, a: Reads) -> Reads:
        return frozenset((arg, None if shift is None else shift + 1) for arg, shift in a)

    def maximum(self, a: Reads, b: Reads) -> Reads:
        return a | b | self.less(a, b)

    def less(self, a: Reads, b: Reads) -> Reads:
        return frozenset((arg, None) for arg, _ in a | b)

    equal = less

    def where(self, mask: Reads, a: Reads, b: Reads) -> Reads:
        return mask | a | b

    def function(self, name: str, *args: Reads) -> Reads:
        return frozenset((arg, None) for reads in args for arg, _ in reads)


@cache
def _reads(op: Op) -> frozenset[tuple[int, int | None]]:
    arguments = (frozenset({(i, 0)}) for i in range(op.arity))
    result: frozenset[tuple[int, int | None]] = op.scalar(_Reads(), *arguments)
    return result


def demanded_levels(graph: Graph, levels: int) -> list[set[int]]:
    """Return for each value the levels that level 0 of the outputs depends on."""
    demanded: list[set[int]] = [set() for _ in range(len(graph.inputs) + len(graph.steps))]
    for output in graph.outputs:
        demanded[output.value].add(0)
    first = len(graph.inputs)
    for value in reversed(range(first, len(demanded))):
        step = graph.steps[value - first]
        if step.op not in OPS:
            for i in step.inputs:
                demanded[i] |= demanded[value]
                if step.op == "max" and demanded[value]:
                    demanded[i].add(0)
            continue
        for arg, shift in _reads(OPS[step.op]):
            source = demanded[step.inputs[arg]]
            for level in demanded[value]:
                above = 0 if shift is None else level + shift
                source.add(above if above < levels else 0)
    return demanded


def levels_of(*graphs: Graph, limit: int = len(TOWER)) -> int:
    """Return how many levels the graphs' nested exponentials need, at most `limit`."""
    return max(max(levels, default=0) for graph in graphs for levels in demanded_levels(graph, limit)) + 1


def axes_of(*graphs: Graph) -> tuple[str, ...]:
    """Return the axes of some graphs in one order for all."""
    return tuple(dict.fromkeys(axis.name for graph in graphs for axis in graph.axes))
