"""Derivations: whether an equality follows from rules, by saturating the graph of both sides with them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from superopt.rules.discover.language.rule import Rule
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

    def __init__(self, rules: Iterable[Rule] = (), *, signs: bool = False) -> None:
        from egglog.bindings import EGraph

        logger = logging.getLogger("egglog")
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
        self._egraph = EGraph()
        self._sets: dict[int, list[str]] = {}  # rulesets of each rule, by its number
        self._made = 0
        self._run("\n".join([language_text(), *(sign_facts() if signs else ())]))
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> int:
        """Take in a rule; return the number by which it can be left out."""
        number = len(self._sets)
        self._sets[number] = []
        for text in rewrites(rule):
            self._made += 1
            name = f"law{self._made}"
            self._run(f"(ruleset {name}) {text.replace(':ruleset laws', f':ruleset {name}')}")
            self._sets[number].append(name)
        return number

    def remove(self, number: int) -> None:
        """Forget a rule."""
        self._sets[number] = []

    def derives(self, rule: Rule, effort: Effort = _DEFAULT, *, without: int | None = None) -> bool:
        """Return whether the sides of a rule are equal by the rules; False says nothing."""
        self._run("(push)")
        try:
            return self._derives(rule, effort, without)
        finally:
            self._run("(pop)")

    def _derives(self, rule: Rule, effort: Effort, without: int | None) -> bool:
        names = [name for number, some in self._sets.items() if number != without for name in some]
        shapes = rule.shapes
        lines = [f"(unstable-combined-ruleset all laws {' '.join(names)})"]
        lines += input_facts(rule.inputs)
        pairs = list(zip(rule.left, rule.right, strict=True))
        for number, pair in enumerate(pairs):
            for side, expression in zip("lr", pair, strict=True):
                lines.append(f"(let ${side}{number} {ground(expression, shapes)})")
        self._run("\n".join(lines))
        goal = " ".join(f"(= $l{number} $r{number})" for number in range(len(pairs)))
        for _ in range(effort.rounds):
            self._run("(run-schedule (saturate (run shapes)))")
            changed = self._run("(run all 1)")
            if self._holds(goal):
                return True
            if not changed or self._nodes() > effort.nodes:
                break
        return False

    def _run(self, text: str) -> bool:
        """Run a program; return whether its last command changed the e-graph."""
        outputs = self._egraph.run_program(*self._egraph.parse_program(text))
        report = getattr(outputs[-1], "report", None) if outputs else None
        return bool(getattr(report, "updated", False))

    def _nodes(self) -> int:
        return sum(len(one.rows) for one in self._egraph.freeze().functions.values())

    def _holds(self, goal: str) -> bool:
        from egglog.bindings import EggSmolError

        try:
            self._run(f"(check {goal})")
        except EggSmolError:
            return False
        return True
