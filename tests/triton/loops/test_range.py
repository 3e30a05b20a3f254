"""Products of computed numbers in fp16: they neither overflow nor lose what is small."""

from math import isfinite

import pytest

from superopt.codegen.statements import lower_block
from superopt.codegen.triton.plan import scaled_products
from superopt.ir import fuse, parse_graph

SIZES = {"M": 5, "K": 129, "N": 40}


@pytest.mark.parametrize("scale", [1.5e4, 1.0, 2.0**-10])
@pytest.mark.parametrize("kind", ["original", "found"])
def test_scaled_rows(agrees, kind, scale):
    agrees("stable", name="rmsnorm-linear", kind=kind, dtype="f16", built=SIZES, sizes=SIZES, scale=scale)


HEAD = """graph scaled
axes b=3 m=17 k=45 n=33
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
in v: f16[b, k, n]
"""
LARGE, SMALL = [-(2.0**14), 2.0**14], [-(2.0**-12), 2.0**-12]

# Bodies after a constant 2 + 2, with the inputs as values 0 to 3.
PRODUCTS = {
    "rows": "t5 = mul(x, g)\nt6 = contract[k](t5, w)\nout o: f16[m, n]",
    "columns": "t5 = mul(w, g)\nt6 = contract[k](x, t5)\nout o: f16[m, n]",
    "columns first": "t5 = mul(w, g)\nt6 = contract[k](t5, x)\nout o: f16[n, m]",
    "both": "t5 = mul(x, x)\nt7 = mul(w, g)\nt6 = contract[k](t5, t7)\nout o: f16[m, n]",
    "in batches": "t5 = mul(v, g)\nt6 = contract[k](x, t5)\nout o: f16[b, m, n]",
}


def product(body: str, unit: float) -> str:
    """Return a graph whose result is a product, brought near 1 by a unit."""
    lines, out = body.rsplit("\n", 1)
    return f"{HEAD}unit = const[{unit}]()\n{lines}\nt8 = mul(t6, unit)\n{out} = t8\n"


@pytest.mark.parametrize(
    "domain", [LARGE, *(pytest.param(one, marks=pytest.mark.slow) for one in (SMALL, [-1.0, 1.0]))]
)
@pytest.mark.parametrize("body", PRODUCTS)
def test_products_of_computed_operands_of_any_size(agrees, body, domain):
    factors = 4 if body == "both" else 3
    agrees("text", text=product(PRODUCTS[body], domain[1] ** -factors), domain=domain, configs="scaled")


@pytest.mark.parametrize(
    "configs", [pytest.param("random", marks=pytest.mark.slow), "persistent", "descriptors"]
)
def test_scaled_products_in_all_kinds_of_tiles(agrees, configs):
    agrees("text", text=product(PRODUCTS["both"], LARGE[1] ** -4), domain=LARGE, configs=configs)


NORMED = """graph normed
axes m=17 k=45 n=33
in x: f16[m, k]
in w: f16[k, n]
t2 = contract[k](x, x)
t3 = size[k]()
t4 = div(t2, t3)
t5 = rsqrt(t4)
t6 = mul(x, t5)
t7 = contract[k](t6, w)
unit = const[{unit}]()
t9 = mul(t7, unit)
out o: f16[m, n] = t9
"""


@pytest.mark.parametrize("domain", [[-1e4, 1e4], [-1e-4, 1e-4], [-1.0, 1.0]])
def test_what_a_norm_makes_fits_as_it_is(agrees, domain):
    text = NORMED.format(unit=1 / domain[1])
    mugraph = fuse(parse_graph(text))
    assert not any(scaled_products(lower_block(mugraph, at)) for at in range(len(mugraph.kernels)))
    agrees("text", text=text, domain=domain, configs="tuner")


def test_rows_that_are_not_scaled_overflow(interpreter):
    text = product(PRODUCTS["rows"], LARGE[1] ** -3)
    answer = interpreter.ask("text", text=text, domain=LARGE, configs="rounding")
    assert not isfinite(answer["error"])


def test_what_lies_beyond_the_end_does_not_scale_a_row(agrees):
    # Beyond the end, x is 0 and its exponential 1, before it at most e^-36.
    body = "c = const[40]()\nt5 = mul(x, c)\nt7 = exp(t5)\nt6 = contract[k](t7, w)\nout o: f16[m, n]"
    agrees("text", text=product(body, 1e15), domain=[-1.0, -0.9], configs="scaled")


def test_infinities_and_zeros_of_a_row_stay_its_own(interpreter):
    answer = interpreter.ask("scaled_rows")
    assert answer["finite"] == [True, False, True]
    assert not any(answer["nan"])  # an infinity times a number, and finite numbers
    assert answer["zero"] == [False, False, True]


def test_a_choice_of_fp16_is_one_of_the_configurations(interpreter):
    from superopt.codegen.triton import configs
    from superopt.trace import trace
    from superopt.workloads import WORKLOADS

    for name, expected in (("rmsnorm-linear", {True, False}), ("matmul-matmul", {False})):
        workload = WORKLOADS[name]
        mugraph = fuse(trace(workload.function, *workload.inputs(dtype="f16")).graph)
        program = lower_block(mugraph, 0)
        assert {one.half_products for one in configs(program, mugraph.graph.sizes)} == expected
