"""Matching: where a rule applies, and what its inputs and sizes stand for there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import Apply, Expression, Input, shape_of
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.language.shapes import Shape, Word, atoms, replaced

__all__ = ["Match", "joined", "matches", "sizes_of", "special_case_of"]

Pairs = Sequence[tuple[Expression, Expression]]


@dataclass(frozen=True, slots=True)
class Match:
    """What the inputs of a pattern stand for, and where its splits cut."""

    inputs: Mapping[str, Expression] = field(default_factory=dict)
    cuts: Mapping[Word, Word] = field(default_factory=dict)


_NOTHING = Match()


def matches(pairs: Pairs, match: Match = _NOTHING) -> Iterator[Match]:
    """Yield each way to make patterns equal to expressions; operands that commute may change places."""
    if not pairs:
        yield match
        return
    (pattern, expression), rest = pairs[0], pairs[1:]
    if isinstance(pattern, Input):
        if not _may_stand_for(pattern, expression):
            return
        if match.inputs.get(pattern.name, expression) == expression:
            yield from matches(rest, Match({**match.inputs, pattern.name: expression}, match.cuts))
        return
    if not isinstance(expression, Apply) or (pattern.op, pattern.part) != (expression.op, expression.part):
        return
    if match.cuts.get(pattern.at, expression.at) != expression.at:
        return
    known = Match(match.inputs, {**match.cuts, pattern.at: expression.at})
    orders = [expression.args]
    if OPERATORS[pattern.op].commutative and expression.args[0] != expression.args[1]:
        orders.append(expression.args[::-1])
    for args in orders:
        yield from matches([*zip(pattern.args, args, strict=True), *rest], known)


def _may_stand_for(pattern: Input, expression: Expression) -> bool:
    """Return whether an expression is what an input of a rule asks for, which may be a constant."""
    constant = constant_named(pattern.name)
    if constant is None:
        return True
    return isinstance(expression, Input) and constant_named(expression.name) is constant


def sizes_of(rule: Rule, match: Match, shapes: Mapping[str, Shape]) -> dict[str, Word] | None:
    """Return what the sizes of a rule stand for, None where shapes are not as the rule states them."""
    sizes = {word[0]: cut for word, cut in match.cuts.items() if len(word) == 1 and not word[0].isdigit()}
    pairs = [*match.cuts.items()]
    for name, shape in rule.inputs:
        if name in match.inputs:
            actual = shape_of(match.inputs[name], shapes)
            if len(actual) != len(shape):
                return None
            pairs += zip(shape, actual, strict=True)
    # A size that is computed from others is compared once these are known.
    for word, given in sorted(pairs, key=lambda pair: "(" in "".join(pair[0])):
        unknown = [symbol for symbol in word if any(atom not in sizes for atom in atoms(symbol))]
        if len(unknown) > 1 or any("(" in symbol for symbol in unknown):
            return None
        if unknown:
            at = word.index(unknown[0])
            before, after = joined(word[:at], sizes), joined(word[at + 1 :], sizes)
            sizes[unknown[0]] = given[len(before) : len(given) - len(after)]
        if not all(sizes[atom] for symbol in word for atom in atoms(symbol)) or joined(word, sizes) != given:
            return None
    return sizes


def joined(word: Word, sizes: Mapping[str, Word]) -> Word:
    """Return the word that a word of a rule stands for."""
    found: list[str] = []
    for one in word:
        found += sizes[one] if one in sizes else [replaced(one, lambda atom: "+".join(sizes[atom]))]
    return tuple(found)


def special_case_of(rule: Rule, rules: Sequence[Rule]) -> Rule | None:
    """Return a rule of which this one is an instance, in either direction."""
    for general in rules:
        for left, right in ((rule.left, rule.right), (rule.right, rule.left)):
            if len(general.left) != len(left):
                continue
            pairs = [*zip((*general.left, *general.right), (*left, *right), strict=True)]
            if any(sizes_of(general, match, rule.shapes) is not None for match in matches(pairs)):
                return general
    return None
