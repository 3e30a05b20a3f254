"""Patterns: the sides of axioms, as s-expressions."""

import operator
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, TypeVar

__all__ = [
    "Pattern",
    "number_of",
    "numbers",
    "operators",
    "parse_pattern",
    "parts",
    "variables",
    "windows",
]

Number = TypeVar("Number")

Pattern = str | tuple["Pattern", ...]
"""A side of an axiom: a variable or axis by name, or (operator, ...).

`(Const p)` is a constant, whose number is a variable, a number, or computed: `(Const (+ p q))`.
`(Size k)` is the extent of an axis, `(Size j k)` the product of two extents. `(Window w a)` is a window of
a term, and `(Call1 f a)` any function of it; both are named by variables of their own.
"""


def parse_pattern(text: str) -> Pattern:
    """Return the pattern that an s-expression spells."""
    stack: list[list[Pattern]] = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    assert len(stack) == 1, text
    assert len(stack[0]) == 1, text
    return stack[0][0]


def variables(pattern: Pattern) -> tuple[list[str], list[str]]:
    """Return the variables of a pattern: the variables for terms, and the variables for axes."""
    terms: dict[str, None] = {}
    axes: dict[str, None] = {}
    for part in parts(pattern):
        if isinstance(part, str):
            terms[part] = None
        else:
            axes |= dict.fromkeys(_axes_named(part))
    return list(terms), list(axes)


def windows(pattern: Pattern) -> list[str]:
    """Return the variables of a pattern that stand for windows."""
    met = [part[1] for part in parts(pattern) if not isinstance(part, str) and part[0] == "Window"]
    return list(dict.fromkeys(map(str, met)))


def numbers(pattern: Pattern) -> list[str]:
    """Return the variables of a pattern that stand for numbers."""
    found: dict[str, None] = {}
    pending = [part[1] for part in parts(pattern) if part[0] == "Const"]
    while pending:
        number = pending.pop()
        if not isinstance(number, str):
            pending.extend(reversed(number[1:]))
        elif number.isalpha():
            found[number] = None
    return list(found)


def operators(pattern: Pattern) -> set[str]:
    """Return the operators of a pattern."""
    return {str(part[0]) for part in parts(pattern) if not isinstance(part, str)}


def number_of(pattern: Pattern, known: Mapping[str, Number], literal: Callable[[Fraction], Number]) -> Number:
    """Return the number inside of a `Const`, from the numbers that its variables stand for."""
    if isinstance(pattern, str):
        return known[pattern] if pattern.isalpha() else literal(Fraction(pattern))
    name, *rest = pattern
    found: Number = _ARITHMETIC[str(name)](*(number_of(part, known, literal) for part in rest))
    return found


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "/": operator.truediv,
    "neg": operator.neg,
}


def parts(pattern: Pattern) -> Iterator[Pattern]:
    """Yield a pattern and all patterns inside of it, without axes and numbers."""
    pending: list[Pattern] = [pattern]
    while pending:
        part = pending.pop()
        yield part
        if not isinstance(part, str) and part[0] not in ("Const", "Size"):
            named = 1 if part[0] in ("Window", "Call1") else len(_axes_named(part))
            pending.extend(reversed(part[1 + named :]))


def _axes_named(part: tuple[Pattern, ...]) -> tuple[str, ...]:
    """Return the axes that an operator names."""
    named = part[1:] if part[0] == "Size" else part[1:2] if part[0] in ("Sum", "Max") else ()
    return tuple(str(axis) for axis in named)
