"""Axes in parts: extents that fit whatever size comes, and kernels that stop where the axis does."""

import pytest

from superopt.codegen.statements import split_extents
from superopt.ir import Split

SPLIT = Split("t", "part", "at")


@pytest.mark.parametrize(
    ("size", "parts", "multiple", "expected"),
    [
        (4096, 8, 64, (8, 512)),
        (4097, 8, 64, (8, 576)),
        (4097, 8, 1, (8, 513)),
        (130, 8, 64, (3, 64)),
        (9, 8, 1, (5, 2)),
        (1, 8, 16, (1, 16)),
        (0, 8, 16, (1, 16)),
        (5, 1, 1, (1, 5)),
    ],
)
def test_extents_of_parts(size, parts, multiple, expected):
    found = split_extents(SPLIT, {"t": size, "part": parts, "at": 7, "m": 3}, multiple)
    assert (found["part"], found["at"]) == expected
    assert found["t"] == size
    assert found["m"] == 3
    assert found["part"] * found["at"] >= size > (found["part"] - 1) * found["at"] or size == 0
