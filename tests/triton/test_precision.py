"""Products of half-precision programs multiply halves, whoever made them: a library, a kernel, this one."""

import re
from dataclasses import replace

import pytest

from superopt.codegen.statements import lower_block
from superopt.codegen.triton import configs, default_config, emit
from superopt.codegen.triton.footprint import footprint
from superopt.cost import config_us
from superopt.ir import parse_mugraph
from superopt.targets.cuda import CudaTarget

# The first product is a library's, the second one this kernel's; the result of the first crosses between.
CHAIN = """graph chain
axes m=40 k=48 h=32 n=33
in x: f16[m, k]
in u: f16[k, h]
in w: f16[h, n]
round t3 to f16
kernel call
  t3 = contract[k](x, u)
kernel grid[m, n]
  loop[h]
    t4 += contract[h](t3, w)
out o: f16[m, n] = t4
"""

SCALED = """graph scaled
axes m=64 k=128 n=64
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
kernel grid[m, n]
  loop[k]
    t3 = mul(x, g)
    t4 += contract[k](t3, w)
out o: f16[m, n] = t4
"""


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("rounded", [True, False])
def test_what_a_library_made_is_multiplied(agrees, dtype, rounded):
    text = CHAIN if rounded else CHAIN.replace("round t3 to f16\n", "")
    agrees("text", text=text.replace("f16", dtype), domain=[-1.0, 1.0])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_what_a_kernel_made_is_multiplied(agrees, dtype):
    text = CHAIN.replace("kernel call\n  t3 = ", "kernel grid[m, h]\n  loop[k]\n    t3 += ")
    agrees("text", text=text.replace("f16", dtype), domain=[-1.0, 1.0])


def dots(program, config):
    text = emit(program, config).text
    assert len(re.findall(r"tl\.dot\(", text)) == 1
    return "input_precision" not in text


@pytest.mark.parametrize(("dtype", "expected"), [("f16", {True, False}), ("bf16", {False})])
def test_a_computed_operand_is_scaled_unless_the_configuration_rounds_it(dtype, expected):
    mugraph = parse_mugraph(SCALED.replace("f16", dtype))
    program = lower_block(mugraph, 0)
    found = configs(program, mugraph.graph.sizes)
    assert {one.half_products for one in found} == expected
    for one in found:
        assert dots(program, one)
        scaled = dtype == "f16" and not one.half_products
        assert ("t3_scale = fp16_scale(" in emit(program, one).text) == scaled


GATED = """graph gated
axes m=64 k=128 n=64
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
in u: f16[k, n]
kernel grid[m, n]
  loop[k]
    t4 = mul(x, g)
    t5 += contract[k](t4, w)
    t6 += contract[k](t4, u)
  t7 = mul(t5, t6)
out o: f16[m, n] = t7
"""

KEYS = """graph keys
axes m=64 d=32 t=256
in q: f16[m, d]
in g: f16[d]
in k: f16[t, d]
kernel grid[m]
  t3 = mul(q, g)
  loop[t]
    t4 = mul(k, g)
    t5 = contract[d](t3, t4)
    t6 = square(t5)
    t7 += sum[t](t6)
out o: f32[m] = t7
"""


def lines_of(text):
    mugraph = parse_mugraph(text)
    program = lower_block(mugraph, 0)
    return emit(program, default_config(program, mugraph.graph.sizes)).text.splitlines()


def test_an_operand_is_scaled_once_for_all_its_products(agrees):
    assert sum("= fp16_scale(" in line for line in lines_of(GATED)) == 1
    agrees("text", text=GATED, domain=[-1.0, 1.0])


def test_an_operand_is_scaled_where_it_is_made(agrees):
    lines = lines_of(KEYS)
    [loop] = [at for at, line in enumerate(lines) if "for t0 in" in line]
    before, inside = "\n".join(lines[:loop]), "\n".join(lines[loop:])
    assert "    t3_scale = fp16_scale(" in before
    assert "        t4_scale = fp16_scale(" in inside
    assert "t3_scale = " not in inside
    agrees("text", text=KEYS.replace("out o: f32", "out o: f16"), domain=[-1.0, 1.0])


def test_what_scaling_adds_is_estimated():
    mugraph = parse_mugraph(SCALED)
    program = lower_block(mugraph, 0)
    default = default_config(program, mugraph.graph.sizes)
    rounding = replace(default, half_products=True)
    target = CudaTarget(90)
    assert footprint(program, default).register_bytes > footprint(program, rounding).register_bytes
    scaled, plain = (
        config_us(program, target.tiles(program, one), target.cost_device()) for one in (default, rounding)
    )
    assert plain < scaled < 3 * plain


def test_a_rounded_operand_needs_no_choice():
    mugraph = parse_mugraph(CHAIN)
    program = lower_block(mugraph, 1)
    found = configs(program, mugraph.graph.sizes)
    assert {one.half_products for one in found} == {False}
    assert dots(program, found[0])
    assert [tensor.dtype for tensor in program.loads] == ["f16", "f16"]


def test_two_tensors_of_a_program_in_fp32_are_not_rounded():
    text = SCALED.replace("in x: f16", "in x: f32").replace("in w: f16", "in w: f32")
    mugraph = parse_mugraph(text.replace("t3 = mul(x, g)", "t3 = mul(x, g)").replace("(t3, w)", "(x, w)"))
    program = lower_block(mugraph, 0)
    text = emit(program, default_config(program, mugraph.graph.sizes)).text
    assert 'input_precision="ieee"' in text
    assert ".to(tl.float16)" not in text.partition("tl.dot")[2].partition("\n")[0]
