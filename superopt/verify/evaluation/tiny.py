"""Tiny sizes: on which positions each axis of some programs is evaluated.

An axis whose positions nothing tells apart is evaluated on two or three of them, which stand for all of its
extent (`Field.weights`), or on as many as sums over it are multiplied in one term (`multiplied_sums`). One
that is indexed or selected from has as many, and keeps every position that is read apart:

- where equal indices join two axes, as slices, cats and diagonals do, all positions, up to `_WHOLE`;
- else the first few, if every combination of outcomes of masks that occurs on the whole axes occurs there;
- else a choice of positions in which every one of them occurs.

Where maxima are taken, or sums of what comparisons choose, each may come of a position of its own: an axis
has one position more than there are such steps (`gathered.py`).
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph, Step, tensorless_values, value_axes
from superopt.ops import OPS
from superopt.verify.evaluation.counts import CHOICES, chooses, misread_counts, multiplied_sums
from superopt.verify.evaluation.gathered import gatherings
from superopt.verify.evaluation.integers import drawn_integers, reads_integers
from superopt.verify.evaluation.pool import pool_of
from superopt.verify.evaluation.tensorless import Numbers, constants_of, tensorless_numbers
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.primes import HIGHEST
from superopt.verify.field.source import Pool

__all__ = ["Tiny", "is_narrow", "tiny_sizes"]

_SIZES = (2, 3)
_SMALL = 4  # an indexed axis of this length or less is evaluated whole
_WHOLE = 64  # an axis of this length or less that equal indices join to another is evaluated whole, too
_NEAR = 6  # a constant up to which axes are made long enough to compare with
_MOST_PLACES = 1 << 18  # the most positions of a grid on which masks are computed
_POOL = 24  # places of a longer axis that are looked at


@dataclass(frozen=True, slots=True)
class Tiny:
    """How each axis is evaluated: on how many positions, weighed how, together with which others."""

    sizes: dict[str, int]
    extents: dict[str, int]  # the sum of the weights of an axis; absent where the extent is a symbol
    groups: dict[str, str]  # a leader for each axis; renaming relates the axes of one group
    positions: dict[str, tuple[int, ...]]  # the real positions of an axis, where not 0, 1, ...
    integers: tuple[int, ...]  # the numbers that tensors of integers are drawn from
    wide: bool  # whether half of the integers are any numbers of the field
    compared: tuple[Fraction, ...]  # constants that numbers are compared with
    pool: Pool  # what inputs hold in trials with ties
    narrow: bool
    missing: str = ""  # the combinations of masks that no position shows, in words
    _known: dict[int, tuple[Graph, tuple[Numbers | None, ...]]] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def field(
        self,
        seed: int = 0,
        *,
        trials: int = 1,
        levels: int = 2,
        tower: tuple[int, ...] = HIGHEST,
        sealed: bool = False,
        pooled: bool = False,
        lenient: bool = False,
        ranked: bool = False,
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
            wide=self.wide,
            constants=self.compared,
            sealed=sealed,
            narrow=self.narrow,
            pool=self.pool if pooled else None,
            lenient=lenient,
            ranked=ranked,
        )

    def known_numbers(self, graph: Graph) -> tuple[Numbers | None, ...]:
        """Return the exact numbers of each value that reads no tensor, where they are known."""
        if id(graph) not in self._known:
            order = {axis.name: at for at, axis in enumerate(graph.axes)}
            places = {axis: self.positions.get(axis, tuple(range(self.sizes[axis]))) for axis in order}
            self._known[id(graph)] = graph, tuple(tensorless_numbers(graph, order, places, self.extents))
        return self._known[id(graph)][1]


def is_narrow(*graphs: Graph) -> bool:
    """Return whether no tensor of some programs has float64."""
    ports = [port for graph in graphs for port in (*graph.inputs, *(out.port for out in graph.outputs))]
    return all(port.dtype != "f64" for port in ports)


def tiny_sizes(
    *graphs: Graph,
    variant: int = 0,
    symbolic: bool = False,
    links: Iterable[tuple[str, str]] = (),
    narrow: bool = False,
    smallest: bool = False,
    guess: bool = False,
    most: int = _WHOLE,
) -> Tiny:
    """Return sizes for all axes of some graphs: neighbours differ, and every variant differs.

    With `symbolic` the extents of axes whose positions nothing tells apart are left open, so that no number
    stands for one. `links` are further pairs of axes to treat alike. With `narrow`, an axis whose positions
    never meet (nothing reduces, renames, selects or indexes it) is evaluated on one position, unless two axes
    of one graph are linked, where a swap must show. `smallest` gives every axis the least that says much.
    With `guess`, axes that integers look things up in stay short: what seems equal there is to be proven.
    """
    real: dict[str, int] = {}
    for graph in graphs:
        real = graph.sizes | real
    groups = _groups(graphs, real, links)
    uses = _Uses(graphs, groups, real)
    meeting = _meeting_groups(graphs, groups) if narrow else frozenset(groups.values())
    multiplied = {} if guess else multiplied_sums(graphs, groups)
    places: dict[str, tuple[int, ...]] = {}
    for axis, size in real.items():
        group = groups[axis]
        if group in places:
            continue
        sums = multiplied.get(group, 0)  # one of the variants has the larger of `_SIZES`
        enough = min(_SIZES) if smallest else max(_SIZES)
        least = 1 if guess else max(uses.gathered[group] + 1, sums if sums > enough else 1)
        tiny = max(least, _SIZES[0] if smallest else _SIZES[(len(places) + variant) % len(_SIZES)])
        whole = size <= (most if group in uses.joined else _SMALL)
        if group in uses.read_apart and (whole or size <= tiny):
            places[group] = tuple(range(size))
        elif group in uses.selected:
            # Two or three positions more than are selected, so that these are not all of the axis, and that
            # no number is its extent in both choices of sizes.
            near = range(min(tiny + 1 + len(uses.selected[group]), size))
            others = [i for i in dict.fromkeys((*near, size - 1)) if i not in uses.selected[group]]
            others = others[: max(2 + variant % 2, least)]
            places[group] = tuple(sorted({*uses.selected[group], *others}))
        elif group in uses.indexed:
            # All axes get as many: masks over axes of equal length stay of equal length.
            length = max(_SIZES[1], *(c + 2 for c in uses.near), least) + variant % 2
            places[group] = tuple(range(min(size, length)))
        else:
            places[group] = tuple(range(min(size, tiny if group in meeting else 1)))
    missing = uses.show_all(places, variant)
    integers, unseen = drawn_integers(graphs, uses.compared, places, groups, real, grow=not guess)
    partial = frozenset(
        axis
        for axis, size in real.items()
        if groups[axis] in uses.read_apart and len(places[groups[axis]]) < size
    )
    if any(misread_counts(graph, partial, constants_of(graph, narrow=False)[2]) for graph in graphs):
        unseen = unseen or f"masks count along axes that are too long ({', '.join(sorted(partial))})"
    extents: dict[str, int] = {}
    for axis, size in real.items():
        group = groups[axis]
        seen = len(places[group]) == size and (size < 2 or not symbolic)
        if seen or group in uses.read_apart:
            extents[axis] = len(places[group])
        elif not symbolic:
            extents[axis] = size
    return Tiny(
        sizes={axis: len(places[groups[axis]]) for axis in real},
        extents=extents,
        groups=groups,
        positions={
            axis: places[groups[axis]]
            for axis in real
            if places[groups[axis]] != tuple(range(len(places[groups[axis]])))
        },
        integers=integers,
        wide=reads_integers(*graphs),
        compared=uses.compared,
        pool=uses.pool,
        narrow=is_narrow(*graphs),
        missing=missing or unseen,
    )


def _groups(
    graphs: Sequence[Graph], real: Mapping[str, int], links: Iterable[tuple[str, str]]
) -> dict[str, str]:
    leader = {axis: axis for axis in real}

    def find(axis: str) -> str:
        while leader[axis] != axis:
            axis = leader[axis]
        return axis

    for graph in graphs:
        for step in graph.steps:
            for old, new in step.mapping:
                if isinstance(new, str):
                    leader[find(old)] = find(new)
    for a, b in links:
        leader[find(a)] = find(b)
    return {axis: find(axis) for axis in real}


def _outcomes(step: Step, made: Numbers, given: Sequence[Numbers | None]) -> list[NDArray[np.bool_]]:
    """Return which places a mask has, or where a step chooses either of two numbers."""
    if step.op not in CHOICES:
        return [made != 0]
    first, *rest = (one for one in given if one is not None)
    second = rest[0] if rest else np.zeros((1,) * made.ndim) if step.op == "relu" else -first
    return [np.asarray(made == first), np.asarray(made == second)]


class _Uses:
    """Where positions of axes are read apart, and what numbers are compared with."""

    def __init__(self, graphs: Sequence[Graph], groups: Mapping[str, str], real: Mapping[str, int]) -> None:
        self.graphs, self.groups, self.real = graphs, groups, real
        self.selected: dict[str, set[int]] = {}
        self.indexed: set[str] = set()
        self.joined: set[str] = set()  # axes that equal indices join
        self.sized: set[str] = set()  # axes whose extent a mask reads
        compared: dict[Fraction, None] = {}
        narrow = is_narrow(*graphs)
        for graph in graphs:
            known = constants_of(graph, narrow)[2]
            self._look_at(graph)
            for number in _compared_constants(graph, known):
                compared[number] = None
        self.pool = pool_of(graphs, compared, narrow=narrow)
        self.compared = tuple(dict.fromkeys([*compared, *self.pool.own]))
        self.read_apart = self.indexed | self.selected.keys()
        self.gathered = gatherings(graphs, groups)
        self.near = [c for c in self._integers() if 0 < c <= _NEAR]

    def _look_at(self, graph: Graph) -> None:
        tensorless, axes = tensorless_values(graph), value_axes(graph)
        for place, step in graph.numbered:
            if step.op == "select":
                for axis, at in step.mapping:
                    self.selected.setdefault(self.groups[axis], set()).add(int(at))
            if step.op == "index":
                self.indexed.add(self.groups[step.axes[0]])
            if step.op in ("eq", "ne") and tensorless[place] and len(axes[place]) > 1:
                self.joined.update(self.groups[axis] for axis in axes[place])
            if step.op == "size" and any(
                place in other.inputs and tensorless[at] and axes[at] for at, other in graph.numbered
            ):
                self.sized.add(self.groups[step.axes[0]])

    def _integers(self) -> set[int]:
        """Return the magnitudes of integers that masks of indices are made with."""
        found: set[int] = set()
        for graph in self.graphs:
            tensorless, axes = tensorless_values(graph), value_axes(graph)
            for place, step in graph.numbered:
                if not tensorless[place] or not axes[place]:
                    continue
                numbers = (graph.constant(i) for i in step.inputs)
                found |= {abs(int(one)) for one in numbers if one is not None and one.denominator == 1}
        return found

    def show_all(self, places: dict[str, tuple[int, ...]], variant: int) -> str:
        """Add positions until every combination of masks occurs that occurs on the whole axes."""
        random = np.random.default_rng(variant)
        for names in self._mask_axes():
            wide = {axis: self._pool(axis, len(names), random) for axis in names}
            whole = self._combinations(names, wide)
            own = {axis: places[self.groups[axis]] for axis in names}
            unseen = whole.keys() - self._combinations(names, own).keys()
            if not unseen:
                continue
            if any(self.groups[axis] in self.sized for axis in names):
                return f"masks depend on the extents of axes that are too long ({', '.join(names)})"
            for outcome in sorted(unseen):
                for axis, at in zip(names, whole[outcome], strict=True):
                    group = self.groups[axis]
                    places[group] = tuple(sorted({*places[group], wide[axis][at]}))
        return ""

    def _mask_axes(self) -> list[tuple[str, ...]]:
        """Return the largest sets of axes that some mask of indices depends on."""
        found: set[frozenset[str]] = set()
        for graph in self.graphs:
            tensorless, axes = tensorless_values(graph), value_axes(graph)
            found |= {
                axes[place]
                for place, step in graph.numbered
                if tensorless[place] and axes[place] and chooses(step)
            }
        largest = [one for one in found if not any(one < other for other in found)]
        return sorted(tuple(sorted(one)) for one in largest)

    def _pool(self, axis: str, count: int, random: np.random.Generator) -> tuple[int, ...]:
        """Return the positions of an axis at which masks are looked at: all of them, or a choice."""
        size = self.real[axis]
        if size**count <= _MOST_PLACES:
            return tuple(range(size))
        around = {0, 1, 2, 3, size - 1, size - 2}
        around |= {number + i for number in self._integers() for i in (-1, 0, 1, 2)}
        around |= {size - 1 - number for number in self._integers()}
        around |= set(random.integers(0, size, _POOL).tolist())
        return tuple(sorted(i for i in around if 0 <= i < size))

    def _combinations(
        self, names: Sequence[str], places: Mapping[str, Sequence[int]]
    ) -> dict[bytes, tuple[int, ...]]:
        """Return the outcomes of all masks of some axes that occur together, each with a place."""
        columns: list[NDArray[np.bool_]] = []
        shape = tuple(len(places[axis]) for axis in names)
        if 0 in shape:
            return {}
        for graph in self.graphs:
            if not set(names) & {axis.name for axis in graph.axes}:
                continue
            own = [axis.name for axis in graph.axes if axis.name in places]
            order = {axis: i for i, axis in enumerate(own)}
            spread = {axis: places[axis] for axis in own}
            extents = {axis: len(found) for axis, found in spread.items()}
            tensorless, axes = tensorless_values(graph), value_axes(graph)
            numbers = tensorless_numbers(graph, order, spread, extents)
            for place, step in graph.numbered:
                found = numbers[place]
                if not tensorless[place] or not chooses(step) or found is None:
                    continue
                if not axes[place] or not axes[place] <= set(names):
                    continue
                present = [axis for axis in names if axis in order]
                for outcome in _outcomes(step, found, [numbers[i] for i in step.inputs]):
                    moved = np.moveaxis(outcome[0, 0], [order[axis] for axis in present], range(len(present)))
                    extent = dict(zip(present, moved.shape, strict=False))
                    spread_out = moved.reshape([extent.get(axis, 1) for axis in names])
                    columns.append(np.broadcast_to(spread_out, shape).ravel())
        if not columns:
            return {}
        rows = np.packbits(np.stack(columns, axis=1), axis=1)
        outcomes, first = np.unique(rows, axis=0, return_index=True)
        return {
            outcome.tobytes(): tuple(int(i) for i in np.unravel_index(at, shape))
            for outcome, at in zip(outcomes, first, strict=True)
        }


def _compared_constants(graph: Graph, known: Mapping[int, Fraction]) -> list[Fraction]:
    """Return the numbers at which comparisons of a program change, solved for their operands and inputs."""
    found: list[Fraction] = []
    for step in graph.steps:
        if step.op == "relu":
            found.append(Fraction(0))
        if step.op not in OPS or not (OPS[step.op].mask or step.op in ("maximum", "minimum")):
            continue
        for i, j in ((0, 1), (1, 0)) if len(step.inputs) == 2 else ():
            other = graph.step_of(step.inputs[j])
            if other is not None and other.value is not None and step.inputs[j] not in known:
                found.append(other.value)  # a rounded root, or a multiple of pi
            if step.inputs[j] in known:
                number: Fraction | None = known[step.inputs[j]]
                value = step.inputs[i]
                while number is not None:
                    found.append(number)
                    value, number = _inverted(graph, known, value, number)
    return found


def _inverted(
    graph: Graph, known: Mapping[int, Fraction], value: int, number: Fraction
) -> tuple[int, Fraction | None]:
    """Return what an operand must be so that a step with a constant makes this number of it."""
    step = graph.step_of(value)
    if step is None:
        return value, None
    if step.op in ("rename", "select", "max"):
        return step.inputs[0], number
    if step.op == "neg":
        return step.inputs[0], -number
    if step.op not in ("add", "sub", "mul", "div") or len(set(step.inputs) & known.keys()) != 1:
        return value, None
    left = step.inputs[0] in known
    constant, operand = known[step.inputs[0 if left else 1]], step.inputs[1 if left else 0]
    match step.op:
        case "add":
            return operand, number - constant
        case "sub":
            return operand, constant - number if left else number + constant
        case "mul":
            return operand, number / constant if constant else None
    if left:
        return operand, constant / number if number else None
    return operand, number * constant


def _meeting_groups(graphs: Iterable[Graph], groups: Mapping[str, str]) -> frozenset[str]:
    """Return the groups of axes along which some step moves or gathers, or that hold twins."""
    found: set[str] = set()
    for graph in graphs:
        for step in graph.steps:
            if step.op != "size":
                found.update(groups[axis] for axis in step.axes)
            found.update(groups[axis] for pair in step.mapping for axis in pair if isinstance(axis, str))
            found.update(groups[axis] for place in step.places for axis in place.named)
        members = Counter(groups[axis.name] for axis in graph.axes)
        found.update(group for group, count in members.items() if count > 1)
    return frozenset(found)
