"""Symbols: matrices of unknown real numbers, by which z3 decides an equality at small sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.proof.check import evaluated, length

__all__ = ["Answer", "holds_at_small_sizes"]

Answer = Literal["holds", "fails", "unknown"]

_SIZES = (1, 2)
_MOST_CASES = 4  # combinations of sizes, of which the largest say most
_STEPS = 2_000_000  # steps of z3 for one element


@dataclass(frozen=True, slots=True)
class Symbols:
    """A matrix of terms of z3; the first dimension is the batch, of one."""

    terms: NDArray[Any]

    @staticmethod
    def each(function: Callable[..., NDArray[Any]], *values: Symbols) -> Symbols:
        """Return what a function that only moves elements makes of matrices."""
        return Symbols(function(*(value.terms for value in values)))

    def __add__(self, other: Symbols) -> Symbols:
        return Symbols(self.terms + other.terms)

    def __mul__(self, other: Symbols) -> Symbols:
        return Symbols(self.terms * other.terms)

    def relu(self) -> Symbols:
        """Return each element where it is above zero, and zero elsewhere."""
        import z3

        made = [z3.If(term > 0, term, z3.RealVal(0)) for term in self.terms.flat]
        return Symbols(_array(made, self.terms.shape))

    def matmul(self, other: Symbols) -> Symbols:
        """Return the products of matrices."""
        return Symbols(np.matmul(self.terms, other.terms))


def holds_at_small_sizes(rule: Rule) -> Answer:
    """Return whether a rule holds for all real numbers at sizes of 1 and 2."""
    cases = sorted(product(_SIZES, repeat=len(rule.symbols)), key=lambda case: (-sum(case), case))
    for case in cases[:_MOST_CASES]:
        answer = _holds(rule, dict(zip(rule.symbols, case, strict=True)))
        if answer != "holds":
            return answer
    return "holds"


def _holds(rule: Rule, sizes: Mapping[str, int]) -> Answer:
    import z3

    inputs = {}
    for name, shape in rule.inputs:
        rows, cols = (length(word, sizes) for word in shape) if shape else (1, 1)
        terms = [z3.Real(f"{name}_{row}_{col}") for row in range(rows) for col in range(cols)]
        inputs[name] = Symbols(_array(terms, (1, rows, cols)))
    for left, right in zip(rule.left, rule.right, strict=True):
        one, other = evaluated(left, inputs, sizes), evaluated(right, inputs, sizes)
        for this, that in zip(one.terms.flat, other.terms.flat, strict=True):
            solver = z3.Solver()
            solver.set("ctrl_c", False)
            solver.set("rlimit", _STEPS)
            solver.add(z3.simplify(this - that, som=True) != 0)
            answer = solver.check()
            if answer != z3.unsat:
                return "fails" if answer == z3.sat else "unknown"
    return "holds"


def _array(terms: list[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return terms as an array; numpy itself would try to look into them."""
    found = np.empty(len(terms), dtype=object)
    for at, term in enumerate(terms):
        found[at] = term
    return found.reshape(shape)
