"""Building: candidates become kernels that ran once, in processes of their own first."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from superopt.errors import SuperoptError
from superopt.plans.course import Course, refused
from superopt.plans.guard import Guard
from superopt.plans.plan import Candidate, as_compiled, total_us
from superopt.targets import Kernel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Builder", "Built"]

_BUILDERS = 2  # where kernels are made in this process

Built = tuple[Candidate, Kernel | None]
"""A candidate, and its kernel unless it was refused."""


class Builder:
    """Compiles candidates, several at a time, and runs each once."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.target = course.target
        self.options = course.options
        self.within = course.within
        self.guard: Guard | None = None
        self.builders = _BUILDERS
        self._lock = threading.Lock()

    @contextmanager
    def guarded(self, size: int) -> Iterator[None]:
        """Keep processes for first runs, on inputs of so many bytes, where they are wanted."""
        if not self.options.guarded:
            yield
            return
        self.builders = self.target.builders(size)
        if self.within is not None and self.within.guard is not None:
            self.guard = self.within.guard
            self.builders = min(self.builders, self.within.guard.workers)
            yield
            return
        with Guard(self.builders, self.target.torch_device, self.options.limit_seconds) as self.guard:
            yield
        self.guard = None

    def built(self, candidates: Sequence[Candidate], tensors: "Mapping[str, Tensor]") -> list[Built]:
        """Compile candidates and run each once."""
        with ThreadPoolExecutor(self.builders) as pool:
            try:
                return list(pool.map(lambda one: self._build(one, tensors), candidates))
            except BaseException:  # Ctrl-C: nobody waits for what is under way
                pool.shutdown(wait=False, cancel_futures=True)
                if self.guard is not None:
                    self.guard.stop()
                raise

    def _build(self, candidate: Candidate, tensors: "Mapping[str, Tensor]") -> Built:
        if self.course.interrupted:
            return replace(candidate, rejected="interrupted before it was compiled"), None
        left = self.course.seconds_left
        if left <= 0:
            return replace(candidate, rejected="no time was left to compile it"), None
        mugraph = candidate.mugraph
        try:
            configs = candidate.configs or self.target.default_configs(mugraph)
            candidate = replace(
                candidate,
                configs=configs,
                sources=self.target.sources(mugraph, configs),
                kernels=candidate.kernels or self.target.reports(mugraph, configs),
            )
            candidate = replace(candidate, predicted_us=total_us(candidate.kernels))
            if self.guard is not None:
                limit, children = min(left, self.options.limit_seconds), self.guard.children
                self.target.prepare(mugraph, configs, limit_seconds=limit, children=children)
                self.guard.check(mugraph, configs, limit_seconds=max(self.course.seconds_left, 0.0))
            with nullcontext() if self.target.threadsafe else self._lock:
                kernel = self.target.make(mugraph, configs)
                made = kernel(**tensors)
                self.target.synchronize()
                bad = _not_finite(made, tensors)
        except self.target.errors as error:
            said = str(error) if isinstance(error, SuperoptError) else f"{type(error).__name__}: {error}"
            return refused(candidate, said), None
        if bad:
            return refused(candidate, bad), None
        made_of = self.target.compiled(kernel)
        kernels = tuple(
            as_compiled(one, made_of[number]) if number in made_of else one
            for number, one in enumerate(candidate.kernels)
        )
        return replace(candidate, kernels=kernels), kernel


def _not_finite(made: "Mapping[str, Tensor]", given: "Mapping[str, Tensor]") -> str | None:
    """Return what is wrong with results that are all NaN where no input is."""
    import torch

    for name, tensor in made.items():
        floating = tensor.dtype.is_floating_point and tensor.numel()
        if floating and bool(torch.isnan(tensor).all()):
            whole = all(
                bool(torch.isfinite(one).all()) for one in given.values() if one.dtype.is_floating_point
            )
            if whole:
                return f"{name} is NaN everywhere"
    return None
