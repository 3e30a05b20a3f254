"""Blocks: some steps of a graph as one kernel, with its grid and its loops, if they can be one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from superopt.ir.graph import REDUCTIONS, made_from
from superopt.ir.mugraph.facts import Facts
from superopt.ir.mugraph.kernels import Block, Loop, Tile
from superopt.ir.running import rescaled_by

__all__ = ["Fusion"]

_WHOLE = 1024  # positions: an axis up to here may be whole inside a tile
_LITTLE = 1 << 15  # positions: so much is done by one program before another kernel could begin
_FAVOUR = 4  # an inner reduction stays whole up to so many times the length of the outer one


@dataclass(frozen=True, slots=True)
class _Shift:
    """A shift made from maxima over an axis: the values on the way, and what can be rescaled for it."""

    value: int
    path: frozenset[int]
    rescalable: frozenset[int]


class _UnfitError(Exception):
    """These steps do not make one kernel."""


class Fusion:
    """Some steps of a graph as one kernel, if they can be one."""

    def __init__(self, facts: Facts, values: frozenset[int]) -> None:
        self.facts = facts
        self.graph = facts.graph
        self.splits = facts.splits
        self.sizes = facts.sizes
        self.axes = facts.axes
        self.tensorless = facts.tensorless
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
        if any(self.facts.windows.get(value) in self.inside for value in self.values):
            return None  # a window reads what an earlier kernel has stored
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
        # One program walks the whole axis where the schedule chose so.
        alone_does = bool(self.looped & chosen.looped)
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
            step = self.graph.step_at(value)
            if axis in self._reduced_by(value):
                if step.op != "max":
                    return frozenset()
            elif step.op in REDUCTIONS or step.mapping:
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
            axis in work or self.tensorless[value] or repeats * self.facts.volume(work) <= shared
            for value, work in self.work.items()
        )

    def _whole(self, reduced: frozenset[str], off: frozenset[str]) -> set[str]:
        """Return the axes that are whole inside a tile: short ones, of nested reductions rather the inner.

        Of two axes that are reduced within each other, what is stored has one, which is whole.
        """
        nested = {
            (axis, carried)
            for value in self.values
            for axis in self._reduced_by(value) & off
            for carried in self.axes[value] & reduced & off
        }
        kept = frozenset[str]().union(*(self.axes[value] for value in self.stored))
        whole = set(off - reduced)
        for axis, carried in nested:
            inner = self.sizes[axis] <= _FAVOUR * self.sizes[carried]
            if (carried, axis) in nested and (axis in kept) != (carried in kept):
                inner = axis in kept
            whole.add(axis if inner else carried)
        return {axis for axis in whole if self.sizes[axis] <= _WHOLE}

    def _most_held(self, whole: frozenset[str]) -> int:
        """Return how many positions of whole axes the largest tile has that a kernel makes or reads."""
        values = {*self.values, *(i for value in self.values for i in self.facts.inputs[value])}
        held = {self.axes[value] for value in values if value not in self.facts.windows}
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
        known = set(known)

        def unknown(value: int) -> list[int]:
            return [i for i in self._operands(value) if i not in known]

        return made_from((i for value in values for i in unknown(value)), unknown)

    def _tile(self, value: int) -> Tile:
        recomputed = value in self.done and not self.tensorless[value]
        step = self.graph.step_of(value)
        if recomputed and step is not None and step.op == "contract":
            raise _UnfitError
        self.done.add(value)
        return Tile(value, recomputed)
