"""The cases that are measured on a GPU: named workloads at the sizes of a model of 7-8B parameters.

Decode is few rows, each on a cache of 4096 or 8192 positions; prefill is 2048 positions at once.
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from superopt.bench.kernels.cases import CACHES, PREFILLS, Case
from superopt.workloads import WORKLOADS

__all__ = ["CASES", "DTYPES", "PEERS", "SUITES", "case_named", "of_suite", "plan_of", "small_sizes"]

PEERS = ("eager", "torch.compile", "torch.compile max-autotune-no-cudagraphs")
"""The rivals of each case besides those written by hand; all of them run as CUDA graphs."""

SUITES = ("all", "decode", "prefill")
DTYPES = ("f16", "bf16", "f32")

_SMALL = {"M": 3, "N": 80, "V": 112, "B": 2, "S": 20, "T": 512, "H": 8, "G": 2}

# The most telling come first: a run that is short of time measures those.
_ROWS = (
    *("rmsnorm-linear", "gated-mlp", "rmsnorm-mlp", "lora", "layernorm-linear-gelu", "ntrans", "rmsnorm"),
    *("linear-cross-entropy", "softmax", "matmul-rowsum", "matmul-matmul", "matmul"),
)
_RANKS = (
    *("rmsnorm-linear", "gated-mlp", "gqa-decode", "gqa", "mla", "qknorm-attention", "rmsnorm-mlp", "lora"),
    *("mha", "mqa-decode", "layernorm-linear-gelu", "linear-cross-entropy", "ntrans", "rmsnorm", "mqa"),
    *("mha-decode", "softmax", "matmul-rowsum", "matmul-matmul", "matmul", "llama-layer"),
)
_TOKENS = 2048
_ROUNDS = {"decode-8": 0, f"prefill-{_TOKENS}": 0, "decode-1": 1, "decode-16": 2}
_A_ROUND = 8  # places by which a case moves back for each earlier round of its workload


def _cached(name: str, rows: int, cache: int) -> dict[str, int]:
    """Return the sizes of attention on a cache: rows are sequences, or new positions of one."""
    if name == "qknorm-attention":
        return {"B": 1, "S": rows, "T": cache}
    return {"B": rows, "T": cache}


def _case(workload: str, case: str, sizes: dict[str, int]) -> Case:
    return Case(workload, case.partition("-")[0], case, sizes)


def _all_cases() -> tuple[Case, ...]:
    found = [_case(name, f"decode-{rows}", {"M": rows}) for name in _ROWS for rows in (1, 8, 16)]
    for cache, suffix in ((4096, ""), (8192, "-t8192")):
        found += [
            _case(name, f"decode-{rows}{suffix}", _cached(name, rows, cache))
            for name in CACHES
            for rows in (1, 8, 16)
        ]
    found += [_case(name, f"prefill-{_TOKENS}", {"M": _TOKENS}) for name in _ROWS]
    found += [_case(name, f"prefill-{_TOKENS}", {"S": _TOKENS}) for name in (*PREFILLS, "llama-layer")]
    found.append(_case("qknorm-attention", f"prefill-{_TOKENS}", {"S": _TOKENS, "T": _TOKENS}))

    def place(one: Case) -> tuple[int, str, str]:
        return _RANKS.index(one.workload) + _A_ROUND * _ROUNDS.get(one.case, 3), one.workload, one.case

    found.sort(key=place)
    return tuple(_in_turns(*([one for one in found if one.suite == suite] for suite in SUITES[1:])))


def _in_turns(first: list[Case], second: list[Case]) -> Iterator[Case]:
    """Yield a case of each list in turns, so that a run that is short of time measures some of both."""
    for pair in zip_longest(first, second):
        yield from (one for one in pair if one is not None)


CASES = _all_cases()
"""Every case, the most telling first, of decode and prefill in turns."""


def of_suite(suite: str) -> list[Case]:
    """Return the cases of a suite."""
    return [case for case in CASES if suite in ("all", case.suite)]


def case_named(workload: str, case: str) -> Case | None:
    """Return a case by its two names."""
    return next((one for one in CASES if (one.workload, one.case) == (workload, case)), None)


def plan_of(case: Case, folder: Path, dtype: str) -> Path:
    """Return the place of the plan of a case."""
    suffix = "" if dtype == "f16" else f".{dtype}"
    return folder / f"{case.workload}.{case.case}{suffix}.json"


def small_sizes(case: Case) -> dict[str, int]:
    """Return sizes at which an interpreter is fast; a size that the graph has as a number is kept."""
    sizes = {**WORKLOADS[case.workload].sizes, **case.sizes}
    wanted = dict(_SMALL)
    if case.workload in ("mha", "mha-decode", "mqa", "mqa-decode", "qknorm-attention"):
        wanted["H"] = 2
    if case.workload in ("softmax", "matmul-rowsum"):
        wanted.pop("N")
    return {size: min(value, wanted.get(size, value)) for size, value in sizes.items()}
