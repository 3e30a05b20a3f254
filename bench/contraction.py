"""The contraction alone in bf16: a linear layer by our kernel and by PyTorch, losses included.

    python -m bench.contraction --json OUT                     every size, on one thread and on all
    python -m bench.contraction --case 2048-m8,2048-m8-across --threads 1

Measured: `linear(x, w)` with weights as `nn.Linear` stores them, or `x @ w` where a case says -across, by
the kernel in its default configuration, and by the same kernel without the processor's instructions for
bf16, in fp32. Against: PyTorch's own, which oneDNN computes. All are called in turns. On one thread it is
the processor's time that counts, which other programs do not lengthen by running; on more it is the
clock's.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.command import Parser, above_zero, check_names, check_out, from_one, listed
from superopt.bench.harness.records import Record, failed, launch_record, line
from superopt.bench.harness.results import Results, begin, machine, tell
from superopt.bench.harness.turns import clock_for, in_turns
from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["CASES", "main", "measure"]

_ROWS, _SIDES = (1, 8, 16, 64, 128, 512), (2048, 4096)
CASES = {f"{side}-m{rows}": (rows, side, False) for side in _SIDES for rows in _ROWS}
CASES |= {f"{side}-m{rows}-across": (rows, side, True) for side in _SIDES for rows in _ROWS}
"""Rows, what both sides of the weights are, and whether the sum goes across the lines of the weights."""

_TEXT = """
graph linear
axes m={m} n={side} k={side}
in x: bf16[m, k]
in w: bf16[{weights}]
t2 = contract[k](x, w)
out y: bf16[m, n] = t2
"""
_IN_FP32 = ("-mno-avx512bf16",)
_LEAST_ROUNDS = 7


def measure(rows: int, side: int, *, across: bool = False, threads: int, seconds: float) -> Record:
    """Return the record of one size."""
    import torch
    from torch.nn import functional as F

    from superopt.codegen.cpp import CppMuGraph
    from superopt.ir import fuse, parse_graph

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weights = "k, n" if across else "n, k"
        mugraph = fuse(parse_graph(_TEXT.format(m=rows, side=side, weights=weights)))
        kernel, in_fp32 = CppMuGraph(mugraph), CppMuGraph(mugraph, flags=_IN_FP32)
        torch.manual_seed(0)
        x, w = torch.randn(rows, side).bfloat16(), torch.randn(side, side).bfloat16()
        runs: dict[str, Callable[[], Any]] = {
            "superopt": lambda: kernel.in_order((x, w)),
            "superopt in fp32": lambda: in_fp32.in_order((x, w)),
            "eager": lambda: x @ w if across else F.linear(x, w),
        }
        with torch.no_grad():
            taken = in_turns(runs, clock_for(threads), seconds=seconds, least_rounds=_LEAST_ROUNDS)
    finally:
        torch.set_num_threads(before)
    flops = 2 * rows * side * side
    record = launch_record(taken, "superopt", "eager")
    rates = {name: flops / one["median_us"] / 1e3 for name, one in record["measured"].items()}
    return {**record, "gflops": {name: round(rate, 1) for name, rate in rates.items()}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases that are asked for; return 0 where one was measured."""
    parser = Parser("contraction", __doc__)
    parser.add_argument("--case", default="", help="only these cases, by commas, as in 2048-m8")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, by commas (default: 1,2)")
    parser.add_argument("--seconds", type=above_zero, default=2.0, help="of the turns of a case (default: 2)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results here after every case")
    return parser.run(arguments, _measure_all)


def _measure_all(options: "Namespace") -> int:
    check_names("--case", listed(options.case), list(CASES))
    check_out(options.json)
    counts = [from_one(one) for one in listed(options.threads)]
    wanted = {
        f"{name}/{count} threads": (*CASES[name], count)
        for count in counts
        for name in listed(options.case) or CASES
    }
    settings = {"seconds": options.seconds, "threads": counts}
    results = Results(list(wanted), options.json, begin("contraction", settings, machine(), {}))
    for name, (rows, side, across, count) in wanted.items():
        known = {"case": name, "sizes": {"M": rows, "N": side, "K": side}, "threads": count}
        try:
            record = known | measure(rows, side, across=across, threads=count, seconds=options.seconds)
        except SuperoptError as error:
            record = failed(known, error)
        results.keep(name, record)
        tell(line(record))
    return 0 if results.any_measured else 1


if __name__ == "__main__":
    raise SystemExit(main())
