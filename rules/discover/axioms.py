"""Discovered rules as axioms of the search: rules of elementwise operators alone say something of its terms.

Each such rule is proven once more, over the reals and from its text as an axiom, and numbers are drawn for it
once more, since the proof says nothing of places where one side is undefined. What does not hold is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from superopt.rules.axioms import Axiom
from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import Apply, Expression, Input, inputs_of
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.store import read_rules
from superopt.rules.patterns import parse_pattern, variables

__all__ = ["axiom_of", "axioms_from"]

_TERMS: dict[str, Callable[..., str]] = {
    "add": "(Add {} {})".format,
    "mul": "(Mul {} {})".format,
    "div": "(Mul {} (Inv {}))".format,
    "exp": "(Exp {})".format,
    "log": "(Log {})".format,
    "sqrt": "(Sqrt {})".format,
    "square": "(Mul {0} {0})".format,
    "max": "(Maximum {} {})".format,
    "relu": "(Maximum {} (Const 0))".format,
    "abs": "(Maximum {0} (Neg {0}))".format,
}
"""Operators on elements as terms of the search."""


def axiom_of(rule: Rule) -> Axiom | None:
    """Return a rule as an axiom, None where its operators or its form have no place among these."""
    if len(rule.left) != 1 or not rule.names or not rule.names <= _TERMS.keys():
        return None
    if any(constant_named(name) is not None for name, _ in rule.inputs):
        return None
    sides = sorted((rule.left[0], rule.right[0]), key=lambda side: -len(inputs_of(side)))
    if not isinstance(sides[0], Apply) or not set(inputs_of(sides[0])) >= set(inputs_of(sides[1])):
        return None
    left, right = map(_term, sides)
    terms = [set(variables(parse_pattern(side))[0]) for side in (left, right)]
    # No way back from a side that lacks a variable, or is nothing but one: it would apply to every term.
    oneway = terms[0] != terms[1] or isinstance(sides[1], Input)
    return Axiom(f"discovered:{rule.name}", left, right, oneway=oneway)


def _term(expression: Expression) -> str:
    if isinstance(expression, Input):
        return expression.name
    return _TERMS[expression.op](*map(_term, expression.args))


def axioms_from(path: Path) -> tuple[Axiom, ...]:
    """Return the axioms that the proven rules of a file make."""
    return tuple(_proven(path))


def _proven(path: Path) -> Iterator[Axiom]:
    from superopt.rules.discover.proof.check import counterexample
    from superopt.rules.proofs import prove

    for rule, proof in read_rules(path).rules:
        axiom = axiom_of(rule) if proof.status == "proven" else None
        if axiom is not None and counterexample(rule, 0) is None and prove(axiom).holds:
            yield axiom
