"""C++ kernels against PyTorch on this machine: medians of interleaved repeats, losses included.

    python -m bench.cpu [--quick] [--compile] [--json OUT]

Every case runs the best graph found, in the default configuration, beside eager PyTorch, beside
scaled_dot_product_attention where it is attention, and with --compile beside torch.compile. Inputs
are drawn anew for every case; a ratio above 1 means that the C++ kernel is faster than the best rival.
"""

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import Any

import torch

from superopt.codegen.cpp import CppMuGraph, find_compiler
from superopt.driver import search
from superopt.ir import fuse, stabilize
from superopt.trace import run_graph
from superopt.workloads import WORKLOADS

VERSION = 1
CASES: list[tuple[str, dict[str, int]]] = [
    ("rmsnorm-linear", {"M": 1, "K": 2048, "N": 2048}),
    ("rmsnorm-linear", {"M": 8, "K": 2048, "N": 2048}),
    ("gated-mlp", {"M": 8, "K": 2048, "N": 2048}),
    ("gqa-decode", {"B": 1, "H": 8, "G": 2, "S": 1, "T": 4096, "D": 128}),
    ("gqa", {"B": 1, "H": 8, "G": 2, "S": 1024, "D": 64}),
    ("lora", {"M": 8, "K": 2048, "N": 2048, "R": 16}),
    ("softmax", {"M": 512, "N": 2048}),
    ("rmsnorm", {"M": 512, "K": 2048}),
    ("matmul", {"M": 512, "K": 512, "N": 512}),
    ("matmul", {"M": 1024, "K": 1024, "N": 1024}),
    ("matmul", {"M": 2048, "K": 2048, "N": 2048}),
]


def medians(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median time of each, in milliseconds; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(name: str, sizes: dict[str, int], dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    workload = WORKLOADS[name]
    found = search(workload.function, *workload.inputs(dtype=dtype, **sizes), name=name)
    mugraph = fuse(stabilize(found.regions[0].found[0].graph), online=True)
    kernel = CppMuGraph(mugraph)
    torch.manual_seed(0)
    inputs = workload.inputs(dtype=dtype, device="cpu", **sizes)
    tensors = {port.name: tensor for port, tensor in zip(mugraph.graph.inputs, inputs, strict=True)}
    runs: dict[str, Callable[[], Any]] = {
        "superopt": lambda: kernel(**tensors),
        "eager": lambda: workload.function(*inputs),
    }
    if name in ("gqa", "gqa-decode"):
        runs["sdpa"] = lambda: torch.nn.functional.scaled_dot_product_attention(
            *inputs, enable_gqa=True, is_causal=name == "gqa"
        )
    if args.compile:
        compiled = torch.compile(workload.function)
        runs["compile"] = lambda: compiled(*inputs)
    (wanted,) = run_graph(mugraph.graph, tensors).values()
    (got,) = kernel(**tensors).values()
    error = (got.double() - wanted).abs().max().item()
    eager_error = (workload.function(*inputs).double() - wanted).abs().max().item()
    times = medians(runs, args.repeats)
    best = min(ms for rival, ms in times.items() if rival != "superopt")
    bytes_read = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, got))
    return {
        "workload": name,
        "sizes": sizes,
        "dtype": dtype,
        "median_ms": {rival: round(ms, 4) for rival, ms in times.items()},
        "ratio": round(best / times["superopt"], 3),
        "gigabytes_per_second": round(bytes_read / times["superopt"] / 1e6, 2),
        "error": error,
        "eager_error": eager_error,
    }


def mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--compile", action="store_true", help="race torch.compile too")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results there")
    args = parser.parse_args()
    args.repeats = 11 if args.quick else 51
    warnings.filterwarnings("ignore")
    rows: list[dict[str, Any]] = []
    for dtype in ("f32", "bf16"):
        for name, sizes in CASES:
            row = measure(name, sizes, dtype, args)
            rows.append(row)
            shown = "  ".join(f"{rival} {ms:.3f} ms" for rival, ms in row["median_ms"].items())
            text = " ".join(f"{size}={value}" for size, value in sizes.items())
            print(f"{name:<16} {dtype:<4} {text:<34} {shown}  ratio {row['ratio']:.2f}", flush=True)
    means = {
        dtype: round(mean([row["ratio"] for row in rows if row["dtype"] == dtype]), 3)
        for dtype in ("f32", "bf16")
    }
    print("geometric mean: " + ", ".join(f"{dtype} {ratio:.2f}" for dtype, ratio in means.items()))
    if args.json is not None:
        machine = {
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "compiler": find_compiler().version,
        }
        result = {"version": VERSION, "machine": machine, "geometric_mean": means, "cases": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
