"""Errors: how much of an error is allowed, for each output by its own dtype."""

from math import inf as INF
from math import nan as NAN

import pytest
import torch

from superopt.verify.floats.compare import FACTOR, FLOOR
from superopt.verify.floats.errors import FOUND, ROUNDING, Errors, errors_of, judged

SINGLE, BRAIN = 2.0**-23, 2.0**-7  # the units of float32 and bfloat16


def draw(*outputs: tuple[float, float, float]) -> Errors:
    return Errors(outputs, equal=True, nonfinite=False, compared=(True,) * len(outputs), doubtful=0)


@pytest.mark.parametrize("before", [(), ((0.0, 0.0, SINGLE),)], ids=["alone", "after a float32 output"])
@pytest.mark.parametrize(("error", "ok"), [(0.03, True), (0.1, False), (0.4, False)])
def test_an_output_is_judged_by_its_own_dtype(
    before: tuple[tuple[float, float, float], ...], error: float, ok: bool
) -> None:
    found = judged(FOUND, [draw(*before, (0.0, error, BRAIN))], FACTOR, FLOOR)
    assert found.ok == ok


@pytest.mark.parametrize(
    ("name", "units", "ok"), [("normal", 5, False), ("normal", 3, True), (FOUND, 5, True)]
)
def test_inputs_found_for_comparisons_allow_roundings(name: str, units: float, ok: bool) -> None:
    assert units < ROUNDING
    assert judged(name, [draw((0.0, units * SINGLE, SINGLE))], FACTOR, FLOOR).ok == ok


@pytest.mark.parametrize(
    ("exact", "eager", "made", "wrong"),
    [
        (INF, INF, INF, False),
        (INF, INF, -INF, True),
        (-INF, -INF, 0.0, True),
        (-INF, -INF, NAN, True),
        (1e60, INF, 3e38, False),  # PyTorch overflows
        (INF, 3e38, INF, False),
        (NAN, NAN, 0.0, False),
    ],
)
def test_an_infinity_that_pytorch_makes_rightly_must_be_the_same(
    exact: float, eager: float, made: float, wrong: bool
) -> None:
    truth = torch.tensor([exact, 1.0], dtype=torch.float64)
    own, found = (torch.tensor([one, 1.0]) for one in (eager, made))
    assert errors_of([truth], [own], [found], None, infinities=True).nonfinite == wrong
    assert not errors_of([truth], [own], [own], None, infinities=True).nonfinite
