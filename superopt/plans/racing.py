"""Racing: kernels of one region against one another, by rounds that halve the field."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt.ir import Graph
from superopt.plans.building import Built
from superopt.plans.course import LOST, Course, refused
from superopt.plans.plan import Candidate, spills
from superopt.targets import Kernel, OrderedKernel, Target
from superopt.tune import Measurement
from superopt.tune.halving import halve

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SURELY", "Racer", "Ready", "by_time", "copies_for", "least_us"]

log = logging.getLogger("superopt")

SURELY = 0.95
"""Times its floor, below which a time cannot be right."""

_COPY_BYTES = 96 << 20  # inputs are copied until they are more than caches hold
_MOST_COPIES = 16
_TOGETHER = 6  # candidates measured in turns
_HALVED = 0.6  # share of the time before the last few are compared
_LEFT = 3
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 400

Ready = dict[str, Kernel]
"""Kernels that run, by the names of their candidates."""


class Racer:
    """Measures candidates in turns; a time that cannot be right refuses one."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.target = course.target
        self.options = course.options

    def raced(
        self,
        goal: Graph,
        built: Sequence[Built],
        tensors: "Mapping[str, Tensor]",
        seconds: float,
    ) -> tuple[list[Candidate], Ready]:
        """Race what was built; return all candidates ranked, and the kernels of those that run."""
        ready = {one.name: kernel for one, kernel in built if kernel is not None}
        self.course.tell(f"racing {len(ready)} kernels of {goal.name}")
        copies = _cloned(tuple(tensors.values()))
        seconds = min(seconds, max(self.course.deadline - time.monotonic(), 0.0))
        with self.course.clock.phase("race"):
            found, why = self._times(
                {one.name: one for one, kernel in built if kernel is not None},
                {name: _called(kernel, tuple(tensors)) for name, kernel in ready.items()},
                copies,
                seconds,
            )
        ranked = []
        for one, _ in built:
            timing = found.get(one.name)
            floor = least_us(self.target, goal, one.graph) if timing is not None else None
            if timing is not None and floor is not None and timing.median_us < SURELY * floor:
                one = refused(one, f"{timing.median_us:.2f} µs, but its data takes {floor:.2f} µs")
                ready.pop(one.name, None)
            elif timing is not None:
                one = replace(one, measurement=timing)
            elif one.rejected is None and one.measurement is None:
                one = replace(one, rejected=why.get(one.name, "not measured"))
            ranked.append(one)
        return by_time(ranked), ready

    def _times(
        self,
        candidates: Mapping[str, Candidate],
        runs: Mapping[str, Callable[..., Any]],
        copies: Sequence[tuple[Any, ...]],
        seconds: float,
    ) -> tuple[dict[str, Measurement], dict[str, str]]:
        """Return the times of candidates, the best once more in turns, and why others have none."""
        deadline = time.monotonic() + seconds

        def measure(names: tuple[str, ...], repeats: int) -> dict[str, Measurement]:
            left = max(deadline - time.monotonic(), 0.0)
            chosen = {name: runs[name] for name in names}
            return self.target.measure(
                chosen, copies, seconds=left, least_rounds=min(repeats, _LEAST_ROUNDS), most_rounds=repeats
            )

        def on_best(name: str, timing: Measurement) -> None:
            self.course.tell(f"best so far {timing.median_us:.1f} µs: {name}")

        guesses = {
            name: one.us if one.us < float("inf") else float(at)
            for at, (name, one) in enumerate(candidates.items())
        }
        if not all(spills(one) for one in candidates.values()):  # those that do come after all others
            guesses |= {name: float("inf") for name, one in candidates.items() if spills(one)}
        halved = halve(
            guesses,
            measure,
            seconds=seconds * _HALVED,
            seed=self.options.seed,
            batch=_TOGETHER,
            on_best=on_best,
        )
        found = {one.trial: one.measurement for one in halved.standings}
        if halved.ended == "device lost":
            self.course.lost = True
            self.course.stop(LOST)
        elif halved.interrupted:
            self.course.stop()
        elif len(found) > 1:
            last = tuple(one.trial for one in halved.standings[:_LEFT])
            try:
                found |= measure(last, _MOST_ROUNDS)
            except Exception as error:  # what was measured before stays valid
                log.warning(
                    "the last of %s are not compared again: %s", ", ".join(last), self.course.fault(error)
                )
                if self.course.lost:
                    self.course.stop(LOST)
        return found, halved.reasons


def least_us(target: Target, goal: Graph, graph: Graph) -> float | None:
    """Return the least time that a candidate can take: its graph may do less than the goal as written."""
    if not target.clears_caches:
        return None
    known = [target.floor_us(one, kept=True) for one in (goal, graph)]
    return min((us for us in known if us is not None), default=None)


def _called(kernel: Kernel, names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a kernel as a function of tensors, `names` being those of its inputs in order."""
    if isinstance(kernel, OrderedKernel) and kernel.inputs == names:
        return lambda *tensors: kernel.in_order(tensors)
    return lambda *tensors: kernel(**dict(zip(names, tensors, strict=True)))


def by_time(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the measured candidates, the fastest first, and then the others."""
    return sorted(candidates, key=lambda one: one.measurement.median_us if one.measurement else float("inf"))


def copies_for(tensors: "Sequence[Tensor]") -> int:
    """Return how many copies of tensors are more than caches hold."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return max(2, min(_MOST_COPIES, _COPY_BYTES // max(size, 1)))


def _cloned(tensors: "tuple[Tensor, ...]") -> "list[tuple[Tensor, ...]]":
    """Return copies of tensors with their strides, enough that no cache holds all."""
    import torch

    def clone(tensor: "Tensor") -> "Tensor":
        if 0 in tensor.stride():
            return tensor
        fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return fresh.copy_(tensor)

    return [tensors] + [tuple(map(clone, tensors)) for _ in range(copies_for(tensors) - 1)]
