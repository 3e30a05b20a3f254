"""Windows taken apart along new axes: EinNet's examples are found and proven, and wrong rules are refused."""

from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.clock import Clock
from superopt.driver import SearchOptions
from superopt.driver.run import _Run
from superopt.ir import Graph, only_used, parse_graph
from superopt.ir.windows.place import Place, parse_place
from superopt.rules.derivations import Refinement, holds, refinements
from superopt.rules.egraph import Running
from superopt.rules.terms import WindowRule, goal_of
from superopt.trace.run import run_graph
from tests.windows.test_window_search import searched, steps_of


def conv(h1: int, h: int, r: int, places: str, w: int = 6, s: int = 1, w1: int = 6) -> str:
    """Return a convolution of 7 channels as text."""
    return f"""graph conv
axes b=2 c=7 f=5 h1={h1} w1={w1} h={h} w={w} r={r} s={s}
in x: f32[b, c, h1, w1]
in w: f32[f, c, r, s]
t2 = window[{places}](x)
t3 = contract[c, r, s](t2, w)
out y: f32[b, f, h, w] = t3
"""


DENSE_OF_DILATED = """t2 = window[h1 = 2*h1_part + h_phase, w1 = w + s](x)
t3 = window[h1_part = h_part + r - 1](t2)
t4 = contract[c, r, s](t3, w)
t5 = window[(h_part h_phase) = h](t4)
"""
THREE_OF_FIVE = """t2 = window[h1 = h1_moved + r_phase - 2, w1 = w + s](x)
t3 = window[r = 3*r_part + r_phase](w)
t4 = contract[c, s, r_phase](t2, t3)
t5 = window[h1_moved = h + 3*r_part](t4)
t6 = sum[r_part](t5)
"""
DENSE_OF_STRIDED = """t2 = window[r = 2*r_part + r_phase](w)
t3 = window[h1 = 2*h1_moved + r_phase - 1, w1 = w + s](x)
t4 = window[h1_moved = h + r_part](t3)
t5 = contract[c, s, r_part, r_phase](t2, t4)
"""
WIDENED = """t2 = window[h1 = h_wide + r - 1, w1 = w + s](x)
t3 = contract[c, r, s](t2, w)
t4 = window[h_wide = h](t3)
"""

_FORMS = {
    "dilated as dense": (conv(9, 9, 3, "h1 = h + 2*r - 2, w1 = w + s"), DENSE_OF_DILATED),
    "five taps as three": (conv(9, 9, 5, "h1 = h + r - 2, w1 = w + s"), THREE_OF_FIVE),
    "a stride as more channels": (conv(9, 5, 3, "h1 = 2*h + r - 1, w1 = w + s"), DENSE_OF_STRIDED),
    "more than is kept": (conv(7, 7, 3, "h1 = h + r - 1, w1 = w + s"), WIDENED),
}
_EXPECTED = {
    "dilated as dense": {"padding": (2, 0), "dilation": (2, 1)},
    "five taps as three": {"padding": (2, 0)},
    "a stride as more channels": {"padding": (1, 0), "stride": (2, 1)},
    "more than is kept": {"padding": (1, 0)},
}


def tensors_of(graph: Graph) -> dict[str, Tensor]:
    """Return tensors of float64 for a graph."""
    torch.manual_seed(0)
    return {port.name: torch.randn(graph.shape(port), dtype=torch.float64) for port in graph.inputs}


@pytest.mark.parametrize("name", _FORMS)
def test_convolutions_are_taken_apart(name: str) -> None:
    text, form = _FORMS[name]
    found = {steps_of(one.graph): one.graph for one in searched(text, graphs=100).found}
    assert form in found, found.keys()
    tensors = tensors_of(parse_graph(text))
    expected = F.conv2d(tensors["x"], tensors["w"], **_EXPECTED[name])  # type: ignore[arg-type]
    for graph in (found[form], *list(found.values())[:10]):
        torch.testing.assert_close(run_graph(graph, tensors)["y"], expected)


@pytest.mark.slow
def test_both_dimensions_are_taken_apart_one_after_the_other() -> None:
    text = conv(9, 9, 3, "h1 = h + 2*r - 2, w1 = w + 2*s - 2", w1=6, w=6, s=3)
    found = [str(one.graph) for one in searched(text, graphs=100).found]
    assert any("h_part" in one and "w_part" in one for one in found)


def _rules(text: str) -> list[Refinement]:
    return list(refinements(parse_graph(text)))


def test_rules_of_dilated_windows_hold_at_all_sizes() -> None:
    for by, pad, size in product((2, 3, 4), range(6), (1, 7, 8, 12)):
        out = size + 2 * pad - 2 * by
        if out >= 1:
            rules = _rules(conv(size, out, 3, f"h1 = h + {by}*r - {pad}, w1 = w + s"))
            assert rules[0].name == "dilated", (by, pad, size)


def _places(*texts: str) -> tuple[Place, ...]:
    found = [parse_place(text) for text in texts]
    assert None not in found
    return tuple(one for one in found if one is not None)


_SIZES = {"x": 9, "h": 9, "r": 3, "k": 5, "p": 5, "q": 2, "n": 2, "m": 3, "g": 16, "t": 5}
_PARTS = ("h = p + r - 1", "x = 2*p + q")


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (("x = h + 2*r - 2",), ("(p q) = h", "k = p + r - 1", "x = 2*k + q"), True),
        (("x = h + 2*r - 2",), ("(p q) = h", "k = p + r", "x = 2*k + q"), False),
        (("x = h + 2*r - 2",), ("(p q) = h", "k = p + r - 1", "x = 2*k + q - 1"), False),
        (("x = h + 2*r - 2",), ("(q p) = h", "k = p + r - 1", "x = 2*k + q"), False),
        (("x = h + 2*r - 2",), ("(p q) = h + 1", "k = p + r - 1", "x = 2*k + q"), False),
        (("x = h + r - 1",), ("g = h", "x = g + r - 1"), True),
        (("x = h + r - 1",), ("g = h + 1", "x = g + r - 1"), False),
        (("x = h + r - 1",), ("p = h", "x = p + r - 1"), False),
    ],
)
def test_rules_hold_where_all_is_read_alike(
    left: tuple[str, ...], right: tuple[str, ...], expected: bool
) -> None:
    assert holds(WindowRule("one", _places(*left), _places(*right)), _SIZES) is expected


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("t = 3*n + m", True),
        ("t = 2*n + m", False),
        ("t = n + 2*m", True),
        ("t = 3*n + m - 2", False),
        ("t = n + 3*m", False),
    ],
)
def test_sums_are_taken_apart_where_each_term_is_met_once(place: str, expected: bool) -> None:
    assert holds(WindowRule("one", (), _places(place), summed="t"), _SIZES) is expected


def test_what_a_wrong_rule_finds_is_not_proven() -> None:
    """A rule is not taken on trust: what a search would find by a false one is left out."""
    graph = parse_graph(conv(9, 9, 3, "h1 = h + 2*r - 2, w1 = w + s"))
    [right] = _rules(str(graph))
    [rule] = right.rules
    back, slid, parts = rule.right
    wrong = replace(rule, right=(back, replace(slid, offset=slid.offset + 1), parts))
    assert not holds(wrong, right.of(graph).sizes)
    run = _Run(SearchOptions(seed=1), deadline=float("inf"), listener=lambda progress: None)
    new = {axis.name for axis in right.axes}
    for refinement, finds in ((right, True), (replace(right, rules=(wrong,)), False)):
        region = run._search_along(Clock(), graph, refinement)
        assert region is not None
        assert any(new & only_used(one.graph).sizes.keys() for one in region.found) is finds
        assert any("not shown to be equal" in note for note in region.notes) is not finds


def test_axioms_of_windows_end() -> None:
    """No window has windows without end: a goal of several is saturated in few rounds."""
    graph = parse_graph(conv(9, 9, 5, "h1 = h + r - 2, w1 = w + s - 2", s=5))
    for one in refinements(graph):
        running = Running(goal_of(one.of(graph), {axis.name for axis in one.axes}, one.rules))
        rounds = 0
        while running.shrink() or running.run("(run axioms 1)") or running.load_rules():
            running.load_rules()
            rounds += 1
            assert rounds < 30
        assert running.nodes < 1000
