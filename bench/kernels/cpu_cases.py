"""The cases that are measured on a CPU: named workloads at sizes that two cores compute in milliseconds.

Rows are 1 to 512 tokens through layers 1024 or 2048 wide; attention has 8 heads on 2 heads of keys,
and 1024 or 4096 tokens; squares are products of matrices, where arithmetic is all there is.
"""

from superopt.bench.kernels.cases import CACHES, PREFILLS, Case
from superopt.workloads import WORKLOADS

__all__ = ["CASES", "DEFAULT", "DTYPES", "SUITES", "of_suite"]

DTYPES = ("f32", "bf16", "f16")
DEFAULT = DTYPES[:2]
"""The dtypes that are measured where none is asked for."""

SUITES = ("all", "quick", "rows", "decode", "prefill", "squares")

_ROWS = (
    *("rmsnorm-linear", "gated-mlp", "lora", "softmax", "rmsnorm-mlp", "layernorm-linear-gelu"),
    *("linear-cross-entropy", "rmsnorm", "ntrans", "matmul-rowsum", "matmul-matmul", "matmul"),
)
_TOKENS = (8, 512, 1, 64)  # the most telling first
_WIDE = ("K", "N", "R", "V")
_NARROW = {"lora": {"R": 16}}
_QUICK = (
    *("rmsnorm-linear/2048-m8/f32", "gated-mlp/1024-m8/bf16", "softmax/2048-m512/f32", "lora/1024-m64/f32"),
    *("gqa-decode/t4096/f32", "gqa-decode/t4096/bf16", "gqa/s1024/f32", "matmul/512/f32"),
)


def _row(workload: str, hidden: int, rows: int) -> dict[str, int]:
    found = {size: hidden for size in WORKLOADS[workload].sizes if size in _WIDE}
    return {**found, **_NARROW.get(workload, {}), "M": rows}


def _attention(workload: str, tokens: int) -> dict[str, int]:
    known = WORKLOADS[workload].sizes
    wanted = {"B": 1, "H": 8, "G": 2, "D": 128, "L": 256, "R": 64}
    if workload == "qknorm-attention":
        wanted["S"] = 1
    wanted["T" if "T" in known else "S"] = tokens
    return {size: value for size, value in wanted.items() if size in known}


def _all_cases() -> tuple[Case, ...]:
    """Return every case: rounds of one size of every workload, so that a run short of time has all kinds."""
    rounds: list[list[tuple[str, str, str, dict[str, int]]]] = []
    for at, rows in enumerate(_TOKENS):
        for hidden in (2048, 1024):
            some = [(name, "rows", f"{hidden}-m{rows}", _row(name, hidden, rows)) for name in _ROWS]
            tokens = 4096 if hidden == 2048 else 1024
            if at == 0:
                some += [(name, "decode", f"t{tokens}", _attention(name, tokens)) for name in CACHES]
            if at == 1:
                some += [(name, "prefill", f"s{tokens}", _attention(name, tokens)) for name in PREFILLS]
            rounds.append(some)
    sides = (512, 1024, 2048)
    rounds.insert(
        1, [("matmul", "squares", f"{side}", dict.fromkeys(("M", "K", "N"), side)) for side in sides]
    )
    layer = {"B": 1, "S": 64, "E": 1024, "D": 64, "Q": 1024, "P": 256, "N": 2048}
    rounds.append([("llama-layer", "prefill", "s64", layer)])
    return tuple(Case(*one, dtype) for some in rounds for dtype in DTYPES for one in some)


CASES = _all_cases()
"""Every case, the most telling first."""


def of_suite(suite: str) -> list[Case]:
    """Return the cases of a suite."""
    if suite == "quick":
        return [case for case in CASES if case.name in _QUICK]
    return [case for case in CASES if suite in ("all", case.suite)]
