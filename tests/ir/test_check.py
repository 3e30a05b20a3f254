"""The rules of a Graph: each is broken once, and its error says so."""

from dataclasses import replace
from fractions import Fraction

import pytest

from superopt.errors import GraphError
from superopt.ir import Axis, Graph, Output, Port, Step, check_graph, live_graph, parse_graph

GOOD = Graph(
    "good",
    (Axis("i", 3), Axis("j", 3), Axis("k", 4)),
    (Port("x", "f16", (("i",), ("k",))), Port("w", "f16", (("k",),))),
    (Step("mul", (0, 1)), Step("sum", (2,), axes=("k",))),
    (Output(Port("y", "f16", (("i",),)), 3),),
)
X, W = GOOD.inputs
Y = GOOD.outputs[0]


def with_step(step: Step) -> Graph:
    """The good graph with one more step, which nothing reads."""
    return replace(GOOD, steps=(*GOOD.steps, step))


def with_input(**changes: object) -> Graph:
    return replace(GOOD, inputs=(replace(X, **changes), W))  # type: ignore[arg-type]


BROKEN = {
    "axis 'i' is declared 2 times": replace(GOOD, axes=(*GOOD.axes, Axis("i", 5))),
    "axis 'k' has the negative size -1": replace(GOOD, axes=(*GOOD.axes[:2], Axis("k", -1))),
    "two inputs are called 'x'": replace(GOOD, inputs=(X, replace(W, name="x"))),
    "tensor 'x' has the unknown dtype 'f17'; known: f64": with_input(dtype="f17"),
    "tensor 'x' uses the undeclared axis 'q'": with_input(dims=(("i",), ("q",))),
    "tensor 'x' uses axis 'i' twice; rename one": with_input(dims=(("i", "i"), ("k",))),
    "tensor 'x' has 2 dimensions but 1 strides": with_input(strides=(1,)),
    "step 4 uses the unknown operator 'swish'; known: const": with_step(Step("swish", (0,))),
    "step 4 (mul) takes 2 values, not 1": with_step(Step("mul", (0,))),
    "step 4 (exp) uses value 4, which is not an earlier one": with_step(Step("exp", (4,))),
    "step 4 (neg) uses value -1, which is not": with_step(Step("neg", (-1,))),
    "step 4 (exp): only const has a value": with_step(Step("exp", (0,), value=Fraction(1))),
    "step 4 (const): only const has a value": with_step(Step("const")),
    "step 4 (rename): rename and select need a mapping": with_step(Step("rename", (0,))),
    "step 4 (exp): rename and select need a mapping": with_step(Step("exp", (0,), mapping=(("i", "j"),))),
    "step 4 (sum): reductions, size and index name their axes": with_step(Step("sum", (0,))),
    "step 4 (exp): reductions, size and index name": with_step(Step("exp", (0,), axes=("k",))),
    "step 4 (size) names exactly one axis": with_step(Step("size", axes=("i", "k"))),
    "step 4 (sum) uses the undeclared axis 'q'": with_step(Step("sum", (0,), axes=("q",))),
    "step 4 (rename) uses the undeclared axis 'q'": with_step(Step("rename", (0,), mapping=(("q", "j"),))),
    "step 4 (rename) uses the undeclared axis 'r'": with_step(Step("rename", (0,), mapping=(("i", "r"),))),
    "step 4 (select) selects at 'j', which is not a position": with_step(
        Step("select", (0,), mapping=(("i", "j"),))
    ),
    "step 4 (rename) renames 'i' to the number 1": with_step(Step("rename", (0,), mapping=(("i", 1),))),
    "step 4 (sum) names axis 'k' twice": with_step(Step("sum", (0,), axes=("k", "k"))),
    "step 4 (max) reduces 'j', but its values only have 'i', 'k'": with_step(Step("max", (0,), axes=("j",))),
    "step 4 (rename) maps 'j', but its value only has 'i', 'k'": with_step(
        Step("rename", (0,), mapping=(("j", "i"),))
    ),
    "step 4 (rename) maps 'i' of size 3 to 'k' of size 4": with_step(
        Step("rename", (0,), mapping=(("i", "k"),))
    ),
    "step 4 (select) selects position 4 of 'k', whose size is 4": with_step(
        Step("select", (0,), mapping=(("k", 4),))
    ),
    "there is no output": replace(GOOD, outputs=()),
    "output 'y' takes value 4, but there are 4 values": replace(GOOD, outputs=(replace(Y, value=4),)),
    "output 'y' has no dimension for 'k'; sum over it or add it": replace(
        GOOD, outputs=(replace(Y, value=2),)
    ),
}


def test_the_good_graph_is_returned() -> None:
    assert check_graph(GOOD) is GOOD


@pytest.mark.parametrize("message", BROKEN)
def test_broken_rules(message: str) -> None:
    with pytest.raises(GraphError) as caught:
        check_graph(BROKEN[message])
    assert str(caught.value).startswith("graph 'good': ")
    assert message in str(caught.value)


def test_a_rename_may_swap_but_not_merge() -> None:
    both = Step("add", (0, 4))
    wide = (*GOOD.steps, Step("rename", (0,), mapping=(("i", "j"),)), both)  # t5 has i, j, k
    swap = Step("rename", (5,), mapping=(("i", "j"), ("j", "i")))
    check_graph(replace(GOOD, steps=(*wide, swap)))
    with pytest.raises(GraphError, match="maps two axes to one; a diagonal is not a rename"):
        check_graph(replace(GOOD, steps=(*wide, Step("rename", (5,), mapping=(("i", "j"),)))))


def test_an_output_may_repeat_its_value_along_more_axes() -> None:
    check_graph(replace(GOOD, outputs=(Output(Port("y", "f16", (("i",), ("j",))), 3),)))


def test_live_graph_keeps_what_outputs_need_once() -> None:
    graph = parse_graph("""
        graph g
        axes i=3
        in x: f32[i]
        in unused: f32[i]
        a = exp(x)
        dead = neg(x)
        b = exp(x)
        c = mul(a, b)
        dead2 = sum[i](dead)
        out y: f32[i] = c
        out z: f32[i] = b
    """)
    expected = parse_graph("""
        graph g
        axes i=3
        in x: f32[i]
        in unused: f32[i]
        a = exp(x)
        c = mul(a, a)
        out y: f32[i] = c
        out z: f32[i] = a
    """)
    assert live_graph(graph) == expected
    assert live_graph(expected) == expected
