"""Magnitudes: whether graphs serve numbers as large, and as small, as their goal does.

A norm that divides by the largest number before it squares has no squares that leave the range of fp32. The
same norm without the division is equal algebra, and is infinite or 0 for numbers that the goal takes. So one
input after another is drawn very large, and very small, at small sizes: where the goal is right in fp32, a
graph must be, too.
"""

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from superopt.candidates.steady import SAME, as_function, at_sizes_of, one_thread, small_goal
from superopt.ir import Graph
from superopt.trace.run import blank_inputs
from superopt.verify.floats.samples import sample

__all__ = ["out_of_range"]

_POWERS = (2.0**80, 2.0**-80)  # whose squares leave the range of fp32
_WIDE = ("f32", "bf16")  # dtypes that hold such numbers, and whose programs kernels compute in fp32
_MOST_INPUTS = 4  # that are drawn so
_RIGHT, _LOST = 0.01, 0.25  # errors of what is right, and of what is lost, as shares of a row
_LEAST = 2.0**-126  # the least normal number of fp32


def out_of_range(
    goal: Graph, graphs: Sequence[Graph], entering: Collection[str], *, seed: int
) -> dict[Graph, str]:
    """Return of which inputs graphs lose numbers that their goal keeps, if they do."""
    small = small_goal(goal, entering) if graphs else None
    if small is None or 0 in small.sizes.values() or any(port.dtype == "f64" for port in small.inputs):
        return {}
    resized = at_sizes_of(small, graphs)
    runs = {graph: as_function(one, torch.float32) for graph, one in resized.items()}
    exact, own = as_function(small, torch.float64), as_function(small, torch.float32)
    found: dict[Graph, str] = {}
    with one_thread():
        for why, inputs in _drawn(small, seed):
            wanted = exact(*inputs)
            kept = [_is_kept(one, made) for one, made in zip(wanted, own(*inputs), strict=True)]
            for graph in runs.keys() - found.keys() if any(map(torch.any, kept)) else ():
                lost = any(map(_loses, kept, wanted, runs[graph](*inputs)))
                # Numbers may stand for sizes: a graph that is another function here is not judged.
                if lost and _are_same(wanted, as_function(resized[graph], torch.float64)(*inputs)):
                    found[graph] = why
    return found


def _drawn(goal: Graph, seed: int) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Yield inputs of which one is very large or very small, and what is wrong with what loses them."""
    usual = sample("normal", blank_inputs(goal), seed=seed)
    moving = [at for at, one in enumerate(goal.inputs) if one.dtype in _WIDE and not one.constant]
    for at in moving[:_MOST_INPUTS]:
        for power in _POWERS:
            scaled = (*usual[:at], usual[at] * power, *usual[at + 1 :])
            size = "large" if power > 1 else "small"
            yield f"its algebra leaves the range of fp32 where {goal.inputs[at].name} is {size}", scaled


def _row(wanted: Tensor) -> Tensor:
    """Return the largest number of each row."""
    return wanted.abs().amax(-1, keepdim=True) if wanted.dim() else wanted.abs()


def _errors(wanted: Tensor, made: Tensor) -> Tensor:
    """Return errors as shares of the largest number of their row."""
    return (made.double() - wanted).abs() / _row(wanted)


def _is_kept(wanted: Tensor, made: Tensor) -> Tensor:
    """Return in which rows the goal is right."""
    right = made.isfinite() & (_errors(wanted, made) <= _RIGHT)
    right = right.all(-1, keepdim=True) if wanted.dim() else right
    return right & (_row(wanted) >= _LEAST)


def _loses(kept: Tensor, wanted: Tensor, made: Tensor) -> bool:
    """Whether a graph loses numbers that its goal keeps."""
    return bool((kept & ~(made.isfinite() & (_errors(wanted, made) <= _LOST))).any())


def _are_same(wanted: Sequence[Tensor], made: Sequence[Tensor]) -> bool:
    """Whether a graph in float64 makes what its goal makes there, but for rounding."""
    errors = [_errors(one, other) for one, other in zip(wanted, made, strict=True)]
    return all(bool((one.isnan() | (one <= SAME)).all()) for one in errors)
