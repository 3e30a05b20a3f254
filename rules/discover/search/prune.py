"""Pruning: from all equalities that were found, keep the ones that imply the others among the terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from superopt.rules.discover.language.expressions import Apply, Expression, text_of
from superopt.rules.discover.language.rule import Rule, rule_of, rule_text
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.search.candidates import Candidates
from superopt.rules.discover.search.congruence import Congruence
from superopt.rules.discover.search.generalize import General, generalized
from superopt.rules.discover.search.terms import Terms

__all__ = ["Dropped", "Pruned", "named", "prune"]

_Sides = tuple[Expression, Expression]

_PASSES = 2  # over all rules, where more terms are taken in: what one joins lets others match


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


def prune(terms: Terms, candidates: Candidates, seed: int, tell: Callable[[str], None]) -> Pruned:
    """Return the rules from which all candidates follow, general ones first.

    A candidate is dropped where the rules kept before make its sides equal among all terms of the search.
    There all sizes are alike, so narrow rules come last: no other rule may seem to follow from them.
    """
    work = _Pruning(terms, candidates, seed, tell)
    pairs = list(zip(candidates.lefts.tolist(), candidates.rights.tolist(), strict=True))
    waiting = list[tuple[int, int]]()
    sizes = terms.size_of
    for size in range(1, int(sizes.max()) + 1):
        work.consider_terms_of(size)
        of_size = [pair for pair in pairs if max(sizes[list(pair)]) == size]
        waiting += work.considered(of_size, narrow=False)
    work.considered(waiting, narrow=True)
    return Pruned(tuple(work.kept), tuple(work.dropped), work.closed)


class _Pruning:
    """The rules kept so far, and what follows from them."""

    def __init__(self, terms: Terms, candidates: Candidates, seed: int, tell: Callable[[str], None]) -> None:
        self.kept: dict[Rule, None] = {}
        self.dropped: list[Dropped] = []
        self.closed = 0
        self._terms = terms
        self._asked = candidates.lefts
        self._seed = seed
        self._tell = tell
        self._sizes = dict(terms.setting.inputs)
        self._congruence = Congruence(terms, 0)
        self._applied: list[_Sides] = []

    def consider_terms_of(self, size: int) -> None:
        """Take in the terms of so many operators; the rules kept before hold for them as well."""
        last = size == self._terms.size_of.max()
        self._congruence = Congruence(self._terms, size, self._congruence, self._asked if last else None)
        for _ in range(_PASSES):
            for sides in self._applied:
                self._congruence.apply(*sides, close=False)
            self._congruence.close()

    def considered(self, pairs: Sequence[tuple[int, int]], *, narrow: bool) -> list[tuple[int, int]]:
        """Keep or drop pairs in order; return the pairs that wait, since they make narrow rules."""
        waiting: list[tuple[int, int]] = []
        for at, pair in enumerate(pairs):
            if self._congruence.joined(*pair):
                self.closed += 1
                continue
            self._tell(f"{at:,} of {len(pairs):,} candidates, {len(self.kept)} rules")
            sides = self._terms.expression(pair[0]), self._terms.expression(pair[1])
            rule = rule_of("", sides[:1], sides[1:], self._sizes)
            if rule is None:
                text = " = ".join(map(text_of, sides))
                self.dropped.append(Dropped(text, "the shapes of the two sides cannot be equal"))
            elif rule.narrow and not narrow:
                waiting.append(pair)
            else:
                self._settle(generalized(rule, sides, self._sizes, self._seed))
        return waiting

    def _settle(self, candidate: General) -> None:
        """Keep a rule that holds at other sizes, too."""
        wrong = counterexample(candidate.rule, self._seed)
        if wrong is not None:
            reason = f"differs at other sizes or numbers: {wrong.text()}"
            self.dropped.append(Dropped(rule_text(candidate.rule), reason))
            return
        self.kept[candidate.rule] = None
        self._applied.append(candidate.sides)
        self._congruence.apply(*candidate.sides)


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
