"""Every workload, as traced and as found, agrees with float64 about as well as eager does."""

import pytest
from quick import few

from superopt.workloads import WORKLOADS

SMALL = {
    "B": 2, "M": 17, "K": 33, "N": 40, "R": 16, "S": 17, "T": 33, "H": 4, "G": 2,
    "D": 16, "L": 32, "V": 50, "E": 32, "Q": 64, "P": 32,
}  # fmt: skip


def small(name, **sizes):
    chosen = {size: SMALL[size] for size in WORKLOADS[name].sizes}
    if name.endswith("-decode"):
        chosen["S"] = 1
    if name == "llama-layer":
        chosen["S"] = 8
    return chosen | sizes


def run(agrees, name, kind, *, dtype="f16", layout="contiguous", built=None, **sizes):
    agrees(
        "workload",
        name=name,
        kind=kind,
        dtype=dtype,
        sizes=small(name, **sizes),
        layout=layout,
        built=small(name, **built) if built else None,
    )


FEW = ("rmsnorm-linear", "layernorm-linear-gelu", "gated-mlp", "gqa", "gqa-decode", "mla", "lora", "ntrans")
FOUND = [name for name in WORKLOADS if name != "llama-layer"]  # found in parts


@pytest.mark.parametrize("dtype", ["f32", pytest.param("f16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", few(WORKLOADS, *FEW, "llama-layer"))
def test_original(agrees, name, dtype):
    run(agrees, name, "original", dtype=dtype)


@pytest.mark.parametrize("dtype", [pytest.param("f32", marks=pytest.mark.slow), "f16"])
@pytest.mark.parametrize("name", few(FOUND, *FEW))
def test_found(agrees, name, dtype):
    run(agrees, name, "found", dtype=dtype)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("rmsnorm-linear", "lora", "gqa-decode") else pytest.mark.slow)
        for name in WORKLOADS
    ],
)
@pytest.mark.parametrize(
    "dtype", ["f16", *(pytest.param(one, marks=pytest.mark.slow) for one in ("bf16", "f32"))]
)
def test_rows_of_sizes_far_apart(agrees, name, dtype):
    """Scheduled as they would run: exponentials of large numbers need their shifts."""
    kind, sizes = "original" if name == "llama-layer" else "found", small(name)
    agrees("stable", name=name, kind=kind, dtype=dtype, built=sizes, sizes=sizes, layout="rows")


@pytest.mark.parametrize("name", ["softmax", "rmsnorm-linear", "gated-mlp", "gqa", "gqa-decode", "mla"])
def test_bf16(agrees, name):
    run(agrees, name, "found", dtype="bf16")


ODD = [
    *(("rmsnorm-linear", {"M": size}) for size in (1, 33)),
    *(("rmsnorm-linear", {"N": size, "K": size}) for size in (1, 129)),
    *(("gated-mlp", {"M": size, "N": 129}) for size in (1,)),
    *(("softmax", {"N": size}) for size in (1, 129)),
    *(("gqa-decode", {"T": size}) for size in (1, 129)),
    *(("gqa-decode", {"S": size}) for size in (3,)),
    *(("gqa", {"S": size}) for size in (33,)),
    ("lora", {"R": 7, "M": 1}),
    ("mla", {"T": 129, "H": 1}),
    ("layernorm-linear-gelu", {"M": 1, "K": 129}),
    ("matmul", {"M": 0}),
    ("matmul", {"K": 0}),
]
MORE_ODD = [
    *(("rmsnorm-linear", {"M": size}) for size in (7, 129)),
    ("rmsnorm-linear", {"N": 17, "K": 17}),
    ("gated-mlp", {"M": 7, "N": 129}),
    ("softmax", {"N": 7}),
    ("gqa-decode", {"T": 7}),
    ("gqa-decode", {"S": 17}),
    *(("gqa", sizes) for sizes in ({"S": 1}, {"S": 129}, {"H": 24, "G": 1})),
]


@pytest.mark.parametrize(
    ("name", "sizes"), few([*ODD, *MORE_ODD], *ODD), ids=lambda value: str(value).replace(" ", "")
)
def test_odd_sizes(agrees, name, sizes):
    run(agrees, name, "found", **sizes)


@pytest.mark.parametrize("size", [64, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["rmsnorm-linear", "matmul-matmul", "mha"])
def test_sizes_that_divide(agrees, name, size):
    sizes = dict.fromkeys({"M", "K", "N", "S"} & set(WORKLOADS[name].sizes), size)
    run(agrees, name, "found", **sizes)


QUICK_STRIDES = {"softmax", "rmsnorm-linear", "lora", "gqa", "gqa-decode", "mla", "ntrans", "matmul-rowsum"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK_STRIDES else pytest.mark.slow) for name in WORKLOADS],
)
def test_any_strides(agrees, name):
    run(agrees, name, "original", dtype="f32", layout="strided")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("rmsnorm-linear", {"M": 5, "N": 70}),
        ("gqa-decode", {"T": 70, "B": 3}),
        ("softmax", {"M": 3, "N": 90}),
    ],
)
def test_a_kernel_serves_other_sizes(agrees, name, sizes):
    run(agrees, name, "found", built={"M": 17} if "M" in WORKLOADS[name].sizes else {"T": 33}, **sizes)


# As they are scheduled for a GPU, every free axis in turn at sizes that divide nothing.
FREE = ("M", "N", "K", "R", "V", "S", "T", "L", "E")
EVERY = [
    (name, axis, size)
    for name in WORKLOADS
    for axis in FREE
    if axis in WORKLOADS[name].sizes and (name, axis) != ("mla", "R")  # a number in it depends on that
    for size in (1, 7, 17, 129, 4097)
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize(("name", "axis", "size"), EVERY)
def test_every_free_axis(agrees, name, axis, size, dtype, layout):
    short = {"B": 1, "M": 5, "N": 20, "K": 24, "V": 24, "S": 9, "T": 24, "H": 2, "G": 1, "L": 16, "E": 32}
    if name.endswith("decode") and axis != "S":  # an axis that is built 1 long is none
        short["S"] = 1
    sizes = small(name, **{key: value for key, value in short.items() if key in WORKLOADS[name].sizes})
    kind = "original" if name == "llama-layer" else "found"
    agrees(
        "stable",
        name=name,
        kind=kind,
        dtype=dtype,
        built=sizes
        | {one: 2048 for one in ("M", "N", "K", "V", "S", "T") if one in sizes and sizes[one] > 1},
        sizes=sizes | {axis: size},
        layout=layout,
    )
