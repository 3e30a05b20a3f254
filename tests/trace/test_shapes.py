"""The rules of shapes agree with PyTorch's own meta kernels: shape, dtype and strides."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.errors import TraceError
from superopt.trace.capture.dispatch import capture
from superopt.trace.capture.shapes import RULES
from superopt.trace.capture.tape import Ref, Tape, map_leaves

spec = importlib.util.spec_from_file_location("operators", Path(__file__).with_name("test_operators.py"))
assert spec is not None
assert spec.loader is not None
operators = importlib.util.module_from_spec(spec)
spec.loader.exec_module(operators)


def check(tape: Tape) -> None:
    for call in tape.calls:
        name = call.target.split(".")[1] if "." in call.target else call.target
        if call.mutated or (name not in RULES and "." in call.target):
            continue

        def tensor(leaf: Any) -> Any:
            if not isinstance(leaf, Ref):
                return leaf
            meta = tape.metas[leaf.index]
            return torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype, device="meta")

        args, kwargs = map_leaves(tensor, (call.args, call.kwargs))
        expected = call.function(*args, **kwargs)
        found = expected if isinstance(expected, tuple) else (expected,)
        for index, own in zip(call.outputs, found, strict=True):
            assert index is not None
            meta = tape.metas[index]
            assert (meta.shape, meta.dtype) == (tuple(own.shape), own.dtype), call.target
            if 0 not in meta.shape:
                pairs = zip(meta.shape, meta.strides, own.stride(), strict=True)
                assert all(size == 1 or a == b for size, a, b in pairs), (call.target, meta, own.stride())


@pytest.mark.parametrize("name", operators.ALL)
def test_operators(name: str) -> None:
    if name.startswith("attention/"):
        pytest.skip("the kernels of different devices return different strides")
    function, shapes = operators.ALL[name]
    for dtype in (torch.float64, torch.float16):
        inputs = tuple(torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
        try:
            tape = capture(function, inputs, "f")
        except TraceError:  # some programs are written for float64
            assert dtype != torch.float64
            continue
        check(tape)


def strided(*shape: int, order: tuple[int, ...], dtype: torch.dtype = torch.float16) -> Tensor:
    whole = torch.empty([shape[i] for i in order], dtype=dtype, device="meta")
    return whole.permute([order.index(i) for i in range(len(shape))])


STRIDED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "unary": (lambda x: x.exp().sigmoid(), (strided(2, 3, 4, order=(1, 2, 0)),)),
    "two orders": (torch.add, (strided(2, 3, 4, order=(1, 2, 0)), strided(2, 3, 4, order=(2, 0, 1)))),
    "broadcast": (torch.mul, (strided(2, 3, 4, order=(2, 1, 0)), strided(3, 1, order=(1, 0)))),
    "broadcast first": (torch.mul, (strided(3, 1, order=(1, 0)), strided(2, 3, 4, order=(1, 0, 2)))),
    "sliced": (lambda x: x[:, ::2].neg() + x[:, 1::2], (strided(4, 6, order=(1, 0)),)),
    "expanded": (lambda x: x.expand(3, 4, 5).exp(), (strided(4, 1, order=(1, 0)),)),
    "equal strides": (
        lambda x: x.expand(3, 4, 5) * x.expand(5, 3, 4).permute(1, 2, 0),
        (strided(1, order=(0,)),),
    ),
    "heads": (
        lambda x: torch.cat([-x[..., 2:], x[..., :2]], -1) * x,
        (strided(2, 3, 5, 4, order=(0, 2, 1, 3)),),
    ),
    "clone": (lambda x: x.clone() + x.contiguous(), (strided(2, 3, 4, order=(2, 1, 0)),)),
    "to": (lambda x: x.float().half(), (strided(2, 3, 4, order=(2, 1, 0)),)),
    "softmax": (lambda x: x.softmax(1).log_softmax(0), (strided(2, 3, 4, order=(2, 1, 0)),)),
    "sum": (
        lambda x: (x.sum(1), x.mean((0, 2), keepdim=True), x.amax(-1)),
        (strided(2, 3, 4, order=(2, 1, 0)),),
    ),
    "where": (
        lambda x, y: torch.where(x > 0, x, y),
        (strided(4, 3, order=(1, 0)), strided(4, 3, order=(0, 1))),
    ),
    "matmul": (lambda x: x @ x.transpose(1, 2), (strided(2, 3, 4, order=(2, 1, 0)),)),
    "tril": (lambda x: x.tril(), (strided(4, 3, order=(1, 0)),)),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), (strided(2, 3, 4, order=(2, 1, 0)),)),
    "promotion": (
        lambda x, y, z: (x + y, x * z, x + 2, x + 2.5, y * 0.5, z + 1.5, torch.maximum(x, y)),
        (
            strided(3, 4, order=(0, 1)),
            strided(4, order=(0,), dtype=torch.float32),
            torch.empty((), dtype=torch.float64, device="meta"),
        ),
    ),
    "bfloat16": (lambda x, y: x + y, (strided(3, order=(0,)), strided(3, order=(0,), dtype=torch.bfloat16))),
    "integers": (
        lambda x: (torch.arange(3) + x, torch.arange(3) / 2, torch.arange(3) * 2),
        (strided(3, order=(0,)),),
    ),
    "zero-sized": (lambda x: (x + 1, x.sum(0), x @ x.T), (strided(3, 0, order=(1, 0)),)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides(name: str) -> None:
    function, inputs = STRIDED[name]
    check(capture(function, inputs, "f"))


def test_no_slow_imports() -> None:
    import subprocess
    import sys

    code = (
        "import sys, superopt.workloads as w; from superopt.trace import trace\n"
        "for item in w.WORKLOADS.values(): trace(item.function, *item.inputs())\n"
        "sys.exit('sympy' in sys.modules or 'torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
