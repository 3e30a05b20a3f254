"""The axioms are proved; false ones are refuted with values."""

import json
from dataclasses import replace

import pytest

from superopt.rules.axioms import AXIOMS, Axiom
from superopt.rules.proofs import Proof, format_proofs, prove, prove_axioms, to_json
from superopt.rules.windows import WINDOW_AXIOMS

FALSE = {
    "reciprocal of a sum": ("(Inv (Add a b))", "(Add (Inv a) (Inv b))"),
    "sum of products": ("(Sum k (Mul a b))", "(Mul (Sum k a) (Sum k b))"),
    "root of a sum": ("(Sqrt (Add a b))", "(Add (Sqrt a) (Sqrt b))"),
    "root of a square": ("(Sqrt (Mul a a))", "a"),
    "exp of a product": ("(Exp (Mul a b))", "(Mul (Exp a) (Exp b))"),
    "exp of a negative": ("(Exp (Neg a))", "(Neg (Exp a))"),
    "swapped division": ("(Mul a (Inv b))", "(Mul b (Inv a))"),
    "max of a sum": ("(Max k (Add a b))", "(Add (Max k a) (Max k b))"),
    "max of a product": ("(Max k (Mul a b))", "(Mul (Max k a) (Max k b))"),
    "max and sum": ("(Sum j (Max k a))", "(Max k (Sum j a))"),
    "sum of reciprocals": ("(Sum k (Inv a))", "(Inv (Sum k a))"),
    "forgotten sum": ("(Sum k a)", "a"),
    "wrong axis": ("(Sum k (Sum j a))", "(Sum k (Sum k a))"),
    "distributed one way": ("(Mul a (Add b c))", "(Add (Mul a b) c)"),
    "constants added as multiplied": ("(Add (Const p) (Const q))", "(Const (* p q))"),
    "one more forgotten": ("(Add a (Mul (Const p) a))", "(Mul (Const p) a)"),
    "sum cancelled": ("(Add a (Neg b))", "(Const 0)"),
    "quotient cancelled": ("(Mul a (Inv b))", "(Const 1)"),
    "log of a sum": ("(Log (Add a b))", "(Add (Log a) (Log b))"),
    "log of a product": ("(Log (Mul a b))", "(Mul (Log a) (Log b))"),
    "log of an inverse": ("(Log (Inv a))", "(Inv (Log a))"),
    "log of a root": ("(Log (Sqrt a))", "(Mul (Const 2) (Log a))"),
    "larger of a negative": ("(Maximum (Neg a) (Neg b))", "(Neg (Maximum a b))"),
    "window of what is not 0 at 0": ("(Window w (Exp a))", "(Exp (Window w a))"),
    "window of any function": ("(Window w (Call1 f a))", "(Call1 f (Window w a))"),
    "window of a number": ("(Window w (Const 1))", "(Const 1)"),
    "window of a product with what it moves": ("(Window w (Mul a b))", "(Mul (Window w a) b)"),
    "window forgotten": ("(Window w a)", "a"),
    "windows in another order": ("(Window v (Window w a))", "(Window w (Window v a))"),
    "window of a sum along it": ("(Window w (Sum k a))", "(Sum k (Window w a))"),
    "window twice": ("(Window w (Window w a))", "(Window w a)"),
}


@pytest.fixture(scope="module")
def proofs() -> tuple[Proof, ...]:
    return prove_axioms()


def test_all_axioms_hold(proofs: tuple[Proof, ...]) -> None:
    assert [proof.axiom for proof in proofs] == [*AXIOMS, *WINDOW_AXIOMS]
    assert [proof.axiom.name for proof in proofs if not proof.holds] == []
    assert {proof.axiom.name for proof in proofs if proof.status == "definition"} == {
        "exp-of-add",
        "exp-of-zero",
        "log-of-exp",
        "log-of-inv",
        "log-of-one",
        "log-of-product",
        "log-of-sqrt",
        "sum-of-logs",
    }
    assert sum(proof.seconds for proof in proofs) < 60  # some seconds, on a machine that is busy as well


@pytest.mark.parametrize("name", FALSE)
def test_false_axioms_are_refuted(name: str) -> None:
    proof = prove(Axiom(name, *FALSE[name]))
    assert proof.status == "refuted"
    assert not proof.holds
    assert " is not " in proof.detail
    assert "=" in proof.detail


@pytest.mark.parametrize("axiom", [a for a in AXIOMS if a.lacks], ids=lambda axiom: axiom.name)
def test_guards_are_needed(axiom: Axiom) -> None:
    assert prove(axiom).status == "proved"
    proof = prove(replace(axiom, lacks=None))
    assert proof.status == "refuted"
    assert "k=1" in proof.detail


@pytest.mark.parametrize(
    ("name", "guard"),
    [
        (axiom.name, guard)
        for axiom in WINDOW_AXIOMS
        for guard in ("lacks", "apart", "keeps_zero")
        if getattr(axiom, guard)
    ],
)
def test_guards_of_windows_are_needed(name: str, guard: str) -> None:
    [axiom] = [axiom for axiom in WINDOW_AXIOMS if axiom.name == name]
    assert prove(axiom).status == "proved"
    assert prove(replace(axiom, **{guard: None})).status == "refuted"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("(Mul (Sum k a) (Sum k b))", "(Mul (Sum k b) (Sum k a))"),
        ("(Sum k (Neg (Neg a)))", "(Sum k a)"),
        ("(Max k (Maximum a a))", "(Max k a)"),
        ("(Mul (Inv (Sqrt a)) (Sqrt b))", "(Sqrt (Mul b (Inv a)))"),
        ("(Mul (Exp a) (Mul (Exp b) c))", "(Mul c (Exp (Add b a)))"),
    ],
)
def test_other_truths_are_proved(left: str, right: str) -> None:
    assert prove(Axiom("truth", left, right)).holds


def test_what_cannot_be_decided_is_not_claimed() -> None:
    proof = prove(Axiom("monotone", "(Max k (Exp a))", "(Exp (Max k a))"))
    assert proof.status == "unknown"
    assert not proof.holds
    proof = prove(Axiom("access", "(Access a)", "a"))
    assert (proof.status, proof.detail) == ("unknown", "Access has no meaning over the reals")


def test_table(proofs: tuple[Proof, ...]) -> None:
    text = format_proofs(proofs)
    lines = text.splitlines()
    assert len(lines) == len(AXIOMS) + len(WINDOW_AXIOMS) + 1
    for axiom, line in zip((*AXIOMS, *WINDOW_AXIOMS), lines[1:], strict=True):
        assert line.startswith(axiom.name)
        assert axiom.left in line
    assert "a lacks k" in text
    rows = json.loads(json.dumps(to_json(proofs)))
    assert [row["name"] for row in rows] == [axiom.name for axiom in (*AXIOMS, *WINDOW_AXIOMS)]
    assert set(rows[0]) >= {"name", "left", "right", "lacks", "status", "method", "detail", "ms"}
