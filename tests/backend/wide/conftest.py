"""Calls in half precision that are all computed in float32, however fast that is."""

import pytest
from torch import fx

from superopt.rivals.wide import calls, choice


@pytest.fixture
def all_wide(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Say of each call that it is faster in float32; return the names of the calls that are asked about."""
    asked: list[str] = []

    def faster(node: fx.Node) -> float:
        asked.append(node.name)
        return 9.0

    monkeypatch.setattr(choice, "_SPEEDS", {})
    monkeypatch.setattr(choice, "raced", faster)
    monkeypatch.setattr(calls, "_LEAST_FLOPS", 0)
    monkeypatch.setattr(calls, "SCARCE", 0)  # no kernels of ours, which have to be compiled
    return asked
