"""Exported modules refuse what their kernels are no program for: other sizes, places and kinds of memory."""

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from superopt.export import export_module
from superopt.export.limits import limits_of
from superopt.ir import parse_graph
from superopt.result import Result

Scope = dict[str, Any]
TARGETS = ("cpu", "cuda:90")


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[Result], Scope]:
    """Loads the exported module of a result; none of its kernels is compiled before it is called."""

    def load(result: Result) -> Scope:
        path = tmp_path / "exported.py"
        path.write_text(export_module(result))
        return runpy.run_path(str(path))

    return load


POOL = """
graph pool
axes b=4 h=9 i=7 r=3
in x: f32[b, h]
kernel grid[b, i]
  t1 = window[h = i + r](x)
  t2 = max[r](t1)
out y: f32[b, i] = t2
"""


@pytest.mark.parametrize("target", TARGETS)
def test_windows_have_the_sizes_they_were_made_for(written, loaded, target: str) -> None:
    """Before: fewer rows were read beyond their end, and more were cut."""
    scope = loaded(written(POOL, target))
    for size in (5, 12):
        for name in ("pool", "reference"):
            with pytest.raises(ValueError, match=f"axis h is {size} long; this module is made for 9"):
                scope[name](torch.randn(4, size))
    found = scope["reference"](torch.arange(18.0).reshape(2, 9))
    torch.testing.assert_close(found, torch.stack([torch.arange(2.0, 9.0), torch.arange(11.0, 18.0)]))


@pytest.mark.parametrize("target", TARGETS)
def test_a_tensor_beside_its_transpose_is_square(traced, loaded, target: str) -> None:
    """Before: the kernel read beyond the end of what is not square."""
    scope = loaded(traced(lambda x: x + x.T, (8, 8), target=target))
    for name in ("tested", "reference"):
        with pytest.raises(ValueError, match="are 5 and 3 long; they must agree"):
            scope[name](torch.randn(3, 5))
    x = torch.randn(5, 5)
    torch.testing.assert_close(scope["reference"](x), x + x.T)


def last_by_width(x: torch.Tensor) -> torch.Tensor:
    return x[:, -1] / x.shape[1]


@pytest.mark.parametrize("function", [last_by_width, lambda x: x.chunk(2, -1)[0].exp()])
def test_sizes_that_are_written_in_the_program_stay(traced, loaded, function: Callable[..., Any]) -> None:
    """Before: at another width the module computed something else without a word."""
    scope = loaded(traced(function, (4, 16)))
    for shape in ((4, 32), (1, 16)):
        for name in ("tested", "reference"):
            with pytest.raises(ValueError, match=r"axis \w+ is \d+ long; this module is made for"):
                scope[name](torch.randn(shape))
    x = torch.randn(9, 16)
    torch.testing.assert_close(scope["reference"](x), function(x))


SCALED = """
graph scaled
axes m=4 k=8
in x: f32[m, k]
in g: f32[k]
kernel grid[m, k]
  t2 = mul(x, g)
out y: f32[m, k] = t2
"""


@pytest.mark.parametrize("target", TARGETS)
def test_axes_change_within_their_ranges_alone(written, loaded, target: str) -> None:
    result = replace(written(SCALED, target), open_axes={"m": (0, 16)})
    scope = loaded(result)
    g = torch.randn(8)
    for name in ("scaled", "reference"):
        for rows in (1, 17):
            with pytest.raises(ValueError, match=f"m is {rows} long; this module is made for 2 to 16"):
                scope[name](torch.randn(rows, 8), g)
        with pytest.raises(ValueError, match="axis k is 6 long; this module is made for 8"):
            scope[name](torch.randn(4, 6), g[:6])
    if target == "cpu":
        with pytest.raises(ValueError, match="axis k is 6 long"):
            scope["check"](k=6)
    for rows in (2, 16):
        assert scope["reference"](torch.randn(rows, 8), g).shape == (rows, 8)
    scope = loaded(replace(result, open_axes=None))  # the ranges were not tried yet
    with pytest.raises(ValueError, match="axis m is 5 long; this module is made for 4"):
        scope["scaled"](torch.randn(5, 8), g)


def test_limits_follow_axes_that_are_renamed() -> None:
    first = parse_graph("graph a\naxes i=8 j=8\nin x: f32[i]\nt1 = rename[i->j](x)\nout y: f32[j] = t1\n")
    second = parse_graph("graph b\naxes j=8\nin y: f32[j]\nt1 = exp(y)\nout z: f32[j] = t1\n")
    found = limits_of({"i": (0, 64)}, [first, second])
    assert found.ranges == {"i": (2, 64), "j": (2, 64)}
    assert found.alike == (("i", "j"),)
    windows = parse_graph("graph c\naxes h=8 i=6 r=3\nin x: f32[h]\nt1 = window[h = i + r](x)\n" + PEAK)
    assert limits_of({"h": (0, 64)}, [windows]).ranges == {}


PEAK = "t2 = max[r](t1)\nout y: f32[i] = t2\n"


@pytest.mark.parametrize("target", TARGETS)
def test_memory_that_does_not_hold_the_numbers_is_refused(written, loaded, target: str) -> None:
    """Before: numbers that are stored negated were read with the wrong sign."""
    scope, g = loaded(written(SCALED, target)), torch.randn(8)
    negated = torch.randn(4, 8, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    for given in (negated, torch._efficientzerotensor(4, 8)):
        with pytest.raises(ValueError, match="x is negated, or zero, without memory that holds its numbers"):
            scope["scaled"](given, g)
    assert not negated.clone().is_neg()


def test_tensors_of_several_devices_are_refused(written, loaded) -> None:
    scope = loaded(written(SCALED, "cuda:90"))
    with pytest.raises(ValueError, match="the tensors are on cpu and meta; move them to one device"):
        scope["scaled"](torch.randn(4, 8), torch.empty(8, device="meta"))


SUMMED = """
graph summed
axes m=4 k=8 n=16
in x: f16[m, k]
in w: f16[k, n]
kernel call
  t2 = contract[k](x, w)
kernel grid[m]
  loop[n]
    t3 += sum[n](t2)
out y: f16[m] = t3
"""


def test_what_a_library_makes_is_counted_in_32_bits_too(written) -> None:
    text = export_module(written(SUMMED, "cuda:90"))
    assert "if max(m * n, m) >= 2**31:" in text


def test_persistent_kernels_have_a_few_programs_of_each_processor(written) -> None:
    result = written(SCALED, "cuda:90")
    config = {"tiles": [["m", 2], ["k", 4]], "persistent": 2}
    [region] = result.regions
    one = replace(region.candidates[0], configs=(result.target.config_from_json(config),))
    text = export_module(replace(result, regions=(replace(region, candidates=(one,)),)))
    assert "scaled_0[(min(triton.cdiv(k, 4) * triton.cdiv(m, 2), 2 * _processors(x.device)),)](" in text
    assert "def _processors(device):" in text
    assert "_processors" not in export_module(result)


@pytest.mark.parametrize("target", TARGETS)
def test_gradients_are_refused_rather_than_dropped(written, loaded, target: str) -> None:
    """Before: what the kernels made had no gradients, and a sum with it had wrong ones."""
    scope, x, g = loaded(written(SCALED, target)), torch.randn(4, 8), torch.randn(8, requires_grad=True)
    with pytest.raises(ValueError, match=r"g needs gradients; .* use torch\.no_grad\(\)"):
        scope["scaled"](x, g)
    if target == "cpu":
        scope["scaled"].__globals__["_run"] = lambda *arguments: None
        with torch.no_grad():
            assert not scope["scaled"](x, g).requires_grad
    scope["reference"](x, g).sum().backward()
    torch.testing.assert_close(g.grad, x.sum(0))
