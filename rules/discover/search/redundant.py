"""Redundant rules: those that follow from the others by saturation, which passes through larger terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from superopt.rules.discover.language.operators import Operator
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.proof.derive import Deriver, Effort

__all__ = ["redundant"]

_EFFORTS = (Effort(rounds=3, nodes=500), Effort(rounds=5, nodes=1_000))  # most that follows does so soon
_TOGETHER = 16  # rules that are derived at once, without each other
_GROUPS = 16  # of such rules at least: fewer rules are derived fewer at once


def redundant(
    rules: Sequence[Rule], operators: Sequence[Operator], tell: Callable[[str], None]
) -> dict[Rule, None]:
    """Return the rules that follow from the others; rules between the largest graphs go first.

    Neighbours often need each other, so those that are left are tried once more in other groups. Each rule
    followed from rules of which some were dropped later; those that the rules kept in the end do not derive
    at once are kept after all.
    """
    derivers = _Derivers(operators)
    for rule in rules:
        derivers.add(rule)
    kept, followed = dict.fromkeys(reversed(rules)), dict[Rule, None]()
    for effort, apart in zip(_EFFORTS, (False, True), strict=True):
        for group in derivers.groups(tuple(kept), apart=apart):
            tell(f"{len(kept)} rules, of which some follow from others")
            for rule, follows in zip(group, derivers.derived(group, effort), strict=True):
                if follows:
                    derivers.remove(rule)
                    del kept[rule]
                    followed[rule] = None
    open_yet = list[Rule]()
    for group in derivers.groups(tuple(followed)):
        tell(f"{len(rules) - len(followed)} rules, from which the others must follow")
        answers = derivers.derived(group, _EFFORTS[0])
        open_yet += [rule for rule, follows in zip(group, answers, strict=True) if not follows]
    for group in derivers.groups(open_yet):
        tell(f"{len(rules) - len(followed)} rules, from which {len(open_yet)} others must follow")
        for rule in _missed(derivers, group):
            derivers.add(rule)
            del followed[rule]
    return followed


def _missed(derivers: _Derivers, group: Sequence[Rule]) -> Iterator[Rule]:
    """Yield rules of a group that do not follow; whoever takes one adds it to the rules before the next."""
    while group:
        answers = derivers.derived(group, _EFFORTS[-1])
        group = [rule for rule, follows in zip(group, answers, strict=True) if not follows]
        yield from group[:1]
        group = group[1:]


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
