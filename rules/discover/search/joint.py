"""Joint rules: two outputs that one operator makes at once, as two products from one with joined weights.

Each output alone is equal to a part of a larger tensor, which is no gain; both together are one operator run
once instead of twice. The parts of a split are the only tensors that one operator makes together.
"""

from __future__ import annotations

import numpy as np

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import Apply, Expression, inputs_of, renamed
from superopt.rules.discover.language.match import special_case_of
from superopt.rules.discover.language.rule import Rule, rule_of, rule_text
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.search.terms import NOTHING, Terms, unpack

__all__ = ["joint_rules"]


def joint_rules(terms: Terms, seed: int) -> list[Rule]:
    """Return the rules by which two tensors are made as parts of one, most general ones only."""
    sizes = dict(terms.setting.inputs)
    _, firsts, classes = np.unique(terms.fingerprint_of, return_index=True, return_inverse=True)
    lead = firsts[classes]
    two = np.flatnonzero((terms.code_of != NOTHING) & (terms.part_of == 0) & terms.two_results(terms.code_of))
    _, whole, _ = unpack(terms.code_of[two])
    # The tensor that is split is the first of its value, and both of its parts are made by another way.
    good = (lead[whole] == whole) & (lead[two] != two) & (lead[two + 1] != two + 1)
    found: dict[str, Rule] = {}
    for first, source in zip(two[good], whole[good], strict=True):
        parts = terms.expression(int(lead[first])), terms.expression(int(lead[first + 1]))
        halves = terms.expression(int(first)), terms.expression(int(first + 1))
        if not _gains(parts, terms.expression(int(source))):
            continue
        rule = rule_of("", parts, halves, sizes)
        if rule is None or counterexample(rule, seed) is not None:
            continue
        found.setdefault(_pattern(rule), rule)
    return _most_general(list(found.values()))


def _gains(parts: tuple[Expression, Expression], source: Expression) -> bool:
    """Return whether both parts run the operator that the whole runs once, on other inputs."""
    return (
        isinstance(source, Apply)
        and not source.op.startswith("concat")
        and all(isinstance(part, Apply) and part.op == source.op for part in parts)
        and parts[0] != parts[1]
        and not any("split" in text for text in map(repr, parts))
    )


def _pattern(rule: Rule) -> str:
    """Return a rule as text with its inputs named in the order in which they first occur."""
    names = inputs_of(*rule.left, *rule.right)
    scalars = {name for name, shape in rule.inputs if not shape}
    fresh = {
        name: f"{'s' if name in scalars else 'x'}{number}" if constant_named(name) is None else name
        for number, name in enumerate(names)
    }
    return rule_text(
        Rule(
            "",
            tuple((fresh[name], shape) for name, shape in rule.inputs),
            tuple(renamed(one, fresh) for one in rule.left),
            tuple(renamed(one, fresh) for one in rule.right),
        )
    )


def _most_general(rules: list[Rule]) -> list[Rule]:
    """Return rules that are no special case of another, with the most inputs first."""
    kept: list[Rule] = []
    for rule in sorted(rules, key=lambda rule: (-len(rule.inputs), rule_text(rule))):
        if special_case_of(rule, kept) is None:
            kept.append(rule)
    return kept
