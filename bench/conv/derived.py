"""Derived: how large the searches of convolutions are, and which forms they find, beside what EinNet needs.

    python -m bench.conv.derived                           the table
    python -m bench.conv.derived --show dilated            each graph that is found for one program
    python -m bench.conv.derived --race images             the kernels of several forms, and eager PyTorch
    python -m bench.conv.derived --json OUT                the same as data

Counted: the nodes of all e-graphs, the tensors that were explored, the ways to make them, and the different
graphs, each of which is proven. A moved form reads windows of what it computes, as a product of matrices and
a sum of shifted results does; a form in parts takes windows apart along new axes; a corrected one computes
most of a value in another way, and the rest again.
"""

import json
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.harness.command import Parser, above_zero, check_names, check_out, from_one
from superopt.bench.harness.results import machine
from superopt.bench.harness.turns import clock_for, in_turns
from superopt.codegen.cpp import CppMuGraph
from superopt.codegen.errors import UnsupportedError
from superopt.driver import Found, Search, SearchOptions, search
from superopt.files import replace_text
from superopt.ir import fuse
from superopt.precision import with_rounding

__all__ = ["PROGRAMS", "main"]

_RACED = 4  # graphs of each kind that are raced
_RACE_S = 6.0

Program = tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]

PROGRAMS: dict[str, Program] = {
    "conv3x3": (lambda x, w: F.conv2d(x, w, padding=1), ((1, 64, 28, 28), (64, 64, 3, 3))),
    "conv5x5": (lambda x, w: F.conv2d(x, w, padding=2), ((1, 32, 28, 28), (32, 32, 5, 5))),
    "dilated": (lambda x, w: F.conv2d(x, w, padding=2, dilation=2), ((1, 64, 28, 28), (64, 64, 3, 3))),
    "strided": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), ((1, 64, 28, 28), (64, 64, 3, 3))),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        ((1, 64, 14, 14), (64, 32, 4, 4)),
    ),
    "images": (lambda x, w: F.conv1d(x.transpose(0, 1), w, padding=1), ((64, 8, 28), (64, 64, 3))),
    "rows": (lambda x, w: F.conv2d(x, w, padding=1), ((1, 64, 7, 7), (64, 64, 3, 3))),
    "pooled": (lambda x, w: F.avg_pool2d(F.conv2d(x, w), 2), ((1, 64, 28, 28), (64, 64, 1, 1))),
    "separable": (
        lambda x, w, v: F.conv2d(F.conv2d(x, w, padding=1, groups=32), v),
        ((1, 32, 28, 28), (32, 1, 3, 3), (64, 32, 1, 1)),
    ),
}
"""What is searched, and the shapes of its tensors."""

PEERS = {"conv3x3": "EinNet at depth 7, published: 157,966 states, 4,800 candidates"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Search the programs; return 0 where each search was complete."""
    parser = Parser("conv.derived", __doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"programs: {', '.join(PROGRAMS)} (default: all)")
    add("--seconds", type=above_zero, default=600.0, help="limit of one search (default: 600)")
    add("--show", default="", metavar="NAME", help="print the graphs of this program")
    add("--race", default="", metavar="NAME", help="time the kernels of each kind of form of this program")
    add("--threads", type=from_one, default=1, help="of the race (default: 1)")
    add("--json", type=Path, metavar="OUT", help="write the counts, or the times, here")
    return parser.run(arguments, _run)


def _run(options: Namespace) -> int:
    names = [options.show or options.race] if options.show or options.race else options.names
    names = names or list(PROGRAMS)
    check_names("NAME", names, list(PROGRAMS))
    check_out(options.json)
    if options.race:
        return _race(options)
    rows = []
    print(
        f"{'program':12} {'e-nodes':>7} {'tensors':>7} {'ways':>7} {'graphs':>6} {'moved':>6} {'parts':>6}"
        f" {'corrected':>9} {'seconds':>8}  others"
    )
    for name in names:
        function, shapes = PROGRAMS[name]
        start = time.perf_counter()
        limits = SearchOptions(seconds=options.seconds, max_graphs=1000, seed=0)
        found = search(function, *(torch.zeros(shape) for shape in shapes), name=name, options=limits)
        rows.append({"program": name, **_counts(found), "seconds": time.perf_counter() - start})
        row = rows[-1]
        print(
            f"{name:12} {row['e_nodes']:7,} {row['tensors']:7,} {row['ways']:7,} {row['graphs']:6,}"
            f" {row['moved']:6,} {row['parts']:6,} {row['corrected']:9,} {row['seconds']:8.2f}"
            f"  {PEERS.get(name, '')}".rstrip()
        )
        for why in (*found.truncated, *(note for region in found.regions for note in region.notes)):
            print(f"    {why}")
        if options.show:
            print("\n".join(str(one.graph) for region in found.regions for one in region.found))
    if options.json:
        replace_text(options.json, json.dumps({"machine": machine(), "peers": PEERS, "rows": rows}, indent=1))
        print(f"written: {options.json}")
    return 0 if all(row["complete"] for row in rows) else 1


def _race(options: Namespace) -> int:
    """Time the kernels of the cheapest graphs of each kind, and PyTorch, in turns."""
    function, shapes = PROGRAMS[options.race]
    torch.set_num_threads(options.threads)
    inputs = [torch.randn(shape) for shape in shapes]
    limits = SearchOptions(seconds=options.seconds, max_graphs=1000, seed=0)
    found = search(function, *inputs, name=options.race, options=limits)
    named = dict(zip((port.name for port in found.program.inputs), inputs, strict=True))
    [region] = found.regions
    kinds: dict[str, list[Found]] = {}
    own = {axis.name for axis in region.goal.axes}
    for one in region.found:
        kinds.setdefault(_kind(one, own), []).append(one)
    runs: dict[str, Callable[[], Any]] = {"eager": lambda: function(*inputs)}
    steps = {"eager": ""}
    with torch.inference_mode():
        expected = function(*(one.double() for one in inputs))
        for kind, graphs in kinds.items():
            for number, one in enumerate(graphs[:_RACED]):
                name = f"{kind} {number + 1}"
                steps[name] = " ".join(str(one.graph).partition("t2 =")[2].partition("\nout ")[0].split())
                try:
                    kernels = CppMuGraph(with_rounding(fuse(one.graph)), {})
                    given = [named[port.name] for port in one.graph.inputs]
                    [made] = kernels.in_order(given)
                except UnsupportedError as error:
                    print(f"{name}: no kernels: {error}")
                    continue
                torch.testing.assert_close(made.double(), expected, rtol=1e-3, atol=1e-3)
                runs[name] = partial(kernels.in_order, given)
        times = in_turns(runs, clock_for(options.threads), seconds=_RACE_S, least_rounds=11)
    rows = {name: one.summary().median_us for name, one in times.items()}
    for name, median in sorted(rows.items(), key=lambda row: row[1]):
        print(f"{median:10.1f} us  {name:14} {steps[name][:160]}".rstrip())
    if options.json:
        document = {"machine": machine(), "program": options.race, "threads": options.threads}
        replace_text(options.json, json.dumps({**document, "median_us": rows, "steps": steps}, indent=1))
        print(f"written: {options.json}")
    return 0


def _kind(found: Found, own: set[str]) -> str:
    """Return which kind of form a graph is."""
    if found.correction:
        return "corrected"
    if any(axis.name not in own for axis in found.graph.axes):
        return "in parts"
    return "moved" if _reads_what_it_makes(found) else "direct"


def _counts(found: Search) -> dict[str, Any]:
    graphs = [one for region in found.regions for one in region.found]
    statistics = [region.statistics for region in found.regions]
    axes = {axis.name for region in found.regions for axis in region.goal.axes}
    own = [one for one in graphs if not one.correction]
    return {
        "e_nodes": sum(one.e_nodes for one in statistics),
        "tensors": sum(one.tensors for one in statistics),
        "ways": sum(one.derivations for one in statistics),
        "graphs": len(graphs),
        "moved": sum(map(_reads_what_it_makes, own)),
        "parts": sum(any(axis.name not in axes for axis in one.graph.axes) for one in own),
        "corrected": len(graphs) - len(own),
        "complete": found.complete and bool(graphs),
    }


def _reads_what_it_makes(found: Found) -> bool:
    """Whether a graph reads windows of what it computes."""
    graph = found.graph
    read = [graph.step_of(step.inputs[0]) for step in graph.steps if step.op == "window"]
    return any(made is not None and made.op != "window" for made in read)


if __name__ == "__main__":
    raise SystemExit(main())
