"""The precision policy: what is rounded between kernels, how products multiply, and the range of fp16."""

from dataclasses import replace

import pytest

from superopt.errors import GraphError
from superopt.ir import Call, check_mugraph, fuse, is_matmul, parse_graph, parse_mugraph, print_mugraph
from superopt.precision import (
    OperandRounding,
    fits_f16,
    half_of,
    library_dtype,
    mixed_product,
    multiplied_in,
    product_dtype,
    wide_values,
    with_rounding,
)

MLP = """graph mlp
axes m=16 k=64 h=96 n=32
in x: f16[m, k]
in u: f16[k, h]
in w: f16[h, n]
t3 = contract[k](x, u)
t4 = gelu(t3)
t5 = contract[h](t4, w)
out o: f16[m, n] = t5
"""

NORMED = """graph normed
axes m=16 k=64 n=32
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
t3 = mul(x, g)
t4 = contract[k](x, x)
t5 = rsqrt(t4)
t6 = mul(t3, t5)
t7 = contract[k](t6, w)
out o: f16[m, n] = t7
"""


def in_dtype(text, dtype):
    return parse_graph(text.replace("f16", dtype))


def kernels(graph, cuts=(), library=False):
    from superopt.ir import FusionChoices

    choices = FusionChoices(cuts=frozenset(cuts))
    called = is_matmul if library else (lambda graph, value: False)
    return fuse(graph, library=called, choices=choices)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_an_operand_of_a_product_is_rounded_between_kernels(dtype):
    mugraph = with_rounding(kernels(in_dtype(MLP, dtype), cuts=[4]))
    assert mugraph.rounded == ((4, dtype),)
    assert f"round t4 to {dtype}" in str(mugraph)
    assert parse_mugraph(str(mugraph)) == mugraph
    assert with_rounding(mugraph, wide=True).rounded == ()


def test_statistics_and_fp32_programs_are_not_rounded():
    mugraph = with_rounding(kernels(in_dtype(NORMED, "f16"), cuts=[5]))
    assert {value for kernel in mugraph.kernels for value in mugraph.loads(kernel)} >= {3, 5}
    assert mugraph.rounded == ((3, "f16"),)  # x * g has the shape of x; the norm of a row is a statistic
    assert with_rounding(kernels(in_dtype(MLP, "f32"), cuts=[4])).rounded == ()


def test_what_a_product_of_a_tensor_in_fp32_reads_is_not_rounded():
    routed = MLP.replace("in w: f16", "in w: f32").replace("out o: f16", "out o: f32")
    mugraph = kernels(parse_graph(routed), cuts=[3, 4])
    assert with_rounding(mugraph).rounded == ((3, "f16"), (4, "f16"))  # t4 has the shape of t3
    assert multiplied_in(mugraph, [False] * 3) == {3: OperandRounding("f16")}
    alone = routed.replace("t3 = contract[k](x, u)\nt4 = gelu(t3)", "t3 = mul(x, u)\nt4 = sum[k](t3)")
    mugraph = kernels(parse_graph(alone), cuts=[4])
    assert with_rounding(mugraph).rounded == ()
    assert multiplied_in(mugraph, [False] * 2) == {}


def test_parts_of_a_product_stay_in_fp32_and_their_sum_does_not():
    mugraph = parse_mugraph("""graph parts
axes m=16 k=64 k_part=4 k_at=16 n=32
in x: f16[m, (k_part k_at)]
in w: f16[(k_part k_at), n]
in v: f16[m, n]
split k into k_part k_at
kernel grid[m, n, k_part]
  loop[k_at]
    t3 += contract[k_at](x, w)
kernel grid[m, n]
  t4 = sum[k_part](t3)
kernel grid[m, n]
  t5 = mul(t4, v)
out o: f16[m, n] = t5
""")
    assert with_rounding(mugraph).rounded == ((4, "f16"),)


def test_a_library_makes_what_it_reads():
    mugraph = kernels(in_dtype(MLP, "f16"), library=True)
    assert [isinstance(one, Call) for one in mugraph.kernels] == [True, False, True]
    assert with_rounding(mugraph).rounded == ((3, "f16"), (4, "f16"))
    wide = with_rounding(mugraph, wide=True)
    assert wide.rounded == ((3, "f16"),)  # a product of halves is a half
    assert mixed_product(wide)
    assert not mixed_product(with_rounding(mugraph))


def test_what_may_be_too_large_for_fp16_needs_another_candidate():
    assert wide_values(with_rounding(kernels(in_dtype(MLP, "f16"), cuts=[3])))
    assert not wide_values(with_rounding(kernels(in_dtype(MLP, "bf16"), cuts=[3])))
    gated = """graph gated
axes m=16 k=64 n=32
in x: f16[m, k]
in w: f16[k, n]
t2 = silu(x)
t3 = contract[k](t2, w)
out o: f16[m, n] = t3
"""
    mugraph = with_rounding(kernels(parse_graph(gated), cuts=[2]))
    assert mugraph.rounded == ((2, "f16"),)
    assert not wide_values(mugraph)


RANGES = """graph ranges
axes m=16 n=32
in x: f16[m, n]
in y: f16[m, n]
in b: bool[m, n]
in f: f32[m, n]
t4 = max[n](x)
t5 = sub(x, t4)
t6 = exp(t5)
t7 = max[n](y)
t8 = sub(x, t7)
t9 = exp(t8)
t10 = sigmoid(x)
t11 = mul(x, t10)
t12 = mul(x, y)
t13 = add(x, y)
t14 = maximum(x, y)
t15 = mul(f, t10)
t16 = where(b, x, t6)
t17 = sum[n](x)
"""


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        *[(0, True), (3, False), (6, True), (9, False), (11, True), (12, False), (13, False)],
        *[(14, True), (15, False), (16, True), (17, False)],
    ],
)
def test_static_bounds_of_fp16(value, fits):
    outs = "\n".join(
        f"out o{at}: f16[m{', n' if at not in (4, 7, 17) else ''}] = t{at}" for at in range(4, 18)
    )
    assert fits_f16(parse_graph(RANGES + outs), value) == fits


@pytest.mark.parametrize(
    ("dtype", "rounds", "expected"),
    [
        ("f16", False, OperandRounding("f16", frozenset({4}))),
        ("f16", True, OperandRounding("f16")),
        ("bf16", False, OperandRounding("bf16")),
        ("bf16", True, OperandRounding("bf16")),
    ],
)
def test_rows_of_operands_that_may_not_fit_are_scaled(dtype, rounds, expected):
    mugraph = kernels(in_dtype(MLP, dtype))
    found = multiplied_in(mugraph, [rounds] * len(mugraph.kernels))
    assert found == {3: OperandRounding(dtype), 5: expected}


NORMS = """graph norms
axes m=16 n=32
in x: f16[m, n]
in y: f16[m, n]
in f: f32[m, n]
eps = const[1e-06]()
less = const[-1e-06]()
scale = const[0.5]()
count = const[32]()
n = size[n]()
square = square(x)
sum = sum[n](square)
mean = div(sum, n)
{steps}
out o: f16[m, n] = last
"""


@pytest.mark.parametrize(
    ("steps", "fits"),
    [
        ("a = add(mean, eps); b = rsqrt(a); last = mul(x, b)", True),
        ("a = add(mean, eps); b = sqrt(a); last = div(x, b)", True),
        ("a = add(eps, mean); b = sqrt(a); c = div(scale, b); last = mul(c, x)", True),
        ("a = add(mean, eps); b = sqrt(a); c = reciprocal(b); last = mul(x, c)", True),
        ("a = rsqrt(sum); last = mul(x, a)", True),
        ("a = maximum(sum, eps); b = rsqrt(a); last = mul(x, b)", True),
        ("a = contract[n](x, x); b = div(a, count); c = rsqrt(b); last = mul(x, c)", True),
        ("a = div(square, n); b = sum[n](a); c = rsqrt(b); last = mul(x, c)", True),
        ("a = sum[n](f); b = div(a, n); c = sub(f, b); d = square(c); e = sum[n](d); g = div(e, n);"
         " h = rsqrt(g); last = mul(c, h)", True),
        ("a = rsqrt(mean); b = mul(x, a); c = sigmoid(y); last = mul(b, c)", True),
        ("a = add(mean, less); b = rsqrt(a); last = mul(x, b)", False),
        ("a = rsqrt(mean); last = mul(y, a)", False),  # the norm of another tensor
        ("a = rsqrt(mean); b = mul(x, a); last = mul(b, y)", False),  # with a gain of any size
        ("a = rsqrt(mean); b = mul(x, a); last = mul(b, x)", False),
        ("a = rsqrt(mean); b = mul(x, a); last = div(b, y)", False),
        ("a = sum[n](x); b = rsqrt(a); last = mul(x, b)", False),
        ("a = add(mean, sum); b = sub(a, sum); c = rsqrt(b); last = mul(x, c)", False),
        ("a = sqrt(mean); last = mul(x, a)", False),
        ("a = mul(sum, n); b = rsqrt(a); last = mul(x, b)", False),  # not known to be one
        ("a = const[1e-12](); b = mul(sum, a); c = rsqrt(b); last = mul(x, c)", False),
    ],
)  # fmt: skip
def test_bounds_of_numbers_over_the_norm_of_their_row(steps, fits):
    graph = parse_graph(NORMS.format(steps="\n".join(one.strip() for one in steps.split(";"))))
    assert fits_f16(graph, graph.outputs[0].value) == fits


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ({0: "f16", 2: "f16"}, "f16"),
        ({0: "bf16", 2: "f16"}, "f32"),
        ({0: "f32", 2: "f16"}, "f16"),
        ({0: "f32", 2: "f32"}, "f32"),
        ({0: "f8e4m3", 2: "f8e4m3"}, "f16"),
        ({0: "f8e4m3"}, "f16"),
        ({}, "f16"),
    ],
)
def test_operands_are_multiplied_in_the_half_type_of_the_program(memory, expected):
    graph = parse_graph(NORMED)
    step = replace(graph.steps[4], inputs=(0, 2))
    assert half_of(graph) == "f16"
    assert product_dtype(graph, step, memory) == expected


def test_a_program_in_two_half_types_has_none():
    graph = parse_graph(NORMED.replace("in g: f16", "in g: bf16"))
    assert half_of(graph) is None
    assert with_rounding(kernels(graph, cuts=[6])).rounded == ()


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [({"f16"}, "f16"), ({"f16", "f8e4m3"}, "f16"), ({"f16", "f32"}, "f32"), ({"f8e4m3"}, "f32")],
)
def test_dtypes_of_a_library(dtypes, expected):
    assert library_dtype(dtypes) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("round t9 to f16", "t9 is rounded, but nothing computes it"),
        ("round t4 to f32", "it rounds t4 to f32; it is one of bf16, f16"),
        ("round t3 to f16", "it rounds t3, which no kernel reads from another one"),
        ("round t4 to f16\nround t4 to bf16", "it rounds t4 twice"),
    ],
)
def test_wrong_roundings_are_refused(line, message):
    text = print_mugraph(kernels(parse_graph(MLP), cuts=[4]))
    with pytest.raises(GraphError, match=message):
        parse_mugraph(text.replace("kernel", f"{line}\nkernel", 1))


def test_a_rounded_input_is_refused():
    mugraph = kernels(parse_graph(MLP), cuts=[4])
    with pytest.raises(GraphError, match="rounds value 0, which is no step"):
        check_mugraph(replace(mugraph, rounded=((0, "f16"),)))
