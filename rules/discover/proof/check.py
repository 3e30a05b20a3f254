"""Check: rules are tried with other numbers at other sizes, and a difference is a counterexample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from superopt.rules.discover.language.expressions import Expression, Input
from superopt.rules.discover.language.operators import OPERATORS, Values
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.language.shapes import Shape, Word
from superopt.rules.discover.language.values import Numbers, drawn, fractions

__all__ = ["Counterexample", "counterexample", "evaluated", "length"]

_Value = TypeVar("_Value", bound=Values)

_TRIALS = 12
_SAMPLES = 8
_LARGEST_SIZE = 3
_SMALL = 8  # quarters in the numbers tried first, which a reader can follow


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Sizes and inputs for which the sides of a rule differ, and where."""

    sizes: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, str], ...]
    output: int
    place: tuple[int, int]
    left: float
    right: float

    def text(self) -> str:
        """Return it in one line."""
        sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes)
        inputs = ", ".join(f"{name} = {value}" for name, value in self.inputs)
        where = f"output {self.output} at row {self.place[0]}, column {self.place[1]}"
        return f"{where} is {self.left:g} against {self.right:g} for {inputs}" + (
            f" ({sizes})" if sizes else ""
        )


def counterexample(rule: Rule, seed: int) -> Counterexample | None:
    """Return numbers for which the sides of a rule differ, None where all trials agree."""
    generator = np.random.default_rng(seed)
    for trial in range(_TRIALS):
        # Sizes that differ as far as they can come first: sizes that happen to be equal hide mistakes.
        sizes = {
            symbol: (number % _LARGEST_SIZE) + 1
            if not trial
            else int(generator.integers(1, _LARGEST_SIZE + 1))
            for number, symbol in enumerate(rule.symbols)
        }
        inputs = {name: _drawn(generator, shape, sizes, small=trial % 2 == 0) for name, shape in rule.inputs}
        for output, (left, right) in enumerate(zip(rule.left, rule.right, strict=True)):
            one, other = evaluated(left, inputs, sizes), evaluated(right, inputs, sizes)
            differ = np.argwhere(one.residues != other.residues)
            if len(differ):
                return _shown(rule, sizes, inputs, output, one, other, differ[0])
    return None


def evaluated(expression: Expression, inputs: Mapping[str, _Value], sizes: Mapping[str, int]) -> _Value:
    """Return the value of an expression for inputs of these sizes."""
    if isinstance(expression, Input):
        return inputs[expression.name]
    args = [evaluated(arg, inputs, sizes) for arg in expression.args]
    found: _Value = OPERATORS[expression.op].meaning(args, length(expression.at, sizes))[expression.part]
    return found


def length(word: Word, sizes: Mapping[str, int]) -> int:
    """Return the size of a dimension."""
    return sum(sizes[symbol] for symbol in word)


def _drawn(generator: np.random.Generator, shape: Shape, sizes: Mapping[str, int], *, small: bool) -> Numbers:
    dimensions = (_SAMPLES, *((length(word, sizes) for word in shape) if shape else (1, 1)))
    if not small:
        return drawn(generator, dimensions)
    return fractions(generator.integers(-_SMALL, _SMALL + 1, dimensions), 4)


def _shown(
    rule: Rule,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Numbers],
    output: int,
    left: Numbers,
    right: Numbers,
    place: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Counterexample:
    sample, row, column = (int(number) for number in place)
    return Counterexample(
        sizes=tuple(sizes.items()),
        inputs=tuple((name, _listed(inputs[name], shape, sample)) for name, shape in rule.inputs),
        output=output,
        place=(row, column),
        left=float(left.sizes[sample, row, column]),
        right=float(right.sizes[sample, row, column]),
    )


def _listed(numbers: Numbers, shape: Shape, sample: int) -> str:
    rows = [[f"{value:g}" for value in row] for row in numbers.sizes[sample].tolist()]
    if not shape:
        return rows[0][0]
    return f"[{', '.join('[' + ', '.join(row) + ']' for row in rows)}]"
