"""Sums that only the first programs along a grid axis store: two kernels where three would do."""

import pytest
import torch
from interpreter import execute

from superopt.ir import Split, fuse, parse_graph, split_axis, stabilize
from superopt.ir.mugraph import FusionChoices
from superopt.schedule import schedules
from superopt.targets import pick_target

NORM = """graph norm
axes m=16 k=16384 n=512
in x: f16[m, k]
in w: f16[k, n]
t2 = contract[k](x, w)
t3 = contract[k](x, x)
t4 = sqrt(t3)
t5 = div(t2, t4)
out out: f16[m, n] = t5
"""


def in_parts(text, **choices):
    graph, split = split_axis(parse_graph(text), "k", 4)
    assert isinstance(split, Split)
    return fuse(stabilize(graph, (split.outer,)), splits=(split,), choices=FusionChoices(**choices))


@pytest.mark.parametrize("sizes", ["m=5 k=16 n=9", "m=5 k=15 n=9"])
def test_a_sum_of_squares_beside_a_product_in_parts(sizes):
    text = NORM.replace("m=16 k=16384 n=512", sizes)
    mugraph = in_parts(text, repeated=True, tile=1024)
    assert [len(kernel.grid) for kernel in mugraph.kernels] == [3, 2]
    assert len(mugraph.stores(mugraph.kernels[0])) == 2
    shapes = [parse_graph(text).shape(port) for port in parse_graph(text).inputs]
    x, w = (torch.rand(shape) for shape in shapes)
    found = execute(mugraph, {"x": x, "w": w})["out"]
    exact = x.double() @ w.double() / x.double().norm(dim=1, keepdim=True)
    assert torch.allclose(found, exact)


def test_by_default_all_that_is_stored_shares_the_grid():
    mugraph = in_parts(NORM)
    assert all("n" not in kernel.grid or len(mugraph.stores(kernel)) == 1 for kernel in mugraph.kernels)


def test_a_long_axis_of_the_results_stays_on_the_grid_of_parts():
    device = pick_target("cuda:90").cost_device()
    kept = schedules(parse_graph(NORM), device).kept
    best = kept[0]
    assert best.recipe.repeated
    assert "small sums repeated" in best.name
    assert len(best.mugraph.kernels) == 2


def test_an_output_that_is_repeated_stays_apart():
    text = NORM + "out all: f16[m, n] = t3\n"
    mugraph = in_parts(text, repeated=True, tile=1024)
    for kernel in mugraph.kernels:
        assert "n" not in kernel.grid or len(mugraph.stores(kernel)) == 1 or kernel is mugraph.kernels[0]


@pytest.mark.parametrize("sizes", ["m=5 k=16 n=9", "m=5 k=64 n=70"])
def test_a_processor_stores_it_once(sizes):
    mugraph = in_parts(NORM.replace("m=16 k=16384 n=512", sizes).replace("f16", "f32"), repeated=True, tile=1)
    target = pick_target("cpu")
    default = target.default_configs(mugraph)
    known = mugraph.graph.sizes
    x, w = torch.rand(known["m"], known["k"]), torch.rand(known["k"], known["n"])
    for config in list(target.configs(mugraph, 0))[::12]:
        found = target.make(mugraph, (config, *default[1:]))(x=x, w=w)["out"]
        assert torch.allclose(found, x @ w / x.norm(dim=1, keepdim=True), rtol=1e-4)
