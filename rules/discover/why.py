"""Why: what a set of rules says of any equality."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.rules.discover.language.match import special_case_of
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.proof.derive import Deriver, Effort

__all__ = ["why"]

_EFFORT = Effort(rounds=6, nodes=8_000)


def why(rule: Rule, rules: Sequence[Rule], seed: int) -> str:
    """Return why an equality is no rule of its own beside these, or that nothing is known of it."""
    wrong = counterexample(rule, seed)
    if wrong is not None:
        return f"it is wrong: {wrong.text()}"
    general = special_case_of(rule, rules)
    if general is not None:
        return f"it is {general.name}, or a special case of it"
    names = rule.names.union(*(known.names for known in rules))
    if Deriver(rules, names=names).derives(rule, _EFFORT):
        return "it follows from the rules by saturation"
    return "no difference was found, and no derivation from the rules"
