"""What tests of the backend share: caches of their own, regions taken without a search, a quick host."""

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from superopt.backend import graphpass
from superopt.backend.choice import Region
from superopt.backend.decision import Decision, Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.plans import plan_text
from superopt.ir import fuse, release_shifts, stabilize
from superopt.plans.plan import Candidate, RegionPlan
from superopt.targets import Target

with warnings.catch_warnings():  # Inductor warns of parts of PyTorch as it is imported
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what tests decide in a folder of their own, and dynamo's graphs to one test."""
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "superopt"))
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def plan_of(region: Region, target: Target) -> str:
    """Return the plan of a region as it is written, in default configurations."""
    goal = release_shifts(region.goal)
    chosen = Candidate("as written", goal, fuse(stabilize(goal)))
    return plan_text(region.goal, [RegionPlan(goal, (chosen,), chosen)], target.name)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Decision]:
    """Take every region by its default kernels, and return the decisions as they are made."""
    made: list[Decision] = []

    def choose(region: Region, target: Target, ledger: Ledger) -> Decision:
        names = ", ".join(str(node.target) for node in region.subgraph.piece.nodes)
        made.append(Decision(names, "", True, "a test", plan=plan_of(region, target)))
        return made[-1]

    monkeypatch.setattr(graphpass, "known_decision", choose)
    return made


class Host:
    """A backend that runs the pass over the graphs that Inductor would get, and then PyTorch itself."""

    def __init__(self, **options: Any) -> None:
        self.ledger = Ledger(replace(BackendOptions(cache=False), **options))
        self.graphs: list[fx.Graph] = []

    def __call__(self, module: fx.GraphModule, inputs: list[Any], **unused: Any) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table

        def compile_graph(functional: fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
            graphpass.RegionPass(self.ledger)(functional.graph)
            functional.recompile()
            self.graphs.append(functional.graph)
            return make_boxed_func(functional.forward)

        compiled = aot_autograd(fw_compiler=compile_graph, decompositions=select_decomp_table())
        return compiled(module, inputs)  # type: ignore[no-any-return]

    @property
    def calls(self) -> int:
        """How many regions were replaced by calls of plans."""
        return sum(node.target is graphpass.REGION for graph in self.graphs for node in graph.nodes)


@pytest.fixture
def warnings_logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Collect what superopt logs."""
    caplog.set_level(logging.INFO, logger="superopt")
    return caplog


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check that two results agree as far as float32 goes."""
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)
