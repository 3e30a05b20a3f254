"""The check of an exported module: right kernels are fine, and wrong ones are not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from superopt.export import export_module

GRAPH = """
graph checked
axes m=40 k=6
in x: f32[m, k]
in g: f32[k]
kernel grid[m, k]
  {steps}
out y: f32[m, k] = {last}
"""
Scope = dict[str, Any]
Kernels = Callable[[Tensor], Tensor]


@pytest.fixture
def loaded(written) -> Callable[..., Scope]:
    """Makes an exported module of steps; its kernels compute what the reference does, or a change of it."""

    def load(*steps: str, change: Kernels = lambda y: y) -> Scope:
        last = steps[-1].partition(" ")[0]
        text = export_module(written(GRAPH.format(steps="\n  ".join(steps), last=last), "cpu"))
        scope: Scope = {"__name__": "exported"}
        exec(text, scope)
        scope["checked"] = lambda *inputs: change(scope["reference"](*inputs))
        return scope

    return load


ROOT = ("t2 = sqrt(x)", "t3 = mul(t2, g)")
PARTLY = ("t2 = const[1]()", "t3 = sub(t2, x)", "t4 = log(t3)", "t5 = mul(t4, g)")
ENDLESS = ("t2 = relu(x)", "t3 = log(t2)", "t4 = add(t3, g)")
NOWHERE = ("t2 = square(x)", "t3 = neg(t2)", "t4 = sqrt(t3)", "t5 = mul(t4, g)")


def lacking(y: Tensor) -> Tensor:
    """Return a result without one of its numbers."""
    return y.masked_fill(y == y[y.isfinite()][0], math.nan)


@pytest.mark.parametrize(
    ("steps", "change", "fine"),
    [
        (ROOT, lambda y: y, True),
        (ROOT, lambda y: y * 1.01, False),
        (ROOT, lacking, False),
        (PARTLY, lambda y: y, True),
        (PARTLY, lambda y: y.nan_to_num(3.0), True),  # kernels need no NaN where PyTorch has one
        (PARTLY, lambda y: y + 0.01, False),
        (PARTLY, lacking, False),
        (ENDLESS, lambda y: y, True),
        (ENDLESS, lambda y: y.clamp(min=-1e30), False),
        (ENDLESS, torch.abs, False),
        (ENDLESS, lacking, False),
    ],
)
def test_what_is_no_number_is_no_error(
    loaded, steps: tuple[str, ...], change: Kernels, fine: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before: a NaN or an infinity that was right counted as WRONG."""
    assert (loaded(*steps, change=change)["check"]() < 1) is fine
    assert capsys.readouterr().out.endswith(": fine\n" if fine else ": WRONG\n")


def test_nothing_is_fine_where_nothing_is_compared(loaded, capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded(*NOWHERE)["check"]() == math.inf
    assert "NOT COMPARED, as the reference is NaN everywhere" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("steps", "positive"),
    [
        (ROOT, (True, False)),
        (("t2 = add(x, g)", "t3 = log(t2)"), (True, True)),
        (("t2 = mul(x, g)", "t3 = exp(t2)", "t4 = log(t3)"), (False, False)),
        (("t2 = square(x)", "t3 = const[1/1000]()", "t4 = add(t2, t3)", "t5 = rsqrt(t4)", "t6 = mul(t5, g)"),
         (False, False)),
    ],
)  # fmt: skip
def test_roots_are_taken_of_positive_inputs(
    loaded, steps: tuple[str, ...], positive: tuple[bool, bool]
) -> None:
    x, g = loaded(*steps)["make_inputs"]()
    assert (bool((x >= 0).all()), bool((g >= 0).all())) == positive
