"""Why: what a set of rules says of any equality."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from superopt.rules.discover.language.expressions import Apply, Expression, Input
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.proof.derive import Deriver, Effort

__all__ = ["matches", "special_case_of", "why"]

_EFFORT = Effort(rounds=6, nodes=8_000)


def why(rule: Rule, rules: Sequence[Rule], seed: int) -> str:
    """Return why an equality is no rule of its own beside these, or that nothing is known of it."""
    wrong = counterexample(rule, seed)
    if wrong is not None:
        return f"it is wrong: {wrong.text()}"
    general = special_case_of(rule, rules)
    if general is not None:
        return f"it is {general.name}, or a special case of it"
    if Deriver(rules).derives(rule, _EFFORT):
        return "it follows from the rules by saturation"
    return "no difference was found, and no derivation from the rules"


def special_case_of(rule: Rule, rules: Sequence[Rule]) -> Rule | None:
    """Return a rule of which this one is an instance, in either direction."""
    for general in rules:
        for left, right in ((rule.left, rule.right), (rule.right, rule.left)):
            if len(general.left) != len(left):
                continue
            pairs = zip((*general.left, *general.right), (*left, *right), strict=True)
            if any(matches(list(pairs), {})):
                return general
    return None


def matches(
    pairs: Sequence[tuple[Expression, Expression]], found: dict[str, Expression]
) -> Iterator[dict[str, Expression]]:
    """Yield each way to make patterns equal to expressions; operands that commute may change places."""
    if not pairs:
        yield found
        return
    (pattern, expression), rest = pairs[0], pairs[1:]
    if isinstance(pattern, Input):
        if found.get(pattern.name, expression) == expression:
            yield from matches(rest, {**found, pattern.name: expression})
        return
    if not isinstance(expression, Apply) or (pattern.op, pattern.part) != (expression.op, expression.part):
        return
    orders = [expression.args]
    if OPERATORS[pattern.op].commutative and expression.args[0] != expression.args[1]:
        orders.append(expression.args[::-1])
    for args in orders:
        yield from matches([*zip(pattern.args, args, strict=True), *rest], found)
