"""Tensors read at known places: paddings by their own elements, rolls, flips, folded patches."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quick import few
from torch import Tensor, nn

from superopt.codegen.cpp import CppMuGraph
from superopt.ir import fuse
from superopt.precision import with_rounding
from superopt.trace import trace
from superopt.verify.graphs.equality import equal_graphs
from tests.windows.convolutions import IMAGE, READINGS, TAPS

_MODES = ("circular", "reflect", "replicate")


def _agrees(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Compare the algebra of a function, of which all is algebra, with PyTorch."""
    traced = trace(function, *inputs)
    assert not traced.program.opaque, traced.program.opaque
    torch.testing.assert_close(traced.run(*inputs), function(*inputs), equal_nan=True)


@pytest.mark.parametrize("mode", _MODES)
def test_tensors_are_padded_by_their_own_elements(mode: str) -> None:
    torch.manual_seed(0)
    for before, after, size in product((0, 1, 2, 3), (0, 1, 3), (3, 4, 7)):
        if mode == "reflect" and max(before, after) >= size:
            continue
        x = torch.randn(2, 2, size, 5, dtype=torch.float64)
        x[0, 0, 0, 0], x[1, 1, -1] = torch.nan, torch.inf
        _agrees(lambda x, pad=(1, 2, before, after): F.pad(x, pad, mode=mode) * 2, x)


def test_circular_padding_cuts_before_it_wraps() -> None:
    x = torch.randn(1, 2, 7, 5, dtype=torch.float64)
    for pad in ((0, 0, -2, 2), (1, -1, 3, -3), (-1, -1, -2, -2)):
        _agrees(lambda x, pad=pad: F.pad(x, pad, mode="circular") * 2, x)


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_with_any_padding_are_algebra(mode: str, rank: int) -> None:
    torch.manual_seed(0)
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    module = kind(4, 6, 3, padding=2, dilation=2, stride=2, groups=2, padding_mode=mode).double()
    with torch.no_grad():
        _agrees(lambda x: module(x).relu(), torch.randn(2, 4, *(7, 6, 5)[:rank], dtype=torch.float64))


def test_patches_are_summed_where_they_lie() -> None:
    torch.manual_seed(0)
    checked = 0
    for kernel, stride, padding, dilation, size in product((1, 3), (1, 2, 3), (0, 1), (1, 2), (5, 6)):
        count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        if count < 1 or (stride > 1 < dilation):
            continue
        settings = {"padding": padding, "stride": stride, "dilation": dilation}
        x = torch.randn(1, 2 * kernel**2, count**2, dtype=torch.float64)
        _agrees(lambda x, k=kernel, n=size, more=settings: F.fold(x, n, k, **more), x)  # type: ignore[misc]
        checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    ("stride", "padding", "more", "kernel"),
    [(2, 1, 0, 3), (3, 2, 1, 4), (3, 0, 2, 2), ((2, 3), 1, (1, 0), 5)],
)
def test_transposed_convolutions_leave_a_rest(stride: Any, padding: Any, more: Any, kernel: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 4, 5).double(), torch.randn(4, 3, kernel, kernel).double()
    _agrees(lambda x, w: F.conv_transpose2d(x, w, None, stride, padding, more, 2), x, w)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.flip(1) * x,
        lambda x: x.flip((0, -1)).flip(0),
        lambda x: x[:, 1:66] + x[:, 2:],
        lambda x: x[:, 1::3].exp(),
        lambda x: torch.cat((x[:, -5:], x, x[:, :2]), 1) * 2,
        lambda x: torch.cat((x[:, :1], x.exp(), x[:, :65]), 1) * 2,
        lambda x: x[:, torch.arange(67).sub(3).abs()] + 1,
        lambda x: x.roll((1, -3), (0, 1)).roll((-1, 3), (0, 1)) + x,
        lambda x: (x > 0).roll(1, 1).to(x.dtype) - x,
    ],
)
def test_what_only_moves_elements_is_read_at_lines(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 67, dtype=torch.float64)
    x[0, 0], x[1, -1], x[2, 3] = torch.inf, torch.nan, -torch.inf
    _agrees(function, x)


_SQUARE, _ROWS = torch.randn(1, 2, 9, 9, dtype=torch.float64), torch.randn(6, 8, dtype=torch.float64)


def _patches(x: Tensor) -> Tensor:
    places = torch.arange(7)[:, None] + torch.arange(3)
    return x[:, :, places][..., places]


def _bands(x: Tensor) -> Tensor:
    rows = torch.arange(6)[:, None]
    return (x + rows)[:, rows + torch.arange(3)]


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (_patches, _SQUARE),
        (lambda x: _patches(x) * 2, _SQUARE),
        (lambda x: _patches(x).sum(3) + x[:, :, :7, :7, None], _SQUARE),
        (_bands, _ROWS),
        (lambda x: _bands(x).sum(1), _ROWS),
        (lambda x: (x + torch.arange(8)).mT[torch.arange(8)[:, None]] * 2, _ROWS),
    ],
)
def test_places_along_an_axis_that_a_tensor_has_are_no_diagonal(
    function: Callable[[Tensor], Tensor], x: Tensor
) -> None:
    _agrees(function, x)


def test_a_diagonal_is_one() -> None:
    traced = trace(lambda x: x[torch.arange(6), torch.arange(6)] * 2, _ROWS)
    torch.testing.assert_close(traced.run(_ROWS), _ROWS.diagonal() * 2)


def test_readings_of_readings_are_one() -> None:
    def graph(function: Callable[[Tensor], Tensor]) -> str:
        [region] = trace(function, torch.ones(2, 67)).program.regions
        return str(region.graph).partition("\n")[2]

    there_and_back = graph(lambda x: F.pad(x.roll(5, 1), (1, 2), mode="circular").roll(-1, 1) + 1)
    assert (there_and_back.count("window"), there_and_back.count("select")) == (2, 1)
    wrapped = graph(lambda x: torch.cat((x[:, -2:], x, x[:, :2]), 1) + 1)
    assert wrapped == graph(lambda x: F.pad(x, (2, 2), mode="circular") + 1)


@pytest.mark.parametrize("name", few(READINGS, "circular", "reflect", "strided", "rest"))
def test_kernels_compute_what_is_read_at_lines(name: str) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(IMAGE), "w": torch.randn(TAPS)}
    traced = trace(READINGS[name], *given.values())
    [region] = traced.program.regions
    known = dict(zip((port.name for port in traced.program.inputs), given.values(), strict=True))
    kernels = CppMuGraph(with_rounding(fuse(region.graph)), {})
    [found] = kernels.in_order([known[port.name] for port in region.graph.inputs])
    expected = READINGS[name](*(one.double() for one in given.values()))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


_WRONG: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "circular": lambda x, w: F.conv2d(F.pad(x.roll(1, 2), (1, 1, 1, 1), mode="circular"), w),
    "reflect": lambda x, w: F.conv2d(F.pad(x, (2, 2, 2, 2), mode="replicate"), w, dilation=2).relu(),
    "replicate": lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), w, stride=2),
    "flip": lambda x, w: F.conv2d(x.flip(2), w.flip(3), padding=1),
    "folded": lambda x, w: F.fold(
        F.unfold(x, 3, padding=1) * w[0, 0, 0, 0], (9, 7), 3, padding=1
    ).roll(1, 3),
    "strided": lambda x, w: F.fold(
        F.unfold(x, 3, padding=1, stride=2) * w[0, 0, 0, 0], (10, 8), 3, padding=1, stride=2
    )[:, :, 1:, 1:],
    "rest": lambda x, w: F.conv_transpose2d(x, w.flip(3), stride=2, padding=1),
}  # fmt: skip


@pytest.mark.parametrize("name", few(READINGS, "circular", "reflect", "strided", "rest"))
def test_what_is_read_elsewhere_is_not_equal(name: str) -> None:
    x, w = torch.empty(IMAGE), torch.empty(TAPS)
    right, again, wrong = (
        trace(one, x, w).program.regions[0].graph
        for one in (READINGS[name], lambda x, w: READINGS[name](x, w) * 1, _WRONG[name])
    )
    assert equal_graphs(right, again, seed=1).equal
    assert not equal_graphs(right, wrong, seed=1).equal
