"""Derivations: whether an equality follows from rules, by saturating the graph of both sides with them.

In egglog a term knows its rows and columns as words of sizes, and a split knows both of its parts, so a rule
is applied only where the shapes are those that it is stated for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from superopt.rules.discover.expressions import Apply, Expression, Input, inputs_of, shape_of
from superopt.rules.discover.operators import OPERATORS
from superopt.rules.discover.rule import Rule
from superopt.rules.discover.shapes import Shape, Word

__all__ = ["Effort", "Rewrites", "derived", "rewrites_of"]


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


@dataclass(frozen=True, slots=True)
class Rewrites:
    """One rule as text for egglog, by the operators that its left side needs."""

    name: str
    text: str


def rewrites_of(rule: Rule) -> list[Rewrites]:
    """Return a rule as rewrites, in each direction in which the left side has all that the right side needs."""
    if rule.narrow or len(rule.left) != 1:
        return []
    found = []
    for left, right in ((rule.left[0], rule.right[0]), (rule.right[0], rule.left[0])):
        if isinstance(left, Input) or not set(inputs_of(left)) >= set(inputs_of(right)):
            continue
        text = _rewrite(left, right, rule)
        if text is not None:
            found.append(Rewrites(rule.name, text))
    return found


def _rewrite(left: Expression, right: Expression, rule: Rule) -> str | None:
    """Return one rewrite; None where the right side cuts at a place that the left side does not tell."""
    shapes = rule.shapes
    met = inputs_of(left)
    words = [(f"({'rows' if axis == 0 else 'cols'} {name})", word)
             for name in met for axis, word in enumerate(shapes[name])]  # fmt: skip
    bound = {s for _, word in words if len(word) == 1 for s in word}
    for part in _cut_words(left, shapes):
        bound |= set(part) if len(part) == 1 else set()
    needed = {s for _, word in words for s in word} | {s for part in _cut_words(right, shapes) for s in part}
    if not needed <= bound:
        return None
    conditions = [f"(= {_word(word)} {term})" for term, word in words]
    scalars = [f'({"!=" if shapes[name] else "="} "" (rows {name}))' for name in met]
    when = " ".join(["(= l_ {})".format(_pattern(left, shapes)), *conditions, *scalars])
    return f"(rule ({when}) ((union l_ {_pattern(right, shapes)})) :ruleset laws)"


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


def _pattern(expression: Expression, shapes: dict[str, Shape]) -> str:
    if isinstance(expression, Input):
        return expression.name
    return _constructed(
        expression, [_pattern(arg, shapes) for arg in expression.args], [
            _word(part) for part in (_both_parts(expression, shapes) if expression.at else ())
        ],
    )  # fmt: skip


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


def derived(rule: Rule, rewrites: Sequence[Rewrites], effort: Effort = _DEFAULT) -> bool:
    """Return whether the sides of a rule are equal by the rewrites; False says nothing."""
    from egglog.bindings import EGraph

    logger = logging.getLogger("egglog")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
    egraph = EGraph()

    def run(text: str) -> bool:
        outputs = egraph.run_program(*egraph.parse_program(text))
        report = getattr(outputs[-1], "report", None) if outputs else None
        return bool(getattr(report, "updated", False))

    shapes = rule.shapes
    lines = [_LANGUAGE]
    lines += [
        f"(rule ((= e {term}) {known}) ((set (rows e) {rows}) (set (cols e) {cols})) :ruleset shapes)"
        for term, known, rows, cols in _SHAPES
    ]
    for name, shape in rule.inputs:
        rows, cols = (" ".join(word) for word in shape or ((), ()))
        lines.append(f'(set (rows (Leaf "{name}")) "{rows}") (set (cols (Leaf "{name}")) "{cols}")')
    pairs = list(zip(rule.left, rule.right, strict=True))
    for number, pair in enumerate(pairs):
        for side, expression in zip("lr", pair, strict=True):
            lines.append(f"(let ${side}{number} {_ground(expression, shapes)})")
    lines += [one.text for one in rewrites]
    run("\n".join(lines))
    goal = " ".join(f"(= $l{number} $r{number})" for number in range(len(pairs)))
    for _ in range(effort.rounds):
        run("(run-schedule (saturate (run shapes)))")
        changed = run("(run laws 1)")
        if _holds(egraph, goal):
            return True
        functions = egraph.freeze().functions
        if not changed or sum(len(one.rows) for one in functions.values()) > effort.nodes:
            break
    return False


def _holds(egraph: object, goal: str) -> bool:
    from egglog.bindings import EggSmolError

    try:
        egraph.run_program(*egraph.parse_program(f"(check {goal})"))  # type: ignore[attr-defined]
    except EggSmolError:
        return False
    return True
