"""Equality of programs that read windows: what is proven, and wrong ones that are refused."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.ir import Graph, parse_graph
from superopt.trace import trace
from superopt.verify.graphs.equality import equal_graphs

Program = Callable[..., Tensor]

_X, _W, _S = torch.zeros(2, 4, 7, 6), torch.zeros(4, 1, 3, 3), torch.zeros(4)
_LINE = torch.zeros(2, 3, 9)


def _graph(function: Program, *inputs: Tensor) -> Graph:
    traced = trace(function, *inputs)
    assert not traced.program.opaque
    [region] = traced.program.regions
    return region.graph


def _depthwise(x: Tensor, w: Tensor, **settings: object) -> Tensor:
    return F.conv2d(x, w, groups=4, **{"padding": 1, **settings})  # type: ignore[arg-type]


_EQUAL: dict[str, tuple[Program, Program, tuple[Tensor, ...]]] = {
    "a factor of the image": (
        lambda x, w: _depthwise(2 * x, w), lambda x, w: 2 * _depthwise(x, w), (_X, _W),
    ),
    "a scale folded into the kernel": (
        lambda x, w, s: _depthwise(x, w) * s[:, None, None],
        lambda x, w, s: _depthwise(x, w * s[:, None, None, None]),
        (_X, _W, _S),
    ),
    "an average as a convolution": (
        lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: _depthwise(x, torch.full((4, 1, 3, 3), 1 / 9, dtype=torch.float64).to(x.dtype)),
        (_X,),
    ),
    "a maximum passes what does not decrease": (
        lambda x: F.max_pool2d(F.relu(x), 3, 2, 1), lambda x: F.relu(F.max_pool2d(x, 3, 2, 1)), (_X,),
    ),
    "a kernel of one tap is a product of matrices": (
        lambda x, w: F.conv2d(x, w[:, :, None, None]), lambda x, w: torch.einsum("bchw,oc->bohw", x, w),
        (_X, torch.zeros(5, 4)),
    ),
    "two averages in a row, row by row": (
        lambda x: F.avg_pool2d(x, (3, 1), 1, (1, 0)).sum(-1),
        lambda x: F.avg_pool2d(x.sum(-1, keepdim=True), (3, 1), 1, (1, 0))[..., 0],
        (_X,),
    ),
    "sums of windows with the images exchanged": (
        lambda x, y: F.avg_pool1d(x, 3, 2, 1) + F.avg_pool1d(y, 3, 2, 1),
        lambda x, y: F.avg_pool1d(y + x, 3, 2, 1),
        (_LINE, _LINE),
    ),
}  # fmt: skip

_EQUAL |= {
    "zeros added before": (
        lambda x, w: _depthwise(F.pad(x, (1, 1, 1, 1)), w, padding=0), _depthwise, (_X, _W),
    ),
    "a transposed convolution of its own stride": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2),
        lambda x, w: torch.einsum("bch,cfr->bfhr", x, w).reshape(2, 5, 18),
        (_LINE, torch.zeros(3, 5, 2)),
    ),
}  # fmt: skip

_DIFFERENT: dict[str, tuple[Program, Program, tuple[Tensor, ...]]] = {
    "groups ignored": (
        lambda x, w: _depthwise(x, w), lambda x, w: F.conv2d(x, w.expand(4, 4, 3, 3), padding=1), (_X, _W),
    ),
    "another dilation": (
        lambda x, w: _depthwise(x, w, padding=2, dilation=2), lambda x, w: _depthwise(x, w), (_X, _W),
    ),
    "padding on the wrong side": (
        lambda x: F.avg_pool1d(F.pad(x, (2, 0)), 3), lambda x: F.avg_pool1d(F.pad(x, (0, 2)), 3), (_LINE,),
    ),
    "phases exchanged": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2),
        lambda x, w: F.conv_transpose1d(x, torch.cat([w[..., 1:], w[..., :1]], -1), stride=2),
        (_LINE, torch.zeros(3, 5, 2)),
    ),
    "padding that counts": (
        lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        (_X,),
    ),
    "a last window that is shorter": (
        lambda x: F.avg_pool1d(x, 2, 2, ceil_mode=True),
        lambda x: F.avg_pool1d(x, 2, 2, ceil_mode=True, count_include_pad=False) * 0.5,
        (_LINE,),
    ),
    "zeros outside a maximum": (
        lambda x: F.max_pool2d(x, 3, 1, 1), lambda x: F.relu(F.max_pool2d(x, 3, 1, 1)), (_X,),
    ),
    "what does not keep zero passes padding": (
        lambda x: F.avg_pool2d(x + 1, 3, 1, 1), lambda x: F.avg_pool2d(x, 3, 1, 1) + 1, (_X,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _EQUAL)
def test_equal_programs_are_proven(name: str) -> None:
    first, second, inputs = _EQUAL[name]
    verdict = equal_graphs(_graph(first, *inputs), _graph(second, *inputs), seed=1)
    assert verdict.equal, verdict


@pytest.mark.parametrize("name", _DIFFERENT)
def test_wrong_programs_are_refused(name: str) -> None:
    first, second, inputs = _DIFFERENT[name]
    verdict = equal_graphs(_graph(first, *inputs), _graph(second, *inputs), seed=1)
    assert not verdict.equal, verdict


_TEXT = """graph one
axes b=2 h=7 ho=7 r=3
in x: f32[b, h]
in w: f32[r]
t2 = window[{place}](x)
t3 = contract[r](t2, w)
out y: f32[b, ho] = t3
"""


@pytest.mark.parametrize(
    "place", ["h = ho + r", "h = ho + r - 2", "h = ho + 2*r - 1", "h = 2*ho + r - 1", "h = ho - r + 1"]
)
def test_windows_elsewhere_are_refused(place: str) -> None:
    one, other = (parse_graph(_TEXT.format(place=text)) for text in ("h = ho + r - 1", place))
    assert equal_graphs(one, one, seed=1).equal
    verdict = equal_graphs(one, other, seed=1)
    assert not verdict.equal
    assert verdict.witness is not None


def test_a_window_along_another_dimension_is_refused() -> None:
    """Axes of one name need not be the same dimension of a tensor that two graphs share."""
    text = _TEXT.replace("b=2", "b=7").format(place="h = ho + r - 1")
    turned = text.replace("x: f32[b, h]", "x: f32[h, b]")
    assert not equal_graphs(parse_graph(text), parse_graph(turned), seed=1).equal


def test_windows_too_long_for_a_proof_are_unknown_unless_shared() -> None:
    long = _TEXT.replace("h=7 ho=7", "h=300 ho=300")
    one, other = (parse_graph(long.format(place=text)) for text in ("h = ho + r - 1", "h = ho + r"))
    turned = parse_graph(long.format(place="h = ho + r - 1").replace("(t2, w)", "(w, t2)"))
    assert equal_graphs(one, turned, seed=1).equal
    assert equal_graphs(one, other, seed=1).unknown


_LAYERS = """graph layers
axes c=4 h=200 i=200 j=200 r=3 s=3
in x: f32[c, h]
in v: f32[c, r]
in w: f32[c, s]
in m: f32[c]
t4 = window[h = {first}](x)
t5 = contract[r](t4, v)
t6 = sqrt(m)
{normed}
t8 = relu(t7)
t9 = window[i = {second}](t8)
t10 = contract[s](t9, w)
{last}
out y: f32[c, j] = t11
"""
_LAYERED = {
    "first": "i + r - 1", "second": "j + 2*s - 2", "normed": "t7 = div(t5, t6)", "last": "t11 = mul(t10, t6)",
}  # fmt: skip


def _layers(**other: str) -> Graph:
    return parse_graph(_LAYERS.format(**{**_LAYERED, **other}))


_RECIPROCAL = "a = reciprocal(t6)\nt7 = mul(t5, a)"


@pytest.mark.parametrize(
    "other",
    [
        {"normed": _RECIPROCAL},
        {"last": "b = add(t10, t10)\na = mul(b, t6)\nd = const[2]()\nt11 = div(a, d)"},
        {"normed": _RECIPROCAL, "last": "b = reciprocal(t6)\nt11 = div(t10, b)"},
    ],
)
def test_layers_are_proven_one_by_one_at_any_length(other: dict[str, str]) -> None:
    verdict = equal_graphs(_layers(), _layers(**other), seed=1)
    assert verdict.equal, verdict
    assert verdict.error_bound is not None
    assert verdict.error_bound < 2**-60


@pytest.mark.parametrize(
    "other",
    [
        {"first": "i + r"},
        {"second": "j + 2*s - 1"},
        {"second": "j + s - 1"},
        {"normed": "t7 = mul(t5, t6)"},
        {"normed": "a = neg(t5)\nt7 = div(a, t6)"},
        {"last": "t11 = div(t10, t6)"},
    ],
)
def test_layers_that_differ_are_not_proven(other: dict[str, str]) -> None:
    assert not equal_graphs(_layers(), _layers(**other), seed=1).equal
    assert not equal_graphs(_layers(normed=_RECIPROCAL), _layers(**other), seed=1).equal


_CLAMPED = """graph clamped
axes c=4 d=5 h=200 i=200 r=3
in x: f32[c, h]
in w: f32[d, c]
in v: f32[d, r]
in m: f32[d]
zero = const[0]()
six = const[6]()
a = contract[c](x, w)
{scaled}
e = maximum(b, zero)
f = minimum(e, six)
g = window[h = i + r - 1](f)
k = contract[r](g, v)
{again}
n = maximum(l, zero)
o = minimum(n, six)
q = mul(o, m)
out y: f32[d, i] = q
"""
_ONE_WAY = {"scaled": "b = div(a, m)", "again": "l = div(k, m)"}
_ANOTHER = {"scaled": "t = reciprocal(m)\nb = mul(t, a)", "again": "u = div(v, m)\nl = contract[r](g, u)"}


def _clamped(scaled: str, again: str) -> Graph:
    return parse_graph(_CLAMPED.format(scaled=scaled, again=again))


def test_equal_clamps_inside_are_cut_off() -> None:
    """Each clamp is proven with the one before it as an input: no proof has comparisons of two layers."""
    verdict = equal_graphs(_clamped(**_ONE_WAY), _clamped(**_ANOTHER), seed=1)
    assert verdict.equal, verdict
    assert verdict.trials < 1000
    assert verdict.error_bound is not None
    assert verdict.error_bound < 2**-55


@pytest.mark.parametrize(
    "other",
    [
        {"scaled": "b = mul(a, m)"},
        {"again": "l = mul(k, m)"},
        {"scaled": "t = neg(a)\nb = div(t, m)"},
        {"again": "u = add(k, k)\nl = div(u, m)"},
    ],
)
def test_clamps_of_other_numbers_are_not_equal(other: dict[str, str]) -> None:
    assert not equal_graphs(_clamped(**_ONE_WAY), _clamped(**_ANOTHER | other), seed=1).equal


def test_a_cut_that_is_refuted_is_no_difference() -> None:
    """Inner values may differ where the results do not: nothing is said of programs by such a cut."""
    text = """graph g
axes c=4 h=20
in x: f32[c, h]
zero = const[0]()
n = neg(x)
p = maximum({first}, zero)
q = maximum({second}, zero)
y = {made}
out y: f32[c, h] = y
"""
    one = parse_graph(text.format(first="x", second="n", made="sub(p, q)"))
    other = parse_graph(text.format(first="n", second="x", made="sub(q, p)"))
    assert equal_graphs(one, other, seed=1).equal
    assert not equal_graphs(
        one, parse_graph(text.format(first="n", second="x", made="sub(p, q)")), seed=1
    ).equal
