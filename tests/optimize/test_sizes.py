"""Other sizes: kernels serve them where the program stays the same, else the original does."""

import logging
from dataclasses import replace
from functools import partial

import pytest
import torch

import superopt
from superopt import InputError, Optimized
from superopt.candidates import Candidate
from superopt.fate import Fate, Kind
from superopt.ir import fuse, live_graph
from superopt.live import other_sizes


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v


def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.unflatten(-1, (4, x.shape[-1] // 4)) * w).sum(-1)


@pytest.mark.parametrize("shape", [(7, 64, 96), (5, 32, 33), (100, 80, 7), (2, 2, 2)])
def test_kernels_serve_other_sizes(best, random, caplog, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    inputs = random((m, k), (k,), (k, n))
    with caplog.at_level(logging.INFO, "superopt"):
        found = best(*inputs)
    assert "the original function runs" not in caplog.text
    torch.testing.assert_close(found, best.function(*inputs), rtol=1e-4, atol=1e-4)


def test_a_range_of_sizes_gets_its_kernels_once(best, random, caplog) -> None:
    with caplog.at_level(logging.INFO, "superopt"):
        for m in (150, 200, 256, 200):
            best(*random((m, 64), (64,), (64, 96)))
    assert len([one for one in caplog.records if "by default configurations" in one.message]) == 1


@pytest.mark.slow
def test_sizes_that_make_another_program_go_to_the_original(quick, random, in_use, caplog) -> None:
    served = in_use(superopt.optimize(attention, *random((8, 16), (24, 16), (24, 16)), options=quick))
    for shapes, other in (
        (((9, 16), (40, 16), (40, 16)), False),
        (((8, 32), (24, 32), (24, 16)), True),  # the scale is another number
        (((8, 16), (24, 16), (24, 8)), False),
        (((1, 16), (24, 16), (24, 16)), False),  # a row alone has no axis, but the algebra is the same
        (((8, 16), (1, 16), (1, 16)), False),
        (((1, 16), (1, 16), (1, 1)), False),
        (((8, 1), (24, 1), (24, 16)), True),
    ):
        caplog.clear()
        inputs = random(*shapes)
        with caplog.at_level(logging.INFO, "superopt"):
            torch.testing.assert_close(served(*inputs), attention(*inputs), rtol=1e-4, atol=1e-4)
        assert ("another program" in caplog.text) == other, shapes


def broadcasts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sum(-1)


def counts(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return (x * x).sum(-1), x.shape[0]


def turns(x: torch.Tensor) -> torch.Tensor:
    return x.exp().sum(-1) if x.shape[0] > 1 else x.sum(-1)


def unpacks(x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor]:
    y = x.exp().sum(-1)
    return y if x.shape[0] > 1 else (y,)


def across(x: torch.Tensor) -> torch.Tensor:
    return (x.softmax(0) * x).sum(-1)


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.T).relu().sum(-1)


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("function", "built", "called", "served"),
    [
        (broadcasts, ((6, 32), (6, 32)), ((1, 32), (1, 32)), True),
        slow(broadcasts, ((6, 32), (6, 32)), ((1, 32), (6, 32)), False),
        (broadcasts, ((6, 32), (6, 32)), ((6, 1), (6, 32)), False),
        slow(broadcasts, ((6, 32), (1, 32)), ((1, 32), (1, 32)), True),
        slow(counts, ((6, 32),), ((1, 32),), False),
        (turns, ((6, 32),), ((1, 32),), False),
        (unpacks, ((6, 32),), ((1, 32),), False),
        slow(across, ((6, 32),), ((1, 32),), True),
        slow(squares, ((6, 32),), ((1, 32),), True),
        (squares, ((6, 32),), ((1, 1),), True),
        (across, ((1, 32),), ((6, 32),), False),
    ],
)
def test_what_is_one_long_is_served_where_the_algebra_is_the_same(
    function, built, called, served, quick, random, in_use, caplog
) -> None:
    best = in_use(superopt.optimize(function, *random(*built), options=quick))
    inputs = random(*called)
    for one in (best(*inputs), best(*inputs)):
        torch.testing.assert_close(one, function(*inputs), rtol=1e-4, atol=1e-4)
        assert type(one) is type(function(*inputs))
    assert (not best.elsewhere) == served
    assert ("another program at" in caplog.text) != served
    assert ("the original function runs for f32" in best.explain()) != served


def test_a_module_serves_one_row_and_none(quick, in_use, caplog) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()).eval().requires_grad_(False)
    served = in_use(superopt.optimize(module, torch.randn(8, 16), options=quick))
    for count in (1, 0, 1, 3):
        x = torch.randn(count, 16)
        with caplog.at_level(logging.INFO, "superopt"):
            torch.testing.assert_close(served(x), module(x), rtol=1e-4, atol=1e-4)
    assert "another program" not in caplog.text


def test_what_was_built_for_one_says_so(quick, random, in_use, caplog) -> None:
    best = in_use(superopt.optimize(across, *random((1, 32)), options=quick))
    built = "built for a length of 1 of 'x' in dimension 0"
    assert f"{built}: at others the original function runs" in best.explain()
    for rows in (6, 7):
        best(*random((rows, 32)))
    told = [one for one in caplog.records if "another program" in one.message]
    assert [one.levelname for one in told] == ["WARNING"]  # aloud once
    assert "the original function runs for f32[7, 32]: another program" in best.explain()
    other = in_use(superopt.optimize(across, *random((6, 32)), options=quick))
    assert "built for a length of 1" not in other.explain()


def test_kernels_that_err_at_one_are_not_used(quick, random, in_use, monkeypatch, caplog) -> None:
    best = in_use(superopt.optimize(across, *random((6, 32)), options=quick))
    make = type(best.target).make

    def wrong(self, mugraph, configs):
        kernel = make(self, mugraph, configs)
        return lambda **tensors: {name: one + 0.5 for name, one in kernel(**tensors).items()}

    monkeypatch.setattr(type(best.target), "make", wrong)
    inputs = random((1, 32))
    torch.testing.assert_close(best(*inputs), across(*inputs), rtol=1e-4, atol=1e-4)
    assert "the original function runs for f32[1, 32]" in caplog.text


def test_the_original_function_runs_where_a_kernel_cannot_be_made(best, random, monkeypatch, caplog) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such kernel\nsecond line")

    monkeypatch.setattr(type(best.target), "make", fail)
    inputs = random((3000, 64), (64,), (64, 96))
    torch.testing.assert_close(best(*inputs), best.function(*inputs))
    assert "the original function runs for f32[3000, 64]" in caplog.text
    assert "no such kernel" in caplog.text
    assert "second line" not in caplog.text


def test_retuning_races_configurations_for_new_sizes(best, random, in_use, caplog) -> None:
    served = in_use(best)
    served.options = replace(best.options, retune=True)
    inputs = random((40, 64), (64,), (64, 96))
    with caplog.at_level(logging.INFO, "superopt"):
        torch.testing.assert_close(served(*inputs), best.function(*inputs), rtol=1e-4, atol=1e-4)
    assert "by tuned configurations" in caplog.text


def test_an_interrupt_while_configurations_are_raced_is_the_callers(
    best, random, in_use, monkeypatch
) -> None:
    served = in_use(best)
    served.options = replace(best.options, retune=True)

    def interrupted(stages, candidates, context):
        with context.state.stoppable():
            raise KeyboardInterrupt
        return candidates

    inputs = random((40, 64), (64,), (64, 96))
    with monkeypatch.context() as patch:
        patch.setattr(other_sizes, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            served(*inputs)
    assert not served._others._made
    torch.testing.assert_close(served(*inputs), best.function(*inputs), rtol=1e-4, atol=1e-4)
    assert not served.elsewhere


def of_many(x: torch.Tensor) -> torch.Tensor:
    return x * ((x > 0).sum() > 2**24)


def test_what_counts_further_than_kernels_is_the_originals(quick, random, in_use) -> None:
    """Before: zeros, as the count was 2^24."""
    best = in_use(superopt.optimize(of_many, *random((1000,)), options=quick))
    x = torch.ones(2**24 + 1)
    assert not best(x[:3000]).any()
    assert not best.elsewhere
    assert best(x).all()
    assert list(best.elsewhere) == ["f32[16777217]"]


def doubled_mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1) * 2


@pytest.fixture(scope="module")
def at_two(quick, random, in_use) -> Optimized:
    """Twice the mean of two numbers, by a graph that adds them up."""
    best = superopt.optimize(doubled_mean, *random((6, 2)), options=replace(quick, measure=False))
    [region] = best.regions
    goal = region.goal
    value = next(at for at, step in goal.numbered if step.op == "sum")
    graph = live_graph(replace(goal, outputs=(replace(goal.outputs[0], value=value),)))
    mugraph = fuse(graph)
    chosen = Candidate("1", graph, mugraph, best.target.default_configs(mugraph), Fate("choose", Kind.CHOSEN))
    best.result = replace(best.result, regions=(replace(region, candidates=(chosen,)),))
    return in_use(best)


def test_a_graph_that_is_equal_at_its_own_sizes_alone_serves_no_others(at_two, random, caplog) -> None:
    for shape, served in (((6, 2), True), ((9, 2), True), ((6, 3), False), ((6, 64), False)):
        (x,) = random(shape)
        torch.testing.assert_close(at_two(x), doubled_mean(x))
        assert (f"f32[{shape[0]}, {shape[1]}]" not in at_two.elsewhere) == served
    assert "is equal only at the sizes it was built for" in caplog.text


def test_loaded_without_its_function_it_serves_no_others_either(at_two, random, tmp_path) -> None:
    at_two.save(tmp_path / "result.json")
    served = superopt.load(tmp_path / "result.json")
    for shape in ((9, 2), (6, 3)):
        (x,) = random(shape)
        torch.testing.assert_close(served(x), doubled_mean(x))
    assert list(served.elsewhere) == ["f32[6, 3]"]


def test_what_is_not_proven_in_time_is_compared_in_floats(
    at_two, best, random, in_use, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(other_sizes, "_PROOFS_S", 0.0)
    (x,) = random((6, 3))
    torch.testing.assert_close(in_use(at_two)(x), doubled_mean(x))
    assert "the original function runs for f32[6, 3]: floats (f32)" in caplog.text
    served = in_use(best)
    inputs = random((7, 64), (64,), (64, 96))
    torch.testing.assert_close(served(*inputs), best.function(*inputs), rtol=1e-4, atol=1e-4)
    assert not served.elsewhere


def test_retuning_races_no_kernel_that_rounds_otherwise(best, random, in_use, monkeypatch) -> None:
    served = in_use(best)
    [region] = served.regions
    served.options = replace(best.options, retune=True)
    raced: list[Candidate] = []

    def noted(stages, candidates, context):
        raced.extend(candidates)
        assert all(
            {None if one is None else one.rounding} <= {*allowed, None}
            for one, allowed in zip(region.chosen.configs, context.roundings, strict=True)
        )
        return candidates

    monkeypatch.setattr(other_sizes, "run", noted)
    wide = tuple(range(len(region.chosen.mugraph.kernels)))
    chosen = replace(region.chosen, wide=wide)
    served._others._regions = [replace(region, candidates=(chosen,))]
    served(*random((40, 64), (64,), (64, 96)))
    assert [one.wide for one in raced] == [wide]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x, g, w: (x.double(), g, w),
            r"input 1 is f64\[5, 64\] on cpu; it was built for f32\[5, 64\] on cpu, of any sizes",
        ),
        (lambda x, g, w: (x, g), "as 3 arguments"),
        (lambda x, g, w: (x, g, 2), "input 3 is 2; it was built for f32"),
    ],
)
def test_what_it_was_not_built_for(best, random, change, message: str) -> None:
    with pytest.raises(InputError, match=message):
        best(*change(*random((5, 64), (64,), (64, 96))))


def test_other_tensors_are_the_originals_where_it_takes_them(best, random) -> None:
    x, g, w = random((5, 64), (64,), (64, 96))
    torch.testing.assert_close(best(x[0], g, w), best.function(x[0], g, w))
    torch.testing.assert_close(best(x.half(), g, w), best.function(x.half(), g, w))
    assert best(x.to("meta"), g.to("meta"), w.to("meta")).is_meta
    with pytest.raises(InputError, match=r"input 3 is f32\[64, 96\] on meta; .* on cpu, of any sizes"):
        best(x, g, w.to("meta"))  # PyTorch computes something of it, for want of a check


def test_other_numbers_are_the_originals(quick, random, in_use, caplog) -> None:
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return (x * factor).sum(-1)

    (x,) = random((6, 32))
    served = in_use(superopt.optimize(scaled, x, 2.0, options=quick))
    torch.testing.assert_close(served(x, 2.0), scaled(x, 2.0), rtol=1e-4, atol=1e-4)
    with caplog.at_level(logging.INFO, "superopt"):
        torch.testing.assert_close(served(x, 3.0), scaled(x, 3.0))
        torch.testing.assert_close(served(x, 3.0), scaled(x, 3.0))
    assert caplog.text.count("input 2 is 3.0; it was built for 2.0") == 1
