"""Joint rules: two outputs that one operator makes at once, as two products from one with joined weights.

Each output alone is equal to a part of a larger tensor, which is no gain; both together are one operator run
once instead of twice. The parts of a split are the only tensors that one operator makes together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import inputs_of, renamed
from superopt.rules.discover.language.match import special_case_of
from superopt.rules.discover.language.rule import Rule, rule_of, rule_text
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.search.candidates import distinct_renamed, of_operands, of_terms
from superopt.rules.discover.search.terms import NOTHING, Terms, unpack

__all__ = ["joint_rules"]

Index = NDArray[np.int64]


def joint_rules(terms: Terms, seed: int) -> list[Rule]:
    """Return the rules by which two tensors are made as parts of one, most general ones only."""
    sizes = dict(terms.setting.inputs)
    _, firsts, classes = np.unique(terms.fingerprint_of, return_index=True, return_inverse=True)
    lead = firsts[classes]
    found: dict[str, Rule] = {}
    for first in _gaining(terms, lead).tolist():
        parts = terms.expression(int(lead[first])), terms.expression(int(lead[first + 1]))
        halves = terms.expression(first), terms.expression(first + 1)
        rule = rule_of("", parts, halves, sizes)
        if rule is None or _pattern(rule) in found or counterexample(rule, seed) is not None:
            continue
        found[_pattern(rule)] = rule
    return _most_general(list(found.values()))


def _gaining(terms: Terms, lead: Index) -> Index:
    """Return the first parts of splits of which both parts run the operator that the whole runs once.

    The whole is the first term of its value and joins nothing, and its parts are made otherwise without a
    split. Of those with other names for the same inputs there is one.
    """

    def terms_split(codes: Index, left: Index, right: Index) -> Index:
        """Return which terms have a split among their operators."""
        return terms.two_results(codes).astype(np.int64) | left | right

    operators = terms.setting.operators
    two = np.flatnonzero((terms.code_of != NOTHING) & (terms.part_of == 0) & terms.two_results(terms.code_of))
    _, whole, _ = unpack(terms.code_of[two])
    one, other = lead[two], lead[two + 1]
    good = (lead[whole] == whole) & (one != two) & (other != two + 1) & (one != other)
    joins = np.array([operator.joins is not None for operator in operators])
    ops = [
        np.where(terms.code_of[some] == NOTHING, NOTHING, unpack(terms.code_of[some])[0])
        for some in (whole, one, other)
    ]
    good &= (ops[0] != NOTHING) & ~joins[ops[0]] & (ops[1] == ops[0]) & (ops[2] == ops[0])
    two, one, other = two[good], one[good], other[good]
    known = of_operands(terms, np.zeros(len(terms.setting.inputs), dtype=np.int64), terms_split)
    split = of_terms(terms, one, known, terms_split) | of_terms(terms, other, known, terms_split)
    chosen = two[split == 0]
    distinct, _ = distinct_renamed(terms, chosen, chosen)
    named: Index = distinct[np.isin(distinct[:, 0], chosen), 0]
    return named


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
