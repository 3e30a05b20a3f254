"""Use: files of rules are read with care, programs are rewritten to equal ones, the command line says why."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from superopt.cli import main
from superopt.errors import CheckpointError
from superopt.frontier.engine import explore
from superopt.rules.discover.apply import Program, rewritten
from superopt.rules.discover.discover import default_setting, discover
from superopt.rules.discover.language.rule import Rule, parse_program, parse_rule, rule_text
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.store import read_rules, text_of_rules, write_rules

JOINT = (
    "a[m, k] w[k, n] v[k, p]: matmul(a, w), matmul(a, v) = "
    "split_cols(matmul(a, concat_cols(w, v)), n)[0], split_cols(matmul(a, concat_cols(w, v)), n)[1]"
)
RULES = [
    parse_rule(text, name=str(number))
    for number, text in enumerate(
        [
            "a[m, k] w[k, n] v[k, n]: add(matmul(a, w), matmul(a, v)) = matmul(a, add(w, v))",
            "a[m, n]: transpose(transpose(a)) = a",
            "a[m, n] b[p, n]: split_rows(concat_rows(a, b), m)[0] = a",
            "a[m+k, n] b[n, p]: split_rows(matmul(a, b), m)[0] = matmul(split_rows(a, m)[0], b)",
            "a[m, n]: relu(relu(a)) = relu(a)",
            JOINT,
        ]
    )
]


def test_a_file_says_what_was_found(tmp_path: Path) -> None:
    found = discover(default_setting(2, ("relu", "transpose", "split_rows")), 2, explore)
    write_rules(found, tmp_path / "rules.json")
    assert (tmp_path / "rules.json").read_text(encoding="utf-8") == text_of_rules(found)
    file = read_rules(tmp_path / "rules.json")
    assert file.rules == found.rules
    assert file.dropped == found.dropped
    assert file.origin["operators"] == ["relu", "transpose", "split_rows"]


def spoiled(tmp_path: Path, change: Callable[[dict], object]) -> Path:
    path = tmp_path / "rules.json"
    write_rules(discover(default_setting(1, ("relu", "transpose")), 2, explore), path)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


DEEP = f"a[m, n]: {'relu(' * 9000}a{')' * 9000} = a"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda document: document.update(schema="superopt.plan/1"), "schema"),
        (lambda document: document.pop("rules"), "no file of rules"),
        (lambda document: document["rules"][0].update(rule="a[m, n]: transpose(a) = a"), "is none"),
        (lambda document: document["rules"][0].update(status="certain"), "status"),
        (lambda document: document["rules"][0].update(rule=7), "no file of rules"),
        (lambda document: document["rules"][0].update(rule=DEEP), "no file of rules"),
        (lambda document: document.update(origin=3), "no file of rules"),
        (lambda document: document.update(dropped=[1]), "no file of rules"),
    ],
)
def test_a_spoiled_file_is_refused(tmp_path: Path, change: Callable[[dict], object], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        read_rules(spoiled(tmp_path, change))


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "null", '"text"', "[" * 100_000])
def test_what_is_no_document_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rules.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError):
        read_rules(path)


PROGRAMS = {
    "a[m, k] w[k, n] v[k, p]: matmul(a, w), matmul(a, v)": (2, 3),
    "a[m, k] w[k, n] v[k, n]: add(matmul(a, v), matmul(a, w))": (3, 2),
    "a[m, n]: relu(transpose(transpose(relu(a))))": (4, 1),
    "a[m, n] b[p, n] c[n, q]: split_rows(matmul(concat_rows(a, b), c), m)[0]": (3, 1),
}


@pytest.mark.parametrize("text", PROGRAMS)
def test_programs_become_equal_ones(text: str) -> None:
    program = Program(*parse_program(text))
    made = list(rewritten(program, RULES, steps=3, most=200))
    given, best = PROGRAMS[text]
    assert program.operators == given
    assert min(one.program.operators for one in made) <= best
    for one in made:
        same = Rule("", program.inputs, program.outputs, one.program.outputs)
        assert counterexample(same, int(np.random.default_rng(0).integers(99))) is None, one
        assert one.rules


@pytest.mark.parametrize(
    "text",
    [
        "a[m, k] w[k, n] v[n, p]: matmul(a, w), matmul(w, v)",  # not the same factor
        "a[m, n] b[p, n]: split_rows(concat_rows(b, a), p)[1]",
        "a[m+q, n] b[p, n]: split_rows(concat_rows(a, b), m)[0]",  # cut within the first part
    ],
)
def test_rules_do_not_apply_elsewhere(text: str) -> None:
    rules = [rule for rule in RULES if rule.name in ("2", "5")]
    program = Program(*parse_program(text))
    assert list(rewritten(program, rules, steps=1, most=10)) == []


def test_the_command_line_goes_from_graphs_to_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "rules.json")
    names = "relu,transpose,concat_rows,split_rows"
    assert main(["rules", "discover", "--size", "2", "--operators", names, "-o", file]) == 0
    out = capsys.readouterr().out
    assert "graphs made" in out
    assert "proven; written to" in out
    assert main(["rules", "show", file]) == 0
    assert "transpose(transpose(a)) = a" in capsys.readouterr().out
    assert main(["rules", "show", file, "--dropped"]) == 0
    assert "follows from" in capsys.readouterr().out
    assert main(["rules", "show", file, "--why", "a[m, n]: relu(a) = a"]) == 0
    assert capsys.readouterr().out.startswith("it is wrong: output 0")
    assert main(["rules", "check", file]) == 0
    assert "each holds at small sizes" in capsys.readouterr().out
    assert main(["rules", "apply", file, "a[m, n]: relu(transpose(transpose(a)))", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["given_operators"] == 3
    assert document["found"][0]["operators"] == 1
    assert main(["rules", "apply", file, "a[m, n] b[m, n]: mul(a, b)", "--steps", "1", "--most", "1"]) in (
        0,
        1,
    )


def test_a_wrong_rule_in_a_file_is_refuted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = rule_text(parse_rule("a[m, n]: relu(transpose(a)) = transpose(a)"))
    path = spoiled(tmp_path, lambda document: document["rules"][0].update(rule=rule))
    assert main(["rules", "check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "refuted" in out
    assert " against " in out
    assert main(["rules", "apply", str(path), "a[m, n]: relu(transpose(a))"]) == 2
    err = capsys.readouterr().err
    assert "is false" in err
    assert " against " in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["show", "nothing.json"], "cannot read"),
        (["check", "nothing.json"], "cannot read"),
        (["discover", "--operators", "gelu", "-o", "rules.json"], "no operator 'gelu'"),
        (["discover", "--operators", ",", "-o", "rules.json"], "names none"),
        (["discover", "--size", "0", "-o", "rules.json"], "at least 1"),
        (["discover", "-o", "missing/rules.json"], "no folder"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rules", *arguments]) == 2
    assert complaint in capsys.readouterr().err
