"""Pruning: from all equalities that were found, keep the ones that imply the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from superopt.rules.discover.language.expressions import Apply, Expression, text_of
from superopt.rules.discover.language.rule import Rule, rule_of, rule_text
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.proof.derive import Deriver, Effort
from superopt.rules.discover.search.candidates import Candidates
from superopt.rules.discover.search.congruence import Congruence
from superopt.rules.discover.search.terms import Terms

__all__ = ["Dropped", "Pruned", "named", "prune"]

_GENERAL = "follows from more general rules"
_EFFORT = Effort(rounds=4, nodes=2_000)
_THOROUGH = Effort(rounds=6, nodes=8_000)


@dataclass(frozen=True, slots=True)
class Dropped:
    """An equality that is no rule of its own, and why."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """The rules kept, the equalities dropped one by one, and how many were dropped together."""

    rules: tuple[Rule, ...]
    dropped: tuple[Dropped, ...]
    closed: int  # equalities that followed among the terms by congruence with the rules kept before


def prune(terms: Terms, candidates: Candidates, seed: int, tell: Callable[[int, int], None]) -> Pruned:
    """Return the rules from which all candidates follow, general ones first.

    A candidate is dropped where the rules kept before make its sides equal: among all terms of the search, or
    by saturation of its own two sides, which also passes through larger terms. Among the terms all sizes are
    alike, so narrow rules come last there: no other rule may seem to follow from them.
    """
    work = _Pruning(terms, seed, tell)
    pairs = list(zip(candidates.lefts.tolist(), candidates.rights.tolist(), strict=True))
    for narrow in (False, True):
        pairs = work.considered(pairs, narrow=narrow)
    work.drop_what_follows()
    work.restore_what_is_missed()
    return Pruned(tuple(named(tuple(work.kept.values()))), tuple(work.dropped), work.closed)


class _Pruning:
    """The rules kept so far, and what follows from them."""

    def __init__(self, terms: Terms, seed: int, tell: Callable[[int, int], None]) -> None:
        self.kept: dict[int, Rule] = {}  # by their numbers in the deriver
        self.dropped: list[Dropped] = []
        self.closed = 0
        self._followed: list[Rule] = []
        self._terms = terms
        self._seed = seed
        self._tell = tell
        self._sizes = dict(terms.setting.inputs)
        self._congruence = Congruence(terms)
        self._deriver = Deriver()

    def considered(self, pairs: Sequence[tuple[int, int]], *, narrow: bool) -> list[tuple[int, int]]:
        """Keep or drop pairs in order; return the pairs that wait, since they make narrow rules."""
        waiting = []
        for at, (left, right) in enumerate(pairs):
            if self._congruence.joined(left, right):
                self.closed += 1
                continue
            self._tell(at, len(self.kept))
            sides = self._terms.expression(left), self._terms.expression(right)
            rule = rule_of("", sides[:1], sides[1:], self._sizes)
            if rule is not None and rule.narrow and not narrow:
                waiting.append((left, right))
            elif (reason := self._reason(rule)) is not None:
                shown = rule_text(rule) if rule is not None else " = ".join(map(text_of, sides))
                self.dropped.append(Dropped(shown, reason))
                if rule is not None and reason == _GENERAL:  # its instances follow as well
                    self._followed.append(rule)
                    self._congruence.apply(*sides)
            else:
                assert rule is not None
                self.kept[self._deriver.add(rule)] = rule
                self._congruence.apply(*sides)
        return waiting

    def _reason(self, rule: Rule | None) -> str | None:
        """Return why an equality is no rule of its own, None where it is one."""
        if rule is None:
            return "the shapes of the two sides cannot be equal"
        wrong = counterexample(rule, self._seed)
        if wrong is not None:
            return f"differs at other sizes or numbers: {wrong.text()}"
        return _GENERAL if self._deriver.derives(rule, _EFFORT) else None

    def drop_what_follows(self) -> None:
        """Drop rules that follow from the others; rules between the largest graphs go first."""
        for number, rule in reversed(tuple(self.kept.items())):
            if self._deriver.derives(rule, _THOROUGH, without=number):
                self._deriver.remove(number)
                del self.kept[number]
                self._followed.append(rule)
                self.dropped.append(Dropped(rule_text(rule), "follows from the other rules"))

    def restore_what_is_missed(self) -> None:
        """Keep those dropped rules after all that the rules kept in the end do not derive at once.

        Each followed from rules that followed from others; such a chain may be too long for one saturation.
        """
        for rule in self._followed:
            if not self._deriver.derives(rule, _THOROUGH):
                self.kept[self._deriver.add(rule)] = rule
                text = rule_text(rule)
                self.dropped = [one for one in self.dropped if one.rule != text]


def named(rules: Sequence[Rule]) -> Iterator[Rule]:
    """Yield rules under names made of their operators, with a number where several have the same ones."""
    names = [_name(rule) for rule in rules]
    counts = Counter(names)
    met: Counter[str] = Counter()
    for rule, name in zip(rules, names, strict=True):
        met[name] += 1
        unique = f"{name}-{met[name]}" if counts[name] > 1 else name
        yield Rule(unique, rule.inputs, rule.left, rule.right, rule.narrow)


def _name(rule: Rule) -> str:
    sides = [
        "-".join(word for one in side for word in _words(one)) or "input" for side in (rule.left, rule.right)
    ]
    return "=".join(sides)


def _words(expression: Expression) -> Iterator[str]:
    """Yield the operators of an expression from the root on."""
    if isinstance(expression, Apply):
        yield expression.op
        for arg in expression.args:
            yield from _words(arg)
