"""Errors: how far results are from float64, by rows, and when that is too far."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, sqrt
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from superopt.verify.floats.report import DistributionReport
from superopt.verify.floats.samples import DIRECTED, MINUS_INFINITY, MISSING, ONLY_FINITE

__all__ = [
    "FOUND",
    "ROUNDING",
    "Differing",
    "Errors",
    "as_long",
    "as_reals",
    "differ",
    "errors_of",
    "judged",
    "largest_error",
    "may_hang",
    "never_compared",
    "scale_of",
]

ROUNDING = 64.0
"""Units in the last place below which two functions count as the same."""

Differing: TypeAlias = Literal["numbers", "in any way", "undefined"]
"""What tells two functions apart: other numbers; these, or a NaN or infinity that the other does not have;
or a NaN or infinity of the second where the first has a number."""

FOUND = "inputs found for comparisons"
"""The name under which inputs are judged that were searched for."""

_AIMED = frozenset({*DIRECTED, MISSING, MINUS_INFINITY, FOUND})
_COARSE = 0.03  # share of a row that is no rounding in any dtype


@dataclass(frozen=True, slots=True)
class Errors:
    """What one draw of the inputs shows: PyTorch's error and the candidate's, and a unit, by output."""

    outputs: tuple[tuple[float, float, float], ...]
    equal: bool  # whether the results that are no floats agree
    nonfinite: bool  # whether the candidate makes a NaN or infinity, or lacks one, and may not
    compared: tuple[bool, ...]  # whether any of its numbers was compared, by output, whatever its dtype
    doubtful: int  # elements that are not judged

    @property
    def most_units(self) -> float:
        """The candidate's largest error, in units in the last place."""
        return max((made / unit for _, made, unit in self.outputs), default=0.0)


def errors_of(
    truth: Sequence[Tensor],
    own: Sequence[Tensor],
    found: Sequence[Tensor],
    certain: Sequence[Tensor] | None,
    *,
    infinities: bool = False,
) -> Errors:
    """Return the errors of one draw; `certain` tells which elements are judged, None that all are.

    With `infinities`, one that PyTorch makes as the exact result is it must be the same in the candidate.
    """
    outputs: list[tuple[float, float, float]] = []
    compared: list[bool] = []
    nonfinite = False
    equal = True
    doubtful = 0
    for at, (exact, eager, made) in enumerate(zip(truth, own, found, strict=True)):
        if certain is None:
            counted = torch.ones((), dtype=torch.bool, device=eager.device).expand(eager.shape)
        else:
            counted = certain[at].to(eager.device)
            doubtful += int((~counted).sum())
        if eager.is_complex():
            exact, eager, made = (as_reals(value) for value in (exact, eager, made))
            counted = as_long(counted, eager)
        if not eager.dtype.is_floating_point:
            equal &= eager.dtype == made.dtype and bool(((eager == made) | ~counted).all())
            compared.append(bool(counted.any()) or counted.numel() == 0)
            continue
        unit = torch.finfo(eager.dtype).eps
        if certain is None and all(map(_is_finite, (exact, eager, made))):
            compared.append(True)
            exact, eager, made = (value.double() for value in (exact, eager, made))
        else:
            doubted = counted & eager.isfinite() & ~made.isfinite()
            nonfinite |= bool(doubted.any()) and bool(
                (doubted & ~_rightly_infinite(exact, eager, made, counted)).any()
            )
            if infinities and bool(exact.isinf().any()):
                surely_infinite = counted & exact.isinf() & (eager == exact)
                nonfinite |= bool((surely_infinite & (made != exact)).any())
            usable = counted & exact.isfinite() & eager.isfinite()
            compared.append(bool(usable.any()) or usable.numel() == 0)
            exact, eager, made = (
                torch.where(usable & made.isfinite(), value.double(), 0.0) for value in (exact, eager, made)
            )
        scale = _scale_of_finite(exact)
        outputs.append((_largest_share(eager - exact, scale), _largest_share(made - exact, scale), unit))
    return Errors(tuple(outputs), equal, nonfinite, tuple(compared), doubtful)


def _rightly_infinite(exact: Tensor, eager: Tensor, made: Tensor, counted: Tensor) -> Tensor:
    """Return which infinities are no fault: there, PyTorch's number is finite by chance of its own roundings.

    The exact result rounds to just that infinity, or is nearer to numbers that do than PyTorch's numbers, of
    those that are in range, are to their exact results.
    """
    limits = torch.finfo(eager.dtype)
    edge = limits.max / (2 - limits.eps) * (2 - limits.eps / 2)  # the least number that rounds to infinity
    in_range = counted & eager.isfinite() & (exact.abs() < edge)
    pairs = (torch.where(in_range, value.double(), 0.0) for value in (exact, eager))
    near = (edge - exact.abs()) <= largest_error(*pairs) * scale_of(exact)
    return (made == exact.to(eager.dtype)) | (made.isinf() & near & (made.sign() == exact.sign()))


def may_hang(errors: Errors) -> bool:
    """Whether one side errs by more than roundings make: comparisons may have turned on it."""
    coarse = any(max(eager, made) > ROUNDING * unit for eager, made, unit in errors.outputs)
    return coarse or errors.nonfinite or not errors.equal


def never_compared(compared: Sequence[bool]) -> tuple[str, ...]:
    """Return what to say of outputs none of whose numbers was compared on any draw, where others' were."""
    return tuple(
        f"output {at} was never compared" for at, one in enumerate(compared) if any(compared) and not one
    )


def _why_skipped(draw: Errors) -> str:
    return "all hangs on roundings" if draw.doubtful else "PyTorch's own result is not finite"


def judged(name: str, draws: Sequence[Errors], factor: float, floor: float) -> DistributionReport:
    """Return the verdict on the largest errors over all draws."""
    if not any(any(one.compared) for one in draws):
        return DistributionReport(name, 0.0, 0.0, 0.0, draws[0].nonfinite, _why_skipped(draws[0]))
    ratio = 0.0 if all(one.equal for one in draws) else float("inf")
    eager_error = candidate_error = lost = 0.0
    for output in zip(*(one.outputs for one in draws), strict=True):
        eager, made = max(one[0] for one in output), max(one[1] for one in output)
        eager_error, candidate_error = max(eager_error, eager), max(candidate_error, made)
        unit = output[0][2]
        # Aimed inputs are made to tell functions apart: roundings are judged on the other distributions.
        least = max(floor, min(ROUNDING, _COARSE / unit)) if name in _AIMED else floor
        own = made / (factor * eager + least * unit)
        if own > 1 and made > sqrt(unit):  # cancellation costs half of the digits in programs people write
            lost = max(lost, made)
        ratio = max(ratio, own)
    if name in ONLY_FINITE and ratio != float("inf"):
        ratio = 0.0
    nonfinite = any(one.nonfinite for one in draws)
    doubtful = sum(one.doubtful for one in draws)
    return DistributionReport(name, eager_error, candidate_error, ratio, nonfinite, "", doubtful, lost)


def largest_error(exact: Tensor, found: Tensor) -> float:
    """Return the largest error as a share of its row's largest magnitude."""
    return _largest_share(found - exact, scale_of(exact))


def _largest_share(errors: Tensor, scale: Tensor) -> float:
    """Return the largest of errors, as shares of their rows' scale; what is NaN is none."""
    if errors.numel() == 0:
        return 0.0
    share = errors.abs_().div_(scale)
    most = float(share.max())
    return float(torch.where(share.isnan(), 0.0, share).max()) if isnan(most) else most


def _is_finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())


def as_reals(value: Tensor) -> Tensor:
    """Return a complex tensor with real and imaginary parts in turn in its rows, and others as they are."""
    if not value.is_complex():
        return value
    pairs = torch.view_as_real(value.resolve_conj())
    return pairs.flatten(-2) if value.ndim else pairs


def as_long(mask: Tensor, reals: Tensor) -> Tensor:
    """Return a mask of complex numbers as one of their parts, and other masks as they are."""
    if mask.shape == reals.shape:
        return mask
    return mask[..., None].expand(*mask.shape, 2).reshape(reals.shape)


def scale_of(exact: Tensor) -> Tensor:
    """Return the largest magnitude of each row."""
    return _scale_of_finite(torch.where(exact.isfinite(), exact, 0.0))


def _scale_of_finite(exact: Tensor) -> Tensor:
    finite = exact.abs()
    row = finite.amax(-1, keepdim=True) if finite.ndim and finite.numel() else finite
    # A row of exact zeros is judged by the whole tensor.
    whole = finite.max() if finite.numel() else finite.sum()
    return torch.where(row == 0, torch.where(whole == 0, 1.0, whole), row)


def differ(a: Tensor, b: Tensor, tolerance: float, least: float, differing: Differing) -> Tensor:
    """Return where two results differ; by less than `least` they do where all that is left is rounding."""
    if differing == "undefined":
        return a.isfinite() & ~b.isfinite()
    found = ((a - b).abs() > tolerance * scale_of(a)) & ((a - b).abs() > least)
    found &= a.isfinite() & b.isfinite()
    if differing == "numbers":
        return found
    same = (a == b) | (a.isnan() & b.isnan()) | (a.isfinite() & b.isfinite())
    return found | ~same
