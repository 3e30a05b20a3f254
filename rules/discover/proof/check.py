"""Check: rules are tried with other numbers at other sizes, and a difference is a counterexample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from superopt.errors import InputError
from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import Apply, Expression, Input, shape_of
from superopt.rules.discover.language.operators import OPERATORS, Values
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.language.shapes import Shape, Word, atoms, size_of
from superopt.rules.discover.language.values import Numbers, Reals, given, small, with_undefined

__all__ = ["Counterexample", "counterexample", "dimensions", "evaluated", "fits", "length"]

_Value = TypeVar("_Value", bound=Values)

_TRIALS = 12
_SAMPLES = 8
_LARGEST_SIZE = 3
_MOST_SIZE = 40  # of a dimension that windows must fit into


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Sizes and inputs for which the sides of a rule differ, and where."""

    sizes: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, str], ...]
    output: int
    place: tuple[int, ...]
    left: float
    right: float

    def text(self) -> str:
        """Return it in one line."""
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes)
        inputs = ", ".join(f"{name} = {value}" for name, value in self.inputs)
        at = f"row {self.place[0]}, column {self.place[1]}" if len(self.place) == 2 else f"{list(self.place)}"
        where = f"output {self.output} at {at}"
        return f"{where} is {self.left:g} against {self.right:g} for {inputs}" + (
            f" ({sizes})" if sizes else ""
        )


def counterexample(rule: Rule, seed: int) -> Counterexample | None:
    """Return numbers for which the sides of a rule differ, None where all trials agree."""
    generator = np.random.default_rng(seed)
    kind = Numbers if rule.exact else Reals
    for trial in range(_TRIALS):
        sizes = _drawn_sizes(rule, generator, apart=not trial)
        draw = small if trial % 2 == 0 else given
        inputs = {
            name: draw(kind, name, generator, (1, _SAMPLES), dimensions(shape, sizes))
            for name, shape in rule.inputs
        }
        if "where" in rule.names and trial % 4 > 1:  # a mask may leave out what is undefined
            inputs = {
                name: value if constant_named(name) else with_undefined(value, generator)
                for name, value in inputs.items()
            }
        for output, (left, right) in enumerate(zip(rule.left, rule.right, strict=True)):
            one, other = evaluated(left, inputs, sizes), evaluated(right, inputs, sizes)
            differ = np.argwhere(one.differs(other))
            if len(differ):
                return _shown(rule, sizes, inputs, output, one, other, tuple(differ[0].tolist()))
    return None


def _drawn_sizes(rule: Rule, generator: np.random.Generator, *, apart: bool) -> dict[str, int]:
    """Return sizes of the symbols of a rule that its windows fit into.

    Sizes that differ as far as they can come first: sizes that happen to be equal hide mistakes.
    """
    sizes = {
        symbol: number % _LARGEST_SIZE + 1 if apart else int(generator.integers(1, _LARGEST_SIZE + 1))
        for number, symbol in enumerate(rule.symbols)
    }
    while (symbol := _too_small(rule, sizes)) is not None:
        sizes[atoms(symbol)[0]] += 1  # what windows move over
        if max(sizes.values()) > _MOST_SIZE:
            raise InputError(
                f"{rule.name or 'a rule'}: no small sizes were found that all its windows fit into"
            )
    return sizes


def fits(rule: Rule, sizes: Mapping[str, int]) -> bool:
    """Return whether every tensor of a rule has at least one element at these sizes."""
    return _too_small(rule, sizes) is None


def _too_small(rule: Rule, sizes: Mapping[str, int]) -> str | None:
    """Return a computed symbol of which nothing is left, as windows are larger than what they move over."""
    return next((symbol for symbol in _symbols_met(rule) if size_of(symbol, sizes) < 1), None)


@lru_cache(maxsize=64)
def _symbols_met(rule: Rule) -> tuple[str, ...]:
    """Return the symbols of the shapes of all tensors of a rule."""
    shapes = rule.shapes
    found = (
        symbol
        for side in (*rule.left, *rule.right)
        for one in _parts(side)
        for word in shape_of(one, shapes)
        for symbol in word
    )
    return tuple(dict.fromkeys(found))


def _parts(expression: Expression) -> Iterator[Expression]:
    yield expression
    if isinstance(expression, Apply):
        for arg in expression.args:
            yield from _parts(arg)


def evaluated(expression: Expression, inputs: Mapping[str, _Value], sizes: Mapping[str, int]) -> _Value:
    """Return the value of an expression for inputs of these sizes."""
    if isinstance(expression, Input):
        return inputs[expression.name]
    args = [evaluated(arg, inputs, sizes) for arg in expression.args]
    found: _Value = OPERATORS[expression.op].meaning(args, length(expression.at, sizes))[expression.part]
    return found


def length(word: Word, sizes: Mapping[str, int]) -> int:
    """Return the size of a dimension."""
    return sum(size_of(symbol, sizes) for symbol in word)


def dimensions(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the dimensions of a tensor; a scalar is a matrix of one element."""
    return tuple(length(word, sizes) for word in shape) or (1, 1)


def _shown(
    rule: Rule,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Numbers | Reals],
    output: int,
    left: Numbers | Reals,
    right: Numbers | Reals,
    place: tuple[int, ...],
) -> Counterexample:
    return Counterexample(
        sizes=tuple(sizes.items()),
        inputs=tuple((name, _listed(inputs[name], shape, place[1])) for name, shape in rule.inputs),
        output=output,
        place=place[2:],
        left=float(left.approximate[place]),
        right=float(right.approximate[place]),
    )


def _listed(numbers: Numbers | Reals, shape: Shape, sample: int) -> str:
    found = numbers.approximate[0, sample]
    if not shape:
        return f"{found[0, 0]:g}"
    return _nested(found.tolist())


def _nested(value: Any) -> str:
    return f"[{', '.join(map(_nested, value))}]" if isinstance(value, list) else f"{value:g}"
