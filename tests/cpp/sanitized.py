"""Kernels in tuned configurations and other schedules, run at odd sizes: what the sanitizers watch.

`python sanitized.py NAME DTYPE COUNT` prints `clean` at the end; the sanitizers end it at the first fault.
"""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from superopt.codegen.cpp import CppMuGraph, configs
from superopt.codegen.errors import UnsupportedError
from superopt.codegen.statements import lower_block
from superopt.driver import search
from superopt.ir import Block, MuGraph
from superopt.schedule import rank
from superopt.targets import pick_target
from superopt.workloads import WORKLOADS

FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SIZES = {"S": 17, "T": 129, "D": 9, "K": 129, "N": 65, "R": 5, "L": 17, "V": 129, "M": 19, "H": 4, "G": 2}
ODD = (1, 7, 33)
FIXED = "BHGDLR"  # they divide one another, or a scale follows from them
STEP = 7  # of the configurations every so many are taken, so that all choices come up


@dataclass(frozen=True)
class Case:
    """One muGraph with a configuration for each of its kernels."""

    name: str
    mugraph: MuGraph
    configs: dict[int, object]


def sized(name: str, **sizes: int) -> dict[str, int]:
    """Return sizes of a workload that do not divide, with some replaced."""
    return {size: sizes.get(size, SIZES.get(size, 2)) for size in WORKLOADS[name].sizes}


def cases(name: str, dtype: str) -> Iterator[Case]:
    """Yield schedules of the graphs found, each in another configuration."""
    inputs = WORKLOADS[name].inputs(dtype=dtype, **sized(name))
    found = search(WORKLOADS[name].function, *inputs, name=name).regions[0].found
    kept = rank(found[:6], pick_target("cpu").cost_device(), keep=12).kept
    for number in itertools.count():
        for one in kept:
            chosen: dict[int, object] = {}
            for at, kernel in enumerate(one.mugraph.kernels):
                if isinstance(kernel, Block):
                    options = list(configs(lower_block(one.mugraph, at), one.mugraph.graph.sizes))
                    chosen[at] = options[number * STEP % len(options)]
            yield Case(f"{one.name} {number}", one.mugraph, chosen)


def placed(tensor: Tensor, turned: bool) -> Tensor:
    """Return a tensor that ends where its memory ends, its last two dimensions in the other order."""
    if turned and tensor.dim() > 1:
        return tensor.mT.contiguous().mT
    return tensor.clone()


def run(case: Case, kernel: CppMuGraph, name: str, dtype: str, sizes: dict[str, int], turned: bool) -> None:
    """Run a kernel at some sizes, and compare with float64 where results are finite.

    Rows that cancel may be as far off as those of PyTorch.
    """
    torch.manual_seed(0)
    inputs = WORKLOADS[name].inputs(dtype=dtype, device="cpu", **sizes)
    tensors = {
        port.name: placed(tensor, turned)
        for port, tensor in zip(case.mugraph.graph.inputs, inputs, strict=True)
    }
    made = kernel(**tensors)
    eager = WORKLOADS[name].function(*inputs)
    exact = (
        WORKLOADS[name]
        .function(*(one.double() if one.is_floating_point() else one for one in inputs))
        .double()
    )
    counted = eager.isfinite()
    theirs = float((eager - exact).abs()[counted].max()) if counted.any() else 0.0
    for tensor in made.values():
        assert tensor.shape == eager.shape, (case.name, sizes)
        near = (tensor - exact).abs() <= 0.1 * (1 + exact.abs()) + theirs
        assert bool(near[counted].all()), (case.name, sizes)


def main(name: str, dtype: str, count: int) -> None:
    """Run so many cases."""
    axes = list(WORKLOADS[name].sizes)
    for number, case in enumerate(itertools.islice(cases(name, dtype), count)):
        try:
            kernel = CppMuGraph(case.mugraph, case.configs, flags=FLAGS)
        except UnsupportedError:
            continue
        run(case, kernel, name, dtype, sized(name), False)
        for at, size in itertools.product(range(len(axes)), ODD):
            if axes[at] not in FIXED:
                run(case, kernel, name, dtype, sized(name, **{axes[at]: size}), (at + size + number) % 2 == 0)
    print("clean")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
