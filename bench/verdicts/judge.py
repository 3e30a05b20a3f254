"""Judge: whether two programs differ, by running both in float64 on directed inputs. It knows no algebra."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from superopt.bench.verdicts.pairs import Function, Pair, draw, parse

__all__ = ["Difference", "compare", "find_difference", "judge"]

TOLERANCE = 1e-9
"""The share of a result's largest number by which float64 may round; directed inputs are small numbers."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between the results of two programs, and how many drawings it took to see it."""

    what: str
    drawing: int
    inputs: tuple[Tensor, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} (drawing {self.drawing})"


def judge(pair: Pair, *, seed: int = 0, rounds: int = 4, finite: bool = False) -> Difference | None:
    """Return a difference between the programs of a pair, or None where none is found."""
    return find_difference(
        pair.f, pair.g, pair.inputs, pair.constants, seed=seed, rounds=rounds, finite=finite
    )


def find_difference(
    f: Function,
    g: Function,
    inputs: str,
    constants: Sequence[float],
    *,
    seed: int = 0,
    rounds: int = 4,
    finite: bool = False,
) -> Difference | None:
    """Return a difference where the first program is defined; with `finite`, where both are finite."""
    drawing = 0
    for number in range(rounds):
        for drawn in draw(parse(inputs), constants, seed * 1009 + number):
            drawing += 1
            with torch.no_grad():
                left = f(*(tensor.clone() for tensor in drawn))
                right = g(*(tensor.clone() for tensor in drawn))
            what = compare(left, right, finite=finite)
            if what:
                return Difference(what, drawing, drawn)
    return None


def compare(left: Any, right: Any, *, finite: bool = False) -> str:
    """Return how two results differ, or nothing. What is not a number on the left counts as equal."""
    mine, form = tree_flatten(left)
    theirs, other_form = tree_flatten(right)
    if form != other_form:
        return "results of different forms"
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            what = _compare_tensors(a, b, finite)
        else:
            same = type(a) is type(b) and bool(a == b or (a != a and b != b))
            what = "" if same else f"{a!r} against {b!r}"
        if what:
            return f"output {number}: {what}"
    return ""


def _compare_tensors(a: Tensor, b: Tensor, finite: bool) -> str:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}"
    a, b = a.double(), b.double()
    both = a.isfinite() & b.isfinite()
    size = torch.where(both, torch.maximum(a.abs(), b.abs()), 0.0)
    scale = max(float(size.max()), 1e-3) if size.numel() else 1.0
    differ = both & ((a - b).abs() > TOLERANCE * scale)
    if not finite:
        differ |= ~a.isnan() & ~both & (a != b)
    if not bool(differ.any()):
        return ""
    place = tuple(int(i) for i in differ.nonzero()[0])
    return f"{float(a[place])!r} against {float(b[place])!r} at {list(place)}"
