"""What cannot be done is said clearly, before anything runs."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from superopt.codegen.errors import UnsupportedError
from superopt.codegen.statements import lower_block
from superopt.codegen.triton import TritonConfig, TritonMuGraph, default_config, emit
from superopt.errors import InputError
from superopt.ir import fuse, parse_graph, parse_mugraph
from superopt.targets import pick_target

MATMUL = """graph matmul
axes m=16 k=32 h=2 n=8
in x: f32[m, k]
in w: f32[k, (h n)]
t2 = contract[k](x, w)
out o: f32[m, (h n)] = t2
"""

X = torch.ones(16, 32)


def program(text=MATMUL):
    return lower_block(fuse(parse_graph(text)), 0)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": X}, "give the tensor 'w'; it takes x, w"),
        ({"x": X.half(), "w": torch.ones(32, 16)}, "'x' is torch.float16; it was built for torch.float32"),
        ({"x": X[None], "w": torch.ones(32, 16)}, "'x' has 3 dimensions; it was built for 2"),
        (
            {"x": torch.ones(16, 32), "w": torch.ones(30, 16)},
            "axis 'k' is 32 long, but dimension 0 of 'w' has 30",
        ),
        (
            {"x": torch.ones(16, 32), "w": torch.ones(32, 17)},
            r"dimension 1 of 'w' is 17 long, which is no h \* n",
        ),
    ],
)
def test_tensors_that_do_not_fit(tensors, message):
    with pytest.raises(InputError, match=message):
        TritonMuGraph(fuse(parse_graph(MATMUL)))(**tensors)


def test_as_many_configurations_as_kernels():
    with pytest.raises(InputError, match="2 configurations for 1 kernels"):
        TritonMuGraph(fuse(parse_graph(MATMUL)), [None, None])


def test_double_precision_is_refused():
    text = MATMUL.replace("f32", "f64")
    found = program(text)
    with pytest.raises(UnsupportedError, match="no loads of x in f64"):
        emit(found, default_config(found, parse_graph(text).sizes))


@pytest.mark.parametrize(
    "field", [{"num_warps": 3}, {"num_stages": 0}, {"persistent": -1}, {"persistent": 99}]
)
def test_configurations_from_data_are_checked(field):
    target = pick_target("cuda:90")
    tiles = {"tiles": [["m", 16]]}
    assert target.config_from_json({**tiles, "persistent": 2}).persistent == 2
    with pytest.raises(InputError, match=r"configuration.* is wrong"):
        target.config_from_json({**tiles, **field})


def test_an_empty_axis_has_no_first_program():
    text = """graph parts
axes m=4 k=8 n=6
in x: f32[m, k]
in w: f32[k, n]
kernel grid[m, n]
  t2 = contract[k](x, w)
  t3 = sum[k](x)
out o: f32[m, n] = t2
out p: f32[m] = t3
"""
    built = TritonMuGraph(parse_mugraph(text))
    with pytest.raises(InputError, match="parts: axis 'n' is empty; p has no program"):
        built(x=torch.ones(4, 8), w=torch.ones(8, 0))


def test_tiles_are_powers_of_two():
    found = program()
    config = default_config(found, parse_graph(MATMUL).sizes)
    tiles = tuple((axis, 12 if axis == "m" else tile) for axis, tile in config.tiles)
    with pytest.raises(UnsupportedError, match="the tile of 'm' is 12, not a power of two"):
        emit(found, replace(config, tiles=tiles))


def test_every_axis_needs_a_tile():
    with pytest.raises(UnsupportedError, match="the configuration has no tile for axis 'm'"):
        emit(program(), TritonConfig(()))


def test_kernels_need_neither_a_search_nor_triton_to_be_printed():
    code = (
        "import sys, superopt.codegen.triton\n"
        "print(*({'egglog', 'z3', 'triton', 'superopt.trace', 'superopt.rules'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
