"""Convolutions and pools through torch.compile: taken regions agree with float64, forward and backward."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quick import few
from torch import Tensor

from tests.backend.conftest import Host, quick_kernels, taken
from tests.windows.convolutions import IMAGE, READINGS, TAPS, random_case

__all__ = ["quick_kernels", "taken"]

pytestmark = pytest.mark.usefixtures("quick_kernels")

_X = torch.randn(2, 6, 9, 11, generator=torch.Generator().manual_seed(0))
_ROOM = {"rtol": 1e-4, "atol": 1e-4}  # sums of float32 in any order


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(F.relu(x - 1), 3, 2, 1),
        lambda x: F.max_pool2d(x * 2, (2, 3), ceil_mode=True) - 1,
        pytest.param(lambda x: F.max_pool3d(x.tanh(), 2, 1, 1, dilation=2), marks=pytest.mark.slow),
        pytest.param(lambda x: F.max_pool1d(x[:, :, 0] - 0.5, 4, 3, 2), marks=pytest.mark.slow),
    ],
)
def test_pools_of_maxima_are_taken(taken: list[Any], function: Callable[[Tensor], Tensor]) -> None:
    host = Host()
    torch.manual_seed(0)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(function, backend=host)(_X), function(_X))
    assert "max_pool" in taken[0].operators
    assert host.calls == 1


def test_where_maxima_are_stays_with_the_pool(taken: list[Any]) -> None:
    host = Host()
    values, places = torch.compile(lambda x: F.max_pool2d(x * 2, 3, return_indices=True), backend=host)(_X)
    expected = F.max_pool2d(_X * 2, 3, return_indices=True)
    torch.testing.assert_close((values, places), expected)
    assert not any("max_pool" in one.operators for one in taken)


def _check(taken: list[Any], seed: int) -> None:
    """Compare a random program and its gradients with float64; the regions are taken whatever they take."""
    torch._dynamo.reset()
    torch.manual_seed(seed)
    case = random_case(seed)
    if not case.inputs[0].numel():
        return
    wide = [one.double().requires_grad_() for one in case.inputs]
    inputs = [one.detach().requires_grad_() for one in case.inputs]
    expected = case.function(*wide)
    found = torch.compile(case.function, backend=Host())(*inputs)
    seeds = torch.randn_like(expected)
    expected.backward(seeds)
    found.backward(seeds.float())
    expected = expected.detach()
    pairs = [
        (found.detach(), expected),
        *((one.grad, other.grad) for one, other in zip(inputs, wide, strict=True)),
    ]
    for one, other in pairs:
        assert one is not None
        assert other is not None
        scale = 1 + other.abs().max()
        assert float((one.double() - other).abs().max() / scale) < 1e-5, case.text
    with torch.no_grad():
        torch._dynamo.reset()
        alone = torch.compile(case.function, backend=Host())(*case.inputs)
        assert float((alone.double() - expected).abs().max() / (1 + expected.abs().max())) < 1e-5, case.text


@pytest.mark.parametrize("seed", [1])
def test_random_programs_agree_with_float64(taken: list[Any], seed: int) -> None:
    _check(taken, seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 500, 20))
def test_many_random_programs_agree_with_float64(taken: list[Any], start: int) -> None:
    for seed in range(start, start + 20):
        _check(taken, seed)
    assert taken


@pytest.mark.parametrize("name", few(READINGS, "circular", "reflect", "strided", "rest"))
def test_what_is_read_at_lines_agrees_with_float64(taken: list[Any], name: str) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape, requires_grad=True) for shape in (IMAGE, TAPS)]
    wide = [one.detach().double().requires_grad_() for one in inputs]
    found = torch.compile(READINGS[name], backend=Host(), dynamic=False)(*inputs)
    expected = READINGS[name](*wide)
    torch.testing.assert_close(found.double(), expected, **_ROOM)
    seeds = torch.randn_like(expected)
    expected.backward(seeds)
    found.backward(seeds.float())
    for one, other in zip(inputs, wide, strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.double(), other.grad, **_ROOM)
    assert taken or name in ("folded", "strided")  # PyTorch adds what is folded at places that a tensor holds


@pytest.mark.parametrize(("channels", "regions"), [(8, 2), (1, 1)])
def test_a_dense_convolution_begins_a_region(taken: list[Any], channels: int, regions: int) -> None:
    x, w = torch.randn(1, 8, 9, 9), torch.randn(8, channels, 3, 3)

    def function(x: Tensor, w: Tensor) -> Tensor:
        made = torch.tanh(F.conv2d(x, w, padding=1, groups=8 // channels))
        return F.relu(F.conv2d(made, w, padding=1, groups=8 // channels) + x)

    host = Host()
    with torch.no_grad():
        found = torch.compile(function, backend=host, dynamic=False)(x, w)
    torch.testing.assert_close(found.double(), function(x.double(), w.double()), **_ROOM)
    assert len(taken) == host.calls == regions


def test_images_are_read_as_inductor_lays_them_out(taken: list[Any]) -> None:
    x, w, v = torch.randn(1, 8, 9, 7), torch.randn(8, 8, 3, 3), torch.randn(5, 8, 3, 3)

    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        made = F.max_pool2d(F.conv2d(x, w, padding=1), 3, 1, 1)
        return F.conv2d(made, v, padding=1).softmax(1)

    host = Host()
    expected = function(x, w, v)
    with torch.no_grad():
        found = torch.compile(function, backend=host, dynamic=False)(x, w, v)
    torch.testing.assert_close(found.double(), function(x.double(), w.double(), v.double()), **_ROOM)
    assert found.stride() == expected.stride()
    goals = [json.loads(str(one.plan))["goal"] for one in taken]
    assert len(goals) == host.calls == 3
    # The first image and the last result lie as eager PyTorch has them, what is between with channels last.
    assert ["strides(504, 1, 56, 8)" in one for one in goals] == [False, True, True]


@pytest.mark.parametrize("active", [False, True])
def test_a_pool_stays_with_what_inductor_fuses_with_it(taken: list[Any], active: bool) -> None:
    x, w = torch.randn(1, 8, 9, 9), torch.randn(8, 8, 3, 3)

    def function(x: Tensor, w: Tensor) -> Tensor:
        made = F.conv2d(x, w, padding=1)
        return F.max_pool2d(made.relu() if active else made, 3)

    with torch.no_grad():
        found = torch.compile(function, backend=Host(), dynamic=False)(x, w)
    torch.testing.assert_close(found.double(), function(x.double(), w.double()), **_ROOM)
    assert any("max_pool" in one.operators for one in taken) is not active
