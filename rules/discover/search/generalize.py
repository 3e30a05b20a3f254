"""Generalization: from an equality of few inputs to one of more, of which it is a special case.

Graphs are made of few inputs of a kind, so an equality of four matrices is met where two of them are one, or
where one is a constant. Each occurrence of an input on one side goes with one on the other side; where the
equality still holds with an input of its own for each of these pairs, that is the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import Apply, Expression, Input, inputs_of, renamed
from superopt.rules.discover.language.rule import Rule, rule_of
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.search.terms import Units

__all__ = ["General", "generalized", "original"]

_MOST = 3  # occurrences of an input on a side; there are as many orders as their permutations
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_Sides = tuple[Expression, Expression]


@dataclass(frozen=True, slots=True)
class General:
    """A rule, and its sides with inputs whose names say which inputs of the search they are like."""

    rule: Rule
    sides: _Sides


def original(name: str) -> str:
    """Return the input of the search that an input of a general side is like."""
    return name.partition("_")[0]


def generalized(rule: Rule, sides: _Sides, sizes: Mapping[str, Units], seed: int) -> General:
    """Return the most general rule that was found to have this one as a special case."""
    found = General(rule, sides)
    for name in inputs_of(*sides):
        for wider in _wider(name, found.sides):
            more = _rule(wider, sizes)
            if more is not None and more.narrow <= rule.narrow and counterexample(more, seed) is None:
                found = General(more, wider)
                break
    return General(_plainly_named(found.rule), found.sides)


def _wider(name: str, sides: _Sides) -> Iterator[_Sides]:
    """Yield sides in which a constant is any tensor, or an input is another one wherever it occurs."""
    if constant_named(name) is not None:
        yield _with_names(sides, name, [[f"{name}_0"] * _count(side, name) for side in sides])
        return
    left, right = (_count(side, name) for side in sides)
    if left == right and 1 < left <= _MOST:
        names = [f"{name}_{at}" for at in range(left)]
        for order in permutations(names):
            yield _with_names(sides, name, [names, order])


def _count(side: Expression, name: str) -> int:
    if isinstance(side, Input):
        return int(side.name == name)
    return sum(_count(arg, name) for arg in side.args)


def _with_names(sides: _Sides, name: str, names: Sequence[Sequence[str]]) -> _Sides:
    """Return sides in which each occurrence of an input has another name."""

    def changed(side: Expression, free: Iterator[str]) -> Expression:
        if isinstance(side, Input):
            return Input(next(free)) if side.name == name else side
        return Apply(side.op, tuple(changed(arg, free) for arg in side.args), side.part, side.at)

    left, right = (changed(side, iter(some)) for side, some in zip(sides, names, strict=True))
    return left, right


def _rule(sides: _Sides, sizes: Mapping[str, Units]) -> Rule | None:
    names = inputs_of(*sides)
    return rule_of("", sides[:1], sides[1:], {name: sizes[original(name)] for name in names})


def _plainly_named(rule: Rule) -> Rule:
    """Return a rule whose inputs have names of one letter where those were made up."""
    used = {name for name, _ in rule.inputs}
    free = iter([letter for letter in _LETTERS if letter not in used])
    names = {name: next(free) if "_" in name else name for name, _ in rule.inputs}
    return Rule(
        rule.name,
        tuple((names[name], shape) for name, shape in rule.inputs),
        tuple(renamed(one, names) for one in rule.left),
        tuple(renamed(one, names) for one in rule.right),
        rule.narrow,
    )
