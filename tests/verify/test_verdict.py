"""Verdicts of parts, put together: what is sure of the whole is what is sure of every part."""

import pytest

from superopt.verify.verdict import Verdict, Witness, combined

SURE = Verdict(True, trials=16, error_bound=2.0**-60, oracles=("erf",), notes=("a",), seconds=0.5)
LESS = Verdict(True, trials=8, error_bound=2.0**-61, oracles=("tanh", "erf"), notes=("a", "b"), seconds=0.25)
UNBOUND = Verdict(True, trials=32)
REFUTED = Verdict(False, trials=1, witness=Witness("y", (0, 1), 3, 4, 0, 0))
FLOATS_ONLY = Verdict(True, proven=False)


def test_chances_of_error_add_up() -> None:
    both = combined([SURE, LESS])
    assert both.equal
    assert both.proven
    assert both.trials == 8
    assert both.error_bound == 2.0**-60 + 2.0**-61
    assert both.oracles == ("erf", "tanh")
    assert both.notes == ("a", "b")
    assert both.seconds == 0.75


def test_one_is_itself() -> None:
    assert combined([SURE]) == SURE


@pytest.mark.parametrize(
    ("verdicts", "equal", "proven", "bound"),
    [
        ([SURE, UNBOUND], True, True, None),
        ([SURE, REFUTED], False, True, None),
        ([SURE, FLOATS_ONLY], True, False, None),
        ([Verdict(True, error_bound=0.75), Verdict(True, error_bound=0.5)], True, True, 1.0),
    ],
)
def test_the_weakest_part_decides(
    verdicts: list[Verdict], equal: bool, proven: bool, bound: float | None
) -> None:
    both = combined(verdicts)
    assert (both.equal, both.proven, both.error_bound) == (equal, proven, bound)
    assert (both.witness is None) == (REFUTED not in verdicts)
