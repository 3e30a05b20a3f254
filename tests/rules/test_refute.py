"""The invariants of terms are a model of the axioms: equal for equal terms, a part's inside the whole's."""

import random
from itertools import product

import pytest

from superopt.rules.axioms import Axiom, axioms_between_terms
from superopt.rules.patterns import Pattern, parse_pattern, variables
from superopt.rules.refute import Polynomial, TooLargeError, apply, atom, axes_of, inside, occurs

X, Y, Z = atom("leaf", 0, axes=1), atom("leaf", 1, axes=3), atom("leaf", 2, axes=0)


def term(text: str) -> Polynomial:
    """Return the invariant of an expression over x (axis 0), y (axes 0, 1) and z (no axis)."""
    return value_of(parse_pattern(text), {"x": X, "y": Y, "z": Z}, {"0": 0, "1": 1})


def value_of(pattern: Pattern, terms: dict[str, Polynomial], axes: dict[str, int]) -> Polynomial:
    if isinstance(pattern, str):
        return terms[pattern]
    name, *rest = pattern
    assert isinstance(name, str)
    attr = axes[str(rest.pop(0))] if name in ("Sum", "Max") else 0
    return apply(name.lower(), attr, tuple(value_of(part, terms, axes) for part in rest))


POOL = tuple(
    term(text)
    for text in (
        "x",
        "y",
        "z",
        "(Exp x)",
        "(Add (Exp y) x)",
        "(Inv (Add x (Mul x z)))",
        "(Sum 0 (Mul x y))",
        "(Add x (Sum 0 x))",
        "(Mul (Mul x x) (Add y z))",
        "(Max 0 (Add x y))",
        "(Maximum x (Max 1 y))",
        "(Sqrt (Add (Exp x) y))",
        "(Call1 (Add x z))",
        "(Mul (Sum 0 (Exp x)) (Exp z))",
        "(Inv (Sum 1 (Exp (Sum 0 y))))",
    )
)


def counterexample(axiom: Axiom) -> str | None:
    """Return values of the pool for which the sides of an axiom have different invariants."""
    left, right = parse_pattern(axiom.left), parse_pattern(axiom.right)
    names, axes = variables(left)
    for values in product(POOL, repeat=len(names)):
        terms = dict(zip(names, values, strict=True))
        for numbers in product((0, 1), repeat=len(axes)):
            bound = dict(zip(axes, numbers, strict=True))
            if axiom.lacks and axes_of(terms[axiom.lacks[0]]) >> bound[axiom.lacks[1]] & 1:
                continue
            if value_of(left, terms, bound) != value_of(right, terms, bound):
                return f"{terms} {bound}"
    return None


# A goal with a reciprocal directly in a reciprocal refutes nothing, so this axiom never applies.
MODELLED = [axiom for axiom in axioms_between_terms() if axiom.name != "inv-of-inv"]


@pytest.mark.parametrize("axiom", MODELLED, ids=lambda axiom: axiom.name)
def test_axioms_preserve_the_invariant(axiom: Axiom) -> None:
    assert counterexample(axiom) is None


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("(Sum k (Mul a b))", "(Mul a (Sum k b))"),
        ("(Mul a a)", "a"),
        ("(Add a b)", "(Mul a b)"),
        ("(Exp (Mul a b))", "(Mul (Exp a) (Exp b))"),
        ("(Inv (Add a b))", "(Add (Inv a) (Inv b))"),
        ("(Sum j (Max k a))", "(Max k (Sum j a))"),
    ],
)
def test_the_pool_sees_false_axioms(left: str, right: str) -> None:
    assert counterexample(Axiom("false", left, right)) is not None


def occurs_in(part: Polynomial, whole: Polynomial) -> bool:
    pending, seen = [whole], set()
    while pending:
        view = pending.pop()
        if view not in seen:
            seen.add(view)
            pending.extend(inside(view))
    return any(occurs(part, view) for view in seen)


@pytest.mark.parametrize("seed", range(8))
def test_a_part_occurs_in_the_whole(seed: int) -> None:
    """Whatever is built around a value, its invariant is found inside."""
    choose = random.Random(seed)
    unary, binary = ("inv", "sqrt", "exp", "sum", "max", "call1", "neg"), ("add", "mul", "maximum")

    def wrapped(value: Polynomial, layers: int) -> Polynomial:
        for _ in range(layers):
            op = choose.choice((*unary, *binary, *binary))
            args = (value,) if op in unary else (value, choose.choice(POOL))
            value = apply(op, choose.randrange(2), args)
        return value

    for _ in range(1500):
        try:
            part = wrapped(choose.choice(POOL), choose.randrange(3))
            whole = wrapped(part, choose.randrange(1, 5))
        except TooLargeError:
            continue
        assert occurs_in(part, whole)


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("(Mul x (Mul x x))", "(Mul x x)"),
        ("(Sum 1 y)", "(Sum 0 y)"),
        ("(Exp z)", "(Mul z (Exp x))"),
        ("(Mul x z)", "(Mul z (Exp x))"),
        ("(Add x z)", "(Mul x z)"),
        ("(Mul x z)", "(Mul z (Inv (Add x y)))"),
        ("(Sqrt z)", "(Mul z (Sqrt x))"),
    ],
)
def test_what_is_no_part_does_not_occur(part: str, whole: str) -> None:
    assert not occurs_in(term(part), term(whole))
