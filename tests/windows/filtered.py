"""Convolutions of three taps, whose kernels take fewer products, with what they are to make."""

from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.codegen.cpp import CppMuGraph, configs, emit, lower_kernel
from superopt.ir import fuse
from superopt.precision import with_rounding
from superopt.trace import trace
from tests.windows.convolutions import Case

__all__ = ["CASES", "SCRIPT", "case_of", "filtered", "near", "random_setting"]

_PLAIN, _LAST = torch.contiguous_format, torch.channels_last
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}

Setting = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], torch.memory_format, torch.dtype]

CASES: dict[str, Setting] = {
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


def random_setting(random: Random) -> Setting:
    """Return a random convolution of three taps along one axis or two, with any steps and borders."""
    slid, groups = random.choice((1, 2, 2)), random.choice((1, 1, 2))
    channels, filters = random.choice((3, 8, 17, 40)), random.choice((9, 16, 34, 70))
    stride = [random.choice((1, 2)) for _ in range(slid)]
    padding = [random.randrange(4) for _ in range(slid)]
    sizes = [max(3 - 2 * p, 1) + random.choice((2, 5, 14, 60)) for p in padding]
    shape = (random.choice((1, 3)), groups * channels, *sizes)
    kernel = (groups * filters, channels, *[3] * slid)
    layout = random.choice((_PLAIN, _LAST)) if slid == 2 else _PLAIN
    dtype = random.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    return shape, kernel, {"stride": stride, "padding": padding, "groups": groups}, layout, dtype


def case_of(name: str | Setting) -> Case:
    """Return a convolution with its bias and an activation, on numbers that are always the same ones."""
    shape, kernel, settings, layout, dtype = CASES[name] if isinstance(name, str) else name
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype).contiguous(memory_format=layout)
    w, bias = torch.randn(kernel).to(dtype), torch.randn(kernel[0]).to(dtype)

    def function(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        made = F.conv1d if x.dim() == 3 else F.conv2d
        return F.relu(made(x, w, bias, **settings))

    return Case(function, (x, w, bias), str(name))


def filtered(
    name: str | Setting, flags: tuple[str, ...] = (), random: Random | None = None
) -> tuple[CppMuGraph, list[Tensor], Tensor]:
    """Return a kernel of a case in fewer products, its inputs in order, and the result in float64."""
    case = case_of(name)
    traced = trace(case.function, *case.inputs)
    [region] = traced.program.regions
    mugraph = with_rounding(fuse(region.graph))
    program = lower_kernel(mugraph, 0)
    found = [one for one in configs(program, region.graph.sizes) if one.filtered]
    fewer = [one for one in found if "contract_filtered<" in emit(program, one).code]
    chosen = {0: random.choice(fewer) if random and fewer else fewer[0]}
    known = dict(zip((port.name for port in traced.program.inputs), case.inputs, strict=True))
    kernels = CppMuGraph(mugraph, chosen, flags=flags)
    expected = case.function(*(one.double() for one in case.inputs))
    return kernels, [known[port.name] for port in region.graph.inputs], expected


def near(found: Tensor, expected: Tensor) -> bool:
    """Return whether a result is as near to that in float64 as its dtype allows."""
    error = (found.double() - expected).abs() / (1 + expected.abs())
    return found.shape == expected.shape and float(error.max()) < _TOLERANCE[found.dtype]
