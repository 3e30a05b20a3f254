"""Turns that are taken whatever a race says."""

import warnings
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest
import torch

from superopt.backend.decision import Decision, Ledger
from superopt.backend.graphpass import RegionPass
from superopt.backend.joint import joint_pass, judged, partition
from superopt.backend.joint.turns import choice, run, stages
from superopt.codegen.cpp import compile as cpp_compile

from .steps import WORDS

with warnings.catch_warnings():  # Inductor warns of parts of PyTorch as it is imported
    warnings.simplefilter("ignore")
    import torch._functorch.config
    import torch._inductor.compile_fx


@pytest.fixture
def noted(
    request: pytest.FixtureRequest, tmp_path: Path, kernels_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Decision]]:
    """Take small turns whatever a race says, and nothing else; return what was decided."""
    made: list[Decision] = []
    note = Ledger.note

    def noting(self: Ledger, decision: Decision, title: str) -> None:
        made.append(decision)
        note(self, decision, title)

    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "superopt"))
    monkeypatch.setattr(cpp_compile, "_folder", lambda: kernels_folder)
    monkeypatch.setattr(Ledger, "note", noting)
    monkeypatch.setattr(RegionPass, "_run", lambda *given: None)
    monkeypatch.setattr(joint_pass, "_LEAST_BYTES", 1 << 12)
    monkeypatch.setattr(choice, "_TURN_BYTES", 4 * WORDS * 10)
    monkeypatch.setattr(choice, "_MORE", (1,))
    monkeypatch.setattr(partition, "_LEAST_S", inf)  # the step is not raced as a whole
    monkeypatch.setattr(stages, "_LEAST_FLOPS", 1)
    monkeypatch.setattr(judged, "_RACE_S", 0.05)
    monkeypatch.setattr(judged, "_MOST_RACE_S", 0.05)
    for memory in choice.LEAST_SPEED:
        monkeypatch.setitem(choice.LEAST_SPEED, memory, 0.0)
    monkeypatch.setitem(choice._SLACK, "balanced", 1e9)
    if request.node.get_closest_marker("slow") is None:  # turns by PyTorch's operators, for speed
        for module in (run, judged):
            monkeypatch.setattr(module, "compiled_by_inductor", lambda graph, *given: graph)
    torch._dynamo.reset()
    # Each test compiles its graph.
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield made
    torch._dynamo.reset()
