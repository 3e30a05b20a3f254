"""optimize(): what comes back is right, whichever program won, and says what was tried."""

import math
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from quick import few

import superopt
import superopt.driver
import superopt.optimizer
from superopt import InputError, Optimized, OptimizeOptions, SearchOptions
from superopt.cache import Cache, Record, key_of
from superopt.candidates import plan_cache
from superopt.candidates.codec import candidate_json
from superopt.ir import Program
from superopt.trace import trace

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)

QUICK = OptimizeOptions(
    seconds=0.4, graphs=2, torch_compile=False, guarded=False, cache=False, search=SearchOptions(max_graphs=4)
)


def norm_linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g) @ w


def around_a_scan(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"scan": torch.cumprod(x @ w, -1).relu() * 2.0, "sum": x.sum(-1)}


def _inputs(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(shape) for shape in shapes)


@pytest.fixture(scope="module")
def best() -> Optimized:
    return superopt.optimize(norm_linear, *_inputs((5, 64), (64,), (64, 96)), options=QUICK)


def test_kernels_are_made_checked_and_measured(best: Optimized) -> None:
    (plan,) = best.regions
    assert plan.chosen is not None
    assert plan.chosen.measurement is not None
    assert "contract" in str(plan.chosen.mugraph)
    assert best.floats is not None
    assert best.floats.ok
    assert set(best.measurements) == {"eager", "superopt"}
    assert best.sources


@pytest.mark.parametrize(
    "shapes", [((5, 64), (64,), (64, 96)), ((3, 32), (32,), (32, 7)), ((1, 1), (1,), (1, 1))]
)
def test_any_shape_is_computed_right(best: Optimized, shapes: tuple[tuple[int, ...], ...]) -> None:
    inputs = _inputs(*shapes)
    torch.testing.assert_close(best(*inputs), norm_linear(*inputs), rtol=1e-4, atol=1e-4)


def test_the_kernels_themselves_are_right(best: Optimized) -> None:
    inputs = _inputs((5, 64), (64,), (64, 96))
    torch.testing.assert_close(best.fused(*inputs), norm_linear(*inputs), rtol=1e-4, atol=1e-4)


def test_a_winner_is_faster_than_every_other(best: Optimized) -> None:
    fastest = min(best.measurements, key=lambda name: best.measurements[name].median_us)
    if best.winner == "superopt":
        assert fastest == "superopt"
        assert best.speedup > 1
    else:
        assert best.speedup == 1


def test_explain_and_json_say_what_was_tried(best: Optimized) -> None:
    text = best.explain()
    assert "eager" in text
    assert "graph 1" in text
    data = best.to_json()
    assert data["winner"] == best.winner
    names = {one["name"] for one in data["regions"][0]["candidates"]}
    assert len(names) == len(data["regions"][0]["candidates"]) > 1
    tried = [*names, *(one.name for one in best.regions[0].dropped)]
    assert any("library" in name for name in tried)


def test_its_graph_and_its_verdict(best: Optimized) -> None:
    [plan] = best.regions
    assert plan.chosen is not None
    assert best.graph == plan.chosen.graph == best.graphs[0]
    verdict = best.verdict
    assert verdict is not None
    assert verdict.equal
    assert (verdict.trials, verdict.error_bound) == (
        plan.chosen.verdict.trials,
        plan.chosen.verdict.error_bound,
    )
    assert verdict.floats is best.floats
    assert "chance of error below 2^-" in str(verdict)


def test_regions_around_an_opaque_operator() -> None:
    inputs = _inputs((4, 16), (16, 16))
    best = superopt.optimize(around_a_scan, *inputs, options=QUICK)
    program = best.graph
    assert isinstance(program, Program)
    assert [one.graph for one in program.regions] == list(best.graphs)
    assert [one.target for one in program.opaque] == ["aten.cumprod.default"]
    chosen = [plan.chosen.verdict for plan in best.regions if plan.chosen]
    assert best.verdict is not None
    assert best.verdict.error_bound == pytest.approx(sum(one.error_bound for one in chosen))
    assert best.verdict.trials == min(one.trials for one in chosen)
    found, expected = best(*inputs), around_a_scan(*inputs)
    assert list(found) == ["scan", "sum"]
    torch.testing.assert_close(found["scan"], expected["scan"], rtol=1e-4, atol=1e-4)
    assert "aten.cumprod" in best.explain()


def test_a_program_without_algebra_stays_as_it_is() -> None:
    best = superopt.optimize(lambda x: torch.cumprod(x, -1), *_inputs((4, 4)), options=QUICK)
    assert best.winner == "eager"
    assert best.speedup == 1
    assert best.verdict is None
    assert best.graph == best.traced.program


def softmax_plus_one(x: torch.Tensor) -> torch.Tensor:
    """Stable as written; without its own maximum it would overflow."""
    m = x.amax(-1, keepdim=True).relu()
    e = torch.exp(x - m)
    return e / (torch.exp(-m) + e.sum(-1, keepdim=True))


def softmax_of_large(x: torch.Tensor) -> torch.Tensor:
    return (x * 16).softmax(-1)


@pytest.mark.parametrize("function", few([softmax_of_large, softmax_plus_one], softmax_plus_one))
def test_no_overflow_that_pytorch_does_not_make(function) -> None:
    best = superopt.optimize(function, *_inputs((8, 64)), options=QUICK)
    hostile = torch.linspace(-300, 300, 512).reshape(8, 64)
    expected = function(hostile)
    assert expected.isfinite().all()
    torch.testing.assert_close(best(hostile), expected)
    if best.fused is not None:
        torch.testing.assert_close(best.fused(hostile), expected)


def test_a_kernel_that_fails_the_float_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superopt.schedule.recipe.stabilize", lambda graph, axes=(): graph)
    best = superopt.optimize(lambda x: (x * 16).softmax(-1), *_inputs((8, 64)), options=QUICK)
    assert best.winner == "eager"
    assert best.fused is None
    assert "NaN or infinity" in best.explain()


def test_what_was_best_before_needs_no_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    inputs = _inputs((5, 64), (64,), (64, 96))
    kept = replace(QUICK, cache=True)
    first = superopt.optimize(norm_linear, *inputs, options=kept)
    searched = superopt.driver.search

    def no_search(*_: object, **__: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr("superopt.optimizer.search", no_search)
    again = superopt.optimize(norm_linear, *inputs, options=kept)
    assert again.regions[0].recalled
    assert str(again.regions[0].chosen.graph) in {str(one.graph) for one in first.regions[0].candidates}
    torch.testing.assert_close(again.fused(*inputs), norm_linear(*inputs), rtol=1e-4, atol=1e-4)

    # A plan that computes something else is not used, whoever wrote it.
    monkeypatch.setattr("superopt.optimizer.search", searched)
    with Cache.open(tmp_path) as cache:
        (entry,) = cache.entries("plan")
        wrong = str(first.regions[0].goal).replace("rsqrt", "sqrt")
        [goal] = first.regions
        good = candidate_json(goal.chosen)
        old = cache.get(key_of("plan", **entry.parts)).data
        swapped = {**good, "mugraph": re.sub(r"\br?sqrt\(", "square(", good["mugraph"])}
        assert swapped != good
        saved = [{"graph": wrong}, {"no": 1}, 7, swapped]
        parts = dict.fromkeys(old["parts"], saved)
        cache.put(key_of("plan", **entry.parts), Record({**old, "parts": parts}, "wrong"))
    third = superopt.optimize(norm_linear, *inputs, options=kept)
    torch.testing.assert_close(third(*inputs), norm_linear(*inputs), rtol=1e-4, atol=1e-4)
    assert not third.regions[0].recalled

    # Nor is one of another version, and one line says so.
    monkeypatch.setattr("superopt.candidates.plan_cache._say_old", plan_cache._say_old.__wrapped__)
    with Cache.open(tmp_path) as cache:
        (entry,) = cache.entries("plan")
        key = key_of("plan", **entry.parts)
        cache.put(key, Record({**cache.get(key).data, "version": 1}, "old"))
    caplog.clear()
    assert not superopt.optimize(norm_linear, *inputs, options=kept).regions[0].recalled
    assert [line for line in caplog.messages if line.startswith("cache")] == [
        "cache: its plans are those of another version of superopt and are not used"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (OptimizeOptions(target="tpu"), "device 'tpu' is not known"),  # type: ignore[arg-type]
        (OptimizeOptions(seconds=0), "seconds is 0"),
        (OptimizeOptions(seconds=math.nan), "seconds is nan"),
        (OptimizeOptions(limit_seconds=-1.0), "limit_seconds is -1.0; give a time above 0"),
        (OptimizeOptions(limit_seconds=math.nan), "limit_seconds is nan"),
        (OptimizeOptions(graphs=0), "graphs is 0"),
        (OptimizeOptions(preset="slow"), "preset is 'slow'; choose quick or full"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options(options: OptimizeOptions, message: str) -> None:
    with pytest.raises(InputError, match=message):
        superopt.optimize(norm_linear, options=options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"seconds": math.nan}, "seconds is nan"), ({"preset": "slow"}, "choose quick or full")],
)
def test_wrong_options_of_a_tuning(best: Optimized, tmp_path: Path, settings, message: str) -> None:
    best.save(tmp_path / "best.json")
    with pytest.raises(InputError, match=message):
        superopt.optimizer.tune(tmp_path / "best.json", norm_linear, **settings)


@pytest.mark.slow
def test_times_without_end() -> None:
    """Before: OverflowError, once a compiler was to be waited for."""
    inputs = _inputs((5, 64), (64,), (64, 96))
    endless = replace(QUICK, seconds=math.inf, limit_seconds=math.inf, guarded=True, graphs=1)
    best = superopt.optimize(norm_linear, *inputs, options=endless)
    assert best.regions[0].chosen is not None
    torch.testing.assert_close(best(*inputs), norm_linear(*inputs), rtol=1e-4, atol=1e-4)


def test_a_function_that_fails_on_data_is_refused(quick) -> None:
    """Tracing without data lets it pass; PyTorch does not multiply f16 by f32."""
    inputs = torch.randn(5, 64).half(), torch.randn(64, 12)
    with pytest.raises(InputError, match=r"the function fails on its inputs: RuntimeError"):
        superopt.optimize(lambda x, w: x @ w, *inputs, options=quick)


def test_a_program_that_is_traced_already_is_not_traced_again(quick, monkeypatch) -> None:
    (x,) = _inputs((6, 32))
    traced = trace(torch.exp, x, name="growth")

    def no_trace(*_: object, **__: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr("superopt.trace.trace", no_trace)
    best = superopt.optimize(torch.exp, x, options=replace(quick, measure=False), traced=traced)
    assert best.traced.program.name == "growth"
    assert best.regions[0].chosen is not None
    torch.testing.assert_close(best(x), torch.exp(x))


def test_a_program_of_views_only(quick) -> None:
    x = torch.randn(3, 4)
    assert torch.equal(superopt.optimize(lambda x: x.t(), x, options=quick)(x), x.t())


DRAWING = {
    "nothing": lambda x: (x * 2).softmax(-1),
    "random numbers": lambda x: (x * torch.rand_like(x)).softmax(-1),
}


@pytest.mark.parametrize("function", DRAWING.values(), ids=DRAWING)
def test_random_numbers_are_drawn_by_calls_alone(quick, function, tmp_path: Path, monkeypatch) -> None:
    """Before: the races drew from the generator of the program."""
    unguarded = partial(OptimizeOptions, guarded=False)  # other processes have generators of their own
    monkeypatch.setattr(superopt.optimizer, "OptimizeOptions", unguarded)
    torch.manual_seed(7)
    torch.rand(3)
    x, state = torch.ones(16, 32), torch.get_rng_state()
    best = superopt.optimize(function, x, options=quick)
    best.save(tmp_path / "best.json")
    superopt.optimizer.tune(tmp_path / "best.json", function, seconds=0.2, torch_compile=False)
    assert torch.initial_seed() == 7
    assert torch.equal(torch.get_rng_state(), state)
    made, after = best(x), torch.get_rng_state()
    torch.set_rng_state(state)
    torch.testing.assert_close(made, function(x))
    assert torch.equal(torch.get_rng_state(), after)
