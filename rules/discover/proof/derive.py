"""Derivations: whether an equality follows from rules, by saturating the graph of both sides with them.

In egglog a term knows its rows and columns as words of sizes, and a split knows both of its parts, so a rule
is applied only where the shapes are those that it is stated for. `parts` says where a word can be cut.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from superopt.rules.discover.language.expressions import (
    Apply,
    Expression,
    Input,
    applications,
    inputs_of,
    shape_of,
)
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.language.shapes import Shape, Word
from superopt.rules.discover.proof.axioms import NEVER_NEGATIVE, NEVER_OPPOSITE

__all__ = ["Deriver", "Effort"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a derivation may go."""

    rounds: int = 6
    nodes: int = 4_000


_DEFAULT = Effort()

_LANGUAGE = """
(datatype T
  (Leaf String) (Add T T) (Mul T T) (Scale T T) (Relu T) (Matmul T T) (Transpose T)
  (ConcatRows T T) (ConcatCols T T) (SplitRows i64 String String T) (SplitCols i64 String String T))
(function rows (T) String :merge old)
(function cols (T) String :merge old)
(ruleset shapes)
(ruleset laws)
(relation nonnegative (T))
(relation alike (T T))
(relation parts (String String String))
(rule ((parts w a x) (parts x b c)) ((parts w (+ a " " b) c) (parts (+ a " " b) a b)) :ruleset shapes)
(rule ((parts w x c) (parts x a b)) ((parts w a (+ b " " c)) (parts (+ b " " c) b c)) :ruleset shapes)
(rule ((= e (ConcatRows a b)) (= p (rows a)) (= q (rows b))) ((parts (+ p " " q) p q)) :ruleset shapes)
(rule ((= e (ConcatCols a b)) (= p (cols a)) (= q (cols b))) ((parts (+ p " " q) p q)) :ruleset shapes)
(rewrite (Add a b) (Add b a) :ruleset laws)
(rewrite (Mul a b) (Mul b a) :ruleset laws)
"""

_SHAPES = (
    ("(Add a b)", "(= r (rows a)) (= c (cols a))", "r", "c"),
    ("(Mul a b)", "(= r (rows a)) (= c (cols a))", "r", "c"),
    ("(Scale a b)", "(= r (rows b)) (= c (cols b))", "r", "c"),
    ("(Relu a)", "(= r (rows a)) (= c (cols a))", "r", "c"),
    ("(Matmul a b)", "(= r (rows a)) (= c (cols b))", "r", "c"),
    ("(Transpose a)", "(= r (rows a)) (= c (cols a))", "c", "r"),
    ("(ConcatRows a b)", "(= r (rows a)) (= q (rows b)) (= c (cols a))", '(+ r " " q)', "c"),
    ("(ConcatCols a b)", "(= r (rows a)) (= q (cols b)) (= c (cols a))", "r", '(+ c " " q)'),
    ("(SplitRows 0 p q a)", "(= c (cols a))", "p", "c"),
    ("(SplitRows 1 p q a)", "(= c (cols a))", "q", "c"),
    ("(SplitCols 0 p q a)", "(= r (rows a))", "r", "p"),
    ("(SplitCols 1 p q a)", "(= r (rows a))", "r", "q"),
)
"""The shape of each operator's result."""


def _sign_facts() -> list[str]:
    """Return what egglog needs to know of signs, and what follows for relu."""
    facts = []
    for term, operands in NEVER_NEGATIVE:
        known = " ".join(f"(nonnegative {operand})" for operand in operands)
        facts.append(f"(rule ((= e {term}) {known}) ((nonnegative e)) :ruleset shapes)")
    for term, known in NEVER_OPPOSITE:
        facts.append(f"(rule ((= e {term}) {known}) ((alike x e)) :ruleset shapes)")
    return [
        *facts,
        "(rule ((= e (Relu (Add a b)))) ((alike a a) (alike b b)) :ruleset shapes)",
        "(rule ((alike a b)) ((alike b a)) :ruleset shapes)",
        "(rule ((= e (Relu (Add a b))) (alike a b)) ((union e (Add (Relu a) (Relu b)))) :ruleset laws)",
        "(rule ((= e (Relu a)) (nonnegative a)) ((union e a)) :ruleset laws)",
        "(rule ((= e (Relu (Mul a b))) (nonnegative a)) ((union e (Mul a (Relu b)))) :ruleset laws)",
        "(rule ((= e (Mul a (Relu b))) (nonnegative a)) ((union e (Relu (Mul a b)))) :ruleset laws)",
    ]


def _rewrites(rule: Rule) -> list[str]:
    """Return a rule as rewrites, in each direction in which the left side has all that the right side needs.

    A side that is smaller than its parts, as in `transpose(transpose(a)) = a`, is also replaced by the larger
    one, but only where a part of the larger one is there already.
    """
    if len(rule.left) != 1:
        return []
    found = list[str | None]()
    for left, right in ((rule.left[0], rule.right[0]), (rule.right[0], rule.left[0])):
        if not isinstance(left, Apply):
            continue
        if set(inputs_of(left)) >= set(inputs_of(right)):
            found.append(_rewrite(left, left, right, rule))
            if len(applications(right)) < len(applications(left)):
                found += [_rewrite(part, left, right, rule) for part in _parts(left)]
    return [text for text in dict.fromkeys(found) if text is not None]


def _parts(expression: Apply) -> Iterator[Apply]:
    """Yield the parts of an expression, other than itself, that have all of its inputs."""
    for arg in expression.args:
        if isinstance(arg, Apply) and set(inputs_of(arg)) >= set(inputs_of(expression)):
            yield arg
            yield from _parts(arg)


def _rewrite(there: Expression, left: Expression, right: Expression, rule: Rule) -> str | None:
    """Return a rewrite that joins two sides where a part of the left one is there, with all its inputs."""
    shapes, words = rule.shapes, _Words()
    pattern = _pattern(there, shapes, words)
    conditions = []
    for name in inputs_of(there):
        for side, word in zip(("rows", "cols"), shapes[name], strict=False):
            conditions.append(f"(= {words.variable(word)} ({side} {name}))")
        conditions.append(f'({"!=" if shapes[name] else "="} "" (rows {name}))')
    known = {symbol for word in words.met for symbol in word}
    made = (*_cut_words(left, shapes), *_cut_words(right, shapes))
    if not {symbol for word in made for symbol in word} <= known:
        return None
    when = " ".join([f"(= l_ {pattern})", *conditions, *words.conditions()])
    whole = "l_" if there == left else _pattern(left, shapes, None)
    return f"(rule ({when}) ((union {whole} {_pattern(right, shapes, None)})) :ruleset laws)"


class _Words:
    """The words of a left side, each matched as a whole and then taken apart into its symbols."""

    def __init__(self) -> None:
        self.met: dict[Word, str] = {}

    def variable(self, word: Word) -> str:
        """Return the variable that stands for a word."""
        if len(word) == 1:
            return self.met.setdefault(word, f"{word[0]}_")
        return self.met.setdefault(word, f"w{len(self.met)}_")

    def conditions(self) -> list[str]:
        """Return how words are taken apart, symbol by symbol."""
        found = []
        for word, name in self.met.items():
            rest = name
            for at, symbol in enumerate(word[:-1]):
                last = at == len(word) - 2
                after = f"{word[-1]}_" if last else f"{name}{at}_"
                found.append(f"(parts {rest} {symbol}_ {after})")
                rest = after
        return found


def _cut_words(expression: Expression, shapes: dict[str, Shape]) -> Iterator[Word]:
    """Yield the words that the splits of an expression mention."""
    if isinstance(expression, Apply):
        for arg in expression.args:
            yield from _cut_words(arg, shapes)
        if expression.at:
            yield from _both_parts(expression, shapes)


def _both_parts(expression: Apply, shapes: dict[str, Shape]) -> tuple[Word, Word]:
    axis = OPERATORS[expression.op].cuts
    assert axis is not None
    whole = shape_of(expression.args[0], shapes)[axis]
    return expression.at, whole[len(expression.at) :]


def _word(word: Word) -> str:
    """Return a word as a string that egglog builds of variables."""
    if len(word) == 1:
        return f"{word[0]}_"
    return "(+ " + ' " " '.join(f"{symbol}_" for symbol in word) + ")"


def _pattern(expression: Expression, shapes: dict[str, Shape], words: _Words | None) -> str:
    """Return an expression as egglog matches it, or builds it where no words are to be matched."""
    if isinstance(expression, Input):
        return expression.name
    parts = _both_parts(expression, shapes) if expression.at else ()
    return _constructed(
        expression,
        [_pattern(arg, shapes, words) for arg in expression.args],
        [_word(part) if words is None else words.variable(part) for part in parts],
    )


def _constructed(expression: Apply, args: Sequence[str], parts: Sequence[str]) -> str:
    name = "".join(word.capitalize() for word in expression.op.split("_"))
    number = [str(expression.part)] if parts else []
    return f"({' '.join([name, *number, *parts, *args])})"


def _ground(expression: Expression, shapes: dict[str, Shape]) -> str:
    if isinstance(expression, Input):
        return f'(Leaf "{expression.name}")'
    parts = _both_parts(expression, shapes) if expression.at else ()
    return _constructed(
        expression,
        [_ground(arg, shapes) for arg in expression.args],
        [f'"{" ".join(part)}"' for part in parts],
    )


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
        shapes = [
            f"(rule ((= e {term}) {known}) ((set (rows e) {rows}) (set (cols e) {cols})) :ruleset shapes)"
            for term, known, rows, cols in _SHAPES
        ]
        self._run("\n".join([_LANGUAGE, *shapes, *(_sign_facts() if signs else ())]))
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> int:
        """Take in a rule; return the number by which it can be left out."""
        number = len(self._sets)
        self._sets[number] = []
        for text in _rewrites(rule):
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
        for name, shape in rule.inputs:
            for word in shape:
                lines += [
                    f'(parts "{" ".join(word)}" "{" ".join(word[:at])}" "{" ".join(word[at:])}")'
                    for at in range(1, len(word))
                ]
            rows, cols = (" ".join(word) for word in shape or ((), ()))
            lines.append(f'(set (rows (Leaf "{name}")) "{rows}") (set (cols (Leaf "{name}")) "{cols}")')
        pairs = list(zip(rule.left, rule.right, strict=True))
        for number, pair in enumerate(pairs):
            for side, expression in zip("lr", pair, strict=True):
                lines.append(f"(let ${side}{number} {_ground(expression, shapes)})")
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
