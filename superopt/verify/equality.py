"""Equality of two graphs as exact algebra: random tests over finite fields, with an error bound."""

from dataclasses import dataclass
from math import log2
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph, Output, live_graph, value_axes
from superopt.ops import OPS
from superopt.verify.align import Aligned, align_graphs
from superopt.verify.bound import error_bound
from superopt.verify.field import Field, Residues
from superopt.verify.interpret import Tiny, interpret, levels_of, tiny_sizes
from superopt.verify.residues import TOWER, mix
from superopt.verify.verdict import Verdict, Witness

__all__ = ["equal_graphs"]

_TARGET_BITS = 60
_VARIANTS = (0, 1)
_LEAST_TRIALS = 8
_MOST_TRIALS = 4096
_BATCH_ELEMENTS = 1 << 20  # field elements of the largest value of one batch
_BATCHES = 64
_CLASS_TRIALS = 6
_CLASS_DRAWS = 512
_CLASS_SEED = 0x5EED


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
    bounds: list[float | None] = []
    notes: list[str] = []
    total = 0
    witness = None
    done = True
    for variant in _VARIANTS:
        comparison = _Comparison(aligned, variant, trials, mix_seed(seed, variant), tower)
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
        oracles=_oracles(aligned),
        notes=tuple(notes),
        seconds=perf_counter() - start,
    )


def mix_seed(seed: int, variant: int) -> int:
    """Return a seed for one variant of the sizes."""
    return int(mix(np.array([(seed * 1_000_003 + variant) & (2**64 - 1)], dtype=np.uint64))[0])


@dataclass(slots=True)
class _Draws:
    """How many trials were drawn, had roots of squares only, were compared, and had no zero divisor."""

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
        self, aligned: Aligned, variant: int, trials: int | None, seed: int, tower: tuple[int, ...]
    ) -> None:
        self.left, self.right, self.links = aligned.left, aligned.right, aligned.links
        self.variant = variant
        self.seed = seed
        self.tower = tower
        self.levels = levels_of(self.left, self.right, limit=len(tower))
        self.draws = _Draws()
        self._choose(variant)
        if self.bound.per_trial() >= 1:
            self._choose(variant, smallest=True)
        self.trials = trials
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
        self.bound = error_bound(
            self.left,
            self.right,
            self.tiny.sizes,
            tower=self.tower,
            classes=self._classes(),
            fixed=not self.tiny.positions,
        )

    def run(self) -> Witness | None:
        """Return a place where the graphs differ, or None; sets `done`, `error` and `notes`."""
        most = max(_largest(graph, self.tiny.sizes) for graph in (self.left, self.right))
        batch = max(1, min(512, _BATCH_ELEMENTS // (most * self.levels)))
        wanted = self.trials or self._wanted(1.0)
        for number in range(_BATCHES):
            count = min(batch, max(wanted - self.done, 4) * 2)
            field = self.tiny.field(self.seed + number, trials=count, levels=self.levels, tower=self.tower)
            good = self._good(field)
            if good.size:
                witness = self._compare(field.take(good[: wanted - self.done]))
                self.done = self.draws.kept
                if witness is not None:
                    return witness
                if self.trials is None:
                    wanted = self._wanted(self.draws.share)
            if self.done >= wanted:
                break
        self._conclude()
        return None

    def _classes(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return a number for each value of both graphs, the same where trials of their own agree.

        Only an accident of (degree / p)^trials makes different values of arithmetic and roots agree;
        the bound relies on it for no others, to see that exponentials and denominators are the same.
        """
        draws = self.tiny.field(self.seed ^ _CLASS_SEED, trials=_CLASS_DRAWS, levels=1, tower=self.tower)
        good = self._good(draws)[:_CLASS_TRIALS]
        self.draws = _Draws()
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

    def _good(self, field: Field) -> NDArray[np.int64]:
        """Return the trials in which nothing is divided by zero and roots are of squares only."""
        draws = self.draws
        draws.drawn += field.trials
        alive = np.arange(field.trials)
        for graph in (self.left, self.right):
            roots = _ancestors(graph, {"sqrt", "rsqrt"})
            if roots and alive.size:
                probe = field.take(alive)
                interpret(graph, probe, self.tiny.sizes, only=roots)
                alive = alive[probe.nonresidues == 0]
        draws.rooted += alive.size
        return alive

    def _compare(self, field: Field) -> Witness | None:
        left = interpret(self.left, field, self.tiny.sizes)
        before = field.zero_divisions.copy()
        right = interpret(self.right, field, self.tiny.sizes)
        self.undefined[0] += int((before > 0).sum())
        self.undefined[1] += int((field.zero_divisions > before).sum())
        sound = (field.zero_divisions == 0) & (field.nonresidues == 0)
        self.draws.compared += field.trials
        self.draws.kept += int(sound.sum())
        for x, y in zip(self.left.outputs, self.right.outputs, strict=True):
            u = _tensor(self.left, x, left[x.value], self.tiny)[0]
            v = _tensor(self.right, y, right[y.value], self.tiny)[0]
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
        return "too many square roots: no trial was drawn in which all are of squares"


def _largest(graph: Graph, sizes: dict[str, int]) -> int:
    """Return how many elements the largest value has, products inside contractions included."""
    axes = value_axes(graph)
    largest = 1
    for value in range(len(axes)):
        step = graph.step_of(value)
        union = axes[value].union(*(axes[i] for i in step.inputs)) if step else axes[value]
        elements = 1
        for axis in union:
            elements *= sizes[axis]
        largest = max(largest, elements)
    return largest


def _ancestors(graph: Graph, ops: set[str]) -> frozenset[int]:
    """Return the values of some operators and all that they are made from."""
    first = len(graph.inputs)
    found: set[int] = set()
    for value in reversed(range(first, first + len(graph.steps))):
        step = graph.steps[value - first]
        if step.op in ops or value in found:
            found.update((value, *step.inputs))
    return frozenset(found)


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
    """Scalars that only note which unknown functions are used."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def __getattr__(self, name: str) -> object:
        return lambda *args: None

    def function(self, name: str, *args: None) -> None:
        self.found.add(name)


def _oracles(aligned: Aligned) -> tuple[str, ...]:
    names = _Names()
    for graph in (aligned.left, aligned.right):
        for op in {step.op for step in graph.steps if step.op in OPS}:
            OPS[op].scalar(names, *[None] * OPS[op].arity)
    return tuple(sorted(names.found))
