"""Tuning: a plan or an earlier result raced on the machine that has the device; nothing is searched here."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from superopt.clock import Clock
from superopt.errors import InputError
from superopt.plans.optimized import Optimized
from superopt.plans.plan import Work
from superopt.plans.saved import Result, read_result
from superopt.plans.settle import settle

__all__ = ["tune"]

_CANDIDATES = {"quick": 8, "full": 32}  # of a region, the best predicted or measured before


def tune(
    path: str | Path,
    function: Callable[..., Any] | None = None,
    *,
    seconds: float = 20.0,
    preset: Literal["quick", "full"] = "quick",
    torch_compile: bool = True,
    cache: bool = True,
    on_progress: Callable[[str], None] | None = None,
) -> Optimized:
    """Return the measured program of a result file: its candidates in other configurations raced anew.

    The race is against `function`, or the named workload that the file says it comes from, or else a
    stand-in: the program as it was traced, computed by PyTorch in the dtypes of its tensors, which the result
    says. What is measured is kept in the cache, to rank by.
    """
    tell = on_progress or (lambda message: None)
    clock = Clock()
    with clock.phase("read"):
        result = read_result(path)
    if not result.target.available:
        raise InputError(f"{path}: it was made for {result.target.name}, which is not on this machine")
    if function is None:
        function = _workload(result)
    if function is None:
        tell("the original is not known: racing against a stand-in, the program as it was traced")
    with clock.phase("verify"):
        traced = result.traced(function)
        work = [_best(one, _CANDIDATES[preset]) for one in result.work()]
    options = replace(
        result.options, seconds=seconds, preset=preset, torch_compile=torch_compile, cache=cache
    )
    return settle(
        function,
        traced,
        work,
        target=result.target,
        options=options,
        inputs=result.inputs,
        clock=clock,
        tell=tell,
        source=result.source,
        open_axes=result.open_axes if function is None else None,
    )


def _best(work: Work, count: int) -> Work:
    """Return the first candidates, in the order of the file: the best come first."""
    return replace(work, candidates=work.candidates[:count])


def _workload(result: Result) -> Callable[..., Any] | None:
    """Return the named workload that a result says it comes from: the only code that a file may name."""
    from superopt.workloads import WORKLOADS

    name = result.source.get("workload") if isinstance(result.source, dict) else None
    return WORKLOADS[name].function if isinstance(name, str) and name in WORKLOADS else None
