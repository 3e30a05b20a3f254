"""Coverage: what draws of the inputs have shown of a program's comparisons.

A test in which a comparison was never seen both ways, or in which one way never reached a result that was
judged, has not tested it. What the draws did not show is searched for: inputs are scaled, moved, made
constant or equal to others as long as a comparison comes nearer to what is missing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from superopt.ir import Graph, Opaque, Region
from superopt.verify.floats.comparison import Comparison
from superopt.verify.floats.float64 import Float64
from superopt.verify.floats.focus import Focus, names_of
from superopt.verify.floats.observe import Known, Observation, Seen
from superopt.verify.floats.rounding import grain_of
from superopt.verify.floats.samples import tensors_of

if TYPE_CHECKING:
    pass

__all__ = ["Coverage", "Sight", "Watch", "unit_of"]

_VISIBLE = 64.0  # units in the last place below which a difference is not seen in results
_MOST_VISIBLE = 0.125

_Forced: TypeAlias = Mapping[int, Mapping[int, tuple[Tensor, bool]]]  # outcomes by node and by value


@dataclass(frozen=True, slots=True)
class Coverage:
    """What has not been seen of comparisons, in plain words; nothing where all was."""

    uncovered: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether each comparison was seen both ways, each where it reached a result."""
        return not self.uncovered


@dataclass(frozen=True, slots=True)
class Sight:
    """What one draw showed: which elements of results are certain, and what of the missing was met."""

    # The places whose results depend on no comparison in doubt; None for everywhere.
    certain: tuple[Tensor, ...] | None
    met: frozenset[tuple[Comparison, frozenset[int]]]
    happened: frozenset[tuple[Comparison, frozenset[int]]]  # met, though it may not have reached a result
    gaps: Mapping[Comparison, tuple[float, float]] = field(default_factory=dict)


class Watch:
    """What has been seen of the comparisons of a focus, over many draws."""

    def __init__(self, focus: Focus, unit: float = 2.0**-23) -> None:
        self.focus = focus
        self.unit = unit
        self.missing = {(one, demand) for one in focus.comparisons for demand in one.demands}
        self.happened: set[tuple[Comparison, frozenset[int]]] = set()

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    @property
    def coverage(self) -> Coverage:
        """What is still missing."""
        order = {one: at for at, one in enumerate(self.focus.comparisons)}
        left = sorted(self.missing, key=lambda item: (order[item[0]], sorted(item[1])))
        return Coverage(tuple(dict.fromkeys(self._told(*item) for item in left)))

    def _told(self, comparison: Comparison, demand: frozenset[int]) -> str:
        how = comparison.missing(demand)
        if (comparison, demand) in self.happened:
            return f"{comparison} was {how} only where no result shows it"
        return f"{comparison} was never {how}"

    def record(self, sight: Sight) -> None:
        """Note what a draw showed."""
        self.missing -= sight.met
        self.happened |= sight.happened

    def see(
        self, drawn: Sequence[Any], usable: Sequence[Tensor] | None = None, *, overflowing: bool = False
    ) -> Sight:
        """Return what a draw shows; `usable` tells which elements of the results are compared at all.

        Where the draw is `overflowing`, only NaN and infinity are looked for in the results.
        """
        certain: tuple[Tensor, ...] | None = None
        met: set[tuple[Comparison, frozenset[int]]] = set()
        happened: set[tuple[Comparison, frozenset[int]]] = set()
        gaps: dict[Comparison, tuple[float, float]] = {}
        if not self.missing and not self.focus.jumps:
            return Sight(None, frozenset(), frozenset())
        with torch.no_grad():
            runs = [_Run(self, number, drawn, overflowing) for number in range(len(self.focus.programs))]
            runs = [run for run in runs if run.comparisons]
            for run in runs:
                run.forward()
                certain = _both(certain, run.certain())
            judged = _both(None if usable is None else tuple(usable), certain)
            for run in runs:
                run.backward(judged)
                for comparison, seen, reach in run.found():
                    gaps[comparison] = seen.gap
                    for demand in (one for known, one in self.missing if known is comparison):
                        there, reached = _meets(seen, reach, demand)
                        reached |= there and comparison.is_tie(demand)
                        met |= {(comparison, demand)} if reached else set()
                        happened |= {(comparison, demand)} if there else set()
        return Sight(certain, frozenset(met), frozenset(happened), gaps)


def _both(a: tuple[Tensor, ...] | None, b: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
    """Return where both hold; None holds everywhere."""
    if a is None or b is None:
        return b if a is None else a
    return tuple(one & other.to(one.device) for one, other in zip(a, b, strict=True))


def _meets(seen: Seen, reach: Tensor | None, demand: frozenset[int]) -> tuple[bool, bool]:
    """Return whether a demand was met anywhere, and whether it was where it reached a result."""
    there = reduce(torch.logical_or, (seen.outcome == one for one in demand))
    if not bool(there.any()):
        return False, False
    if reach is None:
        return True, False
    there = there & reach
    there = there if seen.doubt is None else there & ~seen.doubt
    there = there if seen.visible is None else there & seen.visible
    return True, bool(there.any())


class _Run:
    """One program on one draw of the inputs, in float64."""

    def __init__(self, watch: Watch, number: int, drawn: Sequence[Any], overflowing: bool) -> None:
        focus = watch.focus
        self.program = focus.programs[number]
        self.nodes = focus.nodes[number]
        self.unit = watch.unit
        self.overflowing = overflowing
        self.wary = focus.jumps
        missing = {one for one, _ in watch.missing}
        self.comparisons = [
            one for one in focus.comparisons if one.program == number and (focus.jumps or one in missing)
        ]
        self.tensors = dict(zip(names_of(self.program), tensors_of(drawn), strict=True))
        if not isinstance(self.program, Graph):
            self.tensors = {**self.program.constants, **self.tensors}
        self.observed: dict[int, Observation] = {}
        self.marked: dict[int, frozenset[str]] = {}
        self.made: dict[str, Known] = {}
        self.reach: dict[str, Tensor] = {}

    def forward(self) -> None:
        """Run it and note how each comparison came out."""
        self.made = self._outputs({}, watching=True)

    def _outputs(self, forced: _Forced, *, watching: bool) -> dict[str, Known]:
        """Return all tensors of the program by name."""
        wary = watching and self.wary
        known = {
            name: Known(one, None, grain_of(one.double()) if wary else None)
            for name, one in self.tensors.items()
        }
        marked: set[str] = set()
        for at, node in enumerate(self.nodes):
            self.marked[at] = frozenset(marked)
            if isinstance(node, Region):
                compared = {one.value for one in self.comparisons if one.node == at and watching}
                observation = Observation(
                    node.graph,
                    frozenset(compared),
                    unit=self.unit,
                    visible=min(_VISIBLE * self.unit, _MOST_VISIBLE),
                    overflowing=self.overflowing,
                    marked=frozenset(marked) if watching else frozenset(),
                    wary=wary,
                    wary_later=any(one.node > at for one in self.comparisons),
                    forced=forced.get(at),
                )
                known |= observation.forward(known)
                marked |= observation.marked_outputs
                if watching:
                    self.observed[at] = observation
            else:
                known |= self._opaque(node, known)
                marked |= set(node.outputs) if marked & set(node.inputs) else set()
        return known

    def _opaque(self, node: Opaque, known: Mapping[str, Known]) -> dict[str, Known]:
        """Return what an operator outside the algebra makes; its numbers are rounded like any others."""
        assert not isinstance(self.program, Graph)
        device = next(iter(self.tensors.values())).device
        with Float64():
            made = self.program.run_opaque(node, {name: one.tensor for name, one in known.items()}, device)
        return {name: Known(one, self._error(one) if self.wary else None) for name, one in made.items()}

    def _error(self, made: Tensor) -> Tensor | None:
        if not made.dtype.is_floating_point:
            return None
        grain = grain_of(made)
        largest = float(torch.where(made.isfinite(), made.abs(), 0.0).max()) if made.numel() else 0.0
        exact = grain is not None and largest * self.unit <= 2 * grain
        return None if exact else torch.full_like(made, largest * self.unit)

    @property
    def results(self) -> list[str]:
        """The names of the tensors that the program returns, in order."""
        if isinstance(self.program, Graph):
            return [one.port.name for one in self.program.outputs]
        from superopt.trace.capture.tape import refs

        return [self.program.names[index] for index in refs(self.program.result)]

    def certain(self) -> tuple[Tensor, ...] | None:
        """Return which elements of the results are the same however comparisons in doubt come out."""
        doubts = {
            at: {value: seen.doubt for value, seen in one.seen.items() if _any(seen.doubt)}
            for at, one in self.observed.items()
        }
        if not any(doubts.values()):
            return None
        sides = []
        for outcome in (False, True):
            forced = {
                at: {value: (doubt, outcome) for value, doubt in some.items() if doubt is not None}
                for at, some in doubts.items()
            }
            sides.append(self._outputs(forced, watching=False))
        return tuple(sides[0][name].tensor == sides[1][name].tensor for name in self.results)

    def backward(self, judged: Sequence[Tensor] | None) -> None:
        """Note where a change of each comparison would reach what is judged."""
        for at, name in enumerate(self.results):
            tensor = self.made[name].tensor
            there = torch.isfinite(tensor)
            if judged is not None:
                there = there & judged[at].to(tensor.device)
            self._reaches(name, there)
        for at, node in reversed(list(enumerate(self.nodes))):
            if isinstance(node, Region):
                found = self.observed[at].backward(self.reach)
            else:
                shown = any(name in self.reach and _any(self.reach[name]) for name in node.outputs)
                inputs = self.marked[at] & set(node.inputs) if shown else ()
                found = {name: torch.ones_like(self.made[name].tensor, dtype=torch.bool) for name in inputs}
            for name, where in found.items():
                self._reaches(name, where)

    def _reaches(self, name: str, where: Tensor) -> None:
        self.reach[name] = where if name not in self.reach else self.reach[name] | where

    def found(self) -> Iterator[tuple[Comparison, Seen, Tensor | None]]:
        """Yield each comparison, how it came out, and where that reached what is judged."""
        for one in self.comparisons:
            observation = self.observed[one.node]
            yield one, observation.seen[one.value], observation.reach.get(one.value)


def _any(where: Tensor | None) -> bool:
    return where is not None and bool(where.any())


def unit_of(tensors: Iterable[Tensor]) -> float:
    """Return the unit in the last place of the least precise floats among tensors, at least float32's."""
    floats = [one.dtype for one in tensors if one.dtype.is_floating_point and one.dtype.itemsize > 1]
    return max((float(torch.finfo(one).eps) for one in floats), default=2.0**-23)
