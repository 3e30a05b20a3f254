"""Counterexamples: inputs on which two programs differ in float64, by more than rounding explains."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor

from superopt.dtypes import tensor_text
from superopt.errors import kind_and_line
from superopt.verify.floats.compare import check_shapes
from superopt.verify.floats.coverage import Watch
from superopt.verify.floats.errors import ROUNDING, Differing, as_long, as_reals, differ, scale_of
from superopt.verify.floats.float64 import in_float64, largest_number
from superopt.verify.floats.focus import Focus
from superopt.verify.floats.report import Counterexample
from superopt.verify.floats.samples import DIRECTED, DISTRIBUTIONS, PLAIN, beside, sample, tensors_of

__all__ = ["CANCELLED", "find_counterexample", "refused_by_second"]

Function: TypeAlias = Callable[..., Any]

CANCELLED = 1e-8
"""A difference, as a share of a row, that rounding may cause in float64 where numbers cancel."""

# Distributions on which equal functions may differ by rounding alone.
_CANCELLING = frozenset({"constant rows"})
_NOTHING = 2.0**-44  # the share of the largest input that is left where it cancels in float64
_SHAKES = 3  # runs on inputs that differ in their last digits
_PRINTED = 6  # elements at each end of a long tensor in a counterexample


def find_counterexample(
    f: Function,
    g: Function,
    inputs: Sequence[Any],
    *,
    distributions: Iterable[str] | None = None,
    tolerance: float | None = None,
    differing: Differing = "in any way",
    seed: int = 0,
    focus: Focus | None = None,
) -> Counterexample | None:
    """Return inputs on which two functions differ in float64, if found: by more than their dtype rounds.

    `tolerance` is another share of a row's largest magnitude to tell them apart by; `differing` says whether
    a NaN or infinity of one of them does, too, or alone. With a `focus` (of both, traced), inputs are aimed
    at their comparisons too, and elements that hang on a comparison which rounding may turn tell nothing.
    """
    left, right = in_float64(f), in_float64(g)
    if tolerance is None:
        tolerance = ROUNDING * max((_unit(value) for value in tensors_of(inputs)), default=2.0**-52)
    names = [
        one for one in (DISTRIBUTIONS if distributions is None else distributions) if one not in _CANCELLING
    ]
    if focus is not None and not focus.is_empty and not focus.fragile:
        names = [*DIRECTED, *(name for name in names if name not in DIRECTED)]
    watch = Watch(focus, 2.0**-52) if focus is not None and focus.jumps else None
    for name in names:
        drawn = sample(name, inputs, seed=seed, focus=focus)
        try:
            with torch.no_grad():
                made, other = tensors_of(left(*drawn)), tensors_of(right(*drawn))
        except IndexError:  # whole numbers aimed at comparisons may be no valid indices
            if name in DIRECTED:
                continue
            raise
        check_shapes(made, other)
        least = _NOTHING * max((float(one.abs().max()) for one in _floating(drawn)), default=1.0)
        parts = [2 if one.is_complex() else 1 for one in made]
        made, other = ([as_reals(one) for one in side] for side in (made, other))
        results = [(a.double(), b.double()) for a, b in zip(made, other, strict=True)]
        found = [differ(a, b, tolerance, least, differing) for a, b in results]
        if any(bool(one.any()) for one in found):
            # What is added and taken away again leaves its rounding.
            least = max(least, _NOTHING * max(largest_number(one, drawn) for one in (f, g)))
            found = [differ(a, b, tolerance, least, differing) for a, b in results]
        if watch is not None and any(bool(one.any()) for one in found):
            certain = watch.see(drawn).certain
            found = [a & as_long(b, a) for a, b in zip(found, certain, strict=True)] if certain else found
        if tolerance < CANCELLED and any(bool(one.any()) for one in found):
            found = _beyond_rounding((left, right), drawn, results, found)
        for number, (a, b, where) in enumerate(zip(made, other, found, strict=True)):
            if not bool(where.any()):
                continue
            place = tuple(int(i) for i in where.nonzero()[0])
            last = place[-1:] if parts[number] == 1 else (place[-1] // 2,)
            return Counterexample(
                name,
                tuple(_show(i, value) for i, value in enumerate(tensors_of(drawn))),
                f"output {number}",
                (*place[:-1], *last),
                float(a[place]),
                float(b[place]),
            )
    return None


def refused_by_second(
    f: Function, g: Function, inputs: Sequence[Any], *, seed: int, draws: int
) -> str | None:
    """Return the error that only g raises, on inputs of their own dtypes, and on which; None if not found."""
    for draw, name in product(range(draws), PLAIN):
        drawn = sample(name, inputs, seed=seed + draw)
        error = _error_of(g, drawn)
        if error is not None and _error_of(f, drawn) is None:
            return f"{kind_and_line(error)}, inputs {name}"
    return None


def _error_of(function: Function, inputs: Sequence[Any]) -> Exception | None:
    """Return the error that a function raises, or None; an operator of PyTorch may raise any."""
    try:
        with torch.no_grad():
            function(*inputs)
    except MemoryError:
        raise
    except Exception as error:
        return error
    return None


def _beyond_rounding(
    functions: tuple[Function, Function],
    drawn: Sequence[Any],
    results: Sequence[tuple[Tensor, Tensor]],
    found: Sequence[Tensor],
) -> list[Tensor]:
    """Return which small differences are larger than what the last digits of the inputs make of a result."""
    noise = [torch.zeros_like(a) for a, _ in results]
    for seed, (side, function) in product(range(_SHAKES), enumerate(functions)):
        with torch.no_grad():
            moved = tensors_of(function(*beside(drawn, seed=seed)))
        for at, (one, both) in enumerate(zip(moved, results, strict=True)):
            shift = (as_reals(one).double() - both[side]).abs()
            noise[at] = torch.maximum(noise[at], torch.where(shift.isnan(), 0.0, shift))
    kept = []
    for where, (a, b), off in zip(found, results, noise, strict=True):
        gap = (a - b).abs()
        kept.append(where & (~gap.isfinite() | (gap > CANCELLED * scale_of(a)) | (gap > ROUNDING * off)))
    return kept


def _floating(inputs: Sequence[Any]) -> list[Tensor]:
    return [one for one in tensors_of(inputs) if one.dtype.is_floating_point and one.numel()]


def _unit(value: Tensor) -> float:
    return float(torch.finfo(value.dtype).eps) if value.dtype.is_floating_point else 2.0**-52


def _show(number: int, value: Tensor) -> str:
    numbers = [f"{x:.6g}" for x in value.flatten()[: 2 * _PRINTED + 1].tolist()]
    if value.numel() > 2 * _PRINTED:
        last = [f"{x:.6g}" for x in value.flatten()[-_PRINTED:].tolist()]
        numbers = [*numbers[:_PRINTED], "...", *last]
    return f"input {number}: {tensor_text(value)} = {' '.join(numbers)}"
