"""Direct comparisons: those whose ties can be drawn, with all other numbers left to chance.

An input that is compared with a constant, or with another input, is equal to it on a plane of its own. Draws
reach that plane, whatever else depends on the comparison. A comparison of computed numbers may be equal for
several reasons, as x * y = x is for x = 0 and for y = 1, of which draws may never meet the one that matters.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TypeAlias

from superopt.ir import Graph, Step, mask_values, tensorless_values
from superopt.ops import OPS
from superopt.verify.evaluation.integers import integer_values
from superopt.verify.evaluation.tensorless import constants_of

__all__ = ["constant_difference", "direct_sites", "linear_forms"]

_MOST_FORMS = 8


@dataclass(frozen=True, slots=True)
class _Form:
    """A sum of inputs with constant factors, and a constant."""

    terms: tuple[tuple[object, Fraction], ...] = ()
    constant: Fraction = Fraction(0)

    def plus(self, other: "_Form") -> "_Form":
        found = dict(self.terms)
        for name, factor in other.terms:
            found[name] = found.get(name, Fraction(0)) + factor
        terms = tuple(sorted(((n, f) for n, f in found.items() if f), key=repr))
        return _Form(terms, self.constant + other.constant)

    def times(self, factor: Fraction) -> "_Form":
        terms = tuple((name, own * factor) for name, own in self.terms) if factor else ()
        return _Form(terms, self.constant * factor)

    def is_direct(self, shifts: Collection[Fraction]) -> bool:
        """Whether it is zero on a plane that draws reach, in which two inputs may be a shift apart."""
        factors = [factor for _, factor in self.terms]
        if len(factors) < 2:
            return True
        apart = abs(self.constant / factors[0])
        return len(factors) == 2 and sum(factors) == 0 and (apart == 0 or apart in shifts)


_Forms: TypeAlias = frozenset[_Form] | None
"""What a value may be, piece by piece; None where it is computed in another way."""


def direct_sites(graph: Graph, shifts: Collection[Fraction] = ()) -> frozenset[int]:
    """Return the comparisons of a graph whose ties can be drawn, with inputs that are some shifts apart."""
    whole = integer_values(graph)
    tensorless, masks, forms = tensorless_values(graph), mask_values(graph), linear_forms(graph)
    found = set()
    for at, step in graph.numbered:
        args = [forms[i] for i in step.inputs]
        compares = step.op in OPS and OPS[step.op].mask and len(args) == 2
        # Of zeros and ones, equal ones are drawn all the time.
        if compares and (all(masks[i] for i in step.inputs) or _all_direct(args[0], args[1], shifts)):
            found.add(at)
        # Integers are drawn from the positions and constants that they are compared with.
        if compares and any(whole[i] for i in step.inputs) and any(tensorless[i] for i in step.inputs):
            found.add(at)
    return frozenset(found)


def linear_forms(graph: Graph, *, exact: bool = False) -> list[_Forms]:
    """Return for each value which sums of inputs it may be, piece by piece.

    A maximum of an axis may be each of its elements; it is no form of them where that has to be `exact`.
    """
    tensorless, known = tensorless_values(graph), constants_of(graph, narrow=False)[2]
    forms: list[_Forms] = [frozenset({_Form((((port.name,), Fraction(1)),))}) for port in graph.inputs]
    for at, step in graph.numbered:
        if at in known:
            forms.append(frozenset({_Form(constant=known[at])}))
        elif tensorless[at] or (exact and step.op == "max"):
            forms.append(None)
        else:
            forms.append(_forms(step, [forms[i] for i in step.inputs]))
    return forms


def constant_difference(a: _Forms, b: _Forms) -> Fraction | None:
    """Return by how much two values always differ, or None where that depends on the inputs."""
    if a is None or b is None or len(a) != 1 or len(b) != 1:
        return None  # a function of several pieces may take another one at each value
    [form] = _combined(a, b, lambda x, y: x.plus(y.times(Fraction(-1)))) or [_Form(((None, Fraction(1)),))]
    return None if form.terms else form.constant


def _all_direct(a: _Forms, b: _Forms, shifts: Collection[Fraction]) -> bool:
    difference = _combined(a, b, lambda x, y: x.plus(y.times(Fraction(-1))))
    return difference is not None and all(form.is_direct(shifts) for form in difference)


def _forms(step: Step, args: list[_Forms]) -> _Forms:
    """Return what a step may make of what its operands may be."""
    first = args[0]
    match step.op:
        case "add":
            return _combined(first, args[1], _Form.plus)
        case "sub":
            return _combined(first, args[1], lambda x, y: x.plus(y.times(Fraction(-1))))
        case "neg":
            return _each(first, lambda x: x.times(Fraction(-1)))
        case "mul":
            return _scaled(first, args[1], lambda c: c) or _scaled(args[1], first, lambda c: c)
        case "div":
            return _scaled(first, args[1], lambda c: 1 / c if c else c)
        case "maximum" | "minimum":
            return _united(args)
        case "relu":
            return _united([first, frozenset({_Form()})])
        case "abs":
            return _united([first, _each(first, lambda x: x.times(Fraction(-1)))])
        case "where":
            return _united(args[1:])
        case "max":
            return first
        case "rename" | "select":
            return _each(
                first, lambda x: _Form(tuple(((step.op, step.mapping, n), f) for n, f in x.terms), x.constant)
            )
    return None


def _each(forms: _Forms, change: Callable[[_Form], _Form]) -> _Forms:
    return None if forms is None else frozenset(map(change, forms))


def _combined(a: _Forms, b: _Forms, join: Callable[[_Form, _Form], _Form]) -> _Forms:
    if a is None or b is None or len(a) * len(b) > _MOST_FORMS:
        return None
    return frozenset(join(x, y) for x, y in product(a, b))


def _scaled(a: _Forms, b: _Forms, factor: Callable[[Fraction], Fraction]) -> _Forms:
    """Return a times a factor, where b is one constant."""
    if a is None or b is None or len(b) != 1:
        return None
    [form] = b
    return None if form.terms else _each(a, lambda x: x.times(factor(form.constant)))


def _united(args: Iterable[_Forms]) -> _Forms:
    found: set[_Form] = set()
    for forms in args:
        if forms is None:
            return None
        found |= forms
    return frozenset(found) if len(found) <= _MOST_FORMS else None
