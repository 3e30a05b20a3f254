"""Rules: equalities of expressions with the shapes they hold for, and how one is made of two terms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from superopt.errors import InputError
from superopt.rules.discover.language.constants import constrained
from superopt.rules.discover.language.expressions import (
    Apply,
    Expression,
    Input,
    applications,
    inputs_of,
    parse_expression,
    shape_of,
    text_of,
    unit_shape,
)
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.language.shapes import SCALAR, Shape, Symbols, Word, atoms, simplified

_RANKS = (0, 2, 4)
_SYMBOL = re.compile(r"(?!\d+\w*[a-z])\w+|(out|half|wide)\([\w(),]+\)")

__all__ = ["Rule", "parse_program", "parse_rule", "rule_of", "rule_text"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Outputs of two graphs that are equal one by one, for all inputs of these shapes.

    Sizes named alike are equal; all others are free. `narrow` says that a side alone would allow more shapes
    than both together: such a rule is not used to derive others.
    """

    name: str
    inputs: tuple[tuple[str, Shape], ...]
    left: tuple[Expression, ...]
    right: tuple[Expression, ...]
    narrow: bool = False

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of each input."""
        return dict(self.inputs)

    @property
    def operators(self) -> tuple[int, int]:
        """How many operators each side runs."""
        return len(applications(*self.left)), len(applications(*self.right))

    @property
    def symbols(self) -> list[str]:
        """The sizes that the shapes are made of."""
        symbols = (symbol for _, shape in self.inputs for word in shape for symbol in word)
        return list(dict.fromkeys(atom for symbol in symbols for atom in atoms(symbol)))

    @property
    def exact(self) -> bool:
        """Whether all its operators make fractions of fractions."""
        return all(OPERATORS[name].exact for name in self.names)

    @property
    def names(self) -> set[str]:
        """The names of the operators of both sides."""
        return {one.op for one in applications(*self.left, *self.right) if isinstance(one, Apply)}


def rule_text(rule: Rule) -> str:
    """Return a rule as one line: `a[m, k] b[k, n]: matmul(...) = ...`."""
    inputs = " ".join(f"{name}[{', '.join('+'.join(word) for word in shape)}]" for name, shape in rule.inputs)
    sides = (", ".join(text_of(one) for one in side) for side in (rule.left, rule.right))
    return f"{inputs}: {' = '.join(sides)}"


def parse_rule(text: str, *, name: str = "") -> Rule:
    """Return the rule that a line means; InputError where its operators cannot take its shapes."""
    head, colon, body = text.partition(":")
    left, equals, right = body.partition("=")
    if not (colon and equals):
        raise InputError(f"{text!r} is no rule; write it as 'a[m, n]: relu(relu(a)) = relu(a)'")
    inputs = tuple(_parsed_inputs(head, text))
    outputs, others = (tuple(map(parse_expression, _parts(side))) for side in (left, right))
    rule = Rule(name, inputs, outputs, others)
    check_shapes(rule)
    return rule


def check_shapes(rule: Rule) -> None:
    """Raise InputError where an operator of a rule cannot take its operands, or the sides differ in shape."""
    shapes = rule.shapes
    made = [[shape_of(one, shapes) for one in side] for side in (rule.left, rule.right)]
    if made[0] != made[1]:
        raise InputError(f"{rule_text(rule)!r}: the sides have different shapes, {made[0]} and {made[1]}")


def parse_program(text: str) -> tuple[tuple[tuple[str, Shape], ...], tuple[Expression, ...]]:
    """Return the inputs and outputs that a line means: `a[m, k] w[k, n]: matmul(a, w), relu(a)`."""
    head, colon, body = text.partition(":")
    if not colon or "=" in body:
        raise InputError(f"{text!r} is no program; write it as 'a[m, n] b[m, n]: add(a, b), relu(a)'")
    inputs = tuple(_parsed_inputs(head, text))
    outputs = tuple(parse_expression(part) for part in _parts(body))
    for output in outputs:
        shape_of(output, dict(inputs))
    return inputs, outputs


def _parsed_inputs(head: str, text: str) -> Iterator[tuple[str, Shape]]:
    for part in head.replace("]", "] ").split("]")[:-1]:
        name, bracket, sizes = part.strip().partition("[")
        sizes = "".join(sizes.split())
        shape = tuple(tuple(size.split("+")) for size in _parts(sizes)) if sizes else SCALAR
        good = name.isidentifier() and bracket and len(shape) in _RANKS
        if not good or not all(_SYMBOL.fullmatch(symbol) for word in shape for symbol in word):
            raise InputError(
                f"{text!r}: {part.strip()!r} is no input; write name[rows, columns], name[samples, channels, "
                "rows, columns], or name[]"
            )
        if not constrained(name, shape, _Stated()):
            raise InputError(f"{text!r}: {name} cannot have the shape [{sizes}]")
        yield name, shape


class _Stated(Symbols):
    """Symbols of a rule that is stated: those of other names are other sizes."""

    def same(self, left: Word, right: Word) -> bool:
        return left == right


def _parts(side: str) -> Iterator[str]:
    """Yield the outputs of a side, which commas part that stand outside of brackets."""
    depth, start = 0, 0
    for at, sign in enumerate(side):
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and not depth:
            yield side[start:at]
            start = at + 1
    yield side[start:]


def rule_of(
    name: str,
    left: Sequence[Expression],
    right: Sequence[Expression],
    sizes: Mapping[str, Sequence[int | Word]],
) -> Rule | None:
    """Return the rule that two sides make, under the most general shapes that allow both.

    `sizes` are those of the inputs in units, under which the sides were found to be equal.
    """
    names = inputs_of(*left, *right)
    symbols = Symbols()
    shapes: dict[str, Shape] = {one: tuple(_general(size, symbols) for size in sizes[one]) for one in names}
    if not all(constrained(one, shape, symbols) for one, shape in shapes.items()):
        return None
    cuts: dict[Expression, Word] = {}
    alone = []
    for side in (left, right):
        apart, own = Symbols(), inputs_of(*side)
        for given in own:
            constrained(given, shapes[given], apart)
        for one in side:
            unit_shape(one, shapes, apart, {})
        alone.append({one: apart.resolved(shapes[one]) for one in own})
    made = [[unit_shape(one, shapes, symbols, cuts) for one in side] for side in (left, right)]
    for one, other in zip(*made, strict=True):
        if one is None or other is None or len(one) != len(other):
            return None
        if not all(symbols.same(*words) for words in zip(one, other, strict=True)):
            return None
    resolved = {one: symbols.resolved(shapes[one]) for one in names}
    narrow = any(_coarser(found, {one: resolved[one] for one in found}) for found in alone)
    words = [word for one in names for word in resolved[one]]
    places = {expression: symbols.resolved((word,))[0] for expression, word in cuts.items()}
    named = simplified([*words, *places.values()])
    free = iter(named[: len(words)])
    inputs = tuple((one, tuple(next(free) for _ in resolved[one])) for one in names)
    at = dict(zip(places, named[len(words) :], strict=True))
    outputs, others = (tuple(_placed(one, at) for one in side) for side in (left, right))
    rule = Rule(name, inputs, outputs, others, narrow)
    check_shapes(rule)
    return rule


def _coarser(alone: Mapping[str, Shape], together: Mapping[str, Shape]) -> bool:
    """Return whether symbols are equal together that are not alone."""
    one, other = (
        {atom for shape in shapes.values() for word in shape for symbol in word for atom in atoms(symbol)}
        for shapes in (alone, together)
    )
    return len(one) > len(other)


def _general(size: int | Word, symbols: Symbols) -> Word:
    """Return a dimension of so many units, or of units that are named: digits are sizes themselves."""
    if isinstance(size, int):
        return symbols.fresh(size)
    return tuple(unit if unit.isdigit() else symbols.fresh(1)[0] for unit in size)


def _placed(expression: Expression, at: Mapping[Expression, Word]) -> Expression:
    """Return an expression whose splits say where they cut."""
    if isinstance(expression, Input):
        return expression
    args = tuple(_placed(arg, at) for arg in expression.args)
    return Apply(expression.op, args, expression.part, at.get(expression, ()))
