"""The programs that were found for convolutions, and the reasons for their gains, read off them."""

import json

import pytest

from superopt.backend.decision import Decision
from superopt.bench.conv.found import found_programs, reasons_of
from superopt.ir import fuse, parse_graph, parse_mugraph, print_mugraph
from superopt.ir.mugraph import is_called

_TEXT = """
graph region
axes c=16 h=56 w=28 f=16 r=3 s=3 i=56 j=28
in x: f32[c, h, w]{strides}
in k: f32[f, c, r, s]
a = window[h = i + r - 1, w = j + s - 1](x)
b = contract[c, r, s](a, k)
d = relu(b)
{last}
"""
_ONE = _TEXT.format(strides="", last="out out: f32[f, i, j] = d")
_TWO = _TEXT.format(strides="", last="e = sum[i, j](d)\nout out: f32[f] = e")
_IMAGE = _TEXT.format(strides=" strides(1, 448, 16)", last="out out: f32[f, i, j] = d")

_MADE = "0.1 MB of intermediate results stay on the chip, neither written nor read again"
_FEWER = "taps and neighbours are summed first: 4 products for 2 results of 3 taps, not 6 (5 at stride 2)"


@pytest.mark.parametrize(
    ("text", "filtered", "reasons"),
    [
        (_ONE, False, ["1 sum and all that is around them in 1 kernel", _MADE]),
        (_ONE, True, ["1 sum and all that is around them in 1 kernel", _MADE, _FEWER]),
        (_TWO, False, ["2 sums and all that is around them in 1 kernel", _MADE]),
        (
            _IMAGE,
            False,
            [
                "1 sum and all that is around them in 1 kernel",
                _MADE,
                "an image is read with channels last, as it lies",
            ],
        ),
    ],
)
def test_reasons_are_read_off_a_program(text: str, filtered: bool, reasons: list[str]) -> None:
    mugraph = fuse(parse_graph(text))
    assert list(reasons_of(mugraph, [{"filtered": filtered}])) == reasons


_POOL = """
graph pool
axes c=64 h=56 w=56 i=56 j=56 r=3 s=3
in x: f32[c, h, w]
a = window[w = j + s - 1](x)
b = sum[s](a)
d = window[h = i + r - 1](b)
e = sum[r](d)
out out: f32[c, i, j] = e
"""
_DEPTHWISE = """
graph region
axes c=512 h=1024 i=1024 r=4
in x: f32[c, h]
in k: f32[c, r]
a = window[h = i + r - 3](x)
b = contract[r](a, k)
out out: f32[c, i] = b
"""


def test_windows_along_one_dimension_after_the_other_are_a_reason() -> None:
    mugraph = fuse(parse_graph(_POOL))
    found = list(reasons_of(mugraph, [{}] * len(mugraph.kernels)))
    assert any("3 + 3 terms for each result, not 9" in one for one in found)
    other = fuse(parse_graph(_POOL.replace("sum[r](d)", "max[r](d)")))
    assert not any("terms for each result" in one for one in reasons_of(other, [{}, {}]))


def test_channels_apart_are_a_reason_in_kernels_of_ours_alone() -> None:
    graph = parse_graph(_DEPTHWISE)
    assert any("sum of 4 shifted reads" in one for one in reasons_of(fuse(graph), [{}]))
    called = fuse(graph, library=is_called)
    assert not any("shifted reads" in one for one in reasons_of(called, [{}]))
    assert not any("shifted reads" in one for one in reasons_of(fuse(parse_graph(_ONE)), [{}]))


def test_what_crosses_kernels_is_not_kept_on_the_chip() -> None:
    mugraph = fuse(parse_graph(_ONE), library=is_called)
    assert list(reasons_of(mugraph, [{}, {}])) == ["1 call of a library, and all that is around in 1 kernel"]


def _decision(*, taken: bool, plan: object) -> Decision:
    text = None if plan is None else json.dumps(plan)
    return Decision("convolution, relu", "f32[16,56,28]", taken, "1.30 times Inductor's speed", plan=text)


def test_programs_of_taken_regions_are_shown_with_their_reasons() -> None:
    text = print_mugraph(fuse(parse_graph(_ONE)))
    plan = {"parts": [{"mugraph": text, "configs": [None]}]}
    [found] = found_programs([_decision(taken=True, plan=plan), _decision(taken=False, plan=plan)])
    assert parse_mugraph("\n".join(found["program"])) == parse_mugraph(text)
    assert (found["operators"], found["speed"]) == ("convolution, relu", "1.30 times Inductor's speed")
    assert found["reasons"] == ["1 sum and all that is around them in 1 kernel", _MADE]


@pytest.mark.parametrize("plan", [None, {"operators": {}}])
def test_regions_without_a_program_show_none(plan: object) -> None:
    assert found_programs([_decision(taken=True, plan=plan)]) == []
