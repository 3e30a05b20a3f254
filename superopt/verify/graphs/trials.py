"""Trials: both graphs evaluated in one field, and a place where they differ."""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superopt.verify.evaluation.interpret import interpret, output_tensor
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import UNDEFINED, Residues
from superopt.verify.graphs.setting import Setting
from superopt.verify.verdict import Witness

__all__ = ["Tally", "batches", "compare"]

_Pairs: TypeAlias = list[tuple[Residues, Residues]]
_SPARE = 1.05
_JUDGED = 256  # disagreeing trials whose orders are judged, at most
_JUDGING_S = 0.8  # about so many seconds of trials are judged at a time
_MORE = 8  # after a few quick trials, this many times as many are judged next


@dataclass(slots=True)
class Tally:
    """Counts of trials, and what was seen in them."""

    drawn: int = 0
    rooted: int = 0  # trials in which every root is the root of a square
    compared: int = 0
    kept: int = 0  # trials in which both programs were defined everywhere
    dismissed: int = 0  # trials that disagreed, but in an order that real numbers do not have
    undefined: list[int] = field(default_factory=lambda: [0, 0])  # trials in which each graph divided by zero
    met: Counter[Hashable] = field(default_factory=Counter)  # in how many trials each comparison tied
    # How choices turned out in all trials, and in those with roots of squares only.
    outcomes: set[tuple[int, int, bool]] = field(default_factory=set)
    shown: set[tuple[int, int, bool]] = field(default_factory=set)
    # Which trials of those that were compared last had all results.
    whole: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    @property
    def unseen(self) -> set[tuple[int, int, bool]]:
        """How choices turned out only where some root has no value."""
        return self.outcomes - self.shown

    def lacking(self, wanted: int) -> int:
        """Return how many trials to compare until enough are kept, by the share so far."""
        lacking = max(wanted - self.kept, 0)
        return ceil(_SPARE * lacking * self.compared / self.kept) if self.kept else lacking

    @property
    def share(self) -> float:
        """The fraction of all trials that is kept; never 0."""
        rooted = max(self.rooted, 1) / max(self.drawn, 1)
        return min(1.0, rooted * max(self.kept, 1) / max(self.compared, 1))


def batches(
    setting: Setting, drawn: Field, good: NDArray[np.int64], most: int | None = None
) -> Iterator[Field]:
    """Yield the fields of some trials, as many at a time as fit in memory."""
    count = min(setting.batch, most or setting.batch)
    for start in range(0, good.size, count):
        yield drawn.take(good[start : start + count])


def compare(
    setting: Setting, drawn: Field, tally: Tally, *, judged: bool = True, rootless: bool = False
) -> Witness | None:
    """Return a place where the programs differ in some trial whose comparisons real numbers could have.

    In a trial that is `rootless`, some roots have no value, and what rests on one says nothing.
    """
    setting.check_time()
    pairs, raised = _outputs(setting, drawn)
    for site, (_, tied, _) in drawn.met.items():
        tally.met[site] += int(tied)
    whole = ~raised[0]
    disagree = np.zeros(drawn.trials, dtype=np.bool_)
    differ: list[NDArray[np.bool_]] = []
    for u, v in pairs:
        known = u < UNDEFINED, v < UNDEFINED
        rest = tuple(range(1, u.ndim))
        for side in (0, 1):
            tally.undefined[side] += int((~known[side]).any(axis=rest).sum())
        whole &= (known[0] & known[1]).all(axis=rest)
        # In programs that choose between numbers, 1 / 0 on one side alone is no accident.
        unlike = (u != v) & ((known[0] & known[1]) | (setting.facts.chooses and not rootless))
        refused, only = (one.reshape(-1, *(1,) * len(rest)) for one in (raised[0], raised[1]))
        differ.append((unlike | only) & ~refused)
        disagree |= differ[-1].any(axis=rest)
    places = np.flatnonzero(disagree)
    end = drawn.trials
    if judged and setting.facts.ordered and not setting.ranked and places.size:
        # Trials behind the last judged one are not counted: nobody looked at them.
        end = int(places[_JUDGED]) if places.size > _JUDGED else end
        places = places[:_JUDGED]
        differ = _possible(setting, drawn, places, differ)
        pairs = [(u[places], v[places]) for u, v in pairs]
        sound = np.array([one.reshape(places.size, -1).any(axis=1) for one in differ]).any(axis=0)
        tally.dismissed += int((~sound).sum())
        places = np.flatnonzero(sound)
    tally.compared += end
    tally.whole = whole[:end]
    tally.kept += int(tally.whole.sum())
    return _witness(setting, int(places[0]), pairs, differ) if places.size else None


def _possible(
    setting: Setting, drawn: Field, places: NDArray[np.intp], differ: list[NDArray[np.bool_]]
) -> list[NDArray[np.bool_]]:
    """Return which differences in some trials real numbers could have, as many at once as are quick."""
    parts = []
    count = setting.judge.at_once
    while places.size:
        setting.check_time()
        start = perf_counter()
        some, places = places[:count], places[count:]
        parts.append(setting.judge.possible(drawn.take(some), [one[some] for one in differ]))
        if perf_counter() - start < _JUDGING_S / _MORE:
            count *= _MORE
    return [np.concatenate(of_output) for of_output in zip(*parts, strict=True)]


def _outputs(setting: Setting, drawn: Field) -> tuple[_Pairs, list[NDArray[np.bool_]]]:
    """Return the outputs of both programs, each at the first level that both have, and who raises."""
    tiny = setting.tiny
    one, other = setting.facts.graphs
    left = interpret(one, drawn, tiny.sizes, numbers=tiny.known_numbers(one))
    raised = [drawn.raised]
    drawn.raised = np.zeros_like(drawn.raised)
    right = interpret(other, drawn, tiny.sizes, numbers=tiny.known_numbers(other))
    raised.append(drawn.raised)
    found = []
    for x, y, level in zip(one.outputs, other.outputs, setting.firsts, strict=True):
        u = output_tensor(one, x, left[x.value], tiny.sizes)[level]
        v = output_tensor(other, y, right[y.value], tiny.sizes)[level]
        both = np.broadcast_arrays(u, v)
        shape = (drawn.trials, *both[0].shape[1:])
        found.append((np.broadcast_to(both[0], shape), np.broadcast_to(both[1], shape)))
    return found, raised


def _witness(setting: Setting, trial: int, pairs: _Pairs, differ: list[NDArray[np.bool_]]) -> Witness:
    for output, (u, v), where in zip(setting.facts.left.outputs, pairs, differ, strict=True):
        if where[trial].any():
            position = tuple(int(i) for i in np.argwhere(where[trial])[0])
            place = (trial, *position)
            return Witness(
                output.port.name, position, int(u[place]), int(v[place]), setting.seed, setting.variant
            )
    raise AssertionError("no output differs")
