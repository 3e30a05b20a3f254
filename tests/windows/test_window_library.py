"""Convolutions by a library inside our plans: which ones it knows, how they are called, against float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.codegen.cpp import CppMuGraph
from superopt.ir import Call, MuGraph, fuse, parse_graph, parse_mugraph, print_mugraph
from superopt.ir.mugraph import called_order, convolution_of, is_called
from superopt.precision import with_rounding
from superopt.trace import trace
from superopt.trace.run import run_graph
from tests.windows.convolutions import Case, random_case

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}
_DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


def _called(case: Case) -> tuple[MuGraph, list[Tensor]] | None:
    """Return a program whose convolutions a library computes, and its inputs; None for opaque ones."""
    traced = trace(case.function, *case.inputs)
    if traced.program.opaque or len(traced.program.regions) != 1:
        return None
    [region] = traced.program.regions
    mugraph = with_rounding(fuse(region.graph, library=is_called))
    known = dict(zip((port.name for port in traced.program.inputs), case.inputs, strict=True))
    return mugraph, [known[port.name] for port in region.graph.inputs]


def _windows_called(mugraph: MuGraph) -> int:
    steps = [
        mugraph.graph.step_at(tile.value)
        for kernel in mugraph.kernels
        if isinstance(kernel, Call)
        for tile in kernel.body
    ]
    return sum(step.op == "window" for step in steps)


def _check(seed: int) -> bool:
    """Check a random program; return whether a library slides over a window there."""
    dtype = _DTYPES[seed % 4]
    case = random_case(seed, dtype)
    found = _called(case)
    if found is None:
        return False
    mugraph, given = found
    assert parse_mugraph(print_mugraph(mugraph)) == mugraph, case.text
    [made] = CppMuGraph(mugraph).in_order(given)
    expected = case.function(*(one.double() for one in case.inputs))
    assert made.shape == expected.shape, case.text
    error = (made.double() - expected).abs() / (1 + expected.abs())
    assert not error.numel() or float(error.max()) < _TOLERANCE[dtype], case.text
    return _windows_called(mugraph) > 0


@pytest.mark.parametrize("seed", [0, 1, 3, 5, 6, 10])
def test_libraries_compute_convolutions(seed: int) -> None:
    _check(seed)


@pytest.mark.slow
def test_libraries_compute_many_convolutions() -> None:
    assert sum(map(_check, range(100, 220))) > 30


def _graph(places: str, axes: str, kernel: str, summed: str, out: str, image: str = "c, h") -> MuGraph:
    text = (
        f"graph g\naxes {axes}\nin x: f32[{image}]\nin k: f32[{kernel}]\na = window[{places}](x)\n"
        f"b = contract[{summed}](a, k)\nd = relu(b)\nout out: f32[{out}] = d\n"
    )
    return fuse(parse_graph(text), library=is_called)


_AXES = "c=5 h=19 f=4 r=3 i=19"


@pytest.mark.parametrize(
    ("places", "axes"),
    [
        ("h = i + r - 1", _AXES),
        ("h = 2*i + 3*r - 1", "c=5 h=19 f=4 r=3 i=7"),
        ("h = i + r - 2", _AXES),  # causal
        ("h = i - r + 1", _AXES),  # taps backward
        ("h = i + r + 2", "c=5 h=19 f=4 r=3 i=15"),  # some elements are never read
        ("h = i + r + 4", "c=5 h=19 f=4 r=3 i=30"),
        ("h = 3*i - 2*r - 5", "c=5 h=19 f=4 r=3 i=11"),
        ("h = i + r - 1", "c=5 h=1 f=4 r=3 i=1"),
    ],
)
def test_any_place_is_one_call_of_a_library(places: str, axes: str) -> None:
    mugraph = _graph(places, axes, "f, c, r", "c, r", "f, i")
    assert _windows_called(mugraph) == 1
    graph = mugraph.graph
    given = [torch.randn(graph.shape(port)) for port in graph.inputs]
    [made] = CppMuGraph(mugraph).in_order(given)
    named = dict(zip(("x", "k"), given, strict=True))
    torch.testing.assert_close(made, run_graph(graph, named, torch.float64)["out"].float())


@pytest.mark.parametrize(
    ("places", "axes", "kernel", "summed", "out", "image"),
    [
        ("h = i + j + r - 1", "c=5 h=9 f=4 r=3 i=4 j=3", "f, c, r", "c, r", "f, i, j", "c, h"),  # two results
        ("h = i + r - 1", _AXES, "f, c, r", "c", "f, i, r", "c, h"),  # taps that are not summed
        ("h = r - i + 8", "c=5 h=19 f=4 r=3 i=9", "f, c, r", "c, r", "f, i", "c, h"),  # backward
        ("h = i + c - 1", "c=5 h=19 f=4 i=15", "f, c", "c", "f, i", "h, c"),  # a place reads its own axis
        ("h = i + r - 1", _AXES, "f, r", "c, r", "f, i", "c, h"),  # channels without weights
    ],
)
def test_what_no_library_knows_is_no_convolution(
    places: str, axes: str, kernel: str, summed: str, out: str, image: str
) -> None:
    assert _windows_called(_graph(places, axes, kernel, summed, out, image)) == 0


def test_a_window_that_others_read_stays_outside() -> None:
    text = (
        "graph g\naxes c=2 h=5 f=3 r=3 i=5\nin x: f32[c, h]\nin k: f32[f, c, r]\n"
        "a = window[h = i + r - 1](x)\nb = contract[c, r](a, k)\nd = max[c, r](a)\ne = add(b, d)\n"
        "out out: f32[f, i] = e\n"
    )
    graph = parse_graph(text)
    mugraph = fuse(graph, library=is_called)
    assert _windows_called(mugraph) == 0
    given = {"x": torch.randn(2, 5), "k": torch.randn(3, 2, 3)}
    made = CppMuGraph(mugraph)(**given)["out"]
    torch.testing.assert_close(made, run_graph(graph, given, torch.float64)["out"].float())


def test_convolutions_of_one_window_share_it() -> None:
    text = (
        "graph g\naxes c=2 h=5 f=3 r=3 i=5\nin x: f32[c, h]\nin k: f32[f, c, r]\nin l: f32[f, c, r]\n"
        "a = window[h = i + r - 1](x)\nb = contract[c, r](a, k)\nd = contract[c, r](a, l)\ne = mul(b, d)\n"
        "out out: f32[f, i] = e\n"
    )
    mugraph = fuse(parse_graph(text), library=is_called)
    assert _windows_called(mugraph) == 2
    assert parse_mugraph(print_mugraph(mugraph)) == mugraph
    x, k, other = torch.randn(2, 5), torch.randn(3, 2, 3), torch.randn(3, 2, 3)
    expected = F.conv1d(x, k, padding=1) * F.conv1d(x, other, padding=1)
    torch.testing.assert_close(CppMuGraph(mugraph)(x=x, k=k, l=other)["out"], expected)


@pytest.mark.parametrize("rank", [2, 3])
def test_images_with_channels_last_stay_so(rank: int) -> None:
    layout = torch.channels_last if rank == 2 else torch.channels_last_3d
    x = torch.randn(2, 6, *[7, 5, 4][:rank]).contiguous(memory_format=layout)
    k = torch.randn(8, 3, *[3, 3, 2][:rank])
    convolve = (F.conv2d, F.conv3d)[rank - 2]

    def function(x: Tensor, k: Tensor) -> Tensor:
        return F.relu(convolve(x, k, padding=1, stride=2, groups=2))

    found = _called(Case(function, (x, k), ""))
    assert found is not None
    mugraph, given = found
    [value] = [value for value, step in mugraph.graph.numbered if step.op == "contract"]
    known = convolution_of(mugraph.graph, value)
    assert known is not None
    assert known.channels_last
    assert called_order(mugraph, value)[-1] in known.filters
    torch.testing.assert_close(CppMuGraph(mugraph).in_order(given)[0], function(x, k))
