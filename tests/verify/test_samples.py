"""Samples of large tensors: a part that repeats, in the example's layout and in memory that is used again."""

import pytest
import torch

from superopt.verify.floats.compare import compare_floats
from superopt.verify.floats.memory import Memory
from superopt.verify.floats.samples import DISTRIBUTIONS, sample

SHAPE = (700, 1024)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
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
    assert [one.stride() for one in drawn[:2]] == [turned.stride(), sliced.stride()]
    assert all(0.99 < float(one.std()) < 1.01 for one in drawn)


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
