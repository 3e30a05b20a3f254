"""Derivations: whether an equality follows from rules, by saturating the graph of both sides with them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import Apply, Expression, Input
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.language.shapes import Word, replaced
from superopt.rules.discover.proof.rewrites import ground, input_facts, language_text, rewrites, sign_facts

__all__ = ["Deriver", "Effort"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a derivation may go."""

    rounds: int = 6
    nodes: int = 4_000


_DEFAULT = Effort()


class Deriver:
    """Derives equalities from a growing set of rules.

    The rules stay loaded; the terms of a question are taken out again once it is answered.
    """

    def __init__(
        self, rules: Iterable[Rule] = (), *, names: Collection[str] = tuple(OPERATORS), signs: bool = False
    ) -> None:
        """Make a deriver of some rules, for graphs of operators with these names."""
        from egglog.bindings import EGraph

        logger = logging.getLogger("egglog")
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
        self._egraph = EGraph()
        self._sets: dict[Rule, list[str]] = {}  # the rulesets of each rule
        self._made = 0
        self._run("\n".join([language_text(names), *(sign_facts(names) if signs else ())]))
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> None:
        """Take in a rule."""
        self._sets[rule] = []
        for text in rewrites(rule):
            self._made += 1
            name = f"law{self._made}"
            self._run(f"(ruleset {name}) {text.replace(':ruleset laws', f':ruleset {name}')}")
            self._sets[rule].append(name)

    def remove(self, rule: Rule) -> None:
        """Forget a rule."""
        del self._sets[rule]

    def derives(self, rule: Rule, effort: Effort = _DEFAULT) -> bool:
        """Return whether the sides of a rule are equal by the rules; False says nothing."""
        [found] = self.derives_each([rule], effort)
        return found

    def derives_each(
        self, rules: Sequence[Rule], effort: Effort = _DEFAULT, *, without: Collection[Rule] = ()
    ) -> list[bool]:
        """Return for each of some rules whether it is derived; together that takes less time."""
        self._run("(push)")
        try:
            return self._derives_each(rules, effort, without)
        finally:
            self._run("(pop)")

    def _derives_each(self, rules: Sequence[Rule], effort: Effort, without: Collection[Rule]) -> list[bool]:
        left_out = set(without)
        names = [name for rule, some in self._sets.items() if rule not in left_out for name in some]
        lines = [f"(unstable-combined-ruleset all laws {' '.join(names)})"]
        goals = []
        for at, rule in enumerate(rules):
            rule = _apart(rule, at)
            lines += input_facts(rule.inputs)
            pairs = list(zip(rule.left, rule.right, strict=True))
            for number, pair in enumerate(pairs):
                for side, expression in zip("lr", pair, strict=True):
                    lines.append(f"(let ${side}{number}_{at} {ground(expression, rule.shapes)})")
            goals.append(" ".join(f"(= $l{number}_{at} $r{number}_{at})" for number in range(len(pairs))))
        self._run("\n".join(lines))
        found = [False] * len(rules)
        for _ in range(effort.rounds):
            if not self._shaped(effort.nodes * len(rules)):  # the next round makes several times as many
                break
            changed = self._run("(run all 1)")
            found = [known or self._holds(goal) for known, goal in zip(found, goals, strict=True)]
            if all(found) or not changed:
                break
        return found

    def _shaped(self, most: int) -> bool:
        """Find out the shapes of all terms; return whether the e-graph stays below so many nodes."""
        while self._nodes() <= most:
            if not self._run("(run shapes 1)"):
                return True
        return False

    def _run(self, text: str) -> bool:
        """Run a program; return whether its last command changed the e-graph."""
        outputs = self._egraph.run_program(*self._egraph.parse_program(text))
        report = getattr(outputs[-1], "report", None) if outputs else None
        return bool(getattr(report, "updated", False))

    def _nodes(self) -> int:
        from egglog.bindings import PrintAllFunctionsSize

        [found] = self._egraph.run_program(*self._egraph.parse_program("(print-size)"))
        assert isinstance(found, PrintAllFunctionsSize)
        return sum(count for _, count in found.sizes)

    def _holds(self, goal: str) -> bool:
        from egglog.bindings import EggSmolError

        try:
            self._run(f"(check {goal})")
        except EggSmolError:
            return False
        return True


def _apart(rule: Rule, number: int) -> Rule:
    """Return a rule whose inputs and sizes have names of their own, so that rules do not meet."""
    end = f"q{number}"

    def word(symbols: Word) -> Word:
        return tuple(replaced(symbol, lambda atom: atom + end) for symbol in symbols)

    def renamed(expression: Expression) -> Expression:
        if isinstance(expression, Apply):
            args = tuple(map(renamed, expression.args))
            return Apply(expression.op, args, expression.part, word(expression.at))
        return Input(named(expression.name))

    def named(name: str) -> str:
        return name if constant_named(name) is not None else name + end

    inputs = tuple((named(name), tuple(map(word, shape))) for name, shape in rule.inputs)
    return Rule(rule.name, inputs, tuple(map(renamed, rule.left)), tuple(map(renamed, rule.right)))
