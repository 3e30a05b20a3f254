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
from superopt.rules.discover.search.generalize import generalized
from superopt.rules.discover.search.terms import Terms

__all__ = ["Dropped", "Pruned", "named", "prune"]

_Sides = tuple[Expression, Expression]

_GENERAL = "follows from more general rules"
_EFFORT = Effort(rounds=4, nodes=1_000)
_THOROUGH = Effort(rounds=6, nodes=2_000)
_PASSES = 2  # over all rules, where more terms are taken in: what one joins lets others match
_TOGETHER = 16  # candidates that are derived at once


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
    waiting = list[tuple[int, int]]()
    sizes = terms.size_of
    for size in range(1, int(sizes.max()) + 1):
        work.consider_terms_of(size)
        of_size = [pair for pair in pairs if max(sizes[list(pair)]) == size]
        waiting += work.considered(of_size, narrow=False)
    work.considered(waiting, narrow=True)
    work.drop_what_follows()
    work.restore_what_is_missed()
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

    def derived(self, rules: Sequence[Rule], effort: Effort, *, apart: bool = False) -> list[bool]:
        """Return for each rule whether it follows; `apart`: from rules that are none of these."""
        found = [False] * len(rules)
        for rank, deriver in self._of.items():
            places = [at for at, rule in enumerate(rules) if self._ranks(rule)[0] == rank]
            for start in range(0, len(places), _TOGETHER):
                chosen = places[start : start + _TOGETHER]
                some = [rules[at] for at in chosen]
                answers = deriver.derives_each(some, effort, without=rules if apart else ())
                for at, answer in zip(chosen, answers, strict=True):
                    found[at] = answer
        return found


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Two terms, and the most general rule that they may make."""

    pair: tuple[int, int]
    sides: _Sides
    rule: Rule


class _Pruning:
    """The rules kept so far, and what follows from them."""

    def __init__(self, terms: Terms, seed: int, tell: Callable[[int, int], None]) -> None:
        self.kept: dict[Rule, None] = {}
        self.dropped: list[Dropped] = []
        self.closed = 0
        self._followed: list[Rule] = []
        self._terms = terms
        self._seed = seed
        self._tell = tell
        self._sizes = dict(terms.setting.inputs)
        self._congruence = Congruence(terms, 0)
        self._applied: list[_Sides] = []
        self._derivers = _Derivers(terms.setting.operators)

    def consider_terms_of(self, size: int) -> None:
        """Take in the terms of so many operators; the rules kept before hold for them as well."""
        self._congruence = Congruence(self._terms, size, self._congruence)
        for _ in range(_PASSES):
            for sides in self._applied:
                self._congruence.apply(*sides, close=False)
            self._congruence.close()

    def _apply(self, sides: _Sides) -> None:
        self._applied.append(sides)
        self._congruence.apply(*sides)

    def considered(self, pairs: Sequence[tuple[int, int]], *, narrow: bool) -> list[tuple[int, int]]:
        """Keep or drop pairs in order; return the pairs that wait, since they make narrow rules."""
        waiting: list[tuple[int, int]] = []
        batch: list[_Candidate] = []
        for at, pair in enumerate(pairs):
            if self._congruence.joined(*pair):
                self.closed += 1
                continue
            self._tell(at, len(self.kept))
            sides = self._terms.expression(pair[0]), self._terms.expression(pair[1])
            rule = rule_of("", sides[:1], sides[1:], self._sizes)
            if rule is None:
                text = " = ".join(map(text_of, sides))
                self.dropped.append(Dropped(text, "the shapes of the two sides cannot be equal"))
            elif rule.narrow and not narrow:
                waiting.append(pair)
            else:
                general = generalized(rule, sides, self._sizes, self._seed)
                batch.append(_Candidate(pair, general.sides, general.rule))
                if len(batch) == _TOGETHER:
                    self._settle(batch)
                    batch = []
        self._settle(batch)
        return waiting

    def _settle(self, batch: Sequence[_Candidate]) -> None:
        """Drop what follows from the rules kept before, and keep the others."""
        derived = self._derivers.derived([one.rule for one in batch], _EFFORT)
        for one, follows in zip(batch, derived, strict=True):
            if self._congruence.joined(*one.pair):
                self.closed += 1
            elif follows:  # its instances follow as well
                self.dropped.append(Dropped(rule_text(one.rule), _GENERAL))
                self._followed.append(one.rule)
                self._apply(one.sides)
            elif (wrong := counterexample(one.rule, self._seed)) is not None:
                reason = f"differs at other sizes or numbers: {wrong.text()}"
                self.dropped.append(Dropped(rule_text(one.rule), reason))
            else:
                self.kept[one.rule] = None
                self._derivers.add(one.rule)
                self._apply(one.sides)

    def drop_what_follows(self) -> None:
        """Drop rules that follow from the others; rules between the largest graphs go first.

        Some are tried at once, at most a small share of all, and must follow from rules that are none of
        these. Rules that lie far apart in the order seldom need each other.
        """
        rules = tuple(reversed(self.kept))
        groups = max(-(-len(rules) // _TOGETHER), min(len(rules), _TOGETHER))
        for group in range(groups):
            some = rules[group::groups]
            for rule, follows in zip(some, self._derivers.derived(some, _THOROUGH, apart=True), strict=True):
                if follows:
                    self._derivers.remove(rule)
                    del self.kept[rule]
                    self._followed.append(rule)
                    self.dropped.append(Dropped(rule_text(rule), "follows from the other rules"))

    def restore_what_is_missed(self) -> None:
        """Keep those dropped rules after all that the rules kept in the end do not derive at once.

        Each followed from rules that followed from others; such a chain may be too long for one saturation.
        """
        missed = self._followed
        while True:
            derived = self._derivers.derived(missed, _THOROUGH)
            missed = [rule for rule, follows in zip(missed, derived, strict=True) if not follows]
            if not missed:
                break
            text = rule_text(missed[0])
            self.kept[missed[0]] = None
            self._derivers.add(missed[0])
            self.dropped = [one for one in self.dropped if one.rule != text]
            missed = missed[1:]


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
