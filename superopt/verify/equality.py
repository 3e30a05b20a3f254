"""Equality of two graphs as exact algebra: random tests over finite fields, with an error bound."""

from dataclasses import dataclass, replace
from math import log2
from time import perf_counter

import numpy as np

from superopt.ir import Graph, Output, live_graph, value_axes
from superopt.ops import OPS
from superopt.verify.align import Aligned, align_graphs
from superopt.verify.bound import error_bound
from superopt.verify.draws import Roots, batch_size, elements
from superopt.verify.field import Field, Residues
from superopt.verify.interpret import Tiny, interpret, levels_of, tiny_sizes
from superopt.verify.residues import TOWER, mix
from superopt.verify.verdict import Verdict, Witness

__all__ = ["equal_graphs"]

_TARGET_BITS = 60
_VARIANTS = (0, 1)
_LEAST_TRIALS = 8
_MOST_TRIALS = 4096
_MOST_DRAWS = 1 << 20  # trials times elements of the cheapest root
_ROUNDS = 12
_CLASS_ROUND = 1000
_CLASS_TRIALS = 6
_CLASS_DRAWS = 512


def equal_graphs(
    a: Graph,
    b: Graph,
    *,
    trials: int | None = None,
    seed: int = 0,
    tower: tuple[int, ...] = TOWER,
) -> Verdict:
    """Return whether two graphs compute the same from the same inputs, as exact algebra.

    Inputs are matched by name, or by position where the names differ; outputs by position. A constant
    is the simple number it stands for, which makes 1/sqrt(128) and 128**-0.5 the same. Without
    `trials`, as many are drawn as bring the chance of error below 2^-60, up to a limit.
    """
    start = perf_counter()
    aligned = align_graphs(live_graph(a), live_graph(b))
    if _Names(aligned).primitives & {"exp", "sqrt"}:
        # Most equal programs are so for any functions in the place of exp and sqrt, and that is
        # shown with fewer trials, none of them lost to the root of a non-square.
        verdict = _decide(aligned, trials, seed, tower, sealed=True)
        if verdict.equal and verdict.error_bound is not None:
            return replace(verdict, seconds=perf_counter() - start)
    verdict = _decide(aligned, trials, seed, tower, sealed=False)
    return replace(verdict, seconds=perf_counter() - start)


def _decide(
    aligned: Aligned, trials: int | None, seed: int, tower: tuple[int, ...], *, sealed: bool
) -> Verdict:
    """Return the verdict of one kind of field."""
    bounds: list[float | None] = []
    notes: list[str] = []
    total = 0
    witness = None
    done = True
    for variant in _VARIANTS:
        comparison = _Comparison(aligned, variant, trials, seed, tower, sealed=sealed)
        witness = comparison.run()
        total += comparison.done
        done &= comparison.done > 0
        notes += [note for note in comparison.notes if note not in notes]
        bounds.append(comparison.error)
        if witness is not None or not done:
            break
    known = [bound for bound in bounds if bound is not None]
    equal = witness is None and done
    return Verdict(
        equal=equal,
        proven=witness is not None or done,
        trials=total,
        error_bound=max(known) if equal and len(known) == len(bounds) else None,
        witness=witness,
        oracles=tuple(sorted(_Names(aligned).functions)),
        notes=tuple(notes),
    )


def mix_seed(seed: int, number: int) -> int:
    """Return another seed for each number."""
    return int(mix(np.array([(seed * 1_000_003 + number) & (2**64 - 1)], dtype=np.uint64))[0])


@dataclass(slots=True)
class _Draws:
    """How many trials were drawn, had roots of squares only, were compared, had no zero divisor."""

    drawn: int = 0
    rooted: int = 0
    compared: int = 0
    kept: int = 0

    @property
    def share(self) -> float:
        """The fraction of all trials that is kept; never 0."""
        rooted = max(self.rooted, 1) / max(self.drawn, 1)
        return min(1.0, rooted * max(self.kept, 1) / max(self.compared, 1))


class _Comparison:
    """All trials of one choice of tiny sizes."""

    def __init__(
        self,
        aligned: Aligned,
        variant: int,
        trials: int | None,
        seed: int,
        tower: tuple[int, ...],
        *,
        sealed: bool,
    ) -> None:
        self.sealed = sealed
        self.left, self.right, self.links = aligned.left, aligned.right, aligned.links
        self.variant = variant
        self.seed = seed
        self.tower = tower
        self.levels = 1 if sealed else levels_of(self.left, self.right, limit=len(tower))
        self._choose(variant)
        if self.bound.per_trial() >= 1:
            self._choose(variant, smallest=True)
        self.trials = trials
        self.draws = _Draws()
        self.undefined = [0, 0]  # trials with a division by zero, of each graph
        self.done = 0
        self.error: float | None = None
        self.notes: list[str] = []

    def _choose(self, variant: int, *, smallest: bool = False) -> None:
        self.tiny = tiny_sizes(
            self.left,
            self.right,
            variant=variant,
            links=self.links,
            narrow=True,
            smallest=smallest,
        )
        self.roots = Roots(() if self.sealed else (self.left, self.right), self.tiny.sizes)
        self.bound = error_bound(
            self.left,
            self.right,
            self.tiny.sizes,
            tower=self.tower,
            classes=self._classes(),
            extents=self.tiny.extents,
            fixed=not self.tiny.positions,
            sealed=self.sealed,
        )

    def run(self) -> Witness | None:
        """Return a place where the graphs differ, or None; sets `done`, `error` and `notes`."""
        wanted = self.trials or self._wanted(1.0)
        count = 2 * wanted
        limit = max(count, _MOST_DRAWS // (self.levels * self.roots.least_work))
        for number in range(_ROUNDS):
            found = self.draws.rooted
            witness = self._round(self._field(number, count), self.roots, wanted)
            if witness is not None:
                return witness
            if self.trials is None:
                wanted = self._wanted(self.draws.share)
            if self.done >= wanted or (number and self.draws.rooted and not self.done):
                break
            scarce = self.draws.rooted - found < wanted - self.done
            count = min(limit, count * 8) if scarce else count
        if self.roots.stages and not self.draws.rooted:
            return self._unrooted()
        self._conclude()
        return None

    def _round(self, field: Field, roots: Roots, wanted: int) -> Witness | None:
        """Compare the good trials of one field."""
        good = roots.good(field)
        self.draws.drawn += field.trials
        self.draws.rooted += good.size
        good = good[: wanted - self.done]
        most = max(elements(graph, self.tiny.sizes) for graph in (self.left, self.right))
        batch = batch_size(most, self.levels)
        for start in range(0, good.size, batch):
            witness = self._compare(field.take(good[start : start + batch]))
            self.done = self.draws.kept
            if witness is not None:
                return witness
        return None

    def _unrooted(self) -> Witness | None:
        """Compare whatever the roots are of: there they are multiplicative, and that is all."""
        none = Roots((), self.tiny.sizes)
        witness = self._round(self._field(_ROUNDS, _LEAST_TRIALS), none, _LEAST_TRIALS)
        if witness is None and self.done:
            self.notes.append("no bound: too many square roots to draw squares for all")
            return None
        self.done = 0
        self.notes.append("undecided: too many square roots to draw squares for all")
        return None

    def _field(self, number: int, trials: int) -> Field:
        seed = mix_seed(mix_seed(self.seed, self.variant), number)
        return self.tiny.field(seed, trials=trials, levels=self.levels, tower=self.tower, sealed=self.sealed)

    def _classes(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return a number for each value of both graphs, the same where trials of their own agree.

        Only an accident of (degree / p)^trials makes different values of arithmetic and roots agree;
        the bound relies on it for no others, to see that exponentials and denominators are the same.
        """
        draws = self._field(_CLASS_ROUND, _CLASS_DRAWS if self.roots.stages else _CLASS_TRIALS)
        good = self.roots.good(draws)[:_CLASS_TRIALS]
        if good.size < _CLASS_TRIALS:
            return None
        field = draws.take(good)
        known: dict[object, int] = {}
        numbers = []
        for graph in (self.left, self.right):
            order = [axis.name for axis in graph.axes]
            own = []
            for value, axes in zip(interpret(graph, field, self.tiny.sizes), value_axes(graph), strict=True):
                named = tuple(sorted(axes))
                dims = [2 + order.index(axis) for axis in named]
                rest = [dim for dim in range(2, value.ndim) if dim not in dims]
                content = value.transpose(0, 1, *dims, *rest).tobytes()
                own.append(known.setdefault((named, content), len(known)))
            numbers.append(tuple(own))
        return numbers[0], numbers[1]

    def _compare(self, field: Field) -> Witness | None:
        left = interpret(self.left, field, self.tiny.sizes)
        before = field.zero_divisions.copy()
        right = interpret(self.right, field, self.tiny.sizes)
        self.undefined[0] += int((before > 0).sum())
        self.undefined[1] += int((field.zero_divisions > before).sum())
        sound = field.zero_divisions == 0
        self.draws.compared += field.trials
        self.draws.kept += int(sound.sum())
        for x, y in zip(self.left.outputs, self.right.outputs, strict=True):
            u = _tensor(self.left, x, left[x.value], self.tiny)[0]
            v = _tensor(self.right, y, right[y.value], self.tiny)[0]
            u, v = np.broadcast_arrays(u, v)
            differ = (u != v) & sound.reshape(-1, *(1,) * (u.ndim - 1))
            if differ.any():
                trial, *position = (int(i) for i in np.argwhere(differ)[0])
                place = (trial, *position)
                return Witness(
                    x.port.name, tuple(position), int(u[place]), int(v[place]), self.seed, self.variant
                )
        return None

    def _wanted(self, kept: float) -> int:
        error = self.bound.per_trial(kept=kept)
        if error >= 1:
            return _LEAST_TRIALS
        needed = 1 if error <= 0 else int(_TARGET_BITS / -log2(error)) + 1
        return max(_LEAST_TRIALS, min(needed, _MOST_TRIALS))

    def _conclude(self) -> None:
        error = self.bound.per_trial(kept=self.draws.share)
        if self.done <= 0:
            self.notes.append(self._why_none())
        elif error < 1:
            self.error = error**self.done
        else:
            self.notes.append(f"no bound: {self.bound.reason or 'too many terms'} at the smallest sizes")

    def _why_none(self) -> str:
        always = [bool(count) and count == self.draws.compared for count in self.undefined]
        if always == [True, True]:
            return "both programs divide by zero on every input"
        if any(always):
            one, other = ("first", "second") if always[0] else ("second", "first")
            return f"the {one} program divides by zero on every input, the {other} does not"
        return "no trial was free of divisions by zero"


def _tensor(graph: Graph, output: Output, value: Residues, tiny: Tiny) -> Residues:
    """Return an output with one dimension for each axis of its port that is not of extent 1."""
    order = [axis.name for axis in graph.axes]
    real = graph.sizes
    axes = [axis for axis in output.port.axes if real[axis] != 1]
    dims = [2 + order.index(axis) for axis in axes]
    rest = [dim for dim in range(2, value.ndim) if dim not in dims]
    moved = value.transpose(0, 1, *dims, *rest)
    shape = moved.shape[: 2 + len(dims)]
    whole = (*shape[:2], *(tiny.sizes[axis] for axis in axes))
    return np.broadcast_to(moved.reshape(shape), whole)


class _Names:
    """Scalars that only note which primitives and which unknown functions are used."""

    def __init__(self, aligned: Aligned) -> None:
        self.primitives: set[str] = set()
        self.functions: set[str] = set()
        for graph in (aligned.left, aligned.right):
            for op in {step.op for step in graph.steps if step.op in OPS}:
                OPS[op].scalar(self, *[None] * OPS[op].arity)

    def __getattr__(self, name: str) -> object:
        self.primitives.add(name)
        return lambda *args: None

    def function(self, name: str, *args: None) -> None:
        self.functions.add(name)
