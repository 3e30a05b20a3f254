"""Floats: a candidate and PyTorch itself against float64, over kind and hostile inputs.

Knows nothing of the finite field. A candidate is accepted on a distribution of inputs if its error
against float64 is at most `FACTOR` times PyTorch's own plus `FLOOR` units in the last place, and if
it makes no NaN or infinity that PyTorch doesn't. Errors are shares of the largest magnitude in the
same row (the last dimension), so a small row counts as much as a large one.

Where there are few rows, one unlucky rounding decides: a logit of a hundred is off by more than the
rest of an attention does. So who errs too much on one draw of the inputs is judged by the largest
errors of both sides over `DRAWS` draws. If one of these still decides, as where all sums of a draw nearly
cancel, PyTorch may have been lucky on it alone: then as many draws beside it count as well, the same numbers
changed by a few units, which are as hard and round otherwise. Kernels of mqa-decode whose errors are three
quarters of PyTorch's fail on 9 of 100 single draws, and on 1 of 150 of these; kernels with eight times the
errors fail on 85 and on 78 of 100. But where the order of PyTorch's sum suits a draw, it suits all draws
beside it. So a candidate that still errs too much is judged without the draws on which it errs most, one
of 32: sums of 32 numbers in another order are refused for 5 of 36,000 pairs of a seed and a kind of inputs,
and were for 59; sums with eight times the errors are refused for 1,406 of 1,563 that were.

A program with comparisons is also run on inputs that are aimed at them, and every comparison must be seen
both ways where results show it. Elements that hang on a comparison which rounding may turn are not judged.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import torch
from torch import Tensor

from superopt.dtypes import dtype_text
from superopt.errors import InputError
from superopt.verify.floats.coverage import Watch, unit_of
from superopt.verify.floats.errors import (
    FOUND,
    Errors,
    errors_of,
    judged,
    may_hang,
    never_compared,
)
from superopt.verify.floats.float64 import in_float64
from superopt.verify.floats.focus import Focus
from superopt.verify.floats.memory import Memory
from superopt.verify.floats.report import DistributionReport, FloatReport
from superopt.verify.floats.samples import (
    DIRECTED,
    DISTRIBUTIONS,
    MINUS_INFINITY,
    MISSING,
    ONLY_FINITE,
    PLAIN,
    beside,
    sample,
    tensors_of,
    typical,
)
from superopt.verify.floats.seek import seek
from superopt.verify.seeds import generator_seed

__all__ = [
    "DIRECTED",
    "DISTRIBUTIONS",
    "DRAWS",
    "FACTOR",
    "FLOOR",
    "ONLY_FINITE",
    "SMALL_DRAWS",
    "Turned",
    "check_shapes",
    "compare_floats",
    "compare_many",
    "in_float64",
    "sample",
    "tensors_of",
    "typical",
]

Function: TypeAlias = Callable[..., Any]
Turned: TypeAlias = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Results with their dimensions in another order, the rows last."""

FACTOR = 2.0
"""How many times PyTorch's own error a candidate may make."""

FLOOR = 4.0
"""Units in the last place that a candidate may err in any case."""

DRAWS = 8
"""Draws of the inputs by which a candidate is judged that errs too much on the first one."""

SMALL_DRAWS = 64
"""As many draws where all inputs are small, since the largest errors of few rows vary most."""

_SPARED_SHARE = 32  # one of as many draws is set aside, and one at least
_HOPELESS = 16.0  # an error of this many times what is allowed is no bad luck
_SPARED = DIRECTED[-1]  # the distribution that is left out where the others have shown everything
_FEW, _LARGE = 16, 2**16  # elements of a small input, and of the inputs of a program that is not small
_COVERING = 2  # draws of a directed distribution that may show nothing new before it is left
_LACKING_INPUTS = 4  # inputs of which numbers are left out, one in each draw
_ROWS_TOO = 2  # draws of an input with minus infinities: in the second one, whole rows are


def compare_floats(
    reference: Function,
    candidate: Function,
    inputs: Sequence[Any],
    *,
    eager: Function | None = None,
    distributions: Iterable[str] | None = None,
    seed: int = 0,
    focus: Focus | None = None,
    turned: Turned | None = None,
) -> FloatReport:
    """Return how the candidate's errors compare with PyTorch's, each against float64.

    `reference` is the program as written: it runs in float64 for the truth, and as it is for
    PyTorch's own error, unless `eager` does that. With a `focus` (of the reference, traced), inputs
    are aimed at its comparisons too, and the candidate only passes if each was seen both ways.
    Errors are judged along the last dimension of what the functions return, `turned` if that is given.
    """
    [report] = compare_many(
        in_float64(reference),
        eager or reference,
        [candidate],
        inputs,
        distributions=distributions,
        seed=seed,
        focus=focus,
        turned=turned,
    )
    return report


def compare_many(
    exact: Function,
    eager: Function,
    candidates: Sequence[Function],
    inputs: Sequence[Any],
    *,
    distributions: Iterable[str] | None = None,
    seed: int = 0,
    focus: Focus | None = None,
    draws: int | None = None,
    turned: Turned | None = None,
) -> list[FloatReport]:
    """Return how the errors of each candidate compare with those of `eager`; `exact` computes the truth.

    The distributions are all of `DISTRIBUTIONS`, unless they are given, and the directed ones where the
    focus has comparisons. Who errs too much on the first draw is judged by as many draws as its size asks
    for, or `draws`.
    """
    whole = focus
    focus = None if focus is None or focus.is_empty else focus
    names = list(DISTRIBUTIONS if distributions is None else distributions)
    comparison = _Comparison(exact, eager, candidates, focus, inputs, draws, turned)
    if focus is not None:
        comparison.judge_directed(inputs, seed)
        names = [name for name in names if name not in DIRECTED]
    if whole is not None and whole.may_miss(tensors_of(inputs)):
        comparison.judge_missing(whole, inputs, seed)
    for name in names:
        comparison.judge(name, inputs, seed)
    if comparison.watch is not None and not comparison.watch.complete:
        comparison.judge_found(seek(comparison.watch, inputs, seed=seed), seed)
    return comparison.reports


class _Comparison:
    """Candidates judged on one distribution after another."""

    def __init__(
        self,
        exact: Function,
        eager: Function,
        candidates: Sequence[Function],
        focus: Focus | None,
        inputs: Sequence[Any],
        draws: int | None,
        turned: Turned | None,
    ) -> None:
        self.turned: Turned = turned or (lambda results: results)
        self.exact, self.eager, self.candidates = exact, eager, candidates
        self.focus, self.memory = focus, Memory()
        self.watch = None if focus is None else Watch(focus, unit_of(tensors_of(inputs)))
        self.found: list[list[DistributionReport]] = [[] for _ in candidates]
        self.dtype = "no floats"
        self.compared: tuple[bool, ...] = ()  # whether any number was compared on any draw, by output
        # A tensor of few elements holds few of the numbers at which it is aimed.
        sizes = [one.numel() for one in tensors_of(inputs)]
        self.is_small = bool(sizes) and min(sizes) < _FEW and sum(sizes) < _LARGE
        self.draws = draws or (SMALL_DRAWS if sum(sizes) < _LARGE else DRAWS)

    @property
    def reports(self) -> list[FloatReport]:
        """The verdicts."""
        uncovered = () if self.watch is None else self.watch.coverage.uncovered
        uncovered += never_compared(self.compared)
        return [FloatReport(self.dtype, FACTOR, tuple(found), uncovered) for found in self.found]

    def judge(self, name: str, inputs: Sequence[Any], seed: int) -> None:
        """Judge all candidates on one distribution."""
        errors = self._blank()
        self._compare(name, self._drawn(name, inputs, seed), seed, self._everyone, errors)
        self._close(name, errors, inputs, seed)

    def judge_directed(self, inputs: Sequence[Any], seed: int) -> None:
        """Judge all candidates on directed distributions, as long as draws show more."""
        errors = {name: self._blank() for name in DIRECTED}
        for draw in range(DRAWS):
            met = False
            for name in DIRECTED:
                if self.is_small or self._is_open or (draw == 0 and (name != _SPARED or self._has_ties)):
                    drawn = self._drawn(name, inputs, seed + draw)
                    met |= self._compare(name, drawn, seed + draw, self._everyone, errors[name])
            if not self.is_small and not (self._is_open and (met or draw < _COVERING)):
                break
        for name, several in errors.items():
            self._close(name, several, inputs, seed)

    def judge_missing(self, focus: Focus, inputs: Sequence[Any], seed: int) -> None:
        """Judge all candidates where one input after another lacks numbers, on draws that PyTorch takes."""
        floats = [at for at, one in enumerate(tensors_of(inputs)) if one.dtype.is_floating_point]
        infinite = [at for at in floats if at in focus.minus_infinities]
        for name, positions, times in (
            (MISSING, floats if focus.sorts_out_nan else [], 1),
            (MINUS_INFINITY, infinite, _ROWS_TOO),
        ):
            errors = self._blank()
            for at in range(seed, seed + min(len(positions), _LACKING_INPUTS) * times):
                lacking = positions[at // times % len(positions)]
                drawn = sample(name, inputs, seed=at, focus=self.focus, memory=self.memory, lacking=lacking)
                try:
                    known = self._known(drawn, at)
                except Exception:  # an operator outside the algebra may raise anything
                    if focus.is_algebra:
                        raise
                    continue
                self._compare(name, drawn, at, self._everyone, errors, known)
            self._report(name, errors)

    def _known(self, drawn: Sequence[Any], seed: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return the truth and what PyTorch makes of inputs."""
        with torch.no_grad():
            return _made(self.exact, drawn, seed), _made(self.eager, drawn, seed)

    def judge_found(self, draws: Iterable[Sequence[Any]], seed: int) -> None:
        """Judge all candidates on inputs that show comparisons as no distribution did."""
        self._judge_drawn(FOUND, ((drawn, seed) for drawn in draws))

    def _judge_drawn(self, name: str, draws: Iterable[tuple[Sequence[Any], int]]) -> None:
        """Judge all candidates on some draws, each with the seed of the random numbers of the program."""
        errors = self._blank()
        for drawn, seed in draws:
            self._compare(name, drawn, seed, self._everyone, errors)
        self._report(name, errors)

    def _report(self, name: str, errors: Sequence[list[Errors]]) -> None:
        for found, several in zip(self.found, errors, strict=True):
            found += [self._judged(name, several)] if several else []

    def _drawn(self, name: str, inputs: Sequence[Any], seed: int) -> tuple[Any, ...]:
        """Return one draw of the inputs, which may lie where the one before it lay."""
        return sample(name, inputs, seed=seed, focus=self.focus, memory=self.memory)

    def _blank(self) -> list[list[Errors]]:
        return [[] for _ in self.candidates]

    @property
    def _everyone(self) -> range:
        return range(len(self.candidates))

    @property
    def _has_ties(self) -> bool:
        return self.focus is not None and self.focus.ties

    @property
    def _is_open(self) -> bool:
        return self.watch is not None and not self.watch.complete

    def _compare(
        self,
        name: str,
        drawn: Sequence[Any],
        seed: int,
        which: Sequence[int],
        errors: Sequence[list[Errors]],
        known: tuple[list[Tensor], list[Tensor]] | None = None,
    ) -> bool:
        """Note the errors of some candidates on one draw; return whether it showed something new."""
        truth, own = known or self._known(drawn, seed)
        floating = [value for value in own if value.dtype.is_floating_point]
        if floating:
            self.dtype = dtype_text(floating[0].dtype)
        made: dict[int, list[Tensor]] = {}
        for at in which:
            with torch.no_grad():
                made[at] = _made(self.candidates[at], drawn, seed)
            check_shapes(own, made[at])
        turned = self.turned
        sides = {at: (turned(truth), turned(own), turned(made[at])) for at in which}
        infinities = name in PLAIN
        found = {at: errors_of(*sides[at], None, infinities=infinities) for at in which}
        met = False
        if self.watch is not None and (self._is_open or any(map(may_hang, found.values()))):
            usable = [a.isfinite() & b.isfinite() for a, b in zip(truth, own, strict=True)]
            sight = self.watch.see(drawn, usable, overflowing=name in ONLY_FINITE)
            self.watch.record(sight)
            met = bool(sight.met)
            if sight.certain is not None:
                certain = turned(sight.certain)
                found = {at: errors_of(*sides[at], certain, infinities=infinities) for at in which}
        for at in which:
            errors[at].append(found[at])
            self.compared = tuple(map(any, zip_longest(self.compared, found[at].compared, fillvalue=False)))
        return met

    def _judged(self, name: str, several: Sequence[Errors]) -> DistributionReport:
        return judged(name, several, FACTOR, FLOOR)

    def _close(self, name: str, errors: Sequence[list[Errors]], inputs: Sequence[Any], seed: int) -> None:
        """Report on a distribution, after several draws for candidates that err too much on the first."""
        unlucky = [at for at, several in enumerate(errors) if several and self._is_unlucky(name, several)]
        drawn_before = len(errors[0]) if errors else 0
        for draw in range(drawn_before, self.draws if unlucky else 0):
            drawn = self._drawn(name, inputs, seed + draw)
            self._compare(name, drawn, seed + draw, unlucky, errors)
        for at in unlucky if name in DISTRIBUTIONS else ():
            if self._is_unlucky(name, errors[at]):
                self._compare_beside(name, at, inputs, seed, errors)
            if self.draws > 1 and self._is_unlucky(name, errors[at]):
                drawn_apart = sorted(errors[at][: self.draws], key=lambda one: one.most_units)
                errors[at][:] = drawn_apart[: -max(1, self.draws // _SPARED_SHARE)]
        self._report(name, errors)

    def _compare_beside(
        self, name: str, at: int, inputs: Sequence[Any], seed: int, errors: Sequence[list[Errors]]
    ) -> None:
        """Note the errors of a candidate, and of PyTorch, on draws beside the one where it errs most."""
        several = errors[at]
        worst = seed + max(range(len(several)), key=lambda draw: several[draw].most_units)
        drawn = self._drawn(name, inputs, worst)
        for number in range(self.draws):
            self._compare(name, beside(drawn, seed=number), worst, [at], errors)

    def _is_unlucky(self, name: str, errors: Sequence[Errors]) -> bool:
        found = self._judged(name, errors)
        return 1 < found.ratio < _HOPELESS and not found.nonfinite


def _made(function: Function, inputs: Sequence[Any], seed: int) -> list[Tensor]:
    """Return the tensors that a function makes; random numbers that it draws are the same for all."""
    devices = {tensor.device for tensor in tensors_of(inputs) if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)):
        # `torch.manual_seed` takes longer than a small program.
        torch.default_generator.manual_seed(generator_seed(seed))
        if devices:
            torch.cuda.manual_seed_all(generator_seed(seed))
        return tensors_of(function(*inputs))


def check_shapes(a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    """Raise InputError where two functions return tensors of different shapes."""
    shapes = [[list(value.shape) for value in values] for values in (a, b)]
    if shapes[0] != shapes[1]:
        raise InputError(f"the functions return tensors of different shapes: {shapes[0]} and {shapes[1]}")
