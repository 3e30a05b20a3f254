"""Sums of products of windows: where two values are equal, exactly; wrong ones and long images included."""

import random

import numpy as np
import pytest
import torch

from superopt.ir import Graph, parse_graph
from superopt.ir.windows.products import agreement, products_of, surely_equal
from superopt.trace.run import run_graph
from superopt.verify.graphs.equality import equal_graphs
from tests.windows.test_windows_through import random_graph

_HEAD = """graph one
axes b=2 c=3 f=4 x={n} h={n} r=3 p={half} q=2 k={half} g={wide}
in x: f32[b, c, x]
in w: f32[f, c, r]
"""
_TAIL = "out y: f32[b, f, h] = t{last}\n"
_DIRECT = "t2 = window[x = h + r - 1](x)\nt3 = contract[c, r](t2, w)\n"


def graph(steps: str, n: int = 300) -> Graph:
    """Return the graph of some steps, of a long image."""
    head = _HEAD.format(n=n, half=(n + 1) // 2, wide=n + 7)
    return parse_graph(head + steps + _TAIL.format(last=steps.count("\n") + 1))


_SAME = {
    "offset": "t2 = contract[c](x, w)\nt3 = window[x = h + r - 1](t2)\nt4 = sum[r](t3)\n",
    "channels last": "t2 = window[x = h + r - 1](x)\nt3 = contract[r](w, t2)\nt4 = sum[c](t3)\n",
    "widened": "t2 = window[x = g + r - 1](x)\nt3 = contract[c, r](t2, w)\nt4 = window[g = h](t3)\n",
    "in two parts": (
        "t2 = window[x = p + r - 1](x)\nt3 = contract[c, r](t2, w)\n"
        "t4 = window[x = k + r + 149](x)\nt5 = contract[c, r](t4, w)\n"
        "t6 = window[p = h](t3)\nt7 = window[k = h - 150](t5)\nt8 = add(t6, t7)\n"
    ),
    "in two parts by a mask": (
        "t2 = window[x = h + r - 1](x)\nt3 = contract[c, r](t2, w)\n"
        "t4 = window[x = k + r + 149](x)\nt5 = contract[c, r](t4, w)\n"
        "t6 = window[k = h - 150](t5)\nt7 = index[h]()\nt8 = const[150]()\nt9 = lt(t7, t8)\n"
        "t10 = mul(t9, t3)\nt11 = add(t10, t6)\n"
    ),
}


@pytest.mark.parametrize("name", _SAME)
def test_forms_of_long_images_are_proven(name: str) -> None:
    direct, other = graph(_DIRECT), graph(_SAME[name])
    assert surely_equal(direct, other)
    assert equal_graphs(direct, other, seed=1).equal


_WRONG = [
    ("offset", "h + r - 1", "h + r"),
    ("offset", "h + r - 1", "h - r + 1"),
    ("widened", "g = h", "g = h + 1"),
    ("in two parts", "h - 150", "h - 149"),
    ("in two parts", "k + r + 149", "k + r + 150"),
    ("in two parts", "p = h", "p = h - 1"),
    ("in two parts", "add(t6, t7)", "sub(t6, t7)"),
    ("in two parts", "add(t6, t7)", "add(t6, t6)"),
    ("in two parts by a mask", "const[150]", "const[151]"),
    ("in two parts by a mask", "const[150]", "const[149]"),
    ("in two parts by a mask", "lt(t7, t8)", "le(t7, t8)"),
]


@pytest.mark.parametrize(("name", "old", "new"), _WRONG)
def test_wrong_forms_are_refused(name: str, old: str, new: str) -> None:
    assert old in _SAME[name]
    direct, other = graph(_DIRECT), graph(_SAME[name].replace(old, new))
    assert not surely_equal(direct, other)
    assert not equal_graphs(direct, other, seed=1).equal


def test_what_is_equal_on_a_part_says_where() -> None:
    direct = graph(_DIRECT, n=9)
    other = graph(
        "t2 = window[x = h + r - 2](x)\nt3 = window[x = h + r - 1](x)\n"
        "t4 = index[h]()\nt5 = const[4]()\nt6 = lt(t4, t5)\nt7 = ge(t4, t5)\n"
        "t8 = mul(t6, w)\nt9 = contract[c, r](t3, t8)\nt10 = mul(t7, w)\n"
        "t11 = contract[c, r](t2, t10)\nt12 = add(t9, t11)\n",
        n=9,
    )
    found = agreement(direct, direct.outputs[0].value, other, other.outputs[0].value, ["b", "f", "h"])
    assert found is not None
    axes, equal = found
    assert axes == ("h",)
    assert equal.tolist() == [True] * 4 + [False] * 5


def test_steps_after_products_are_compared() -> None:
    tail = "t{a} = relu(t{b})\nt{c} = exp(t{a})\n"
    direct = graph(_DIRECT + tail.format(b=3, a=4, c=5))
    offset = graph(_SAME["offset"] + tail.format(b=4, a=5, c=6))
    assert surely_equal(direct, offset)
    wrong = graph(_SAME["offset"] + tail.format(b=4, a=5, c=6).replace("relu", "neg"))
    assert not surely_equal(direct, wrong)


_STACK = """graph stack
axes b=2 c=3 f=4 g=5 x=300 h=300 i=300 r=3 q=3
in x: f32[b, c, x]
in w: f32[f, c, r]
in v: f32[g, f, q]
t3 = window[x = h + r - 1](x)
t4 = contract[c, r](t3, w)
t5 = relu(t4)
t6 = window[h = i + q - 1](t5)
t7 = contract[f, q](t6, v)
out y: f32[b, g, i] = t7
"""
_MOVED = """graph stack
axes b=2 c=3 f=4 g=5 x=300 h=300 i=300 r=3 q=3
in x: f32[b, c, x]
in w: f32[f, c, r]
in v: f32[g, f, q]
t3 = contract[c](x, w)
t4 = window[x = h + r - 1](t3)
t5 = sum[r](t4)
t6 = relu(t5)
t7 = contract[f](t6, v)
t8 = window[h = i + q - 1](t7)
t9 = sum[q](t8)
out y: f32[b, g, i] = t9
"""


def test_convolutions_of_convolutions_are_proven_layer_by_layer() -> None:
    assert surely_equal(parse_graph(_STACK), parse_graph(_MOVED))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("relu(t5)", "neg(t5)"),
        ("relu(t5)", "exp(t5)"),
        ("i + q - 1", "i + q"),
        ("h + r - 1", "h + r"),
        ("contract[f](t6, v)", "contract[f](t5, v)"),
    ],
)
def test_wrong_convolutions_of_convolutions_are_refused(old: str, new: str) -> None:
    assert old in _MOVED
    wrong = parse_graph(_MOVED.replace(old, new))
    assert not surely_equal(parse_graph(_STACK), wrong)
    assert not equal_graphs(parse_graph(_STACK), wrong, seed=1).equal


def test_what_is_seen_as_equal_is_so_in_numbers() -> None:
    """Two random graphs, or one that was changed a little: wherever products agree, the numbers do."""
    torch.manual_seed(0)
    tensors = {"x": torch.randn(3, 4).double(), "y": torch.randn(12, 4).double()}
    draw = random.Random(0)
    compared = parts = 0
    for seed in range(400):
        one = random_graph(seed)
        text = str(one)
        places = [line for line in text.splitlines() if "window[" in line]
        if not places:
            continue
        line = draw.choice(places)
        head, _, tail = line.rpartition("]")
        other = parse_graph(text.replace(line, f"{head} + {draw.choice((0, 1, 3))}]{tail}"))
        for ours, theirs in zip(one.outputs, other.outputs, strict=True):
            if products_of(one, ours.value) is None:
                continue
            axes = list(ours.port.axes)
            found = agreement(one, ours.value, other, theirs.value, axes)
            if found is None:
                continue
            numbers = [run_graph(g, tensors, torch.float64)[ours.port.name] for g in (one, other)]
            near = torch.isclose(*numbers, rtol=1e-9, atol=1e-9).numpy()
            moving = found[0]
            shape = [one.sizes[axis] if axis in moving else 1 for axis in axes]
            order = [moving.index(axis) for axis in axes if axis in moving]
            equal = np.broadcast_to(found[1].transpose(order).reshape(shape), near.shape)
            assert not (equal & ~near).any(), f"{seed}\n{one}\n{other}"
            compared += 1
            parts += bool(equal.any()) and not bool(equal.all())
    assert compared > 100
    assert parts > 10
