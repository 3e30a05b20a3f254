"""Pruning: from all equalities that were found, keep the ones that imply the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from superopt.rules.discover.language.expressions import Apply, Expression, text_of
from superopt.rules.discover.language.operators import Operator
from superopt.rules.discover.language.rule import Rule, rule_of, rule_text
from superopt.rules.discover.proof.check import counterexample
from superopt.rules.discover.proof.derive import Deriver, Effort
from superopt.rules.discover.search.candidates import Candidates
from superopt.rules.discover.search.congruence import Congruence
from superopt.rules.discover.search.generalize import General, generalized
from superopt.rules.discover.search.terms import Terms

__all__ = ["Dropped", "Pruned", "named", "prune"]

_Sides = tuple[Expression, Expression]

_EFFORTS = (Effort(rounds=3, nodes=500), Effort(rounds=5, nodes=1_000))  # most that follows does so soon
_PASSES = 2  # over all rules, where more terms are taken in: what one joins lets others match
_TOGETHER = 16  # rules that are derived at once, without each other
_GROUPS = 16  # of such rules at least: fewer rules are derived fewer at once


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

    A candidate is dropped where the rules kept before make its sides equal among all terms of the search, and
    afterwards where the other rules do so by saturation of its own two sides, which passes through larger
    terms as well. Among the terms all sizes are alike, so narrow rules come last there: no other rule may
    seem to follow from them.
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
    work.drop_what_follows()
    return Pruned(tuple(named(tuple(work.kept))), tuple(work.dropped), work.closed)


class _Derivers:
    """What derives rules from those that are kept: rules of matrices and rules of images never meet."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self._of = {
            rank: Deriver(names=[operator.name for operator in operators if rank in operator.ranks])
            for rank in (2, 4)
            if any(rank in operator.ranks for operator in operators)
        }

    def _ranks(self, rule: Rule) -> list[int]:
        """Return the dimensions of a rule's tensors; a rule of scalars alone goes with any."""
        found = [rank for rank in self._of if any(len(shape) == rank for _, shape in rule.inputs)]
        return found or list(self._of)

    def add(self, rule: Rule) -> None:
        """Take in a rule."""
        for rank in self._ranks(rule):
            self._of[rank].add(rule)

    def remove(self, rule: Rule) -> None:
        """Forget a rule."""
        for rank in self._ranks(rule):
            self._of[rank].remove(rule)

    def groups(self, rules: Sequence[Rule], *, apart: bool = False) -> Iterator[list[Rule]]:
        """Yield rules that are derived at once, all of one rank: neighbours in order, or far apart in it."""
        for rank in self._of:
            of_rank = [rule for rule in rules if self._ranks(rule)[0] == rank]
            most = min(-(-len(of_rank) // _GROUPS), _TOGETHER)
            for start in range(0, len(of_rank), most or 1):
                number = start // most
                yield of_rank[number :: -(-len(of_rank) // most)] if apart else of_rank[start : start + most]

    def derived(self, group: Sequence[Rule], effort: Effort) -> list[bool]:
        """Return for each rule of a group whether it follows from rules that are none of these."""
        return self._of[self._ranks(group[0])[0]].derives_each(group, effort, without=group)


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

    def drop_what_follows(self) -> None:
        """Drop rules that follow from the others; rules between the largest graphs go first.

        Neighbours often need each other, so those that are left are tried once more in other groups. Each
        rule followed from rules of which some were dropped later; those that the rules kept in the end do not
        derive at once are kept after all.
        """
        derivers = _Derivers(self._terms.setting.operators)
        for rule in self.kept:
            derivers.add(rule)
        rules, followed = tuple(self.kept), dict[Rule, None]()
        for effort, apart in zip(_EFFORTS, (False, True), strict=True):
            for group in derivers.groups(tuple(reversed(self.kept)), apart=apart):
                self._tell(f"{len(self.kept)} rules, of which some follow from others")
                for rule, follows in zip(group, derivers.derived(group, effort), strict=True):
                    if follows:
                        derivers.remove(rule)
                        del self.kept[rule]
                        followed[rule] = None
        for group in derivers.groups(tuple(followed)):
            self._tell(f"{len(self.kept)} rules, from which the others must follow")
            for rule in _missed(derivers, group):
                derivers.add(rule)
                del followed[rule]
        self.kept = {rule: None for rule in rules if rule not in followed}
        self.dropped += [Dropped(rule_text(rule), "follows from the other rules") for rule in followed]


def _missed(derivers: _Derivers, group: Sequence[Rule]) -> Iterator[Rule]:
    """Yield rules of a group that do not follow; whoever takes one adds it to the rules before the next."""
    while group:
        answers = derivers.derived(group, _EFFORTS[-1])
        group = [rule for rule, follows in zip(group, answers, strict=True) if not follows]
        yield from group[:1]
        group = group[1:]


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
