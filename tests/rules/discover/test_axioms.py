"""Discovered rules as axioms of the search: which become one, and what the search finds with them."""

import json
from pathlib import Path

import pytest
import torch

from superopt.driver import SearchOptions, search
from superopt.errors import CheckpointError
from superopt.frontier.engine import explore
from superopt.rules.axioms import AXIOMS
from superopt.rules.discover.axioms import axiom_of, axioms_from
from superopt.rules.discover.discover import default_setting, discover
from superopt.rules.discover.language.rule import parse_rule
from superopt.rules.discover.store import SCHEMA, write_rules

SHIFT = "a[m, k] b[m, k] c[m, k]: max(add(a, b), add(a, c)) = add(a, max(b, c))"


def file_of(path: Path, *rules: str, status: str = "proven") -> Path:
    written = [{"name": f"r{at}", "rule": rule, "narrow": False} for at, rule in enumerate(rules)]
    entries = [{**rule, "status": status, "detail": ""} for rule in written]
    path.write_text(json.dumps({"schema": SCHEMA, "rules": entries, "dropped": [], "origin": {}}))
    return path


@pytest.mark.parametrize(
    ("rule", "left", "right", "oneway"),
    [
        (SHIFT, "(Maximum (Add a b) (Add a c))", "(Add a (Maximum b c))", False),
        (
            "a[m, n]: relu(relu(a)) = relu(a)",
            "(Maximum (Maximum a (Const 0)) (Const 0))",
            "(Maximum a (Const 0))",
            False,
        ),
        ("a[m, n] b[m, n]: add(a, max(b, b)) = add(a, b)", "(Add a (Maximum b b))", "(Add a b)", False),
        ("a[m, n]: log(exp(a)) = a", "(Log (Exp a))", "a", True),
        (
            "a[m, n] b[m, n]: div(a, exp(b)) = div(a, exp(b))",
            "(Mul a (Inv (Exp b)))",
            "(Mul a (Inv (Exp b)))",
            False,
        ),
    ],
)
def test_an_elementwise_rule_is_an_axiom(rule, left, right, oneway) -> None:
    axiom = axiom_of(parse_rule(rule))
    assert axiom is not None
    assert (axiom.left, axiom.right, axiom.oneway) == (left, right, oneway)


@pytest.mark.parametrize(
    "rule",
    [
        "a[m, k] b[k, n] c[n, p]: matmul(matmul(a, b), c) = matmul(a, matmul(b, c))",
        "a[m, n]: transpose(transpose(a)) = a",
        "a[m, n] b[m, n]: less(exp(a), exp(b)) = less(a, b)",
        "a[m, n] ones[m, n]: mul(a, ones) = a",
        "a[m, n] b[m, n]: relu(a), relu(b) = relu(a), relu(b)",
    ],
)
def test_other_rules_are_none(rule: str) -> None:
    assert axiom_of(parse_rule(rule)) is None


def test_only_what_is_proven_again_is_used(tmp_path: Path) -> None:
    wrong = "a[m, n] b[m, n]: max(add(a, b), b) = add(a, max(b, b))"
    assert [axiom.name for axiom in axioms_from(file_of(tmp_path / "a", SHIFT, wrong))] == ["discovered:r0"]
    assert axioms_from(file_of(tmp_path / "b", SHIFT, status="unknown")) == ()


def test_rules_of_undefined_sides_are_left_out(tmp_path: Path) -> None:
    rules = [
        "a[m, n]: square(sqrt(a)) = a",
        "a[m, n] b[m, n]: mul(div(a, b), b) = a",
        "a[m, n]: exp(log(a)) = a",
    ]
    assert all(axiom_of(parse_rule(one)) is not None for one in rules)
    assert axioms_from(file_of(tmp_path / "rules", *rules)) == ()


def shifted(x: torch.Tensor, y: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.maximum(x + c, y + c) - c


def best(rules: Path | None) -> list[str]:
    """Return the operators of the best graph that the search finds."""
    inputs = [torch.empty(512, 512, device="meta") for _ in range(3)]
    found = search(shifted, *inputs, options=SearchOptions(rules=rules, seed=0))
    [region] = found.regions
    return [step.op for step in region.found[0].graph.steps]


def test_a_discovered_axiom_that_was_missing_shortens_a_program(tmp_path: Path) -> None:
    assert not any({"Maximum", "Add"} <= set(axiom.left.replace("(", " ").split()) for axiom in AXIOMS)
    path = tmp_path / "rules.json"
    write_rules(discover(default_setting(3, ("add", "max")), 3, explore), path)
    assert (axiom_of(parse_rule(SHIFT)) or AXIOMS[0]).left in [axiom.left for axiom in axioms_from(path)]
    assert best(None) == ["add", "add", "maximum", "sub"]
    assert best(path) == ["maximum"]


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        search(
            shifted, *(torch.empty(8, 8) for _ in range(3)), options=SearchOptions(rules=tmp_path / "none")
        )
