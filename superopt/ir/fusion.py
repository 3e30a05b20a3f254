"""Fuse: the default schedule of a graph, from which better ones start.

A kernel takes as many steps as can share a grid; a value that must cross programs, such as a sum over
an axis of the next step's grid, ends it. A reduction of what is itself reduced combines partial
results: it starts a new kernel, so that the programs of the one before share out the axis. Inside a
kernel every reduction is walked tile by tile, reductions over the same axis and pass in one loop; what
a second pass needs of the first one's tiles is computed again, unless that is a contraction: then the
kernel ends before the second pass. A shift made from maxima may run in the loop that finds them, where
all that depends on it has a degree (see `running`): then there is no second pass.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from superopt.errors import GraphError
from superopt.ir.cut import closed_values
from superopt.ir.graph import Graph, live_graph, needed_order, value_axes
from superopt.ir.mugraph import Block, Call, Kernel, Loop, MuGraph, Split, Tile, check_mugraph
from superopt.ir.running import Growth, growths, rescaled_by
from superopt.ir.text import value_names

__all__ = ["FusionChoices", "fuse", "is_matmul"]

_WHOLE = 1024  # positions: an axis up to here may be whole inside a tile
_HELD = 2048  # positions of whole axes: 16 rows of so many fill the registers of a program
_LITTLE = 1 << 15  # positions: so much is done by one program before another kernel could begin
_FAVOUR = 4  # so many times longer than the outer one may an inner reduction be and still stay whole
_REDUCTIONS = ("sum", "max", "contract")
_PARTS = {"sum": ("sum", "contract"), "max": ("max",)}  # of what each may combine partial results


@dataclass(frozen=True, slots=True)
class FusionChoices:
    """What a schedule may decide otherwise than the default does."""

    cuts: frozenset[int] = frozenset()  # values that end a kernel
    joined: bool = False  # a reduction of a reduction stays in its kernel, and combines no parts
    tile: int = 32  # positions: what a program does at least of a grid axis, to weigh repeated work
    looped: frozenset[str] = frozenset()  # axes that are walked along: not on the grid, nor whole in a tile
    whole: frozenset[str] = frozenset()  # axes that stay whole inside a tile where they are short enough
    repeated: bool = False  # programs along an axis may all compute what only the first of them stores
    held: int = _HELD  # positions of whole axes that a tile may have, where a kernel can end earlier


_DEFAULTS = FusionChoices()


def fuse(
    graph: Graph,
    *,
    library: Callable[[Graph, int], bool] = lambda graph, value: False,
    splits: Sequence[Split] = (),
    online: bool = False,
    choices: FusionChoices = _DEFAULTS,
) -> MuGraph:
    """Return the graph as fused kernels; steps that no output needs are left out.

    Values that `library` picks are computed by calls of a library, each a kernel of its own. Parts of
    `splits` are combined in a kernel after the one that makes them. Without `online` no shift runs:
    what uses a maximum waits for it. Values that `choices` names are those of `live_graph(graph)`.
    """
    graph = live_graph(graph)
    facts = _Facts(graph, tuple(splits), online, choices)
    rounds = _rounds(graph, splits, joined=choices.joined)
    order = [value for value in needed_order(graph) if not facts.closed[value]]
    order.sort(key=rounds.__getitem__)
    kernels: list[Kernel] = []
    called = {value for value in order if library(graph, value)}
    while order:
        if order[0] in called:
            kernels.append(Call((Tile(order.pop(0)),)))
            continue
        fit = sum(rounds[value] == rounds[order[0]] for value in order)
        fit = next((i for i, value in enumerate(order[:fit]) if value in called), fit)
        fit = next((i for i, value in enumerate(order[:fit], 1) if value in choices.cuts), fit)
        for count in range(fit, 0, -1):
            block = _Fusion(facts, frozenset(order[:count])).block(alone=count == 1)
            if block is not None:
                kernels.append(block)
                order = order[count:]
                break
        else:
            raise GraphError(f"graph {graph.name!r}: no kernel alone computes {value_names(graph)[order[0]]}")
    for value in sorted({output.value for output in graph.outputs}):
        if facts.closed[value] and value >= len(graph.inputs):
            block = _Fusion(facts, frozenset({value})).block(alone=True)
            assert block is not None
            kernels.append(block)
    return check_mugraph(MuGraph(graph, tuple(kernels), tuple(splits)))


def is_matmul(graph: Graph, value: int) -> bool:
    """Return whether a value is a contraction with an axis of its own on either side, read from memory."""
    step = graph.step_of(value)
    if step is None or step.op != "contract":
        return False
    axes = value_axes(graph)
    closed = closed_values(graph)
    a, b = step.inputs
    return bool(axes[a] - axes[b] and axes[b] - axes[a]) and not (closed[a] or closed[b])


def _rounds(graph: Graph, splits: Sequence[Split], *, joined: bool) -> list[int]:
    """Return for each value how often partial results were combined before it is known."""
    axes = value_axes(graph)
    outer = frozenset(split.outer for split in splits)
    inner = frozenset(split.inner for split in splits)
    rounds = [0] * len(graph.inputs)
    parted = [0] * len(graph.inputs)  # the last round in which something on the way went along a part
    for step in graph.steps:
        made = graph.step_of(step.inputs[0]) if step.op in _PARTS else None
        nested = made is not None and made.op in _PARTS[step.op]
        meets = step.op in _REDUCTIONS and not outer.isdisjoint(step.axes)
        found = max((rounds[i] for i in step.inputs), default=0)
        last = max((parted[i] for i in step.inputs), default=0)
        found = max(found, last + 1) if meets else found + (nested and not joined)
        rounds.append(found)
        along = any(not inner.isdisjoint(axes[i]) for i in step.inputs)
        parted.append(max(last, found) if along else last)
    return rounds


@dataclass(frozen=True, slots=True)
class _Shift:
    """A shift made from maxima over an axis: the values on the way, and what can be rescaled for it."""

    value: int
    path: frozenset[int]
    rescalable: frozenset[int]


class _UnfitError(Exception):
    """These steps do not make one kernel."""


class _Facts:
    """What all kernels of one graph are made from."""

    def __init__(self, graph: Graph, splits: tuple[Split, ...], online: bool, choices: FusionChoices) -> None:
        self.graph = graph
        self.splits = splits
        self.online = online
        self.choices = choices
        self.sizes = graph.sizes
        self.axes = value_axes(graph)
        self.closed = closed_values(graph)
        self.readers: list[list[int]] = [[] for _ in self.axes]
        for value, step in enumerate(graph.steps, len(graph.inputs)):
            for i in step.inputs:
                self.readers[i].append(value)
        self.outputs = frozenset(output.value for output in graph.outputs)
        self.spread = {  # axes along which an output repeats its value
            output.value: frozenset(output.port.axes) - self.axes[output.value] for output in graph.outputs
        }
        first = len(graph.inputs)
        self.inputs = (*([()] * first), *(step.inputs for step in graph.steps))
        self.reduced = tuple(
            frozenset(step.axes) if step is not None and step.op in _REDUCTIONS else frozenset[str]()
            for step in map(graph.step_of, range(len(self.axes)))
        )
        self.mappings = {  # of steps that read other places of a value
            value: step.mapping for value, step in enumerate(graph.steps, first) if step.mapping
        }
        self.maxima: list[frozenset[str]] = [frozenset()] * first  # axes of maxima that a value is made from
        for step in graph.steps:
            over = frozenset(step.axes) if step.op == "max" else frozenset[str]()
            passed = step.op not in ("sum", "contract")
            below = (self.maxima[i] for i in step.inputs) if passed else ()
            self.maxima.append(over.union(*below))
        self.shift_growths: dict[int, Mapping[int, Growth | None]] = {}
        self.work = tuple(  # the axes along which a step does its work
            axes.union(*(self.axes[i] for i in inputs))
            for axes, inputs in zip(self.axes, self.inputs, strict=True)
        )
        self.volumes: dict[frozenset[str], int] = {}
        self.constants: list[frozenset[int]] = []  # the closed values that a value is made from
        for inputs in self.inputs:
            read = [i for i in inputs if self.closed[i]]
            self.constants.append(frozenset(read).union(*(self.constants[i] for i in read)))

    def volume(self, axes: frozenset[str]) -> int:
        """Return how many positions there are along axes."""
        found = self.volumes.get(axes)
        if found is None:
            found = self.volumes[axes] = prod(self.sizes[axis] for axis in axes)
        return found

    def growths(self, shift: int) -> Mapping[int, Growth | None]:
        """Return the growth of every value that is made from a shift."""
        if shift not in self.shift_growths:
            self.shift_growths[shift] = growths(self.graph, shift)
        return self.shift_growths[shift]


class _Fusion:
    """Some steps of a graph as one kernel, if they can be one."""

    def __init__(self, facts: _Facts, values: frozenset[int]) -> None:
        self.facts = facts
        self.graph = facts.graph
        self.splits = facts.splits
        self.sizes = facts.sizes
        self.axes = facts.axes
        self.closed = facts.closed
        self.stored = sorted(
            value
            for value in values
            if value in facts.outputs or any(reader not in values for reader in facts.readers[value])
        )
        self.values = sorted(values.union(*(facts.constants[value] for value in values)))
        self.inside = frozenset(self.values)
        self.operands = {value: [i for i in facts.inputs[value] if i in self.inside] for value in self.values}
        self.work = {value: self._work(value) for value in self.values}
        self.looped: frozenset[str] = frozenset()
        self.done: set[int] = set()

    @cached_property
    def shifts(self) -> dict[str, list["_Shift"]]:
        """The shifts that may run in a loop over an axis, by axis."""
        return self._shifts() if self.facts.online else {}

    def block(self, *, alone: bool) -> Block | None:
        """Return the kernel, or None where it would be a bad one; a step alone always makes one."""
        reduced, mapped = self._reduced(), self._mapped()
        chosen = self.facts.choices
        shared = self._shared() - reduced - mapped
        free = shared - chosen.looped - chosen.whole
        grid = frozenset(axis for axis in free if self._worth(axis)) | self._parts(shared)
        if any(split.inner in self._touched() and split.outer not in grid for split in self.splits):
            return None
        off = frozenset[str]().union(*self.work.values()) - grid
        short = frozenset(axis for axis in chosen.whole & off if self.sizes[axis] <= _WHOLE)
        whole = mapped | (self._whole(reduced, off) - chosen.looped) | short
        self.looped = off - whole
        fits = self.looped <= reduced | chosen.looped
        fits &= all(self.sizes[axis] <= _WHOLE for axis in mapped)
        fits &= self._most_held(whole) <= chosen.held
        alone_does = bool(self.looped & chosen.looped)  # one program does it all where so chosen
        alone_does |= max(map(self.facts.volume, self.work.values())) <= _LITTLE
        fits &= bool(grid) or alone_does or not any(self.axes[value] for value in self.stored)
        try:
            if not (fits or alone):
                return None
            body = self._body(self.stored, frozenset(), frozenset(), frozenset())
        except _UnfitError:
            if not alone:
                return None
            self.looped, self.done = frozenset(), set()
            body = self._body(self.stored, frozenset(), frozenset(), frozenset())
        return Block(self._in_order(grid), body)

    def _shared(self) -> frozenset[str]:
        """Return the axes that may be on the grid: of all that is stored; of the largest, where chosen so."""
        stored = [self.axes[value] for value in self.stored]
        common = frozenset.intersection(*stored)
        if not self.facts.choices.repeated:
            return common
        inner = {split.inner for split in self.splits}
        spread = {axis for axes in self.facts.spread.values() for axis in axes}
        largest = max(stored, key=self.facts.volume)
        return common | (largest - inner - spread)

    def _touched(self) -> frozenset[str]:
        """Return the axes along which the kernel does or reads anything."""
        return frozenset[str]().union(*self.work.values())

    def _parts(self, shared: frozenset[str]) -> frozenset[str]:
        """Return the axes of parts that this kernel makes: each program is in one of them."""
        touched = self._touched()
        return frozenset(split.outer for split in self.splits if split.inner in touched) & shared

    def _shifts(self) -> dict[str, list["_Shift"]]:
        """Return for each axis the shifts that may run in a loop over it."""
        found: dict[str, list[_Shift]] = {}
        reduced = self._reduced()
        for shift in self.values:
            for axis in sorted((self.facts.maxima[shift] - self.axes[shift]) & reduced):
                path = self._path(shift, axis)
                read = any(axis in self.work[v] and shift in self._operands(v) for v in self.values)
                grows = any(axis in self._reduced_by(value) for value in path)
                if read and grows and not self._reduced_by(shift) and not self._leaves(shift, axis):
                    found.setdefault(axis, []).append(_Shift(shift, path, self._rescalable(shift, axis)))
        return found

    def _leaves(self, shift: int, axis: str) -> bool:
        """Whether a value along an axis that depends on a shift is stored: the shift must not move then."""
        return any(axis in self.axes[v] and v in self.facts.growths(shift) for v in self.stored)

    def _path(self, shift: int, axis: str) -> frozenset[int]:
        """Return the values from maxima over an axis to a shift, all included; empty if there are others."""
        path: set[int] = set()
        pending = [shift]
        while pending:
            value = pending.pop()
            step = self.graph.step_of(value)
            assert step is not None
            if axis in self._reduced_by(value):
                if step.op != "max":
                    return frozenset()
            elif step.op in _REDUCTIONS or step.mapping:
                continue
            else:
                pending += [i for i in self._operands(value) if axis in self._reduced_before(i)]
            path.add(value)
        return frozenset(path)

    def _reduced_before(self, value: int) -> frozenset[str]:
        """Return the axes over which this kernel reduces on the way to a value."""
        made = {value, *self._ancestors([value], ())}
        return frozenset[str]().union(*map(self._reduced_by, made))

    def _rescalable(self, shift: int, axis: str) -> frozenset[int]:
        """Return the values that may be computed while a shift runs in a loop over an axis."""
        found = set()
        for value, growth in self.facts.growths(shift).items():
            summed = value in self.inside and axis in self._reduced_by(value)
            if summed and rescaled_by(growth) is not None and self.axes[shift] <= self.axes[value]:
                found.add(value)
        return frozenset(found)

    def _in_order(self, axes: frozenset[str]) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.graph.axes if axis.name in axes)

    def _operands(self, value: int) -> list[int]:
        """Return the operands that this kernel computes itself."""
        return self.operands[value]

    def _reduced_by(self, value: int) -> frozenset[str]:
        return self.facts.reduced[value]

    def _reduced(self) -> frozenset[str]:
        return frozenset[str]().union(*map(self._reduced_by, self.values))

    def _mapped(self) -> frozenset[str]:
        """Return the axes along which a step reads other places of a value of this kernel."""
        made = (value for value in self.values if value in self.facts.mappings and self._operands(value))
        pairs = (pair for value in made for pair in self.facts.mappings[value])
        return frozenset(axis for pair in pairs for axis in pair if isinstance(axis, str))

    def _work(self, value: int) -> frozenset[str]:
        """Return the axes along which a step does its work."""
        if value in self.facts.mappings and not self._operands(value):
            return self.axes[value]  # read from memory as it is needed
        return self.facts.work[value]

    def _worth(self, axis: str) -> bool:
        """Whether programs along an axis repeat no more work than the largest one they share out."""
        shared = max(self.facts.volume(work) for work in self.work.values() if axis in work)
        repeats = self.sizes[axis] / self.facts.choices.tile
        return all(
            axis in work or self.closed[value] or repeats * self.facts.volume(work) <= shared
            for value, work in self.work.items()
        )

    def _whole(self, reduced: frozenset[str], off: frozenset[str]) -> set[str]:
        """Return the axes that are whole inside a tile: short ones, of nested reductions rather the inner."""
        whole = set(off - reduced)
        for value in self.values:
            for axis in self._reduced_by(value) & off:
                for carried in self.axes[value] & reduced & off:
                    inner = self.sizes[axis] <= _FAVOUR * self.sizes[carried]
                    whole.add(axis if inner else carried)
        return {axis for axis in whole if self.sizes[axis] <= _WHOLE}

    def _most_held(self, whole: frozenset[str]) -> int:
        """Return how many positions of whole axes the largest tile has, of those that are made or read."""
        values = {*self.values, *(i for value in self.values for i in self.facts.inputs[value])}
        held = {self.axes[value] for value in values}
        kept = self._touched() & whole
        return max((self.facts.volume(axes & kept) for axes in held), default=1)

    def _body(
        self, targets: Sequence[int], known: frozenset[int], around: frozenset[str], path: frozenset[int]
    ) -> tuple[Tile | Loop, ...]:
        """Return what computes the targets inside loops over these axes, from what is known there.

        What is on the path of a running shift is read while it still grows.
        """
        items: list[Tile | Loop] = []
        have = set(known)
        made: set[int] = set()
        needed = sorted(self._ancestors(targets, known) | set(targets))
        while True:
            for value in needed:
                ready = value not in made and value not in have and have.issuperset(self._operands(value))
                if ready and self.work[value] & self.looped <= around:
                    items.append(self._tile(value))
                    made.add(value)
                    if not self._reduced_by(value) & around or value in path:
                        have.add(value)
            if made.issuperset(targets):
                return tuple(items)
            axis, together = self._next_loop([v for v in needed if v not in made], targets, have, around)
            shifts = self._run(axis, together, have)
            runs = frozenset[int]().union(*(one.path for one in shifts))
            body = self._body(together, frozenset(have), around | {axis}, runs)
            items.append(Loop(axis, body, tuple(one.value for one in shifts)))
            made.update(together)
            have.update(
                value
                for value in together
                if self.axes[value] & self.looped <= around and not self._reduced_by(value) & around
            )

    def _next_loop(
        self, missing: Sequence[int], targets: Sequence[int], have: set[int], around: frozenset[str]
    ) -> tuple[str, list[int]]:
        """Return the axis to walk along next, and the values that the walk can finish."""
        results = {value for value in missing if self.axes[value] & self.looped <= around}
        before = {value: self._ancestors([value], have) for value in missing}
        fit: dict[str, list[int]] = {}
        for value in missing:
            if value in results or value in targets:
                for axis in self._in_order((self._loops_of(value) & self.looped) - around):
                    unfinished = {i for i in before[value] if i in results or axis in self._reduced_by(i)}
                    partial = axis in self._reduced_by(value) and value not in results
                    if not partial and not unfinished - self._running(value, axis, around):
                        fit.setdefault(axis, []).append(value)
        for axis in list(fit):
            fit[axis] = self._without_idle(axis, fit[axis])
            if not fit[axis]:
                del fit[axis]
        if not fit:
            raise _UnfitError
        first = min(value for values in fit.values() for value in values)
        axis = max(
            (axis for axis in fit if first in fit[axis]),
            key=lambda axis: sum(axis in self.work[i] for i in before[first]),
        )
        return axis, fit[axis]

    def _loops_of(self, value: int) -> frozenset[str]:
        """Return the axes of loops in which a value may be computed: of its work, and where it runs."""
        along = {axis for axis, shifts in self.shifts.items() if any(value in one.path for one in shifts)}
        return self.work[value] | along

    def _running(self, value: int, axis: str, around: frozenset[str]) -> frozenset[int]:
        """Return the unfinished values that a value may read in a loop, as they run there."""
        found: set[int] = set()
        for one in self.shifts.get(axis, ()):
            alone = all(self._reduced_by(i) & (self.looped | around) <= {axis} for i in one.path)
            whole = self._reduced_by(value) & (self.looped | around) <= {axis}
            if alone and ((value in one.rescalable and whole) or value in one.path):
                found |= one.path
        return frozenset(found)

    def _without_idle(self, axis: str, values: Sequence[int]) -> list[int]:
        """Return what a loop can finish, without shifts that nothing in it would use."""
        shifts = self.shifts.get(axis, ())
        used = [one for one in shifts if not one.rescalable.isdisjoint(values)]
        idle = {i for one in shifts for i in one.path if axis not in self._reduced_by(i)}
        return [value for value in values if value not in idle or any(value in one.path for one in used)]

    def _run(self, axis: str, together: Sequence[int], have: Iterable[int]) -> list["_Shift"]:
        """Return the shifts that run in a loop over an axis that computes these values."""
        before = self._ancestors(together, have)
        return [
            one
            for one in self.shifts.get(axis, ())
            if one.value in before
            and any(value in one.rescalable for value in together)
            and any(axis in self.work[v] and one.value in self._operands(v) for v in before | set(together))
        ]

    def _ancestors(self, values: Sequence[int], known: Iterable[int]) -> set[int]:
        """Return what the values are made from in this kernel, as far as it is not known."""
        found: set[int] = set()
        known = set(known)
        pending = [i for value in values for i in self._operands(value)]
        while pending:
            value = pending.pop()
            if value not in found and value not in known:
                found.add(value)
                pending += self._operands(value)
        return found

    def _tile(self, value: int) -> Tile:
        again = value in self.done and not self.closed[value]
        step = self.graph.step_of(value)
        if again and step is not None and step.op == "contract":
            raise _UnfitError
        self.done.add(value)
        return Tile(value, again)
