"""Views by explicit strides: plainer views in regions where they are such, and outside of them elsewhere."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from superopt.backend.pieces import pieces_of
from superopt.backend.subgraph import subgraph_of
from superopt.rivals.aten import operator_name
from superopt.rivals.kinds import kinds_of, reasons_of
from superopt.rivals.strided import views_of

from .test_pieces import functional

_SIZES, _STRIDES = (1, 2, 3, 4, 6), (0, 1, 1, 2, 3, 4, 6, 8, 12, 24)


def drawn(draw: random.Random) -> tuple[Tensor, list[int], list[int]]:
    """Return a tensor, perhaps with gaps, and a size and strides within its memory."""
    while True:
        shape = [draw.choice(_SIZES) for _ in range(draw.randint(0, 4))]
        order = draw.sample(range(len(shape)), len(shape))
        x = torch.arange(max(torch.Size(shape).numel(), 1)).reshape(shape).permute(order)
        if draw.random() < 0.15 and x.dim():
            x = x[..., : max(1, x.shape[-1] - 1)]
        if draw.random() < 0.3:
            other = x.permute(draw.sample(range(x.dim()), x.dim()))
            return x, list(other.shape), list(other.stride())
        size = [draw.choice(_SIZES[:4]) for _ in range(draw.randint(0, 4))]
        stride = [draw.choice(_STRIDES) for _ in size]
        if sum((n - 1) * t for n, t in zip(size, stride, strict=True)) < x.untyped_storage().nbytes() // 8:
            return x, size, stride


def test_views_are_those_by_strides_or_none() -> None:
    draw = random.Random(0)
    found = 0
    for _ in range(2000):
        x, size, stride = drawn(draw)
        steps = views_of(x.shape, x.stride(), size, stride)
        if steps is None:
            continue
        found += 1
        made = x
        for target, arguments in steps:
            made = target(made, *arguments)
        assert torch.equal(made, x.as_strided(size, stride)), (x.shape, x.stride(), size, stride)
        assert made.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert found > 1000


@pytest.mark.parametrize(
    ("shape", "strides", "size", "stride"),
    [
        ((8,), (1,), (3, 4), (2, 1)),  # windows that overlap
        ((8,), (1,), (3,), (3,)),  # the last one is not whole
        ((2, 3), (4, 1), (2, 3), (3, 1)),  # what is viewed has gaps
        ((3, 3), (0, 1), (3,), (1,)),  # or shares memory
    ],
)
def test_no_other_views_are_taken_for_them(
    shape: tuple[int, ...], strides: tuple[int, ...], size: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    assert views_of(shape, strides, size, stride) is None


_INSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda x: (x * 2).as_strided((8, 4), (1, 8)).softmax(-1),
    "halved": lambda x: x.exp().as_strided((4, 4), (8, 2)) + 1,
    "repeated": lambda x: x.sum(0).as_strided((3, 8), (0, 1)) * 3,
    "from the start": lambda x: (x + 1).as_strided((2, 16), (16, 1), 0).sum(-1),
}
_OUTSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "of an input": lambda x: x.as_strided((8, 4), (1, 8)).exp(),
    "of a view of an input": lambda x: x.view(32).as_strided((8, 4), (1, 8)).exp(),
    "from elsewhere": lambda x: (x * 2).as_strided((2, 2), (8, 1), 3).exp(),
    "overlapping": lambda x: (x * 2).as_strided((7, 16), (4, 1)).exp(),
}


@pytest.mark.parametrize("name", [*_INSIDE, *_OUTSIDE])
def test_a_view_by_strides_in_a_graph(name: str) -> None:
    """Of an input it stays outside: nobody knows where that begins in its memory."""
    function = {**_INSIDE, **_OUTSIDE}[name]
    x = torch.randn(4, 8)
    graph = functional(function, x)
    kinds = kinds_of(graph, "cpu")
    outside = {operator_name(node) for node in reasons_of(graph, "cpu") if node.op == "call_function"}
    assert outside == ({"as_strided"} if name in _OUTSIDE else set())
    if name in _INSIDE:
        [piece] = pieces_of(graph, kinds)
        found = subgraph_of(piece, kinds)
        torch.testing.assert_close(found.module(x)[0].contiguous(), function(x))
