"""Symbols: tensors of unknown real numbers, by which z3 decides an equality at small sizes.

An exponential is a positive number of which z3 knows what defines it: exp(x + y) = exp(x) exp(y), and that it
grows with x. A logarithm is known of exponentials alone. So z3 can confirm an equality of such operators, but
a difference that it sees between them proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice, product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.proof.check import dimensions, evaluated, fits

__all__ = ["Answer", "holds_at_small_sizes"]

Answer = Literal["holds", "fails", "unknown"]

_SIZES = (1, 2)
_WINDOW_SIZES = (1, 2, 3)  # for windows of a fixed size, which do not fit into less
_MOST_CASES = 4  # combinations of sizes, of which the largest say most
_MOST_TRIED = 4_000  # combinations of sizes that are looked at
_STEPS = 2_000_000  # steps of z3 for one element


@dataclass(slots=True)
class _Known:
    """What z3 is told of the symbols of one question, beside the terms themselves."""

    facts: list[Any] = field(default_factory=list)
    exponentials: dict[Any, tuple[Any, Any]] = field(default_factory=dict)  # by their exponents
    exponents: dict[Any, Any] = field(default_factory=dict)  # by the products that they make
    roots: int = 0

    def exp(self, term: Any) -> Any:
        """Return e to a term, as a product of exponentials of its summands."""
        import z3

        term = z3.simplify(term, som=True)
        if z3.is_app_of(term, z3.Z3_OP_ITE):
            condition, one, other = term.children()
            return z3.If(condition, self.exp(one), self.exp(other))
        found = z3.RealVal(1)
        for summand in term.children() if z3.is_add(term) else [term]:
            found = found * self._exponential(summand)
        found = z3.simplify(found)
        self.exponents[found] = term
        return found

    def _exponential(self, exponent: Any) -> Any:
        import z3

        if z3.is_rational_value(exponent) and exponent.as_fraction() == 0:
            return z3.RealVal(1)
        if exponent not in self.exponentials:
            made = z3.Real(f"exp{len(self.exponentials)}")
            self.facts.append(made > 0)
            for other, (power, _) in self.exponentials.items():
                self.facts += [(exponent < other) == (made < power), (other < exponent) == (power < made)]
            self.exponentials[exponent] = (made, exponent)
        return self.exponentials[exponent][0]

    def log(self, term: Any) -> Any:
        """Return the logarithm of a term: the exponent that makes it, if that is known."""
        import z3

        self.facts.append(term > 0)
        known = self.exponents.get(z3.simplify(term))
        if known is not None:
            return known
        return z3.Function("log", z3.RealSort(), z3.RealSort())(z3.simplify(term, som=True))

    def sqrt(self, term: Any) -> Any:
        """Return the root of a term, a number of its own."""
        import z3

        self.roots += 1
        root = z3.Real(f"root{self.roots}")
        self.facts += [root >= 0, root * root == term]
        return root

    def inverse(self, term: Any) -> Any:
        """Return one divided by a term."""
        self.facts.append(term != 0)
        return 1 / term


@dataclass(frozen=True, slots=True)
class Symbols:
    """A tensor of terms of z3; the first two dimensions are of one."""

    terms: NDArray[Any]
    known: _Known

    @staticmethod
    def each(function: Callable[..., NDArray[Any]], *values: Symbols) -> Symbols:
        """Return what a function that only moves elements, or adds zeros, makes of tensors."""
        import z3

        made = function(*(value.terms for value in values))
        terms = [term if z3.is_expr(term) else z3.RealVal(term) for term in made.flat]
        return Symbols(_array(terms, made.shape), values[0].known)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the tensor."""
        return self.terms.shape

    def constant(self, value: Fraction) -> Symbols:
        """Return a constant that goes with any shape."""
        import z3

        return Symbols(_array([z3.RealVal(value)], (1,) * self.terms.ndim), self.known)

    def __add__(self, other: Symbols) -> Symbols:
        return Symbols(self.terms + other.terms, self.known)

    def __mul__(self, other: Symbols) -> Symbols:
        return Symbols(self.terms * other.terms, self.known)

    def negative(self) -> Symbols:
        """Return the elements times -1."""
        return Symbols(-self.terms, self.known)

    def matmul(self, other: Symbols) -> Symbols:
        """Return the products of matrices."""
        return Symbols(np.matmul(self.terms, other.terms), self.known)

    def relu(self) -> Symbols:
        """Return each element where it is above zero, and zero elsewhere."""
        return self._chosen(lambda z3, term: z3.If(term > 0, term, z3.RealVal(0)))

    def maximum(self, other: Symbols) -> Symbols:
        """Return the larger one of each two elements."""
        return self._chosen(lambda z3, one, two: z3.If(one >= two, one, two), other)

    def less(self, other: Symbols) -> Symbols:
        """Return 1 where the element is below the other one, and 0 elsewhere."""
        return self._chosen(lambda z3, one, two: z3.If(one < two, z3.RealVal(1), z3.RealVal(0)), other)

    def where(self, mask: Symbols) -> Symbols:
        """Return the elements where a mask is not zero, and zero elsewhere."""
        return self._chosen(lambda z3, term, kept: z3.If(kept != 0, term, z3.RealVal(0)), mask)

    def inverse(self) -> Symbols:
        """Return one divided by each element."""
        return self._chosen(lambda z3, term: self.known.inverse(term))

    def exp(self) -> Symbols:
        """Return e to each element."""
        return self._chosen(lambda z3, term: self.known.exp(term))

    def log(self) -> Symbols:
        """Return the logarithm of each element."""
        return self._chosen(lambda z3, term: self.known.log(term))

    def sqrt(self) -> Symbols:
        """Return the root of each element."""
        return self._chosen(lambda z3, term: self.known.sqrt(term))

    def _chosen(self, function: Callable[..., Any], *others: Symbols) -> Symbols:
        import z3

        arrays = np.broadcast_arrays(self.terms, *(other.terms for other in others))
        made = [function(z3, *terms) for terms in zip(*(array.flat for array in arrays), strict=True)]
        return Symbols(_array(made, arrays[0].shape), self.known)


def holds_at_small_sizes(rule: Rule) -> Answer:
    """Return whether a rule holds for all real numbers at small sizes."""
    cases = list(islice(_cases(rule), _MOST_CASES))
    for sizes in cases:
        answer = _holds(rule, sizes)
        if answer != "holds":
            return answer
    return "holds" if cases else "unknown"


def _cases(rule: Rule) -> Iterator[dict[str, int]]:
    """Yield sizes that the windows of a rule fit into, large ones first."""
    symbols = rule.symbols
    for some in (_SIZES, _WINDOW_SIZES):
        cases = sorted(
            islice(product(some[::-1], repeat=len(symbols)), _MOST_TRIED), key=lambda case: -sum(case)
        )
        found = [sizes for case in cases if fits(rule, sizes := dict(zip(symbols, case, strict=True)))]
        if found:
            yield from found
            return


def _holds(rule: Rule, sizes: Mapping[str, int]) -> Answer:
    import z3

    known = _Known()
    inputs = {
        name: Symbols(_terms(name, (1, 1, *dimensions(shape, sizes))), known) for name, shape in rule.inputs
    }
    sides = [
        (evaluated(left, inputs, sizes), evaluated(right, inputs, sizes))
        for left, right in zip(rule.left, rule.right, strict=True)
    ]
    stated = bool(rule.names & {"exp", "log"})
    for one, other in sides:
        for this, that in zip(
            *(array.flat for array in np.broadcast_arrays(one.terms, other.terms)), strict=True
        ):
            difference = z3.simplify(z3.RealVal(0) + this - that, som=True)
            if z3.is_rational_value(difference) and difference.as_fraction() == 0:
                continue
            solver = z3.Solver()
            solver.set("ctrl_c", False)
            solver.set("rlimit", _STEPS)
            solver.add(*known.facts, difference != 0)
            answer = solver.check()
            if answer != z3.unsat:
                return "fails" if answer == z3.sat and not stated else "unknown"
    return "holds"


def _terms(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return unknown numbers, or what a constant holds."""
    import z3

    constant = constant_named(name)
    if constant is None:
        return _array([z3.Real(f"{name}_{'_'.join(map(str, at))}") for at in np.ndindex(*shape)], shape)
    held = constant.holds(shape[2:])
    return _array([z3.RealVal(int(number) * constant.share) for number in held.flat], shape)


def _array(terms: list[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return terms as an array; numpy itself would try to look into them."""
    found = np.empty(len(terms), dtype=object)
    for at, term in enumerate(terms):
        found[at] = term
    return found.reshape(shape)
