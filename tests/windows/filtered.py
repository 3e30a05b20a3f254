"""Convolutions of three taps, whose kernels take fewer products, with what they are to make."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.codegen.cpp import CppMuGraph, configs, lower_kernel
from superopt.ir import fuse
from superopt.precision import with_rounding
from superopt.trace import trace
from tests.windows.convolutions import Case

__all__ = ["CASES", "SCRIPT", "case_of", "filtered", "near"]

_PLAIN, _LAST = torch.contiguous_format, torch.channels_last
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}

_Setting = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], torch.memory_format, torch.dtype]

CASES: dict[str, _Setting] = {
    "contiguous": ((2, 5, 9, 11), (7, 5, 3, 3), {"padding": 1}, _PLAIN, torch.float32),
    "last": ((1, 40, 8, 7), (33, 40, 3, 3), {"padding": (2, 0)}, _LAST, torch.float32),
    "grouped": ((1, 34, 6, 70), (40, 17, 3, 3), {"padding": 1, "groups": 2}, _LAST, torch.bfloat16),
    "one axis": ((2, 6, 143), (40, 6, 3), {"padding": 1}, _PLAIN, torch.float16),
    "every other": ((2, 21, 11, 160), (9, 21, 3, 3), {"padding": 1, "stride": 2}, _PLAIN, torch.float32),
    "every other, last": ((1, 34, 8, 9), (40, 34, 3, 3), {"stride": 2}, _LAST, torch.bfloat16),
    "every other row": ((1, 7, 12, 10), (18, 7, 3, 3), {"stride": (2, 1)}, _PLAIN, torch.float32),
    "every other of one axis": ((2, 6, 271), (40, 6, 3), {"padding": 1, "stride": 2}, _PLAIN, torch.float16),
}  # fmt: skip

SCRIPT = """
import sys
from tests.windows.filtered import filtered, near
kernels, given, expected = filtered(sys.argv[1], tuple(sys.argv[2:]))
assert near(kernels.in_order(given)[0], expected)
print("clean")
"""
"""What a process of its own runs: the name of a case, and the flags of the compiler."""


def case_of(name: str) -> Case:
    """Return a convolution with its bias and an activation, on numbers that are always the same ones."""
    shape, kernel, settings, layout, dtype = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype).contiguous(memory_format=layout)
    w, bias = torch.randn(kernel).to(dtype), torch.randn(kernel[0]).to(dtype)

    def function(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        made = F.conv1d if x.dim() == 3 else F.conv2d
        return F.relu(made(x, w, bias, **settings))

    return Case(function, (x, w, bias), name)


def filtered(name: str, flags: tuple[str, ...] = ()) -> tuple[CppMuGraph, list[Tensor], Tensor]:
    """Return the kernel of a case in fewer products, its inputs in order, and the result in float64."""
    case = case_of(name)
    traced = trace(case.function, *case.inputs)
    [region] = traced.program.regions
    mugraph = with_rounding(fuse(region.graph))
    found = configs(lower_kernel(mugraph, 0), region.graph.sizes)
    chosen = {0: next(one for one in found if one.filtered)}
    known = dict(zip((port.name for port in traced.program.inputs), case.inputs, strict=True))
    kernels = CppMuGraph(mugraph, chosen, flags=flags)
    assert "contract_filtered<" in "".join(kernels.sources)
    expected = case.function(*(one.double() for one in case.inputs))
    return kernels, [known[port.name] for port in region.graph.inputs], expected


def near(found: Tensor, expected: Tensor) -> bool:
    """Return whether a result is as near to that in float64 as its dtype allows."""
    error = (found.double() - expected).abs() / (1 + expected.abs())
    return found.shape == expected.shape and float(error.max()) < _TOLERANCE[found.dtype]
