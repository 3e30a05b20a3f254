"""Shifts that run in a loop, and axes in parts: as accurate as eager at any size of the numbers."""

import pytest
from quick import few

from superopt.workloads import WORKLOADS

LONG = {
    "B": 1, "M": 64, "K": 4096, "N": 4096, "R": 16, "S": 2048, "T": 4096, "H": 4, "G": 2, "D": 16, "L": 32,
    "V": 4096, "E": 32, "Q": 64, "P": 32,
}  # fmt: skip
SHORT = {**LONG, "M": 17, "K": 129, "N": 129, "S": 20, "T": 129, "V": 129}
SHIFTED = [
    "softmax", "mha", "gqa", "mqa", "mha-decode", "gqa-decode", "mqa-decode", "qknorm-attention", "mla",
    "linear-cross-entropy",
]  # fmt: skip
DECODE = {"S": 1}


def of(name, table, **sizes):
    chosen = {size: table[size] for size in WORKLOADS[name].sizes}
    chosen |= {size: value for size, value in sizes.items() if size in chosen}
    return chosen | (DECODE if name.endswith("decode") else {})


def run(agrees, name, kind, dtype="f32", *, sizes=None, built=None, **more):
    return agrees(
        "stable",
        name=name,
        kind=kind,
        dtype=dtype,
        built=of(name, LONG, **(built or {})),
        sizes=of(name, SHORT, **(sizes or {})),
        **more,
    )


@pytest.mark.parametrize("dtype", [pytest.param("f32", marks=pytest.mark.slow), "f16"])
@pytest.mark.parametrize("kind", ["original", "found"])
@pytest.mark.parametrize("name", few(SHIFTED, "softmax", "gqa", "gqa-decode", "mla", "linear-cross-entropy"))
def test_running(agrees, name, kind, dtype):
    run(agrees, name, kind, dtype)


SLOW = pytest.mark.slow


SPLIT = {
    "mha": "k.S",
    "gqa": "k.S",
    "mha-decode": "k.T",
    "gqa-decode": "k.T",
    "mqa-decode": "k.T",
    "qknorm-attention": "k.T",
    "mla": "c.T",
    "linear-cross-entropy": "w.V",
    "rmsnorm-linear": "w.K",
    "gated-mlp": "w1.K",
    "layernorm-linear-gelu": "w.K",
    "matmul-matmul": "w1.R",
}


@pytest.mark.parametrize("dtype", [pytest.param("f32", marks=pytest.mark.slow), "f16"])
@pytest.mark.parametrize("name", few(SPLIT, "gqa-decode", "mla", "linear-cross-entropy", "rmsnorm-linear"))
def test_in_parts(agrees, name, dtype):
    answer = run(agrees, name, "found", dtype, split=SPLIT[name])
    assert answer["kernels"] > 1
    assert answer["running"] == (name in SHIFTED)


@pytest.mark.parametrize("size", few([1, 7, 17, 64, 256, 300, 4097], 1, 17, 256, 4097))
@pytest.mark.parametrize("name", ["gqa-decode", "rmsnorm-linear"])
def test_parts_of_any_size(agrees, name, size):
    sizes = {"T": size, "K": size, "H": 2, "G": 1, "B": 1, "M": 3, "N": 20}
    run(agrees, name, "found", sizes=sizes, split=SPLIT[name])


HALVED = ["gqa-decode", "mla", "matmul-rowsum", "lora", "rmsnorm-linear", "mha", "linear-cross-entropy"]


@pytest.mark.parametrize("size", few([1, 7, 17, 129, 4097], 1, 129))
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in HALVED[:3] else pytest.mark.slow) for name in HALVED]
)
def test_what_the_search_split_runs_at_any_size(agrees, name, size):
    short = {"B": 1, "H": 2, "G": 1, "M": 3, "N": 20, "S": min(size, 129), "R": 16}
    short["K"] = 40 if name == "linear-cross-entropy" else size
    run(agrees, name, "halved", sizes={**short, "T": size, "V": size})


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_any_number_of_parts(agrees, parts):
    run(agrees, "gqa-decode", "found", sizes={"T": 600}, split="k.T", parts=parts)


TILED = [("gqa", ""), ("gqa-decode", "k.T")]
MORE_TILED = [pytest.param(*case, marks=SLOW) for case in (("mla", "c.T"), ("rmsnorm-linear", "w.K"))]
STRIDED = [pytest.param("strided", marks=pytest.mark.slow), "contiguous"]


@pytest.mark.parametrize("layout", STRIDED)
@pytest.mark.parametrize(("name", "split"), [*TILED, *MORE_TILED, pytest.param("gqa", "k.S", marks=SLOW)])
def test_configurations_of_the_tuner_agree(agrees, name, split, layout):
    sizes = {"S": 20, "T": 77, "K": 77, "M": 5, "N": 40, "B": 1, "H": 2, "G": 1}
    run(agrees, name, "found", sizes=sizes, split=split, configs="tuner", layout=layout)


@pytest.mark.parametrize("layout", STRIDED)
@pytest.mark.parametrize(("name", "split"), [pytest.param(*TILED[0], marks=SLOW), *TILED[1:], *MORE_TILED])
def test_any_tiles_agree(agrees, name, split, layout):
    sizes = {"S": 5, "T": 40, "K": 40, "M": 3, "N": 9, "B": 1, "H": 2, "G": 1}
    run(agrees, name, "found", sizes=sizes, split=split, configs="random", layout=layout)


FEWEST = [("rmsnorm-linear", ""), ("rmsnorm-linear", "w.K"), ("lora", ""), ("gqa-decode", "k.T")]


@pytest.mark.parametrize("dtype", ["f16", pytest.param("bf16", marks=SLOW)])
@pytest.mark.parametrize(("name", "split"), few(FEWEST, *FEWEST[1:3]))
def test_few_rows_as_columns_agree(agrees, name, split, dtype):
    few = {"M": 5, "B": 1, "H": 8, "G": 2}
    sizes = {"T": 77, "K": 77, "N": 40, "R": 16, **few}
    run(agrees, name, "found", dtype, sizes=sizes, built=few, split=split, configs="fewest")


GROUPED = [{"M": 70, "N": 17}, {"M": 40, "N": 66}, {"M": 1, "N": 40}]


@pytest.mark.parametrize(("name", "split"), [("gated-mlp", ""), ("matmul", "w.K")])
@pytest.mark.parametrize("sizes", few(GROUPED, GROUPED[0]))
def test_groups_of_programs_agree(agrees, name, split, sizes):
    run(agrees, name, "original", sizes={"K": 24, **sizes}, split=split, configs="grouped")


@pytest.mark.parametrize(("name", "split"), [("gated-mlp", ""), ("gqa-decode", "k.T")])
def test_programs_that_do_several_tiles_agree(agrees, name, split):
    sizes = {"M": 40, "N": 66, "K": 24, "T": 70, "B": 1, "H": 4, "G": 2}
    run(agrees, name, "found", sizes=sizes, split=split, configs="persistent")


@pytest.mark.parametrize("split", ["", "k.T"])
@pytest.mark.parametrize("kind", few(["original", "found"], "found"))
@pytest.mark.parametrize(("dtype", "scale"), [("f32", 1e4), ("f16", 4e3), ("f32", 1e-4)])
def test_logits_of_any_size(agrees, kind, dtype, scale, split):
    run(agrees, "gqa-decode", kind, dtype, split=split, scale=scale)


@pytest.mark.parametrize("name", ["softmax", "linear-cross-entropy"])
@pytest.mark.parametrize("size", [1, 7, 129, 4097])
def test_rows_of_any_size(agrees, name, size):
    run(agrees, name, "found", sizes={"M": 3, "N": size, "V": size, "K": 40}, scale=1e3)


@pytest.mark.parametrize("dominating", few([1.0, 1e3], 1e3))
@pytest.mark.parametrize("parts", [0, 4])
@pytest.mark.parametrize("dtype", ["f32", pytest.param("f16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", ["attended", "filled"])
def test_rows_that_see_no_key(agrees, function, dtype, parts, dominating):
    assert agrees("masked", function=function, dtype=dtype, parts=parts, dominating=dominating)["running"]
