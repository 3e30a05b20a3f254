"""Forms: which sums of inputs a value may be, piece by piece, and where two values are equal."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TypeAlias

from superopt.ir import Graph, Step, tensorless_values
from superopt.verify.evaluation.tensorless import constants_of

__all__ = ["Form", "Forms", "constant_difference", "differences", "linear_forms"]

_MOST_FORMS = 8


@dataclass(frozen=True, slots=True)
class Form:
    """A sum of inputs with constant factors, and a constant."""

    terms: tuple[tuple[object, Fraction], ...] = ()
    constant: Fraction = Fraction(0)

    def plus(self, other: "Form") -> "Form":
        """Return the sum of two forms."""
        found = dict(self.terms)
        for name, factor in other.terms:
            found[name] = found.get(name, Fraction(0)) + factor
        terms = tuple(sorted(((n, f) for n, f in found.items() if f), key=repr))
        return Form(terms, self.constant + other.constant)

    def times(self, factor: Fraction) -> "Form":
        """Return the form times a number."""
        terms = tuple((name, own * factor) for name, own in self.terms) if factor else ()
        return Form(terms, self.constant * factor)

    @property
    def unsigned(self) -> "Form":
        """This form, or its negative: they are zero in the same places, as are their multiples."""
        return self.times(1 / self.terms[0][1]) if self.terms else self

    @property
    def root(self) -> Fraction | None:
        """Where the form is zero, the number that its only input holds; None for several inputs."""
        return -self.constant / self.terms[0][1] if len(self.terms) == 1 else None

    @property
    def shift(self) -> Fraction | None:
        """Where the form is zero, the distance of its two inputs; None unless it is a difference of two."""
        factors = [factor for _, factor in self.terms]
        return abs(self.constant / factors[0]) if len(factors) == 2 and sum(factors) == 0 else None


Forms: TypeAlias = frozenset[Form] | None
"""What a value may be, piece by piece; None where it is computed in another way."""


def linear_forms(graph: Graph, *, exact: bool = False, narrow: bool = False) -> list[Forms]:
    """Return for each value which sums of inputs it may be, piece by piece.

    A maximum of an axis may be each of its elements; it is no form of them where that has to be `exact`.
    With `narrow`, constants were rounded to float32 or less.
    """
    tensorless, known = tensorless_values(graph), constants_of(graph, narrow)[2]
    forms: list[Forms] = [frozenset({Form((((port.name,), Fraction(1)),))}) for port in graph.inputs]
    for at, step in graph.numbered:
        if at in known:
            forms.append(frozenset({Form(constant=known[at])}))
        elif tensorless[at] or (exact and step.op == "max"):
            forms.append(None)
        else:
            forms.append(_forms(step, [forms[i] for i in step.inputs]))
    return forms


def differences(a: Forms, b: Forms) -> Forms:
    """Return what the difference of two values may be, piece by piece."""
    return _combined(a, b, lambda x, y: x.plus(y.times(Fraction(-1))))


def constant_difference(a: Forms, b: Forms) -> Fraction | None:
    """Return by how much two values always differ, or None where that depends on the inputs."""
    if a is None or b is None or len(a) != 1 or len(b) != 1:
        return None  # of several pieces, each value may be another one
    [form] = differences(a, b) or [Form(((None, Fraction(1)),))]
    return None if form.terms else form.constant


def _forms(step: Step, args: list[Forms]) -> Forms:
    """Return what a step may make of what its operands may be."""
    first = args[0]
    match step.op:
        case "add":
            return _combined(first, args[1], Form.plus)
        case "sub":
            return differences(first, args[1])
        case "neg":
            return _each(first, lambda x: x.times(Fraction(-1)))
        case "mul":
            return _scaled(first, args[1], lambda c: c) or _scaled(args[1], first, lambda c: c)
        case "div":
            divisors = args[1] or ()
            if any(not one.constant for one in divisors):  # what is divided by 0 is no number
                return None
            return _scaled(first, args[1], lambda c: 1 / c)
        case "maximum" | "minimum":
            return _united(args)
        case "relu":
            return _united([first, frozenset({Form()})])
        case "abs":
            return _united([first, _each(first, lambda x: x.times(Fraction(-1)))])
        case "where":
            return _united(args[1:])
        case "max":
            return first
        case "rename" | "select":
            return _each(
                first, lambda x: Form(tuple(((step.op, step.mapping, n), f) for n, f in x.terms), x.constant)
            )
    return None


def _each(forms: Forms, change: Callable[[Form], Form]) -> Forms:
    return None if forms is None else frozenset(map(change, forms))


def _combined(a: Forms, b: Forms, join: Callable[[Form, Form], Form]) -> Forms:
    if a is None or b is None or len(a) * len(b) > _MOST_FORMS:
        return None
    return frozenset(join(x, y) for x, y in product(a, b))


def _scaled(a: Forms, b: Forms, factor: Callable[[Fraction], Fraction]) -> Forms:
    """Return a times a factor, where b is one constant."""
    if a is None or b is None or len(b) != 1:
        return None
    [form] = b
    return None if form.terms else _each(a, lambda x: x.times(factor(form.constant)))


def _united(args: Iterable[Forms]) -> Forms:
    found: set[Form] = set()
    for forms in args:
        if forms is None:
            return None
        found |= forms
    return frozenset(found) if len(found) <= _MOST_FORMS else None
