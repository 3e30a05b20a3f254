"""Expressions: graphs as trees that can be read, with their text form and their typing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from superopt.errors import InputError
from superopt.rules.discover.language.operators import OPERATORS, Unifier
from superopt.rules.discover.language.shapes import Shape, Symbols, Word, halves

__all__ = [
    "Apply",
    "Expression",
    "Input",
    "applications",
    "inputs_of",
    "parse_expression",
    "renamed",
    "shape_of",
    "text_of",
    "unit_shape",
]


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a graph, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """One result of an operator; a split says which part it is, and after which dimension it cuts."""

    op: str
    args: tuple[Expression, ...]
    part: int = 0
    at: Word = ()


Expression = Input | Apply


def text_of(expression: Expression) -> str:
    """Return an expression as text: `split_rows(concat_rows(a, b), m)[0]`."""
    if isinstance(expression, Input):
        return expression.name
    inside = [text_of(arg) for arg in expression.args]
    if expression.at:
        inside.append("+".join(expression.at))
    part = f"[{expression.part}]" if OPERATORS[expression.op].results > 1 else ""
    return f"{expression.op}({', '.join(inside)}){part}"


_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\d+|[(),+\[\]])")


def parse_expression(text: str) -> Expression:
    """Return the expression that a text means."""
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise InputError(f"{text!r} is no expression: {text[at:]!r} is not understood")
        tokens.append(match[1])
        at = match.end()
    expression, end = _parsed([*tokens, ""], 0, text)
    if end != len(tokens):
        raise InputError(f"{text!r} is no expression: {tokens[end]!r} comes after its end")
    return expression


def _parsed(tokens: Sequence[str], at: int, text: str) -> tuple[Expression, int]:
    name = tokens[at]
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise InputError(f"{text!r} is no expression: a name is missing before {name!r}")
    if tokens[at + 1] != "(":
        return Input(name), at + 1
    if name not in OPERATORS:
        raise InputError(f"{text!r} has no known operator {name!r}; there are {', '.join(OPERATORS)}")
    operator, at, args = OPERATORS[name], at + 1, list[Expression]()
    for _ in range(operator.arity):
        arg, at = _parsed(tokens, at + 1, text)
        args.append(arg)
        if tokens[at] not in (",", ")"):
            raise InputError(
                f"{text!r} is no expression: a comma or bracket is missing before {tokens[at]!r}"
            )
    cut: list[str] = []
    if operator.cuts is not None:
        while tokens[at] in (",", "+"):
            if not re.fullmatch(r"\w+", tokens[at + 1]):
                raise InputError(f"{text!r}: a number of rows or columns is missing after {tokens[at]!r}")
            cut.append(tokens[at + 1])
            at += 2
        if not cut:
            raise InputError(f"{text!r}: say after how many rows or columns {name} cuts, as in {name}(x, m)")
    if tokens[at] != ")":
        raise InputError(f"{text!r}: {name} takes {operator.arity} operands")
    at, part = at + 1, 0
    if operator.results > 1:
        if tokens[at] != "[" or tokens[at + 1] not in ("0", "1") or tokens[at + 2] != "]":
            raise InputError(f"{text!r}: say which part of {name} is meant, [0] or [1]")
        part, at = int(tokens[at + 1]), at + 3
    return Apply(name, tuple(args), part, tuple(cut)), at


def inputs_of(*expressions: Expression) -> list[str]:
    """Return the names of all inputs, in the order in which they first occur."""
    return list(dict.fromkeys(_inputs(expressions)))


def _inputs(expressions: Sequence[Expression]) -> Iterator[str]:
    for expression in expressions:
        if isinstance(expression, Input):
            yield expression.name
        else:
            yield from _inputs(expression.args)


def applications(*expressions: Expression) -> set[Expression]:
    """Return the operators that are run: each once, and a split once for both of its parts."""
    found: set[Expression] = set()
    for expression in expressions:
        if isinstance(expression, Apply):
            found.add(Apply(expression.op, expression.args, 0, expression.at))
            found |= applications(*expression.args)
    return found


def renamed(expression: Expression, names: Mapping[str, str]) -> Expression:
    """Return an expression with other names of inputs."""
    if isinstance(expression, Input):
        return Input(names[expression.name])
    args = tuple(renamed(arg, names) for arg in expression.args)
    return Apply(expression.op, args, expression.part, expression.at)


@dataclass(frozen=True, slots=True)
class _Exact(Unifier):
    """Words are equal only if they are the same, and are cut where the expression says."""

    at: Word

    def same(self, left: Word, right: Word) -> bool:
        return left == right

    def cut(self, word: Word) -> tuple[Word, Word] | None:
        count = len(self.at)
        return (word[:count], word[count:]) if word[:count] == self.at and count < len(word) else None


def shape_of(expression: Expression, inputs: Mapping[str, Shape]) -> Shape:
    """Return the shape of an expression; InputError names the operator that cannot take its operands."""
    if isinstance(expression, Input):
        if expression.name not in inputs:
            raise InputError(f"{expression.name!r} has no shape; there are {', '.join(inputs) or 'none'}")
        return inputs[expression.name]
    shapes = [shape_of(arg, inputs) for arg in expression.args]
    results = OPERATORS[expression.op].typing(shapes, _Exact(expression.at))
    if results is None:
        shown = " and ".join("[" + ", ".join("+".join(word) for word in shape) + "]" for shape in shapes)
        raise InputError(f"{text_of(expression)}: {expression.op} cannot take {shown}")
    return results[expression.part]


@dataclass(frozen=True, slots=True)
class _Units(Unifier):
    """Words of units are made equal symbol by symbol, and are cut in halves."""

    symbols: Symbols

    def same(self, left: Word, right: Word) -> bool:
        return self.symbols.same(left, right)

    def cut(self, word: Word) -> tuple[Word, Word] | None:
        return halves(word)


def unit_shape(
    expression: Expression, inputs: Mapping[str, Shape], symbols: Symbols, cuts: dict[Expression, Word]
) -> Shape | None:
    """Return the shape of an expression as far as units tell; note where each split cuts."""
    if isinstance(expression, Input):
        return inputs[expression.name]
    shapes = [unit_shape(arg, inputs, symbols, cuts) for arg in expression.args]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    operator = OPERATORS[expression.op]
    results = operator.typing(known, _Units(symbols))
    if results is None:
        return None
    if operator.cuts is not None:
        cuts[expression] = results[0][operator.cuts]
    return results[expression.part]
