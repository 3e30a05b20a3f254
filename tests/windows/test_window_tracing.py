"""Convolutions and pools as algebra: what windows read, what they print, and what is left to libraries."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.errors import GraphError
from superopt.ir import parse_graph, parse_program, print_program
from superopt.ir.windows.place import Place, parse_place, print_place
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.verify.graphs.equality import equal_graphs
from tests.windows.convolutions import random_case


def test_convolutions_are_what_pytorch_computes() -> None:
    kinds = _compared(range(40))
    assert kinds["algebra"] > 30, kinds


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 500, 100))
def test_many_convolutions_are_what_pytorch_computes(start: int) -> None:
    kinds = _compared(range(start, start + 100))
    assert kinds["algebra"] > 80, kinds


def _compared(seeds: range) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for seed in seeds:
        case = random_case(seed, torch.float64)
        traced = trace(case.function, *case.inputs)
        expected, found = case.function(*case.inputs), traced.run(*case.inputs)
        assert found.shape == expected.shape, case.text
        torch.testing.assert_close(
            found, expected, rtol=1e-10, atol=1e-10, msg=lambda m, c=case: f"{c.text}: {m}"
        )
        assert parse_program(print_program(traced.program)) == traced.program, case.text
        kinds["opaque" if traced.program.opaque else "algebra"] += 1
    return kinds


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (
            lambda x, w: F.conv_transpose2d(x, torch.ones(8, 1, 3, 3), None, 2, 1, 0, 8, 2),
            "stride and dilation",
        ),
        (lambda x, w: F.adaptive_avg_pool2d(x, 4), "differ in length"),
    ],
)
def test_what_has_no_rule_stays_opaque(function: Callable[..., Tensor], why: str) -> None:
    x, w = torch.randn(2, 8, 7, 7), torch.randn(8, 1, 3, 3)
    traced = trace(function, x, w)
    assert any(why in one.reason for one in traced.program.opaque), traced.program.opaque
    torch.testing.assert_close(traced.run(x, w), function(x, w))


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place(("h",), (("i", 1), ("r", 1))), "h = i + r"),
        (Place(("h",), (("i", 2), ("r", 3)), -4), "h = 2*i + 3*r - 4"),
        (Place(("h",), (("i", -1), ("r", -2)), 5), "h = -1*i - 2*r + 5"),
        (Place(("h0", "h1"), (("i", 1),)), "(h0 h1) = i"),
        (Place(("h",), (), 3), "h = 3"),
    ],
)
def test_places_are_printed_and_read(place: Place, text: str) -> None:
    assert print_place(place) == text
    assert parse_place(text) == place


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("window[b = i + r](x)", "undeclared axis 'b'"),
        ("window[h = h + r](x)", "names axis 'h' twice"),
        ("window[h = i + i](x)", "names axis 'i' twice"),
        ("window[h = 0*i + r](x)", "the same at all positions of 'i'"),
        ("window(x)", "windows name places"),
        ("window[h](x)", "window takes axis = places"),
    ],
)
def test_wrong_windows_are_refused(step: str, why: str) -> None:
    text = f"graph one\naxes h=5 i=5 r=3 k=2\nin x: f32[h, k]\nt1 = {step}\nout y: f32[i, r, k] = t1\n"
    with pytest.raises(GraphError, match=why):
        parse_graph(text)


def test_a_window_reads_axes_that_are_split_as_one() -> None:
    text = """graph one
axes h0=3 h1=4 i=5 r=3
in x: f32[(h0 h1)]
t1 = window[(h0 h1) = 3*i + r - 2](x)
out y: f32[i, r] = t1
"""
    graph, x = parse_graph(text), torch.arange(1.0, 13.0, dtype=torch.float64)
    padded = F.pad(x, (2, 5))
    expected = torch.stack([padded[3 * i : 3 * i + 3] for i in range(5)])
    torch.testing.assert_close(run_graph(graph, {"x": x})["y"], expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.silu(F.conv1d(x, w, padding=3, groups=5)[..., :-3]),
        lambda x, w: F.conv1d(x, w, torch.arange(5.0).double(), padding=3, groups=5)[..., 2:-1] * x,
        lambda x, w: F.conv1d(x, w, padding=6, dilation=2, groups=5)[..., ::2],
        lambda x, w: F.avg_pool1d(x, 4, 1, 2)[..., 1:] + F.conv1d(x, w, groups=5).sum(),
        lambda x, w: F.conv1d(F.conv1d(x, w, padding=3, groups=5)[..., :-3], w, padding=3, groups=5)[
            ..., :-3
        ],
    ],
)
def test_slices_of_windows_are_windows(function: Callable[..., Tensor]) -> None:
    x, w = torch.randn(2, 5, 31, dtype=torch.float64), torch.randn(5, 1, 4, dtype=torch.float64)
    traced = trace(function, x, w)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(x, w), function(x, w))


@pytest.mark.parametrize(
    ("function", "windows"),
    [
        (lambda x, w: F.conv1d(F.pad(x, (3, 0)), w, groups=5), 1),
        (lambda x, w: F.silu(F.conv1d(F.pad(x, (1, 2)), w, padding=2, stride=3, groups=5)), 1),
        (lambda x, w: F.conv1d(F.pad(x, (-2, 3)), w, groups=5), 2),
        (lambda x, w: F.pad(x, (1, 2, 0, 3), value=2.5) * 2, 1),
        (lambda x, w: F.max_pool1d(F.pad(x - 1, (1, 1)), 4, 2, 1), 1),
        (lambda x, w: F.pad(x, (2, 2))[..., 1:-3] + F.pad(x, (0, 3))[..., 3:], 2),
    ],
)
def test_padding_is_part_of_the_window(function: Callable[..., Tensor], windows: int) -> None:
    x, w = torch.randn(2, 5, 31, dtype=torch.float64), torch.randn(5, 1, 4, dtype=torch.float64)
    traced = trace(function, x, w)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(x, w), function(x, w))
    [region] = traced.program.regions
    assert sum(step.op == "window" for step in region.graph.steps) == windows


def test_no_axis_of_a_window_is_another_one() -> None:
    """A square image beside its windows, turned: rows of one and columns of the other may not be one axis."""
    x, w = torch.randn(1, 3, 9, 9, dtype=torch.float64), torch.randn(3, 1, 3, 3, dtype=torch.float64)

    def function(x: Tensor, w: Tensor) -> Tensor:
        made = F.conv2d(x, w, padding=1, groups=3)
        return made + x.transpose(2, 3) + made.transpose(2, 3) * x

    traced = trace(function, x, w)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(x, w), function(x, w))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.unfold(x[None], (2, 3), dilation=(2, 1), padding=(1, 0), stride=(1, 2)) * 2,
        lambda x: x.unfold(1, 3, 2).sum(-1),
        lambda x: x.unfold(2, 4, 1).unfold(1, 2, 1).amax((-1, -2)),
        lambda x: x.unfold(1, 3, 3) + 1,
        lambda x: x.roll(2, 1) * x,
        lambda x: x.roll((1, -3, 40), (2, 1, 0)).tanh(),
        lambda x: x.roll(0, 1) + x.roll(9, 1),
        lambda x: x.roll(1, -1).roll(-1, -1) - x,
    ],
)
def test_unfolded_and_rolled_tensors_are_windows(function: Callable[..., Tensor]) -> None:
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    x[0, 0] = -torch.inf
    traced = trace(function, x)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(x), function(x), equal_nan=True)


def test_a_product_of_unfolded_images_is_a_convolution() -> None:
    def by_product(x: Tensor, k: Tensor) -> Tensor:
        return (k.flatten(1) @ F.unfold(x, 3, padding=1)).unflatten(-1, (9, 8))

    x, k = torch.randn(1, 4, 9, 8), torch.randn(6, 4, 3, 3)
    first, second = (
        trace(one, x, k).program.regions for one in (by_product, lambda x, k: F.conv2d(x, k, padding=1))
    )
    assert equal_graphs(first[0].graph, second[0].graph, seed=1).equal
