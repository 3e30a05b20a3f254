"""Use of rules: why an equality holds, and which programs are equal to a given one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from superopt.errors import InputError
from superopt.rules.discover.language.expressions import (
    Apply,
    Expression,
    Input,
    applications,
    inputs_of,
    shape_of,
    text_of,
)
from superopt.rules.discover.language.match import joined, matches, sizes_of
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.language.shapes import Shape, Word

__all__ = ["Program", "Rewritten", "rewritten"]


@dataclass(frozen=True, slots=True)
class Program:
    """The outputs of a program, and the shapes of its inputs."""

    inputs: tuple[tuple[str, Shape], ...]
    outputs: tuple[Expression, ...]

    @property
    def operators(self) -> int:
        """How many operators the program runs."""
        return len(applications(*self.outputs))

    @property
    def names(self) -> set[str]:
        """The names of its operators."""
        return {one.op for one in applications(*self.outputs) if isinstance(one, Apply)}

    def text(self) -> str:
        """Return the outputs as text."""
        return ", ".join(text_of(output) for output in self.outputs)

    def whole_text(self) -> str:
        """Return the inputs and the outputs as text that parses back."""
        inputs = (f"{name}[{', '.join(map('+'.join, shape))}]" for name, shape in self.inputs)
        return f"{' '.join(inputs)}: {self.text()}"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A program that rules lead to, and which rules, in order."""

    program: Program
    rules: tuple[str, ...]


def rewritten(program: Program, rules: Sequence[Rule], *, steps: int, most: int) -> Iterator[Rewritten]:
    """Yield programs that up to so many rule applications lead to, nearest first, each once."""
    met = {program.outputs}
    level = [Rewritten(program, ())]
    for _ in range(steps):
        following = []
        for one in level:
            for rule in rules:
                for outputs in _applied(one.program, rule):
                    if outputs in met:
                        continue
                    met.add(outputs)
                    made = Rewritten(Program(program.inputs, outputs), (*one.rules, rule.name))
                    following.append(made)
                    yield made
                    if len(met) > most:
                        return
        level = following


def _applied(program: Program, rule: Rule) -> Iterator[tuple[Expression, ...]]:
    """Yield the outputs of a program after each way to apply a rule once, in either direction."""
    shapes = dict(program.inputs)
    for left, right in ((rule.left, rule.right), (rule.right, rule.left)):
        if not set(inputs_of(*left)) >= set(inputs_of(*right)):
            continue
        parts = [place for place in _places(program.outputs) if isinstance(place, Apply)]
        places: list[tuple[Expression, ...]] = [(place,) for place in parts]
        if len(left) == 2:
            places = [(one, other) for one in parts for other in parts if one != other]
        for found in places:
            for match in matches(list(zip(left, found, strict=True))):
                sizes = sizes_of(rule, match, shapes)
                if sizes is None:
                    continue
                made = tuple(_built(one, match.inputs, sizes) for one in right)
                place = dict(zip(found, made, strict=True))
                outputs = tuple(_replaced(one, place) for one in program.outputs)
                if _allowed(outputs, program.outputs, shapes):
                    yield outputs


def _allowed(
    outputs: Sequence[Expression], before: Sequence[Expression], shapes: Mapping[str, Shape]
) -> bool:
    """Return whether every operator still takes its operands, and outputs have the shapes that they had."""
    try:
        return all(
            shape_of(one, shapes) == shape_of(other, shapes)
            for one, other in zip(outputs, before, strict=True)
        )
    except InputError:
        return False


def _places(outputs: Sequence[Expression]) -> list[Expression]:
    """Return all parts of a program, each once."""
    found: dict[Expression, None] = {}

    def visit(expression: Expression) -> None:
        if expression not in found:
            found[expression] = None
            if isinstance(expression, Apply):
                for arg in expression.args:
                    visit(arg)

    for output in outputs:
        visit(output)
    return list(found)


def _built(expression: Expression, inputs: Mapping[str, Expression], sizes: Mapping[str, Word]) -> Expression:
    if isinstance(expression, Input):
        return inputs[expression.name]
    args = tuple(_built(arg, inputs, sizes) for arg in expression.args)
    return Apply(expression.op, args, expression.part, joined(expression.at, sizes))


def _replaced(expression: Expression, made: Mapping[Expression, Expression]) -> Expression:
    if expression in made:
        return made[expression]
    if isinstance(expression, Input):
        return expression
    args = tuple(_replaced(arg, made) for arg in expression.args)
    return Apply(expression.op, args, expression.part, expression.at)
