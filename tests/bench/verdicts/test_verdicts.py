"""The command: its table, its exit codes, and the way back to a single pair."""

import json
from pathlib import Path

import pytest

from superopt.bench.verdicts import answers, command
from superopt.bench.verdicts.answers import Answer, ask, seed_of
from superopt.bench.verdicts.pairs import Pair
from superopt.errors import TraceError
from superopt.verify.verdict import Verdict


def says(monkeypatch: pytest.MonkeyPatch, word: str, itself: str = "equal") -> None:
    """Let the verifier say one word of all pairs, and another one of a program against itself."""

    def equivalent(f: object, g: object, *inputs: object, seed: int, floats: bool) -> Verdict:
        return Verdict("equal", error_bound=0.0) if f is g and itself == "equal" else Verdict(word)  # type: ignore[arg-type]

    monkeypatch.setattr("superopt.equivalent", equivalent)


PAIR = Pair("a pair", lambda x: x + x, lambda x: 2 * x, "f32[3]", family="pointwise")


@pytest.mark.parametrize(
    ("truth", "said", "wrong"),
    [
        ("equal", "equal", False),
        ("equal", "unknown", False),
        ("equal", "different", True),
        ("different", "equal", True),
        ("different", "unknown", False),
        ("different", "error", True),
        ("equal", "refused", False),
        ("undecided", "", False),
    ],
)
def test_what_is_wrong(truth: str, said: str, wrong: bool) -> None:
    assert Answer("a", "b", truth, said, "equal", "", 0.0).wrong == wrong


def test_a_program_that_does_not_equal_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, "unknown", itself="unknown")
    answer = ask(PAIR, 0)
    assert not answer.wrong
    assert answer.broken
    assert "against itself: unknown" in answer.reason


def test_an_exception_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def equivalent(*_: object, seed: int, floats: bool) -> Verdict:
        raise KeyError("x")

    monkeypatch.setattr("superopt.equivalent", equivalent)
    answer = ask(PAIR, 0)
    assert answer.wrong
    assert "KeyError" in answer.reason


def test_a_refusal_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def equivalent(*_: object, seed: int, floats: bool) -> Verdict:
        raise TraceError("a view is written")

    monkeypatch.setattr("superopt.equivalent", equivalent)
    answer = ask(PAIR, 0)
    assert (answer.said, answer.same, answer.broken, answer.open) == ("refused", "refused", False, True)


def test_each_pair_has_a_seed_of_its_own() -> None:
    assert seed_of("a", 1) == seed_of("a", 1)
    assert len({seed_of("a", 1), seed_of("b", 1), seed_of("a", 2)}) == 3


@pytest.mark.parametrize(("word", "code"), [("equal", 0), ("unknown", 0), ("different", 1)])
def test_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str, code: int
) -> None:
    says(monkeypatch, word)
    assert command.main(["--only", "relu as where", "--seed", "7"]) == code
    out = capsys.readouterr().out
    assert "seed 7" in out
    assert ('again: python -m bench.verdicts --only "relu as where" --seed 7' in out) == bool(code)


def test_the_table_and_the_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    says(monkeypatch, "unknown")
    place = tmp_path / "verdicts.json"
    assert command.main(["--family", "losses", "--list", "--seed", "1", "--json", str(place)]) == 0
    out = capsys.readouterr().out
    assert "unknown of true equalities, idioms: 100.0%" in out
    assert "unknown: [losses] Huber" in out
    document = json.loads(place.read_text())
    assert document["cases"]["losses/equal"]["unknown"] == document["cases"]["losses/equal"]["pairs"]
    assert document["settings"]["seed"] == 1
    assert not document["broken"]


def test_random_pairs_are_numbered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says(monkeypatch, "different")
    assert command.main(["--only", "random 4", "--seed", "7"]) == 1
    assert "WRONG: 'random 4' is equal, called different" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "no such pair"], "--only has no 'no such pair'"),
        (["--only", "random x"], "--only has no 'random x'"),
        (["--family", "nowhere"], "--family has no 'nowhere'; there are attention,"),
        (["--json", "/nowhere/a.json"], "there is no folder"),
        (["--pairs", "-1"], "not a whole number"),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_all_names_are_known() -> None:
    assert len(answers.known()) > 800
