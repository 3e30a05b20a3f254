"""The contraction alone: a linear layer by our kernel and by PyTorch, losses included.

    python -m bench.contraction --json OUT                     every size, on one thread and on all
    python -m bench.contraction --case 2048-m8,2048-m8-across --threads 1
    python -m bench.contraction --dtype f32 --case 1024x2816-m64,2816x1024-m64 --json OUT

Measured: `linear(x, w)` with weights as `nn.Linear` stores them, or `x @ w` where a case says -across, by
the kernel in its default configuration, and in bf16 also by the same kernel without the processor's
instructions for it, in fp32. Against: PyTorch's own, which a library computes. A case says how many numbers
are read and made, as 1024x2816 or, where they are as many, 2048, and how many rows there are, as m64. All
contenders are called in turns. On one thread it is the processor's time that counts, which other programs do
not lengthen by running; on more it is the clock's.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.command import Parser, above_zero, check_out, from_one, listed
from superopt.bench.harness.records import Record, failed, launch_record, line
from superopt.bench.harness.results import Results, begin, machine, tell
from superopt.bench.harness.turns import clock_for, in_turns
from superopt.errors import InputError, SuperoptError

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["CASES", "Sizes", "main", "measure"]

_ROWS, _SIDES = (1, 8, 16, 64, 128, 512), (2048, 4096)
CASES = [f"{side}-m{rows}{way}" for way in ("", "-across") for side in _SIDES for rows in _ROWS]
"""The cases that are measured where none are named."""

_CASE = re.compile(r"([1-9]\d*)(?:x([1-9]\d*))?-m([1-9]\d*)(-across)?")
_DTYPES = {"bf16": "bfloat16", "f32": "float32"}
_TEXT = """
graph linear
axes m={m} n={n} k={k}
in x: {dtype}[m, k]
in w: {dtype}[{weights}]
t2 = contract[k](x, w)
out y: {dtype}[m, n] = t2
"""
_IN_FP32 = ("-mno-avx512bf16",)
_LEAST_ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Sizes:
    """A case: rows, the numbers of each that are read and made, and how the weights lie."""

    rows: int
    read: int
    made: int
    across: bool  # whether the sum goes across the lines of the weights

    @staticmethod
    def of(case: str) -> "Sizes":
        """Return what a case says, such as 1024x2816-m64-across."""
        found = _CASE.fullmatch(case)
        if found is None:
            raise InputError(f"{case!r} is no case; give one like 2048-m8 or 1024x2816-m64-across")
        read, made, rows, across = found.groups()
        return Sizes(int(rows), int(read), int(made or read), across is not None)


def measure(sizes: Sizes, *, dtype: str = "bf16", threads: int, seconds: float) -> Record:
    """Return the record of one size."""
    import torch
    from torch.nn import functional as F

    from superopt.codegen.cpp import CppMuGraph
    from superopt.ir import fuse, parse_graph

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows, read, made, across = sizes.rows, sizes.read, sizes.made, sizes.across
        weights = "k, n" if across else "n, k"
        text = _TEXT.format(m=rows, n=made, k=read, dtype=dtype, weights=weights)
        mugraph = fuse(parse_graph(text))
        kernel = CppMuGraph(mugraph)
        torch.manual_seed(0)
        shape = (read, made) if across else (made, read)
        x, w = (torch.randn(*one).to(getattr(torch, _DTYPES[dtype])) for one in ((rows, read), shape))
        runs: dict[str, Callable[[], Any]] = {"superopt": lambda: kernel.in_order((x, w))}
        if dtype == "bf16":
            in_fp32 = CppMuGraph(mugraph, flags=_IN_FP32)
            runs["superopt in fp32"] = lambda: in_fp32.in_order((x, w))
        runs["eager"] = lambda: x @ w if across else F.linear(x, w)
        with torch.no_grad():
            taken = in_turns(runs, clock_for(threads), seconds=seconds, least_rounds=_LEAST_ROUNDS)
    finally:
        torch.set_num_threads(before)
    flops = 2 * rows * read * made
    record = launch_record(taken, "superopt", "eager")
    rates = {name: flops / one["median_us"] / 1e3 for name, one in record["measured"].items()}
    return {**record, "gflops": {name: round(rate, 1) for name, rate in rates.items()}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases that are asked for; return 0 where one was measured."""
    parser = Parser("contraction", __doc__)
    parser.add_argument("--case", default="", help="only these cases, by commas, as in 2048-m8")
    parser.add_argument(
        "--dtype", choices=tuple(_DTYPES), default="bf16", help="of all tensors (default: bf16)"
    )
    parser.add_argument("--threads", default="1,2", help="numbers of threads, by commas (default: 1,2)")
    parser.add_argument("--seconds", type=above_zero, default=2.0, help="of the turns of a case (default: 2)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results here after every case")
    return parser.run(arguments, _measure_all)


def _measure_all(options: "Namespace") -> int:
    cases = {name: Sizes.of(name) for name in listed(options.case) or CASES}
    check_out(options.json)
    counts = [from_one(one) for one in listed(options.threads)]
    wanted = {f"{name}/{count} threads": (name, count) for count in counts for name in cases}
    settings = {"dtype": options.dtype, "seconds": options.seconds, "threads": counts}
    results = Results(list(wanted), options.json, begin("contraction", settings, machine(), {}))
    for title, (name, count) in wanted.items():
        sizes = cases[name]
        known = {
            "case": title,
            "sizes": {"M": sizes.rows, "N": sizes.made, "K": sizes.read},
            "threads": count,
        }
        try:
            found = measure(sizes, dtype=options.dtype, threads=count, seconds=options.seconds)
            record = known | found
        except SuperoptError as error:
            record = failed(known, error)
        results.keep(title, record)
        tell(line(record))
    return 0 if results.any_measured else 1


if __name__ == "__main__":
    raise SystemExit(main())
