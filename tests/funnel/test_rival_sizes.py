"""Rivals at one size after another: each is compiled for its size, however many others there were."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from superopt.rivals.rivals import rivals_of
from superopt.targets import pick_target


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Return the sizes for which torch.compile was asked for code; nothing but Dynamo is loaded."""
    asked: list[list[Any]] = []

    def note(module: fx.GraphModule, given: list[Any], **settings: Any) -> Any:
        asked.append([length for one in given if isinstance(one, Tensor) for length in one.shape])
        return module.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=note))
    torch._dynamo.reset()
    return asked


def rival_at(function: Any, length: int) -> Any:
    given = (torch.randn(4, length),)
    cpu = pick_target("cpu")
    return rivals_of(function, given, cpu, compiled=True, products=0, tell=lambda _: None)["torch.compile"]


def test_each_size_has_code_of_its_own(compiled: list[list[Any]]) -> None:
    def doubled(x: Tensor) -> Tensor:
        return (x * 2).sum(-1)

    lengths = range(8, 20)  # more than Dynamo compiles of one function
    rivals = [rival_at(doubled, length) for length in lengths]
    assert [(type(one[1]), one) for one in compiled] == [(int, [4, length]) for length in lengths]
    for length, rival in zip(lengths, rivals, strict=True):
        rival(torch.randn(4, length))
    assert len(compiled) == len(lengths)


def test_other_sizes_are_compiled_as_ever_after_the_race(compiled: list[list[Any]]) -> None:
    def tripled(x: Tensor) -> Tensor:
        return (x * 3).sum(-1)

    rival = rival_at(tripled, 8)
    for length in range(9, 20):
        torch.testing.assert_close(rival(torch.full((4, length), 2.0)), torch.full((4,), 6.0 * length))
    assert len(compiled) < 4
