"""Products of computed numbers in fp16: they neither overflow nor lose what is small."""

import pytest

SIZES = {"M": 5, "K": 129, "N": 40}


@pytest.mark.parametrize("scale", [1.5e4, 1.0, 2.0**-10])
@pytest.mark.parametrize("kind", ["original", "found"])
def test_scaled_rows(agrees, kind, scale):
    agrees("stable", name="rmsnorm-linear", kind=kind, dtype="f16", built=SIZES, sizes=SIZES, scale=scale)


def test_a_choice_of_fp16_is_one_of_the_configurations(interpreter):
    from superopt.codegen.statements import lower_block
    from superopt.codegen.triton import configs
    from superopt.ir import fuse
    from superopt.trace import trace
    from superopt.workloads import WORKLOADS

    for name, expected in (("rmsnorm-linear", {True, False}), ("matmul-matmul", {False})):
        workload = WORKLOADS[name]
        mugraph = fuse(trace(workload.function, *workload.inputs(dtype="f16")).graph)
        program = lower_block(mugraph, 0)
        assert {one.half_products for one in configs(program, mugraph.graph.sizes)} == expected
