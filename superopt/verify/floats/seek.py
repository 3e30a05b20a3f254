"""Seek: draws that show of comparisons what no other draw has shown.

Inputs are scaled, moved, made constant or equal to one another as long as a comparison comes nearer to
what is missing of it; where nothing comes nearer, from another start.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from superopt.verify.floats.comparison import Comparison
from superopt.verify.floats.coverage import Sight, Watch
from superopt.verify.floats.focus import Focus
from superopt.verify.floats.memory import laid_out
from superopt.verify.floats.samples import DIRECTED, sample, tensors_of
from superopt.verify.seeds import generator_seed

__all__ = ["seek"]

_TRIES = 48  # draws, of which each is one run in float64
_FEW_TRIES = 8  # tries for a program with many elements
_MANY = 1 << 22  # elements of the inputs, from which a program has many
_PATIENCE = 6  # draws that may come no nearer, before another start
_STARTS = (*DIRECTED, "normal")


def seek(watch: Watch, inputs: Sequence[Any], *, seed: int = 0) -> Iterator[tuple[Any, ...]]:
    """Yield inputs that show what no draw has shown yet; who takes them records what they show."""
    random = torch.Generator().manual_seed(generator_seed(seed))
    many = sum(one.numel() for one in tensors_of(inputs)) > _MANY
    best: tuple[Any, ...] | None = None
    nearest, patience = inf, 0
    for number in range(_FEW_TRIES if many else _TRIES):
        if watch.complete:
            return
        if best is None or patience >= _PATIENCE:
            start = _STARTS[number % len(_STARTS)]
            drawn = sample(start, inputs, seed=seed + 101 + number, focus=watch.focus)
            best, nearest, patience = None, inf, 0
        else:
            drawn = _changed(best, watch.focus, random)
        sight = watch.see(drawn)
        if sight.met:
            yield drawn
            best = None
            continue
        watch.record(sight)
        distance = _distance(sight, *_target(watch))
        patience = 0 if distance < nearest else patience + 1
        if best is None or distance <= nearest:
            best, nearest = drawn, distance


def _target(watch: Watch) -> tuple[Comparison, frozenset[int]]:
    """Return the first thing that is missing."""
    order = {one: at for at, one in enumerate(watch.focus.comparisons)}
    return min(watch.missing, key=lambda item: (order[item[0]], sorted(item[1])))


def _distance(sight: Sight, comparison: Comparison, demand: frozenset[int]) -> float:
    """Return how far a draw is from what is wanted of a comparison, by the gap between its sides."""
    least, most = sight.gaps.get(comparison, (inf, -inf))
    if -1 in demand:
        return max(least, 0.0)
    if 1 in demand:
        return max(-most, 0.0)
    return 0.0 if least <= 0 <= most else min(abs(least), abs(most))


Change: TypeAlias = Callable[[Tensor, float], Tensor]


def _every_other(x: Tensor, number: float) -> Tensor:
    """Scale every other row."""
    if not x.dim():
        return x
    rows = torch.arange(x.shape[0], device=x.device).reshape(-1, *[1] * (x.dim() - 1))
    return torch.where(rows % 2 == 0, x, x * 2.0 ** (10 * number))


_CHANGES: tuple[Change, ...] = (
    lambda x, number: x * 2.0 ** round(3 * number),
    lambda x, number: x * 2.0 ** (10 * number),
    lambda x, number: -x,
    lambda x, number: x.abs(),
    lambda x, number: x + number,
    lambda x, number: x + torch.sign(torch.tensor(number)).item() * 2.0 ** (6 * number),
    lambda x, number: torch.full_like(x, number),
    _every_other,
)
"""How an input is changed; the number is normal, or a constant of the program."""


def _changed(drawn: tuple[Any, ...], focus: Focus, random: torch.Generator) -> tuple[Any, ...]:
    """Return inputs of which one float tensor is changed."""

    def below(count: int) -> int:
        return int(torch.randint(count, (), generator=random))

    tensors = tensors_of(drawn)
    floats = [at for at, one in enumerate(tensors) if one.dtype.is_floating_point and one.numel()]
    if not floats:
        return sample(DIRECTED[0], drawn, seed=below(1 << 20), focus=focus)
    chosen = tensors[floats[below(len(floats))]]
    twins = [tensors[at] for at in floats if tensors[at] is not chosen and tensors[at].shape == chosen.shape]
    numbers = [one for one in focus.constants if abs(one) < inf]
    number = float(torch.randn((), generator=random))
    if numbers and below(2):
        number = numbers[below(len(numbers))]
        change: Change = (_CHANGES[6], _CHANGES[4])[below(2)]
    elif twins and focus.ties and below(2):
        twin = twins[below(len(twins))]
        return _with(drawn, chosen, twin.to(chosen.dtype, copy=True))
    else:
        change = _CHANGES[below(len(_CHANGES))]
    return _with(drawn, chosen, change(chosen.double(), number).to(chosen.dtype))


def _with(drawn: tuple[Any, ...], old: Tensor, new: Tensor) -> tuple[Any, ...]:
    """Return inputs with one tensor in the place of another, in the same memory layout."""
    new = laid_out(new, old)
    return tuple(tree_map(lambda value: new if value is old else value, drawn))
