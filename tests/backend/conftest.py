"""What tests of the backend share: caches of their own, regions taken without a search, a quick host."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from superopt.backend import budget, graphpass, region_plan
from superopt.backend.checks import whole
from superopt.backend.decision import Decision, Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.region import Region
from superopt.backend.region_plan import RegionPlan, kept_plan
from superopt.backend.region_plan import plan_of as read
from superopt.backend.region_race import RegionRace
from superopt.candidates import Candidate
from superopt.codegen.children import Children
from superopt.codegen.cpp import compile as cpp_compile
from superopt.codegen.cpp import compile_shared
from superopt.fate import Kind
from superopt.ir import fuse, release_shifts, stabilize
from superopt.rivals.inductor import alone
from superopt.targets import Target, pick_target

with warnings.catch_warnings():  # Inductor warns of parts of PyTorch as it is imported
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, kernels_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what tests decide in a folder of their own, and dynamo's graphs to one test."""
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "superopt"))
    monkeypatch.setattr(cpp_compile, "_folder", lambda: kernels_folder)
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
    chosen = chosen.ended("choose", Kind.CHOSEN)
    plan = RegionPlan(region.goal, target.name, {goal.name: chosen})
    return kept_plan(plan)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Decision]:
    """Take every region whose default kernels serve all sizes; return the decisions as they are made."""
    made: list[Decision] = []

    target = pick_target("cpu")

    def choose(region: Region, ledger: Ledger) -> Decision:
        names = ", ".join(str(node.target) for node in region.subgraph.piece.nodes)
        plan = plan_of(region, target)
        race = RegionRace(region, target, ledger)
        why = alone(lambda: race.inputs.other_sizes(read(plan))) if region.subgraph.symbols else None
        found = Decision(names, "", why is None, why or "a test", plan=plan)
        if found.taken:
            made.append(found)
        return found

    replace_all = graphpass.replace_all

    def replaced(graph: fx.Graph, regions: Sequence[tuple[Region, Decision]]) -> None:
        replace_all(graph, regions)
        members = {node for region, _ in regions for node in region.subgraph.piece.nodes}
        left = members.intersection(graph.nodes)
        assert not left, f"also computed outside the regions: {left}"  # the pass logs it as a trouble

    monkeypatch.setattr(budget, "known_decision", choose)
    monkeypatch.setattr(whole, "regions_that_fit", lambda graph, offered, replaced: (offered, {}))
    monkeypatch.setattr(graphpass, "replace_all", replaced)
    return made


class Host:
    """A backend that runs the pass over the graphs that Inductor would get, and then PyTorch itself."""

    def __init__(self, **options: Any) -> None:
        self.ledger = Ledger(replace(BackendOptions(cache=False, budget_s=60.0), **options))
        self.graphs: list[fx.Graph] = []

    def __call__(self, module: fx.GraphModule, inputs: list[Any], **unused: Any) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table

        watched = graphpass.watched_of(inputs)

        def compile_graph(functional: fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
            graphpass.RegionPass(self.ledger, watched=watched)(functional.graph)
            self.graphs.append(functional.graph)
            return make_boxed_func(_calling_directly(functional).forward)

        compiled = aot_autograd(fw_compiler=compile_graph, decompositions=select_decomp_table())
        return compiled(module, inputs)  # type: ignore[no-any-return]

    @property
    def calls(self) -> int:
        """How many regions were replaced by calls of plans."""
        return sum(node.target is graphpass.REGION for graph in self.graphs for node in graph.nodes)


def _calling_directly(module: fx.GraphModule) -> fx.GraphModule:
    """Return a module whose calls of plans go straight to Python, as those of Inductor's code do."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.find_nodes(op="call_function", target=graphpass.REGION):
        node.target = region_plan._run
    return fx.GraphModule(module, graph)


@pytest.fixture
def quick_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile kernels quickly, where their speed says nothing."""
    quick = tuple("-O1" if flag == "-O3" else flag for flag in cpp_compile.FLAGS)
    monkeypatch.setattr(cpp_compile, "FLAGS", quick)
    with Children() as children:
        compile_shared({"float"}, children)


@pytest.fixture
def warnings_logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Collect what superopt logs."""
    caplog.set_level(logging.INFO, logger="superopt")
    return caplog


def troubles(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged: regions that failed, or that torch computes for want of a kernel."""
    return [
        one.getMessage()
        for one in caplog.records
        if one.name == "superopt" and one.levelno >= logging.WARNING
    ]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check that two results agree as far as float32 goes."""
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)
