"""What tests of deferred work share: regions as torch.compile gives them, in caches of their own."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from backend.conftest import Host, own_caches

from superopt.backend import budget
from superopt.backend.decision import Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.region import Region, draft_of

__all__ = ["MLP", "ledger", "mlp", "own_caches", "region", "regions"]

Regions = Callable[..., list[Region]]


@pytest.fixture(autouse=True)
def tuned_later(own_caches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue what is left undone, and let nothing work it off."""
    monkeypatch.setenv("SUPEROPT_TUNE", "later")


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> Regions:
    """Return what gives the regions of a function, none of which is decided."""

    def found(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> list[Region]:
        made: list[Region] = []
        with monkeypatch.context() as patched:
            patched.setattr(
                budget,
                "known_decision",
                lambda region, ledger: made.append(region) or replace(draft_of(region), why="a test"),
            )
            with torch.no_grad():
                torch.compile(function, backend=Host(), dynamic=dynamic)(*inputs)
        return made

    importlib.import_module("torch._inductor.compile_fx")
    return found


def mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Return what two matmuls around an activation make."""
    return torch.nn.functional.silu(x @ up) @ down


MLP = (torch.ones(4, 8), torch.ones(8, 16), torch.ones(16, 8))


@pytest.fixture
def region(regions: Regions) -> Region:
    """A region of two matmuls."""
    [found] = regions(mlp, *MLP)
    return found


def ledger(**options: Any) -> Ledger:
    """Return a ledger with these options."""
    return Ledger(BackendOptions(**options))
