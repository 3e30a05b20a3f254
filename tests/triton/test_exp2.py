"""Exponentials as powers of two: where a number waits until the exponent, and where it must not."""

from fractions import Fraction
from math import e, log2

import pytest

from superopt.codegen.lowering.convert_exp_to_exp2 import convert_exp_to_exp2
from superopt.codegen.statements import Compute, Move, lower_block
from superopt.codegen.triton import TritonMuGraph
from superopt.ir import fuse, parse_graph, parse_mugraph, split_axis, stabilize

ATTENTION = """graph attention
axes s=4 d=8 t=6 v=3
in q: {dtype}[s, d]
in k: {dtype}[t, d]
in v: {dtype}[t, v]
c = const[{scale}]()
t4 = mul(q, c)
t5 = contract[d](t4, k)
t6 = exp(t5)
t7 = contract[t](t6, v)
t8 = sum[t](t6)
t9 = div(t7, t8)
out o: {dtype}[s, v] = t9
"""


def attention(dtype="f16", scale="0.3", *, more="", parts=0):
    text = ATTENTION.format(dtype=dtype, scale=scale)
    graph = parse_graph(text.replace("out o", f"{more}out o", 1))
    if not parts:
        return fuse(stabilize(graph), online=True)
    graph, split = split_axis(graph, "t", parts)
    return fuse(stabilize(graph, (split.outer,)), splits=(split,), online=True)


def programs_of(mugraph):
    return [lower_block(mugraph, at) for at in range(len(mugraph.kernels))]


def is_converted(program):
    return convert_exp_to_exp2(program) is not program


@pytest.mark.parametrize("parts", [0, 2])
def test_the_number_takes_the_factor(parts):
    mugraph = attention(parts=parts)
    [first, *_] = found = [convert_exp_to_exp2(program) for program in programs_of(mugraph)]
    for program in found:
        ops = [step.op for step in program.steps()]
        assert program.graph == first.graph
        assert "exp" not in ops
        assert "exp2" in ops
        assert all(one.base_two for one, _ in program.flat() if isinstance(one, Move))
    factor = Fraction(float(Fraction(3, 10)) * log2(e))
    computed = [one for program in found for one, _ in program.flat() if isinstance(one, (Compute, Move))]
    assert {factor} == {number for one in computed for _, number in one.factors}
    # q goes into the product as it is, and the number is gone.
    assert {step.inputs for step in first.steps() if step.op == "contract" and 1 in step.inputs} == {(0, 1)}
    assert not any(step.op == "mul" for step in first.steps())
    sources = [TritonMuGraph(mugraph).source(at, mugraph.graph.sizes).text for at in range(len(found))]
    assert all("tl.exp(" not in text for text in sources)


@pytest.mark.parametrize(
    ("scale", "waits"),
    [("0.125", True), ("0.3", True), ("-0.3", True), ("1e-8", False), ("1e8", False), ("0", False)],
)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_numbers_that_wait(dtype, scale, waits):
    [program] = programs_of(attention(dtype, scale))
    assert is_converted(program) == waits


@pytest.mark.parametrize("scale", ["0.125", "-0.3"])
@pytest.mark.parametrize("parts", [0, 2])
def test_converted_kernels_agree(agrees, scale, parts):
    agrees("text", text=str(attention("f32", scale, parts=parts)), domain=[-3.0, 3.0])


BETWEEN = """graph between
axes s=4 d=8 t=6 v=3
in q: {dtype}[s, d]
in k: {dtype}[t, d]
in v: {dtype}[t, v]
{rounds}kernel grid[s, t]
  t3 = const[0.3]()
  t4 = mul(q, t3)
  t5 = contract[d](t4, k)
kernel grid[s]
  t6 = max[t](t5)
  t7 = sub(t5, t6)
  t8 = exp(t7)
  t9 = contract[t](t8, v)
out o: {dtype}[s, v] = t9
"""


@pytest.mark.parametrize(
    ("dtype", "rounds", "converted"),
    [("f32", "", True), ("f16", "", True), ("f16", "round t5 to f16\n", False)],
)
def test_scores_between_kernels_are_divided_in_fp32_only(agrees, dtype, rounds, converted):
    text = BETWEEN.format(dtype=dtype, rounds=rounds)
    assert {is_converted(one) for one in programs_of(parse_mugraph(text))} == {converted}
    agrees("text", text=text, domain=[-1.0, 1.0])


def test_a_product_with_the_number_that_is_read_later_keeps_it(agrees):
    text = BETWEEN.format(dtype="f32", rounds="").replace(
        "  t5 = contract[d](t4, k)\nkernel grid[s]\n", "kernel grid[s]\n  t5 = contract[d](t4, k)\n"
    )
    text = text.replace("kernel grid[s, t]", "kernel grid[s, d]")
    assert not any(map(is_converted, programs_of(parse_mugraph(text))))
    agrees("text", text=text, domain=[-1.0, 1.0])


@pytest.mark.parametrize(
    "more",
    [
        "t10 = sum[t, d](k)\nt11 = mul(t10, c)\nout p: f16[] = t11\n",  # the number is of something else, too
        "t10 = max[t](t5)\nout p: f16[s] = t10\n",  # it shows in a result
        "t10 = tanh(t5)\nt11 = sum[t](t10)\nout p: f16[s] = t11\n",
        "t10 = const[1]()\nt11 = add(t5, t10)\nt12 = exp(t11)\nt13 = sum[t](t12)\nout p: f16[s] = t13\n",
    ],
)
def test_what_is_not_only_for_exponentials_stays(more):
    assert not any(map(is_converted, programs_of(attention(more=more))))


def test_there_is_no_number_to_take_the_factor():
    text = ATTENTION.format(dtype="f16", scale="0.3").replace("mul(q, c)", "neg(q)")
    program = lower_block(fuse(stabilize(parse_graph(text)), online=True), 0)
    assert not is_converted(program)


def test_a_clamp_is_no_floor():
    text = ATTENTION.format(dtype="f16", scale="0.3").replace(
        "t6 = exp(t5)", "low = const[-3]()\nt5b = maximum(t5, low)\nt6 = exp(t5b)"
    )
    program = lower_block(fuse(parse_graph(text)), 0)
    assert not is_converted(program)
