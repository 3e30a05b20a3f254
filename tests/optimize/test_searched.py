"""What a complete search found is not searched again, for any target; what a record claims is compared."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from quick import few

import superopt
import superopt.driver
from superopt import OptimizeOptions, SearchOptions
from superopt.cache import Cache, Record, key_of
from superopt.candidates import Candidate, RegionCandidates
from superopt.candidates.plan_cache import PlanCache
from superopt.candidates.search_cache import keep_search, recall_search
from superopt.cli import main
from superopt.fate import Fate, Kind
from superopt.ir import Program, Region, fuse, parse_graph
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.weights.division import divided

pytestmark = pytest.mark.usefixtures("everything_fits")

PLAN = OptimizeOptions(target="cuda:80", measure=False, graphs=3)
SEARCH = SearchOptions(max_graphs=6)


def norm_linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g) @ w


def under_another_name(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return norm_linear(x, g, w)


def stable_softmax(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def two_regions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cumprod(x @ w, -1).softmax(-1)


def half(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty(shape, dtype=torch.float16, device="meta") for shape in shapes)


INPUTS = half((16, 512), (512,), (512, 256))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    return Cache.open()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counts searches, by the names of their programs."""
    names: list[str] = []

    def counted(program: Any, **options: Any) -> superopt.Search:
        names.append(program.name)
        return superopt.driver.search(program, **options)

    monkeypatch.setattr("superopt.optimizer.search", counted)
    return names


def told(best: superopt.Optimized) -> list[Any]:
    """Return what a plan is, less the seconds that its verdicts took."""
    return [
        (plan.goal, [(one.name, one.mugraph, one.configs) for one in plan.candidates], plan.dropped)
        for plan in best.regions
    ]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (norm_linear, INPUTS),
        (stable_softmax, half((64, 512))),
        (two_regions, half((8, 64), (64, 32))),
    ],
    ids=["norm_linear", "stable_softmax", "two_regions"],
)
@pytest.mark.slow
def test_another_target_needs_no_search_and_gets_the_same_plan(
    function: Callable, inputs: Any, cache: Cache, searches: list[str], capsys: pytest.CaptureFixture
) -> None:
    first = superopt.optimize(function, *inputs, options=PLAN)
    assert first.search is not None
    assert len(searches) == 1
    other = replace(PLAN, target="cuda:90", graphs=4)
    recalled = superopt.optimize(function, *inputs, options=other)
    assert len(searches) == 1
    assert recalled.search is None
    fresh = superopt.optimize(function, *inputs, options=replace(other, cache=False))
    assert len(searches) == 2
    assert told(recalled) == told(fresh)
    assert cache.info().entries["search"] == len(first.traced.program.regions)
    assert main(["cache", "info"]) == 0
    assert "search records" in capsys.readouterr().out


@pytest.mark.slow
def test_the_name_of_the_function_does_not_matter(cache: Cache, searches: list[str]) -> None:
    superopt.optimize(norm_linear, *INPUTS, options=PLAN)
    best = superopt.optimize(under_another_name, *INPUTS, options=replace(PLAN, target="cuda:90"))
    assert len(searches) == 1
    assert {one.graph.name for one in best.regions[0].candidates} == {"under_another_name"}


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        (replace(PLAN, target="cuda:90", search=SearchOptions(max_graphs=3)), INPUTS),
        (replace(PLAN, target="cuda:90"), half((17, 512), (512,), (512, 256))),
        (replace(PLAN, target="cuda:90"), tuple(one.float() for one in INPUTS)),
        (replace(PLAN, target="cuda:90", cache=False), INPUTS),
    ],
    ids=["count", "sizes", "dtype", "no cache"],
)
@pytest.mark.slow
def test_what_depends_on_more_is_searched_again(
    options: OptimizeOptions, inputs: Any, cache: Cache, searches: list[str]
) -> None:
    superopt.optimize(norm_linear, *INPUTS, options=PLAN)
    superopt.optimize(norm_linear, *inputs, options=options)
    assert len(searches) == 2


def test_more_workers_find_the_same(cache: Cache) -> None:
    program = trace(norm_linear, *INPUTS).program
    keep_search(cache, superopt.search(program, options=SEARCH), SEARCH)
    assert recall_search(cache, program, replace(SEARCH, workers=2)) is not None
    assert recall_search(cache, program, replace(SEARCH, checkpoint=Path("here"))) is None


def test_only_a_complete_search_is_kept(cache: Cache) -> None:
    program = trace(norm_linear, *INPUTS).program
    few = replace(SEARCH, rows=3)
    found = superopt.search(program, options=few)
    assert found.truncated
    keep_search(cache, found, few)
    whole = superopt.search(program, options=SEARCH)
    keep_search(cache, replace(whole, interrupted=True), SEARCH)
    assert cache.info().entries["search"] == 0
    keep_search(cache, whole, SEARCH)
    assert cache.info().entries["search"] == 1


def damaged(data: Any, change: str) -> Any:
    """Return the data of a record, changed."""
    [part] = data["parts"]
    graphs = part["graphs"]
    first = graphs[0]
    return {
        "no parts": {},
        "another part": {"parts": [{**part, "part": ".1"}]},
        "no graphs": {"parts": [{**part, "graphs": []}]},
        "no text": {"parts": [{**part, "graphs": [{**first, "graph": 7}]}]},
        "no graph": {"parts": [{**part, "graphs": [{**first, "graph": "graph x\n"}]}]},
        "no splits": {"parts": [{**part, "graphs": [{"graph": first["graph"]}]}]},
        "another function": {
            "parts": [
                {
                    **part,
                    "graphs": [
                        *graphs[1:],
                        {**first, "graph": re.sub(r"\br?sqrt\(", "square(", first["graph"])},
                    ],
                }
            ]
        },
        "another dtype": {
            "parts": [{**part, "graphs": [{**first, "graph": first["graph"].replace("f16", "f32")}]}]
        },
        "a split that is none": {"parts": [{**part, "graphs": [{**first, "splits": [["k", "m", "n"]]}]}]},
        "half a split": {"parts": [{**part, "graphs": [{**first, "splits": [["k"]]}]}]},
        "the parts turned": {
            "parts": [
                {
                    **part,
                    "graphs": [
                        {**one, "splits": [[axis, inner, outer] for axis, outer, inner in one["splits"]]}
                        for one in graphs
                    ],
                }
            ]
        },
    }[change]  # fmt: skip


CHANGES = [
    *("no parts", "another part", "no graphs", "no text", "no graph", "no splits", "another function"),
    *("another dtype", "a split that is none", "half a split", "the parts turned"),
]


@pytest.mark.parametrize(
    "change", few(CHANGES, "another part", "no graph", "another function", "half a split", "the parts turned")
)
def test_a_record_that_claims_something_else_is_not_used(
    change: str, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    program = trace(norm_linear, *INPUTS).program
    options = SearchOptions()
    keep_search(cache, superopt.search(program, options=options), options)
    [entry] = cache.entries("search")
    key = key_of("search", **entry.parts)
    record = cache.get(key)
    assert record is not None
    assert recall_search(cache, program, options) is not None
    assert any(one["splits"] for one in record.data["parts"][0]["graphs"])
    changed = damaged(record.data, change)
    assert changed != record.data
    cache.put(key, Record(changed, "changed"))
    assert recall_search(cache, program, options) is None
    assert "a search of norm_linear is not used" in caplog.text


def test_rules_are_known_by_what_is_in_their_file(cache: Cache, tmp_path: Path) -> None:
    program = trace(stable_softmax, *half((8, 32))).program
    found = superopt.search(program, options=SEARCH)
    rules = tmp_path / "rules.json"
    rules.write_text("one")
    options = replace(SEARCH, rules=rules)
    keep_search(cache, found, options)
    assert recall_search(cache, program, options) is not None
    rules.write_text("another")
    assert recall_search(cache, program, options) is None
    rules.rename(tmp_path / "moved.json")
    (tmp_path / "moved.json").write_text("one")
    assert recall_search(cache, program, replace(SEARCH, rules=tmp_path / "moved.json")) is not None


def scaled(name: str) -> Program:
    """Return a program of one region, which multiplies two weights with each other."""
    graph = parse_graph(
        f"graph {name}\naxes m=8 k=16 n=24\nin x: f32[m, k]\nin g: f32[k] constant\n"
        "in w: f32[k, n] constant\nt3 = mul(g, w)\nt4 = contract[k](x, t3)\nout y: f32[m, n] = t4\n"
    )
    return Program(name, graph.inputs, (Region(graph),), ("y",))


@pytest.mark.parametrize("once", [(), (3,)], ids=["nothing", "a weight"])
def test_a_plan_serves_a_program_under_another_name(cache: Cache, once: tuple[int, ...]) -> None:
    target, options = pick_target("cpu"), replace(PLAN, target="cpu")
    program = scaled("one")
    [goal] = [region.graph for region in program.regions]
    mugraph = fuse(divided(goal, once).run if once else goal)
    chosen = Candidate(
        "1", goal, mugraph, target.default_configs(mugraph), Fate("choose", Kind.CHOSEN), once=once
    )
    plans = PlanCache(options, target)
    plans.keep(program, [RegionCandidates(goal, (chosen,))])
    for name in ("one", "another"):
        found = plans.recall(scaled(name))
        assert found is not None
        [[one]] = [part.candidates for part in found]
        assert one.graph.name == found[0].goal.name
        assert one.run.inputs == one.mugraph.graph.inputs
        assert one.mugraph.graph.name == one.run.name
    assert cache.info().entries["plan"] == 1
