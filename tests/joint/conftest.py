"""Chunks that are taken whatever a race says."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from superopt.backend.decision import Decision, Ledger
from superopt.backend.graphpass import RegionPass
from superopt.backend.joint.limits import small
from superopt.codegen.cpp import compile as cpp_compile
from tests.cost.fixed import FIXED

from .steps import WORDS

with warnings.catch_warnings():  # Inductor warns of parts of PyTorch as it is imported
    warnings.simplefilter("ignore")
    import torch._functorch.config
    import torch._inductor.compile_fx


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is kept depend on one processor, whatever this one is and does just now."""
    monkeypatch.setattr("superopt.targets.cpu._host", lambda threads: FIXED)


@pytest.fixture
def noted(
    request: pytest.FixtureRequest, tmp_path: Path, kernels_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Decision]]:
    """Take small chunks whatever a race says, and nothing else; return what was decided."""
    made: list[Decision] = []
    note = Ledger.note

    def noting(self: Ledger, decision: Decision, title: str) -> None:
        made.append(replace(decision, graph=title))
        note(self, decision, title)

    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "superopt"))
    monkeypatch.setattr(cpp_compile, "_folder", lambda: kernels_folder)
    monkeypatch.setattr(Ledger, "note", noting)
    monkeypatch.setattr(RegionPass, "_run", lambda *given: None)
    torch._dynamo.reset()
    # Chunks are made of PyTorch's operators in the quick tests.
    fused = request.node.get_closest_marker("slow") is not None
    told = {"value_bytes": 1 << 12, "chunk_bytes": 4 * WORDS * 10, "fused": fused}
    # Each test compiles its graph.
    with (
        small(**told),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield made
    torch._dynamo.reset()
