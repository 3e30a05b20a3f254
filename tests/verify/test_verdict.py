"""Verdicts of parts, put together: what is sure of the whole is what is sure of every part."""

import pytest

from superopt.verify.verdict import ENOUGH, Outcome, Verdict, Witness, combined

SURE = Verdict("equal", trials=16, error_bound=2.0**-60, oracles=("erf",), notes=("a",), seconds=0.5)
LESS = Verdict(
    "equal", trials=8, error_bound=2.0**-61, oracles=("tanh", "erf"), notes=("a", "b"), seconds=0.25
)
BARELY = Verdict("equal", trials=32, error_bound=ENOUGH)
REFUTED = Verdict("different", trials=1, witness=Witness("y", (0, 1), 3, 4, 0, 0))
OPEN = Verdict("unknown", notes=("no bound: too many orders",))


def test_chances_of_error_add_up() -> None:
    both = combined([SURE, LESS])
    assert both.equal
    assert both.trials == 8
    assert both.error_bound == 2.0**-60 + 2.0**-61
    assert both.oracles == ("erf", "tanh")
    assert both.notes == ("a", "b")
    assert both.seconds == 0.75


def test_one_is_itself() -> None:
    assert combined([SURE]) == SURE


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ([SURE, OPEN], "unknown"),
        ([SURE, REFUTED], "different"),
        ([OPEN, REFUTED], "different"),
        ([BARELY, BARELY], "unknown"),  # together they may err too often
        ([], "equal"),
    ],
)
def test_the_weakest_part_decides(verdicts: list[Verdict], outcome: Outcome) -> None:
    both = combined(verdicts)
    assert both.outcome == outcome
    assert (both.equal, both.different, both.unknown) == tuple(
        outcome == one for one in ("equal", "different", "unknown")
    )
    assert bool(both) == both.equal
    assert (both.witness is None) == (REFUTED not in verdicts)


@pytest.mark.parametrize(
    ("verdict", "word"),
    [(SURE, "equal: 16 random trials"), (REFUTED, "different ("), (OPEN, "unknown: neither")],
)
def test_it_says_its_word_first(verdict: Verdict, word: str) -> None:
    assert str(verdict).startswith(word)
    assert verdict.to_json()["equal"] == verdict.equal
