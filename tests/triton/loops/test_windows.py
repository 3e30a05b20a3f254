"""Windows: convolutions and pools as implicit products, run by Triton's interpreter at any tiles."""

import pytest
import torch
from compiling import compile_ahead
from quick import few

from superopt.trace import trace
from tests.windows.convolutions import IMAGE, READINGS, TAPS, random_case

_TEXT = """graph conv
axes {axes}
in x: {dtype}[{image}]
in k: {dtype}[{kernel}]
t2 = window[{places}](x)
t3 = contract[{summed}](t2, k)
t4 = relu(t3)
out y: {dtype}[{out}] = t4
"""


def _conv(axes, places, image="b, c, x", kernel="f, c, r", summed="c, r", out="b, f, i", dtype="f32"):
    return _TEXT.format(
        axes=axes, places=places, image=image, kernel=kernel, summed=summed, out=out, dtype=dtype
    )


LINES = {
    "padded": _conv("b=2 c=5 x=19 f=7 i=19 r=3", "x = i + r - 1"),
    "strided and dilated": _conv("b=2 c=5 x=19 f=7 i=7 r=4", "x = 3*i + 2*r - 2"),
    "causal, taps backward": _conv("b=1 c=20 x=18 f=3 i=18 r=3", "x = i - r"),
    "two axes are one index": _conv(
        "b=2 c=3 x=4 x1=5 f=4 i=9 r=3", "(x x1) = 2*i + r - 1", image="b, c, x, x1"
    ),
    "three axes are one index": _conv(
        "b=2 x0=3 x1=2 x2=4 f=4 i=9 r=6",
        "(x0 x1 x2) = 3*i + r - 4",
        image="b, x0, x1, x2",
        kernel="f, r",
        summed="r",
    ),
    "far outside": _conv("b=2 c=3 x=4 f=4 i=40 r=3", "x = i + r - 20"),
    "never outside": _conv("b=2 c=3 x=21 f=4 i=19 r=3", "x = i + r"),
    "depthwise": _conv("b=2 c=6 x=30 i=30 r=4", "x = i + r - 3", kernel="c, r", summed="r", out="b, c, i"),
    "along one side's own taps": _conv(
        "b=2 c=3 x=9 i=9 r=3", "x = i + r - 1", image="b, x, r", kernel="c, r", summed="r", out="b, c, i"
    ),
    "half precision": _conv("b=2 c=20 x=19 f=17 i=19 r=3", "x = i + r - 1", dtype="f16"),
}


_CHOICES = ("default", "random", "persistent", "wide", "tuner", "descriptors")


@pytest.mark.parametrize("name", LINES)
def test_kernels_read_windows(agrees, name):
    configs = _CHOICES[list(LINES).index(name) % len(_CHOICES)]
    agrees("text", text=LINES[name], domain=[-1.0, 1.0], configs=configs)


@pytest.mark.slow
@pytest.mark.parametrize("configs", _CHOICES)
@pytest.mark.parametrize("name", LINES)
def test_kernels_read_windows_in_any_tiles(agrees, name, configs):
    agrees("text", text=LINES[name], domain=[-1.0, 1.0], configs=configs)


@pytest.mark.parametrize("layout", ["an odd start", "every other element", "padded"])
def test_windows_are_read_as_tensors_lie(agrees, layout):
    agrees("text", text=LINES["strided and dilated"], domain=[-1.0, 1.0], layout=layout)


@pytest.mark.parametrize("seed", [0, 2, 5, 8, 12])
def test_random_convolutions_and_pools(agrees, seed):
    assert _agree(agrees, [seed])


@pytest.mark.parametrize("name", few(READINGS, "circular", "reflect", "flip", "strided"))
def test_kernels_read_at_lines(agrees, name):
    regions = trace(READINGS[name], torch.empty(IMAGE), torch.empty(TAPS)).program.regions
    assert regions
    for number, region in enumerate(regions):
        agrees("text", text=str(region.graph), domain=[-1.0, 1.0], configs=_CHOICES[number])


@pytest.mark.slow
def test_many_random_convolutions_and_pools(agrees):
    assert _agree(agrees, range(20, 180)) > 80


def _agree(agrees, seeds):
    """Return how many regions of random programs agree with float64."""
    checked = 0
    for seed in seeds:
        case = random_case(seed, torch.float32)
        for region in trace(case.function, *case.inputs).program.regions:
            if all(region.graph.sizes.values()):
                agrees("text", text=str(region.graph), domain=[-1.0, 1.0])
                checked += 1
    return checked


def test_a_window_of_what_lies_in_a_tile_is_one_of_memory(agrees):
    """A kernel stores what the next one reads windows of."""
    text = """graph two
axes b=2 h=9 i=9 r=3 g=4
in x: f32[b, h]
in w: f32[g, r]
kernel grid[b, h]
  t2 = tanh(x)
kernel grid[b, g, i]
  loop[r]
    t3 = window[h = i + r - 1](t2)
    t4 += contract[r](t3, w)
out y: f32[b, g, i] = t4
"""
    agrees("text", text=text, domain=[-1.0, 1.0], configs="random")


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_convolutions_hardly_spill(sources_of, target):
    [source] = sources_of("convolution")
    assert "tl.dot(" in source.text
    report = compile_ahead(source, target=target)
    assert report.spill_bytes <= 32
    assert 0 < report.registers <= 255


def test_taps_are_single_and_channels_fill_tiles(sources_of):
    [source] = sources_of("convolution")
    tiles = source.config.blocks
    assert (tiles["t"], tiles["e"]) == (1, 1)
    assert tiles["h"] >= 32
