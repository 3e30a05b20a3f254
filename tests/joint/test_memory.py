"""Memory: the peak of a step, and that of what it does not leave."""

import pytest

from superopt.bench.models.memory import Peaks, peaks_of

A, B, C = 1, 2, 3


@pytest.mark.parametrize(
    ("changes", "whole", "passing"),
    [
        ([], 0, 0),
        ([(A, 8), (B, 4), (A, -8), (C, 2)], 12, 8),
        ([(A, 8), (A, -8), (A, 4), (B, 6), (B, -6)], 10, 8),  # memory that is used again
        ([(A, -8), (B, 4)], 0, 0),  # what was there before
    ],
)
def test_peaks_of_changes(changes: list[tuple[int, int]], whole: int, passing: int) -> None:
    assert Peaks.of(changes) == Peaks(whole, passing)


def test_what_a_step_leaves_is_no_activation() -> None:
    import torch

    kept: list[torch.Tensor] = []

    def step() -> None:
        passing = torch.ones(1 << 20)
        kept.append(torch.ones(1 << 18))
        del passing
        torch.ones(1 << 19)

    found = peaks_of(step, kept.clear)
    assert (found.whole, found.passing) == (5 << 20, 4 << 20)
