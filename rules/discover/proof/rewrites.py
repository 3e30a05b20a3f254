"""Rules as text of egglog: its language of tensors, the shapes of results, and rules as rewrites.

In egglog a term knows its dimensions as words of sizes, and a split knows both of its parts, so a rule is
applied only where the shapes are those that it is stated for. `parts` says where a word can be cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from superopt.rules.discover.language.constants import CONSTANTS, Constant, constant_named
from superopt.rules.discover.language.expressions import (
    Apply,
    Expression,
    Input,
    applications,
    inputs_of,
    shape_of,
)
from superopt.rules.discover.language.images import CONVOLUTIONS
from superopt.rules.discover.language.operators import OPERATORS, Operator, Unifier, operators_named
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.language.shapes import Shape, Word, atoms
from superopt.rules.discover.proof.axioms import NEVER_NEGATIVE, NEVER_OPPOSITE, called
from superopt.rules.discover.proof.unsaid import unsaid_places, unsaid_ranks

__all__ = [
    "ground",
    "input_facts",
    "joint_rewrite",
    "language_text",
    "rewrites",
    "sign_facts",
]

_LANGUAGE = """
(datatype T (Leaf String) (Const String String String String String) {operators})
(function dim (T i64) String :merge old)
(function rank (T) i64 :merge old)
(ruleset shapes)
(ruleset laws)
(relation nonnegative (T))
(relation alike (T T))
(relation parts (String String String))
(rule ((parts w a x) (parts x b c)) ((parts w (+ a " " b) c) (parts (+ a " " b) a b)) :ruleset shapes)
(rule ((parts w x c) (parts x a b)) ((parts w a (+ b " " c)) (parts (+ b " " c) b c)) :ruleset shapes)
{commuting}
"""


class _Variables(Unifier):
    """Typing over variables of egglog: it finds which dimensions must be equal, and it never fails."""

    def __init__(self) -> None:
        self.cuts: tuple[Word, Word] | None = None
        self.equal: list[tuple[Word, Word]] = []

    def same(self, left: Word, right: Word) -> bool:
        self.equal.append((left, right))
        return True

    def cut(self, word: Word) -> tuple[Word, Word] | None:
        return ("p",), ("q",)


def language_text(names: Collection[str]) -> str:
    """Return these operators, what of them commutes, and the shape of each operator's result."""
    made, commuting, shapes = list[str](), list[str](), list[str]()
    for operator in operators_named(names):
        words = "i64 String String " if operator.results > 1 else ""
        made.append(f"({called(operator.name)} {words}{' '.join('T' * operator.arity)})")
        if operator.commutative:
            name = called(operator.name)
            commuting.append(f"(rewrite ({name} a b) ({name} b a) :ruleset laws)")
        for rank in operator.ranks:
            shapes += _shape_rules(operator, rank)
        if operator.joins is not None:
            at = operator.joins
            shapes.append(
                f"(rule ((= e ({called(operator.name)} a b)) (= p (dim a {at})) (= q (dim b {at}))) "
                '((parts (+ p " " q) p q)) :ruleset shapes)'
            )
    if "scale" in names:
        shapes += _shape_rules(OPERATORS["scale"], 0)
    for constant in CONSTANTS.values():
        sizes = [f"d{at}" for at in range(4)]
        sets = [f"(set (dim e {at}) {size})" for at, size in enumerate(sizes[: constant.rank])]
        term = f'(Const "{constant.name}" {" ".join(sizes)})'
        shapes.append(
            f"(rule ((= e {term})) ((set (rank e) {constant.rank}) {' '.join(sets)} (nonnegative e)) "
            ":ruleset shapes)"
        )
    head = _LANGUAGE.format(operators=" ".join(made), commuting=" ".join(commuting))
    return "\n".join([head, *shapes])


def _shape_rules(operator: Operator, rank: int) -> Iterator[str]:
    """Yield how egglog knows the shape of an operator's results for operands of so many dimensions."""
    names = "ab"[: operator.arity]
    ranks = _ranks_of_operands(operator, rank)
    shapes: list[Shape] = [
        tuple((f"{name}{at}",) for at in range(some)) for name, some in zip(names, ranks, strict=True)
    ]
    results = _without_groups(operator).typing(shapes, _Variables())
    assert results is not None, operator.name
    for part, shape in enumerate(results):
        number = f" {part} p q" if operator.results > 1 else ""
        used = {atom for word in shape for symbol in word for atom in atoms(symbol)}
        known = [
            f"(= {name}{at} (dim {name} {at}))"
            for name, some in zip(names, ranks, strict=True)
            for at in range(some)
            if f"{name}{at}" in used
        ]
        known += [f"(= {some} (rank {name}))" for name, some in zip(names, ranks, strict=True)]
        sets = [f"(set (dim e {at}) {_spelled(word)})" for at, word in enumerate(shape)]
        yield (
            f"(rule ((= e ({called(operator.name)}{number} {' '.join(names)})) {' '.join(known)}) "
            f"((set (rank e) {len(shape)}) {' '.join(sets)}) :ruleset shapes)"
        )


def _without_groups(operator: Operator) -> Operator:
    """Return an operator with results of the same shape that asks for no halves: egglog knows none."""
    ungrouped = {one.name: replace(one, groups="").name for one in CONVOLUTIONS}
    return OPERATORS[ungrouped.get(operator.name, operator.name)]


def _ranks_of_operands(operator: Operator, rank: int) -> tuple[int, ...]:
    return (0, rank) if operator.name == "scale" else (rank,) * operator.arity


def _spelled(word: Word, end: str = "") -> str:
    """Return a word as a string that egglog builds of variables, whose names have an end of their own."""
    parts = [
        part for at, symbol in enumerate(word) for part in (*(['" "'] if at else []), *_pieces(symbol, end))
    ]
    return parts[0] if len(parts) == 1 else f"(+ {' '.join(parts)})"


def _pieces(symbol: str, end: str) -> list[str]:
    """Return the pieces of text and the variables that a symbol is made of."""
    found = []
    for piece in re.findall(r"\w+\(|\w+|[,)]", symbol):
        text = piece.isdigit() or not piece.isidentifier()
        found.append(f'"{piece}"' if text else f"{piece}{end}")
    return found


def sign_facts(names: Collection[str]) -> list[str]:
    """Return what egglog needs to know of the signs of these operators, and what follows for relu."""
    known = {*map(called, names), "Leaf", "Const"}
    return [fact for fact in _sign_facts() if set(re.findall(r"[A-Z]\w*", fact)) <= known]


def _sign_facts() -> list[str]:
    facts = []
    for term, operands in NEVER_NEGATIVE:
        known = " ".join(f"(nonnegative {operand})" for operand in operands)
        facts.append(f"(rule ((= e {term}) {known}) ((nonnegative e)) :ruleset shapes)")
    for term, known in NEVER_OPPOSITE:
        facts.append(f"(rule ((= e {term}) {known}) ((alike x e)) :ruleset shapes)")
    # What is never negative and multiplied by a scalar is negative where the scalar is: relu then goes to the
    # scalar, as a term that no rule has.
    return [
        *facts,
        "(rule ((= e (Relu (Add a b)))) ((alike a a) (alike b b)) :ruleset shapes)",
        "(rule ((alike a b)) ((alike b a)) :ruleset shapes)",
        "(rule ((= e (Relu (Add a b))) (alike a b)) ((union e (Add (Relu a) (Relu b)))) :ruleset laws)",
        "(rule ((= e (Relu a)) (nonnegative a)) ((union e a)) :ruleset laws)",
        "(rule ((= e (Relu (Mul a b))) (nonnegative a)) ((union e (Mul a (Relu b)))) :ruleset laws)",
        "(rule ((= e (Mul a (Relu b))) (nonnegative a)) ((union e (Relu (Mul a b)))) :ruleset laws)",
        "(rule ((= e (Relu (Scale s a))) (nonnegative a)) ((union e (Scale (Relu s) a))) :ruleset laws)",
        "(rule ((= e (Scale (Relu s) a)) (nonnegative a)) ((union e (Relu (Scale s a)))) :ruleset laws)",
        "(rule ((= e (Relu s)) (= 0 (rank s))) ((set (rank e) 0)) :ruleset shapes)",
        "(rule ((= e (Relu (Scale s a))) (nonnegative s)) ((union e (Scale s (Relu a)))) :ruleset laws)",
        "(rule ((= e (Scale (Relu s) (Scale s a)))) "
        "((union e (Scale (Relu s) (Scale (Relu s) a)))) :ruleset laws)",
        "(rule ((= e (Abs a)) (nonnegative a)) ((union e a)) :ruleset laws)",
        "(rule ((= e (Mul c (Max a b))) (nonnegative c)) "
        "((union e (Max (Mul c a) (Mul c b)))) :ruleset laws)",
        "(rule ((= e (Max (Mul c a) (Mul c b))) (nonnegative c)) "
        "((union e (Mul c (Max a b)))) :ruleset laws)",
    ]


def rewrites(rule: Rule) -> list[str]:
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
        if _variables_of(left) >= _variables_of(right):
            found.append(_rewrite(left, left, right, rule))
            if len(applications(right)) < len(applications(left)):
                found += [_rewrite(part, left, right, rule) for part in _parts(left)]
    return [text for text in dict.fromkeys(found) if text is not None]


def _variables_of(expression: Expression) -> set[str]:
    """Return the inputs of an expression that are no constants."""
    return {name for name in inputs_of(expression) if constant_named(name) is None}


def _parts(expression: Apply) -> Iterator[Apply]:
    """Yield the parts of an expression, other than itself, that have all of its inputs."""
    for arg in expression.args:
        if isinstance(arg, Apply) and _variables_of(arg) >= _variables_of(expression):
            yield arg
            yield from _parts(arg)


def _rewrite(there: Expression, left: Expression, right: Expression, rule: Rule) -> str | None:
    """Return a rewrite that joins two sides where a part of the left one is there, with all its inputs."""
    shapes, words = rule.shapes, _Words()
    pattern = _pattern(there, shapes, words)
    sides = (*_mentioned(left, shapes), *_mentioned(right, shapes))
    conditions = [
        f"(= {words.variable(shapes[name][at])} (dim {name} {at}))"
        for name, at in unsaid_places(there, shapes, _atoms(sides))
    ]
    conditions += [f"(= {len(shapes[name])} (rank {name}))" for name in unsaid_ranks(there, shapes)]
    known = _atoms(word for word in words.met if not _is_computed(word))
    made = (*sides, *words.met)
    if not _atoms(made) <= known:
        return None
    when = " ".join([f"(= l_ {pattern})", *conditions, *words.conditions()])
    whole = "l_" if there == left else _pattern(left, shapes, None)
    return f"(rule ({when}) ((union {whole} {_pattern(right, shapes, None)})) :ruleset laws)"


def _atoms(words: Iterable[Word]) -> set[str]:
    """Return the symbols that words are made of."""
    return {atom for word in words for symbol in word for atom in atoms(symbol)}


class _Words:
    """The words of a left side, each matched as a whole and then taken apart into its symbols."""

    def __init__(self) -> None:
        self.met: dict[Word, str] = {}

    def variable(self, word: Word) -> str:
        """Return the variable that stands for a word, or its text where it has no symbol that is free."""
        if not any(atoms(symbol) for symbol in word):
            return _spelled(word)
        if len(word) == 1 and not _is_computed(word):
            return self.met.setdefault(word, f"{word[0]}_")
        return self.met.setdefault(word, f"w{len(self.met)}_")

    def conditions(self) -> list[str]:
        """Return how words are taken apart, symbol by symbol."""
        found = []
        for word, name in self.met.items():
            if _is_computed(word):
                found.append(f"(= {name} {_spelled(word, '_')})")
                continue
            rest = name
            for at, symbol in enumerate(word[:-1]):
                last = at == len(word) - 2
                after = f"{word[-1]}_" if last else f"{name}{at}_"
                found.append(f"(parts {rest} {symbol}_ {after})")
                rest = after
        return found


def _is_computed(word: Word) -> bool:
    """Return whether a word is not made of symbols that each stand for any size."""
    return any("(" in symbol or symbol.isdigit() for symbol in word)


def _mentioned(expression: Expression, shapes: dict[str, Shape]) -> Iterator[Word]:
    """Yield the words that the splits and the constants of an expression mention."""
    if isinstance(expression, Input):
        if constant_named(expression.name) is not None:
            yield from shapes[expression.name]
    else:
        for arg in expression.args:
            yield from _mentioned(arg, shapes)
        if expression.at:
            yield from _both_parts(expression, shapes)


def _both_parts(expression: Apply, shapes: dict[str, Shape]) -> tuple[Word, Word]:
    axis = OPERATORS[expression.op].cuts
    assert axis is not None
    whole = shape_of(expression.args[0], shapes)[axis]
    return expression.at, whole[len(expression.at) :]


def _pattern(expression: Expression, shapes: dict[str, Shape], words: _Words | None) -> str:
    """Return an expression as egglog matches it, or builds it where no words are to be matched."""

    def spelled(word: Word) -> str:
        return _spelled(word, "_") if words is None else words.variable(word)

    if isinstance(expression, Input):
        constant = constant_named(expression.name)
        return (
            expression.name
            if constant is None
            else _constant(constant, map(spelled, shapes[expression.name]))
        )
    parts = _both_parts(expression, shapes) if expression.at else ()
    return _constructed(
        expression, [_pattern(arg, shapes, words) for arg in expression.args], list(map(spelled, parts))
    )


def _constant(constant: Constant, sizes: Iterable[str]) -> str:
    return f'(Const "{constant.name}" {" ".join([*sizes, *[chr(34) * 2] * (4 - constant.rank)])})'


def _constructed(expression: Apply, args: Sequence[str], parts: Sequence[str]) -> str:
    number = [str(expression.part)] if parts else []
    return f"({' '.join([called(expression.op), *number, *parts, *args])})"


def ground(expression: Expression, shapes: dict[str, Shape]) -> str:
    """Return an expression as a term of egglog."""
    if isinstance(expression, Input):
        constant = constant_named(expression.name)
        if constant is not None:
            return _constant(constant, (f'"{" ".join(word)}"' for word in shapes[expression.name]))
        return f'(Leaf "{expression.name}")'
    parts = _both_parts(expression, shapes) if expression.at else ()
    return _constructed(
        expression,
        [ground(arg, shapes) for arg in expression.args],
        [f'"{" ".join(part)}"' for part in parts],
    )


def joint_rewrite(rule: Rule) -> str | None:
    """Return a rule of two outputs as a rewrite from its left side, None where it cannot be one.

    Both outputs are there already; the right side makes them together.
    """
    shapes, words = rule.shapes, _Words()
    patterns = [_pattern(one, shapes, words) for one in rule.left]
    conditions = []
    for name in dict.fromkeys(inputs_of(*rule.left)):
        for at, word in enumerate(shapes[name]):
            conditions.append(f"(= {words.variable(word)} (dim {name} {at}))")
        conditions.append(f"(= {len(shapes[name])} (rank {name}))")
    known = {
        atom for word in words.met if not _is_computed(word) for symbol in word for atom in atoms(symbol)
    }
    made = [word for one in rule.right for word in _mentioned(one, shapes)]
    if not {atom for word in made for symbol in word for atom in atoms(symbol)} <= known:
        return None
    found = " ".join(f"(= l{at}_ {pattern})" for at, pattern in enumerate(patterns))
    joined = " ".join(f"(union l{at}_ {_pattern(one, shapes, None)})" for at, one in enumerate(rule.right))
    when = " ".join([found, *conditions, *words.conditions(), "(!= l0_ l1_)"])
    return f"(rule ({when}) ({joined}) :ruleset laws)"


def input_facts(inputs: Iterable[tuple[str, Shape]]) -> Iterator[str]:
    """Yield what egglog is told of the shapes of inputs."""
    for name, shape in inputs:
        for word in shape:
            for at in range(1, len(word)):
                yield f'(parts "{" ".join(word)}" "{" ".join(word[:at])}" "{" ".join(word[at:])}")'
        if constant_named(name) is None:
            yield f'(set (rank (Leaf "{name}")) {len(shape)})'
            for at, word in enumerate(shape):
                yield f'(set (dim (Leaf "{name}") {at}) "{" ".join(word)}")'
