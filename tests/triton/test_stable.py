"""Shifts that run in a loop, and axes in parts: as accurate as eager at any size of the numbers."""

import pytest

from superopt.workloads import WORKLOADS

LONG = {
    "B": 2, "M": 64, "K": 4096, "N": 4096, "R": 16, "S": 2048, "T": 4096, "H": 4, "G": 2, "D": 16, "L": 32,
    "V": 4096, "E": 32, "Q": 64, "P": 32,
}  # fmt: skip
SHORT = {**LONG, "M": 17, "K": 129, "N": 129, "S": 65, "T": 129, "V": 129}
SHIFTED = [
    "softmax", "mha", "gqa", "mqa", "mha-decode", "gqa-decode", "mqa-decode", "qknorm-attention", "mla",
    "linear-cross-entropy",
]  # fmt: skip
DECODE = {"S": 1}


def of(name, table, **sizes):
    chosen = {size: table[size] for size in WORKLOADS[name].sizes}
    if name.endswith("decode"):
        chosen |= DECODE
    return chosen | {size: value for size, value in sizes.items() if size in chosen}


def run(agrees, name, kind, dtype="f32", *, sizes=None, **more):
    return agrees(
        "stable",
        name=name,
        kind=kind,
        dtype=dtype,
        built=of(name, LONG),
        sizes=of(name, SHORT, **(sizes or {})),
        **more,
    )


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("kind", ["original", "found"])
@pytest.mark.parametrize("name", SHIFTED)
def test_running(agrees, name, kind, dtype):
    run(agrees, name, kind, dtype)
