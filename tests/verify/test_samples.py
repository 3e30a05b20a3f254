"""Samples of large tensors: a part that repeats, in the example's layout and in memory that is used again."""

from collections.abc import Callable

import pytest
import torch
from quick import few

from superopt.trace import trace
from superopt.verify.floats.compare import compare_floats
from superopt.verify.floats.focus import focus_of
from superopt.verify.floats.memory import Memory, lying_apart
from superopt.verify.floats.samples import DIRECTED, DISTRIBUTIONS, beside, sample, typical

SHAPE = (700, 1024)


@pytest.mark.parametrize(
    "dtype", few([torch.float32, torch.bfloat16, torch.float64], torch.float32, torch.bfloat16), ids=str
)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_large_tensor_is_drawn_as_a_small_one(name: str, dtype: torch.dtype) -> None:
    large = torch.empty(*SHAPE, dtype=dtype)
    (drawn,) = sample(name, (large,), seed=3)
    parts = torch.cat([sample(name, (large[:70],), seed=seed)[0] for seed in range(10)])
    assert drawn.shape == SHAPE
    assert drawn.dtype == dtype
    if name not in ("constant rows", "near-zero rows"):  # of few rows
        made, like = (one.flatten().float().sort().values for one in (drawn, parts))
        for share in (0.01, 0.25, 0.5, 0.75, 0.99):
            at = int(share * (made.numel() - 1))
            close = pytest.approx(float(like[at]), rel=0.2, abs=0.02 * float(like.std()))
            assert float(made[at]) == close, share
    assert (name == "constant rows") == bool((drawn == drawn[:, :1]).all())
    assert name == "constant rows" or drawn.unique(dim=0).shape[0] == SHAPE[0]  # no row comes twice


def test_the_layout_is_that_of_the_example() -> None:
    turned, sliced = torch.empty(1024, 700).t(), torch.empty(700, 2048)[:, ::2]
    once = torch.empty(700, 1).expand(SHAPE)
    drawn = sample("normal", (turned, sliced, once), seed=1)
    assert [one.stride() for one in drawn] == [turned.stride(), sliced.stride(), once.stride()]
    assert all(0.99 < float(one.std()) < 1.01 for one in drawn[:2])
    assert 0.9 < float(drawn[2].std()) < 1.1  # of 700 numbers


_INSIDE = torch.empty(1, 6, 4).mT.expand(5, 4, 6)
_REPEATED = {
    "columns": torch.empty(4, 1).expand(4, 8),
    "a turned matrix": _INSIDE,
    "all": torch.empty(()).expand(3, 4),
    "half": torch.empty(4, 1).half().expand(4, 8),
    "booleans": torch.zeros(4, 1, dtype=torch.bool).expand(4, 8),
    "no data": torch.empty(4, 1, device="meta").expand(4, 8),
    "integers without data": torch.empty(4, 1, dtype=torch.int8, device="meta").expand(4, 8),
    "nothing": torch.empty(0, 1).expand(0, 8),
}


@pytest.mark.parametrize("name", _REPEATED)
def test_every_other_distribution_repeats_what_lies_in_one_place(name: str) -> None:
    example = _REPEATED[name]
    repeated, apart = (sample(one, (example,), seed=1)[0] for one in ("normal", "uniform positive"))
    assert (repeated.stride(), repeated.shape) == (example.stride(), example.shape)
    assert apart.shape == example.shape
    if example.numel():
        assert repeated.unique().numel() <= lying_apart(example).numel()
        assert apart.unique().numel() > lying_apart(example).numel() or example.dtype == torch.bool
    for made in (typical((example,))[0], beside((repeated,), seed=1)[0]):
        assert (made.stride(), made.shape) == (example.stride(), example.shape)


def test_integers_that_are_kept_are_those_given() -> None:
    given = torch.arange(3)[:, None].expand(3, 4)
    for name in ("normal", "uniform positive"):
        (kept,) = sample(name, (given,))
        assert torch.equal(kept, given)
        assert kept.stride() == given.stride()


def test_booleans_lie_as_the_example_does() -> None:
    turned = torch.zeros(6, 4, dtype=torch.bool).t()
    assert sample("normal", (turned,))[0].stride() == turned.stride()


@pytest.mark.parametrize("repeats", [False, True])
def test_programs_meet_repeated_numbers_and_others(repeats: bool) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1) * (2 if (0 in x.stride()) == repeats else 1)

    def right(x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1)

    example = (torch.empty(4, 1).expand(4, 8),)
    assert compare_floats(right, right, example).ok
    assert not compare_floats(right, wrong, example).ok
    assert compare_floats(right, wrong, (torch.empty(4, 8),)).ok == repeats


def test_no_row_holds_a_number_twice() -> None:
    (long,) = sample("normal", (torch.empty(2, 300_000),))
    assert long.unique().numel() > 0.95 * long.numel()  # as many as float32 tells apart


def test_memory_is_used_again_for_large_tensors_alone() -> None:
    memory = Memory()
    inputs = torch.empty(SHAPE), torch.empty(8, 8)
    first, small = sample("normal", inputs, seed=1, memory=memory)
    kept, small_kept = first.clone(), small.clone()
    second, other = sample("normal", inputs, seed=2, memory=memory)
    assert second.data_ptr() == first.data_ptr()
    assert not torch.equal(second, kept)
    assert torch.equal(small, small_kept)
    assert memory.holds(second)
    assert not memory.holds(other)
    (wider,) = sample("normal", (torch.empty(1400, 1024),), memory=memory)
    assert wider.data_ptr() != first.data_ptr()


def shifted(x: torch.Tensor, w: torch.Tensor, by: int) -> torch.Tensor:
    """Return a product whose weights are read some numbers too late."""
    return x @ w.flatten().roll(-by).view_as(w)


@pytest.mark.parametrize("by", [1, 1024, 512 * 1024, 131_072, 1025])
def test_weights_read_at_a_wrong_place_are_found(by: int) -> None:
    inputs = torch.empty(3, 1024), torch.empty(1024, 1024)
    report = compare_floats(torch.matmul, lambda x, w: shifted(x, w, by), inputs)
    assert not report.ok
    assert all(one.ratio > 100 for one in report.distributions if one.name == "normal")


def test_inputs_that_are_returned_are_compared_before_the_next_draw() -> None:
    inputs = (torch.empty(SHAPE),)
    assert compare_floats(lambda x: (x, x + 1), lambda x: (x, x + 1), inputs).ok
    assert not compare_floats(lambda x: (x, x + 1), lambda x: (x * (1 + 2**-10), x + 1), inputs).ok


@pytest.mark.parametrize("function", [lambda x, w: (x @ w).relu() + 1, lambda x, w: x.sum(-1) > 3])
def test_numbers_are_drawn_for_sums_of_nothing(function: Callable[..., torch.Tensor]) -> None:
    """Before: ZeroDivisionError, by the number of terms."""
    inputs = torch.empty(4, 0), torch.empty(0, 4)
    focus = focus_of(trace(function, *inputs))
    for name in DIRECTED:
        assert [one.shape for one in sample(name, inputs, focus=focus)] == [one.shape for one in inputs]
