"""Build: candidates become kernels that ran once, in processes of their own first."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from superopt.candidates.candidate import Candidate, as_compiled
from superopt.fate import Kind
from superopt.funnel.assembly import as_kernel
from superopt.funnel.state import Context, State, fail, said
from superopt.targets import Kernel
from superopt.weights.kept import KeptKernel

__all__ = ["build"]

_LEAST_COMPILE_S = 15.0  # the least limit for one kernel: a busy machine may take so long
_LOCK = threading.Lock()  # guards compilers that serve one thread at a time


def build(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Compile candidates, several at a time, and run each once; their kernels go into the context."""
    state = context.state
    state.tell(f"compiling {context.goal.name}")
    with state.clock.phase("compile"), _beside(state), ThreadPoolExecutor(state.builders) as pool:
        try:
            made = list(pool.map(lambda one: _built(one, context), candidates))
        except BaseException:  # Ctrl-C: do not wait for running compilers
            pool.shutdown(wait=False, cancel_futures=True)
            if state.first_runs is not None:
                state.first_runs.stop()
            raise
    context.kernels |= {one.id: kernel for one, kernel in made if kernel is not None}
    return [one for one, _ in made]


@contextmanager
def _beside(state: State) -> Iterator[None]:
    """Begin, the first time, what is done beside our compilers; it is done when the block ends.

    After Ctrl-C it is not begun: the command would wait for PyTorch's compilers, though no race follows.
    """
    work, state.meanwhile = state.meanwhile, None
    if work is None or state.interrupted:
        yield
        return
    work.begin(state)
    try:
        yield
        state.tell("torch.compile")
        with state.clock.phase("torch.compile"):
            work.wait()
    except BaseException:  # Ctrl-C
        work.end()
        raise


def _built(candidate: Candidate, context: Context) -> tuple[Candidate, Kernel | None]:
    """Return a candidate with what its compiler said, and its kernel if it ran."""
    state, target = context.state, context.state.target
    if not candidate.is_kept:
        return candidate, None
    if state.interrupted:
        return candidate.ended("build", Kind.NO_TIME, "interrupted before it was compiled"), None
    left = state.seconds_left
    if left <= 0:
        return candidate.ended("build", Kind.NO_TIME, "no time was left to compile it"), None
    mugraph, configs = candidate.mugraph, candidate.configs
    try:
        if state.first_runs is not None:
            most = max(state.options.seconds, _LEAST_COMPILE_S)
            limit, children = min(left, state.options.limit_seconds, most), state.first_runs.children
            target.prepare(mugraph, configs, limit_seconds=limit, children=children)
            state.first_runs.check(mugraph, configs, limit_seconds=max(state.seconds_left, 0.0))
        with nullcontext() if target.threadsafe else _LOCK:
            compiled = target.make(mugraph, configs)
            kernel = as_kernel(context.goal, candidate, compiled)
            if isinstance(kernel, KeptKernel) and (why := kernel.refusal(context.tensors)):
                return candidate.ended("build", Kind.REFUSED, why), None
            made = kernel(**context.tensors)
            target.synchronize()
            bad = _not_finite(made, context.tensors)
    except target.errors as error:
        return fail(candidate, "build", said(error)), None
    if bad:
        return fail(candidate, "build", bad), None
    made_of = target.compiled(compiled)
    kernels = tuple(
        as_compiled(one, made_of[number]) if number in made_of else one
        for number, one in enumerate(candidate.kernels)
    )
    return replace(candidate, kernels=kernels), kernel


def _not_finite(made: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str | None:
    """Return a complaint about a result that is NaN everywhere although all inputs are finite."""
    for name, tensor in made.items():
        floating = tensor.dtype.is_floating_point and tensor.numel()
        if floating and bool(torch.isnan(tensor).all()):
            whole = all(
                bool(torch.isfinite(one).all()) for one in given.values() if one.dtype.is_floating_point
            )
            if whole:
                return f"{name} is NaN everywhere"
    return None
