"""Convolutions and pools as algebra: what windows read, what they print, and what is left to libraries."""

from collections import Counter

import pytest
import torch

from superopt.ir import parse_program, print_program
from superopt.trace import trace
from tests.windows.convolutions import random_case


@pytest.mark.parametrize("start", range(0, 500, 100))
def test_convolutions_are_what_pytorch_computes(start: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(start, start + 100):
        case = random_case(seed, torch.float64)
        traced = trace(case.function, *case.inputs)
        expected, found = case.function(*case.inputs), traced.run(*case.inputs)
        assert found.shape == expected.shape, case.text
        torch.testing.assert_close(
            found, expected, rtol=1e-10, atol=1e-10, msg=lambda m, c=case: f"{c.text}: {m}"
        )
        assert parse_program(print_program(traced.program)) == traced.program, case.text
        kinds["opaque" if traced.program.opaque else "algebra"] += 1
    assert kinds["algebra"] > 80, kinds
