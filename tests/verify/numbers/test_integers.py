"""Integers that come as data: what is proven of look-ups by them, and what may not be."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quick import few

from superopt import equivalent
from superopt.ir import parse_graph
from superopt.verify.evaluation.tiny import tiny_sizes
from superopt.verify.graphs import ties
from superopt.verify.graphs.declared_ties import agree_where_declared
from superopt.verify.graphs.equality import equal_graphs
from superopt.verify.graphs.setting import Setting

_W, _I = torch.randn(10, 3), torch.tensor([1, 7, 3, 9])


def _outcome(f: Callable[..., Any], g: Callable[..., Any], *inputs: Any) -> str:
    return equivalent(f, g, *(inputs or (_W, _I)), floats=False, seed=0).outcome


def test_what_raises_out_of_range_may_become_what_does_not() -> None:
    def embedding(w, i):
        return F.embedding(i, w)

    def index(w, i):
        return w[i]  # negative numbers count from the end

    assert _outcome(embedding, index) == "equal"
    assert _outcome(index, embedding) == "unknown"


def test_a_look_up_raises_where_its_result_is_masked() -> None:
    def masked(w, i):
        return torch.where(i[:, None] < 10, F.embedding(i, w), 0.0)

    def clamped(w, i):
        return torch.where(i[:, None] < 10, F.embedding(i.clamp(max=9), w), 0.0)

    assert _outcome(clamped, masked) == "unknown"


@pytest.mark.parametrize("number", few([0, 3, 7, 9, -1, -3], 0, 7, -1))
def test_each_row_counts(number: int) -> None:
    apart = torch.arange(10)[:, None] != number % 10
    assert _outcome(lambda w, i: w[i], lambda w, i: (w * apart)[i]) == "unknown"
    assert _outcome(lambda w, i: w[i], lambda w, i: w[i] * (i != number)[:, None]) == "unknown"
    masked = _outcome(
        lambda w, i: w[i] * (i != number)[:, None],
        lambda w, i: torch.where((i == number)[:, None], 0.0, w[i]),
    )
    assert masked == "equal"


def test_all_positions_that_integers_name_are_evaluated() -> None:
    graph = parse_graph(
        "graph g\naxes m=4 n=900\nin w: f32[n]\nin y: i64[m]\nt2 = index[n]()\nt3 = eq(t2, y)\n"
        "t4 = mul(t3, w)\nt5 = sum[n](t4)\nt6 = const[500]()\nt7 = lt(y, t6)\nt8 = mul(t7, t5)\n"
        "out o: f32[m] = t8\n"
    )
    tiny = tiny_sizes(graph)
    assert not tiny.missing
    assert {499, 500, 501} < set(tiny.positions["n"]) < set(tiny.integers)
    assert min(tiny.integers) < 0
    assert max(tiny.integers) > 900
    assert len(tiny.integers) & (len(tiny.integers) - 1) == 0


def test_integers_that_are_computed_with_are_any_numbers() -> None:
    product = "graph g\naxes m=4\nin y: i64[m]\nt1 = mul(y, y)\nout o: i64[m] = t1\n"
    compared = "graph g\naxes m=4\nin y: i64[m]\nt1 = const[3]()\nt2 = lt(y, t1)\nout o: bool[m] = t2\n"
    assert tiny_sizes(parse_graph(product)).wide
    assert not tiny_sizes(parse_graph(compared)).wide


_SEVEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in an interval": lambda i: (i - 7).abs() < 1,
    "outside of another": lambda i: ~((i - 7).abs() >= 1),
    "in two steps": lambda i: ((i - 5).abs() - 2).abs() < 1,
    "the lowest of a maximum": lambda i: torch.maximum(i, 14 - i) < 8,
    "one of two": lambda i: ((i - 7).abs() < 1) | ((i - 3).abs() < 1),
}


_LATE = ("in an interval", "outside of another", "in two steps", "the lowest of a maximum")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one in _LATE else ()) for one in _SEVEN]
)
def test_what_is_computed_from_an_integer_may_treat_any_row_apart(name: str) -> None:
    def apart(w, i):
        return torch.where(_SEVEN[name](i)[:, None], 0.0, w[i])

    for seed in range(1, 4 * 7919, 7919):  # two of these four were called equal
        verdict = equivalent(lambda w, i: w[i], apart, _W, _I, floats=False, seed=seed)
        assert verdict.outcome == "unknown"
    assert _outcome(apart, apart) == "equal"


@pytest.mark.parametrize(("computed", "whole"), [("y", True), ("z", False)])
def test_an_axis_is_evaluated_whole_where_its_integers_are_computed_with(computed: str, whole: bool) -> None:
    graph = parse_graph(
        "graph g\naxes m=4 n=40\nin w: f32[n]\nin y: i64[m]\nin z: i64[m]\nt3 = index[n]()\nt4 = eq(t3, y)\n"
        f"t5 = mul(t4, w)\nt6 = sum[n](t5)\nt7 = const[7]()\nt8 = sub({computed}, t7)\nt9 = abs(t8)\n"
        "t10 = const[1]()\nt11 = lt(t9, t10)\nt12 = mul(t11, t6)\nout o: f32[m] = t12\n"
    )
    tiny = tiny_sizes(graph)
    assert not tiny.missing
    assert (tiny.sizes["n"] == 40) is whole
    assert set(range(40)) <= set(tiny.integers) or not whole


_LATER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "later than a time": lambda t: t > 1_700_000_000,
    "a time": lambda t: t == 1_700_000_000,
    "far below zero": lambda t: t <= -1_700_000_000,
    "longer than a prime": lambda t: t >= 1 << 40,
    "not so long": lambda t: (t > 1 << 33) & (t < 1 << 34),
    "one residue of many": lambda t: (t > 5) & (t < 1 << 62),
}


@pytest.mark.parametrize("name", _LATER)
def test_large_numbers_that_integers_are_compared_with_are_drawn(name: str) -> None:
    t, x, later = 1_600_000_000 + 9000 * torch.arange(8), torch.randn(8), _LATER[name]

    def doubled(t, x):
        return torch.where(later(t), 2 * x, x)

    assert _outcome(doubled, lambda t, x: x + 0 * t.ne(0), t, x) == "unknown"
    assert _outcome(doubled, lambda t, x: torch.where(~later(t), x, 2 * x), t, x) == "equal"


def test_a_large_number_is_drawn_beside_what_is_made_of_an_integer() -> None:
    def morning(t, x):
        return torch.where(t % 86400 < 43200, x, 0.5 * x)

    def later(t, x):
        return torch.where(t > 1_700_000_000, 2 * morning(t, x), morning(t, x))

    assert _outcome(later, morning, 1_600_000_000 + 9000 * torch.arange(8), torch.randn(8)) == "unknown"


def test_a_power_of_two_that_wraps_around_is_no_difference() -> None:
    assert _outcome(lambda i: i * 2**62 * 4, lambda i: i * 0, _I) == "unknown"


_COUNTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a count of masks": (lambda b, x: x * (_first_half(b).sum() > 10), lambda b, x: x * 0),
    "a count of comparisons": (lambda b, x: x * (_first_half(x > 0).sum() > 10), lambda b, x: x * 0),
    "a count clamped": (
        lambda b, x: x * _first_half(b).sum().clamp(max=20),
        lambda b, x: x * _first_half(b).sum(),
    ),
    "a count that is relu": (lambda b, x: x * (_first_half(b).float().sum() - 9).relu(), lambda b, x: x * 0),
    "a polynomial of a count": (
        lambda b, x: x * _four_roots(_first_half(b).float().sum()),
        lambda b, x: x * 0,
    ),
    "a sum of positions": (lambda b, x: x * (_first_half(b | ~b).sum() > 10), lambda b, x: x * 0),
}


def _first_half(mask: torch.Tensor) -> torch.Tensor:
    return mask & (torch.arange(100) < 50)


def _four_roots(count: torch.Tensor) -> torch.Tensor:
    return count * (count - 1) * (count - 2) * (count - 3)


@pytest.mark.parametrize("name", _COUNTS)
def test_a_count_may_exceed_the_positions_that_are_evaluated(name: str) -> None:
    f, g = _COUNTS[name]
    assert _outcome(f, g, torch.rand(100) > 0.5, torch.randn(100)) == "unknown"


def test_bytes_wrap_around() -> None:
    a, b = torch.tensor([3, 5], dtype=torch.uint8), torch.tensor([5, 3], dtype=torch.uint8)
    assert _outcome(lambda a, b: (a - b).float(), lambda a, b: a.float() - b.float(), a, b) == "unknown"


def test_ties_of_integers_are_not_declared_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are drawn, and the bound counts what is drawn; declared ones it does not know of."""
    text = (
        "graph g\naxes m=4 l=3 n=40\nin w: f32[n]\nin y: i64[m,l]\nin x: f32[m]\nin z: f32[m]\n"
        "t1 = index[n]()\nt2 = eq(t1, y)\nt3 = mul(t2, w)\nt4 = sum[n,l](t3)\n"
        "t5 = lt(z, x)\nt6 = where(t5, x, z)\nt7 = mul(t4, t6)\nout o: f32[m] = t7\n"
    )
    asked: list[frozenset[Any]] = []

    def noted(setting: Setting, sites: frozenset[Any]) -> bool:
        asked.append(sites)
        return agree_where_declared(setting, sites)

    monkeypatch.setattr(ties, "agree_where_declared", noted)
    graphs = parse_graph(text), parse_graph(text.replace("lt(z, x)", "le(z, x)"))
    assert equal_graphs(*graphs).equal
    order = 8  # the number of `lt`, after four inputs
    assert asked
    assert {number for sites in asked for _, number in sites} == {order}
