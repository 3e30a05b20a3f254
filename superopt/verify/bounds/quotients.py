"""Quotients: values as polynomials over products of named factors, of which only degrees are known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

__all__ = [
    "TOO_MANY",
    "Atoms",
    "Factor",
    "Factors",
    "Key",
    "Picks",
    "Quotient",
    "bits_of",
    "degree_of",
    "exponential_of",
    "joined_atoms",
    "over_common",
    "reduced_atoms",
    "terms_of",
]

TOO_MANY = 10**6
"""The number of terms at which counting ends."""

Key: TypeAlias = int
"""A number for each different value, the same in both graphs."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of denominators: an axis it has makes it a different factor at each position."""

    key: Key
    axes: frozenset[str]
    degree: int
    terms: int
    bits: int = 0


Factors: TypeAlias = dict[Factor, int]


@dataclass(frozen=True, slots=True)
class Quotient:
    """A value as a numerator over named factors: the numerator's degree and its number of exponents."""

    key: Key
    axes: frozenset[str]
    degree: int
    terms: int
    factors: Factors
    exponential: frozenset[str] | None = None  # the axes of the exponentials it is made of, if of any
    rational: bool = False  # made by arithmetic and roots alone
    tensorless: bool = False  # made of indices and constants alone
    bits: int = 0  # the degree of the numerator in random bits
    atoms: "Atoms" = field(default_factory=dict)
    drawn: bool = False  # an input of integers, or a view of one
    place: str | None = None  # the axis whose index it is, plus or times constants
    picks: "Picks" = field(default_factory=dict)


Atoms: TypeAlias = dict[Key, tuple[frozenset[str], frozenset[str], int]]
"""Random bits that one element depends on: the axes of each, those along which it is but one, how many."""


Picks: TypeAlias = Mapping[str, tuple[Key, frozenset[str]]]
"""Axes along which a mask leaves one place at most: which mask, and the axes whose indices say where."""


def exponential_of(args: tuple[Quotient, ...]) -> frozenset[str] | None:
    """Return the axes of the exponentials that some values are made of."""
    known = [arg.exponential for arg in args if arg.exponential is not None]
    return frozenset[str]().union(*known) if known else None


def joined_atoms(values: Sequence[Quotient]) -> Atoms:
    """Return the random bits that elements of several values depend on together."""
    found: Atoms = {}
    for value in values:
        for key, (axes, free, count) in value.atoms.items():
            known = found.get(key)
            found[key] = (axes, free if known is None else free & known[1], count)
    return found


def reduced_atoms(atoms: Atoms, axes: frozenset[str]) -> Atoms:
    """Return the random bits of a reduction over some axes."""
    return {key: (own, free - axes, count) for key, (own, free, count) in atoms.items()}


def bits_of(factors: Factors) -> int:
    """Return the degree of a product of factors in random bits."""
    return sum(count * factor.bits for factor, count in factors.items())


def over_common(a: Quotient, b: Quotient) -> tuple[int, int, Factors, int]:
    """Return degree and terms of a sum over the least common denominator, that denominator, and bits."""
    whole = dict(a.factors)
    for factor, count in b.factors.items():
        whole[factor] = max(whole.get(factor, 0), count)
    degree, terms, bits = 0, 0, 0
    for value in (a, b):
        missing = {factor: count - value.factors.get(factor, 0) for factor, count in whole.items()}
        degree = max(degree, value.degree + degree_of(missing))
        terms += value.terms * terms_of(missing)
        bits = max(bits, value.bits + bits_of(missing))
    if a.exponential is None and b.exponential is None:
        terms = 1
    return degree, min(terms, TOO_MANY), whole, bits


def degree_of(factors: Factors) -> int:
    """Return the degree of a product of factors."""
    return sum(count * factor.degree for factor, count in factors.items())


def terms_of(factors: Factors) -> int:
    """Return how many different exponents a product of factors has at most."""
    terms: int = prod(factor.terms ** min(count, 24) for factor, count in factors.items())
    return min(terms, TOO_MANY)
