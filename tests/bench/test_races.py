"""Planted races: what counts as wrong, and that the races are those of `optimize`."""

import json
from pathlib import Path

import pytest

from superopt.bench.races import command as races
from superopt.bench.races.command import counts, main, outcome
from superopt.rivals.final import FinalRace
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead


def decided(speed: float, *, sure: bool = True) -> FinalRace:
    """Return a race in which ours has some speed, both times that it is measured."""
    ours, theirs = (Measurement(us, us, us, 100) for us in (100.0, 100.0 * speed))
    times = {"superopt": ours, "eager": theirs}
    winner, loser = ("superopt", "eager") if speed > 1 else ("eager", "superopt")
    won = HeadToHead(winner, loser, max(speed, 1 / speed), 0.9, sure, times, (0.9, 2.0))
    return FinalRace({}, times, won)


@pytest.mark.parametrize(
    ("more", "speed", "sure", "wrong", "found"),
    [
        (-0.3, 1.4, True, False, True),
        (-0.3, 1.4, False, False, False),  # undecided: PyTorch stays, which is not wrong
        (-0.3, 0.8, True, False, False),
        (0.0, 1.4, True, True, False),
        (0.3, 1.4, True, True, False),
        (0.3, 1.4, False, False, False),
        (0.3, 0.8, True, False, False),
    ],
)
def test_a_decision_is_wrong_where_no_less_work_is_taken_for_faster(
    more: float, speed: float, sure: bool, wrong: bool, found: bool
) -> None:
    record = outcome(decided(speed, sure=sure), more)
    assert (record["wrong"], record["found"]) == (wrong, found)
    assert counts({"0": record})["wrong"] == wrong


def test_races_are_held_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(races, "PLANTED", (1.0,))
    out = tmp_path / "races.json"
    assert main(["--races", "2", "--busy", "0", "--seconds", "0.05", "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["races"] == 2
    assert document["wrong"] == 0
    assert "0 of 2 decisions are wrong" in capsys.readouterr().out


def test_a_wrong_decision_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(races, "race", lambda more, seconds: decided(1.5))
    out = tmp_path / "races.json"
    assert main(["--races", "6", "--busy", "0", "--json", str(out)]) == 1
    assert json.loads(out.read_text())["wrong"] == sum(more >= 0 for more in races.PLANTED)
