"""Calls drawn at random: traced, for running and for a proof, they compute what PyTorch computes.

Where PyTorch's result is NaN or infinite, nothing is asked, and where it refuses a call neither.
"""

import shutil
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from superopt.codegen.cpp import CppMuGraph
from superopt.errors import TraceError
from superopt.funnel.assembly import assemble
from superopt.ir import fuse, stabilize
from superopt.trace import trace
from superopt.trace.capture.dispatch import capture

from .calls import Call, drawn_call

TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-3}
NARROW = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.bool)
FLOATS = {torch.float32, torch.bfloat16, torch.float16}
QUICK, MANY = 300, 12_000

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's, of what is drawn


def agrees(call: Call, *, for_proof: bool) -> bool:
    """Check one call; return whether there was anything to check."""
    try:
        with torch.no_grad():
            wanted = call.function(*(one.clone() for one in call.inputs))
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        return False
    try:
        traced = trace(call.function, *call.inputs, for_proof=for_proof)
    except TraceError as error:
        raise AssertionError(f"{call.text}: {error}") from error
    pairs = list(zip(tree_leaves(traced.run(*call.inputs)), tree_leaves(wanted), strict=True))
    narrowest = max(TOLERANCES.get(one.dtype, 1e-9) for one in (*call.inputs, *tree_leaves(wanted)))
    for found, expected in pairs:
        assert same(found, expected, narrowest), f"{call.text}: {found} against {expected}"
    return bool(pairs)


def same(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Return whether two tensors are the same where the expected one is finite."""
    if (found.shape, found.dtype, found.device) != (expected.shape, expected.dtype, expected.device):
        return False
    if not expected.dtype.is_floating_point:
        return torch.equal(found, expected)
    finite = expected.isfinite()
    a, b = found[finite].double(), expected[finite].double()
    scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("for_proof", [False, True])
def test_calls(for_proof: bool) -> None:
    checked = sum(agrees(drawn_call(seed), for_proof=for_proof) for seed in range(QUICK))
    assert checked > QUICK / 2


@pytest.mark.slow
@pytest.mark.parametrize("for_proof", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_many_calls(part: int, for_proof: bool) -> None:
    for seed in range(QUICK + part, MANY, 4):
        agrees(drawn_call(seed), for_proof=for_proof)


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
@pytest.mark.parametrize("part", range(40))
def test_kernels(part: int) -> None:
    """Several calls at a time become one program, whose kernels compute what PyTorch does."""
    drawn = (drawn_call(1000 * part + at, NARROW) for at in range(20))
    calls = [call for call in drawn if has_kernels(call) and not is_rewritten(call)]
    places = list(accumulate((len(call.inputs) for call in calls), initial=0))

    def function(*inputs: Tensor) -> list[Any]:
        return [call.function(*inputs[a:b]) for call, (a, b) in zip(calls, pairwise(places), strict=True)]

    inputs = [one for call in calls for one in call.inputs]
    traced = trace(function, *inputs)
    name = traced.graph.name
    program = assemble(traced, {name: CppMuGraph(fuse(stabilize(traced.graph), online=part % 2 == 1))})
    for call, found, wanted in zip(calls, program(*inputs), function(*inputs), strict=True):
        narrowest = max(TOLERANCES.get(one.dtype, 1e-3) for one in (*call.inputs, *tree_leaves(wanted)))
        for a, b in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
            assert same(a, b, narrowest), f"{call.text}: {a} against {b}"


def has_kernels(call: Call) -> bool:
    """Return whether a call is algebra, of dtypes that kernels make."""
    try:
        made = tree_leaves(call.function(*call.inputs))
        traced = trace(call.function, *call.inputs)
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        return False
    return (
        bool(traced.program.regions) and not traced.program.opaque and {one.dtype for one in made} <= FLOATS
    )


def is_rewritten(call: Call) -> bool:
    """Return whether a call reads what it wrote through views, which fails beside operators kept whole."""
    return capture(call.function, tuple(call.inputs), "call").rewritten


def test_a_difference_is_seen() -> None:
    x, other = torch.tensor([1.0, torch.nan, torch.inf]), torch.tensor([1.0, 2.0, 3.0])
    assert same(other, x, 1e-9)
    assert not same(x, other, 1e-9)
    assert not same(other.double(), other, 1e-9)
    assert not same(other[None], other, 1e-9)
    assert not same(other.long() + 1, other.long(), 1e-9)


def test_a_call_comes_again() -> None:
    one, again = drawn_call(7), drawn_call(7)
    assert one.text == again.text
    same_inputs: list[Any] = [torch.equal(a, b) for a, b in zip(one.inputs, again.inputs, strict=True)]
    assert all(same_inputs)
