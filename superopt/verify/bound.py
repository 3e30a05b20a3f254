"""Bound: how likely one random trial calls two different graphs equal, computed from the graphs.

**Polynomials.** Without exponentials an output is a quotient of polynomials in the inputs (and the
weights of the axes, see `Field.weights`). Two outputs N/F and M/G over a common denominator differ
by a polynomial of some degree d; where it is not zero, it vanishes at a random point of a field of p
elements with probability at most d/p (Schwartz, Zippel). Degrees are followed step by step;
denominators are kept as products of named factors, so that sums over a shared denominator do not
multiply it.

**Exponentials.** With them the difference is sum_j c_j g^(e_j): the coefficients c_j are polynomials
modulo p of the leaves' level 0, the exponents e_j of their level 1 modulo q = (p - 1)/2, and g is a
random element of order q, g = h^2 for a random unit h. Unless some chosen coefficient vanishes
(at most d/p) or two of the k exponents coincide (at most k(k-1)/2 times d'/q), this is a polynomial
in h with k terms whose exponents 2 e_j differ pairwise modulo q, so gcd(2 e_i - 2 e_j, p - 1) = 2.
Such a polynomial has at most 2 (p - 1)^(1 - 1/(k-1)) C^(1/(k-1)) nonzero roots, C <= 2 by that gcd
(Canetti and others 2000; Kelley 2016): the fraction is at most 2 q^(-1/(k-1)). Nested exponentials
repeat the argument one level down for the coinciding exponents.

**Square roots** of squares only: other trials are thrown away. The difference times its conjugates
under all signs of r roots is a polynomial of at most 2^r times the degree.

**Comparisons.** m numbers are compared in a random order; each order has probability 1/m!, and two
programs that differ do so under some order. Likewise for b random bits of boolean inputs. Indices
compare with one another and with integers as they are, which takes no luck.

**Oracles.** A function the algebra does not know gives fresh numbers, except where two different
arguments collide.

Assumed: different programs differ already at the tiny sizes; hashes are as good as random; no root
is taken of what is identically a square; if they differ in floats only, that is not a difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import factorial, inf, log2, prod
from typing import TypeAlias

from superopt.ir import Graph, Step
from superopt.ops import OPS
from superopt.verify.field import INTEGERS, LARGE_INTEGER
from superopt.verify.interpret import drawn_integers
from superopt.verify.residues import TOWER

__all__ = ["Bound", "error_bound"]

_TOO_MANY = 10**6

Key: TypeAlias = int  # a number for each different value, the same in both graphs


@dataclass(frozen=True, slots=True)
class Bound:
    """How one trial can be fooled: by leaves, by the bases of exponentials, by the order drawn.

    `leaves` grows where trials are thrown away for their roots, since the rest is not uniform;
    `bases` does so only if roots are taken of exponentials. `order` is the least probability of an
    order of the compared numbers.
    """

    leaves: float
    bases: float
    order: float
    degree: int
    terms: int
    reason: str = ""

    def per_trial(self, *, kept: float = 1.0) -> float:
        """Return the bound when a fraction of all trials is kept; 1 or more is no bound."""
        fooled = self.leaves / kept + (self.bases / kept if self.reason else self.bases)
        return 1 - self.order * (1 - fooled) if fooled < 1 else inf


@dataclass(frozen=True, slots=True)
class _Factor:
    """One factor of denominators: an axis it has makes it a different factor at each position."""

    key: Key
    axes: frozenset[str]
    degree: int
    terms: int


_Factors: TypeAlias = dict[_Factor, int]


@dataclass(frozen=True, slots=True)
class _Quotient:
    """A value as numerator over factors: degree, and number of different exponents, of the former."""

    key: Key
    axes: frozenset[str]
    degree: int
    terms: int
    factors: _Factors
    exponential: frozenset[str] | None = None  # the axes of the exponentials it is made of; None: it has none
    rational: bool = False  # made by arithmetic and roots alone
    magnitude: Fraction | None = None  # for what only indices and constants make: how large


@dataclass(slots=True)
class _Ledger:
    """What the steps of both graphs add up to, each different step counted once."""

    compared: int = 0
    bits: int = 0
    roots: int = 0
    rooted_exponential: bool = False
    collisions: float = 0.0  # degrees over p, of comparisons for equality
    oracles: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)  # count, degree, terms
    exponents: int = 0  # the largest degree of an exponent's numerator
    exponent_factors: int = 0  # the degrees of all their denominators
    exponent_terms: int = 1


class _Analysis:
    """Scalars[_Quotient], and the structural steps; works on one level of the tower."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        prime: int,
        *,
        extents: Mapping[str, int],
        fixed: bool,
        sealed: bool,
        integers: Sequence[int],
    ) -> None:
        self.integers = integers
        self.extents = extents
        self.sealed = sealed  # exp and sqrt are functions like any other
        self.fixed = fixed  # indices, and so masks, are the same in all trials
        self.sizes = sizes
        self.prime = prime
        self.keys: dict[object, Key] = {}
        self.classes: dict[int, Key] = {}
        self.ledger = _Ledger()

    def graph(self, graph: Graph, classes: Sequence[int] | None) -> list[_Quotient]:
        """Return the outputs; rational values of one class are the same."""
        values: list[_Quotient] = []
        for port in graph.inputs:
            key, new = self._key(("input", port.name, port.axes))
            axes, bits = frozenset(port.axes), self._bits(port.dtype)
            if new:
                self.ledger.bits += bits * self._count(axes)
            values.append(_Quotient(key, axes, 0 if bits else 1, 1, {}, rational=True))
        for step in graph.steps:
            value = self.step(step, [values[i] for i in step.inputs])
            if classes is not None and value.rational:
                # The first of a class names it, so that steps inside composite operators match too.
                value = replace(value, key=self.classes.setdefault(classes[len(values)], value.key))
            values.append(value)
        return [values[output.value] for output in graph.outputs]

    def _bits(self, dtype: str) -> int:
        if dtype in INTEGERS:
            return (len(self.integers) - 1).bit_length()
        return 1 if dtype == "bool" else 0

    def step(self, step: Step, args: list[_Quotient]) -> _Quotient:
        if step.op in OPS:
            result: _Quotient = OPS[step.op].scalar(self, *args)
            return result
        match step.op:
            case "const":
                assert step.value is not None
                return self.const(step.value)
            case "infinity":
                return self.infinity()
            case "size":
                extent = self.extents.get(step.axes[0])
                size = None if extent is None else Fraction(extent)
                key = self._key(("size", step.axes))[0]
                return _Quotient(key, frozenset(), 1, 1, {}, rational=True, magnitude=size)
            case "index":
                last = Fraction(max(self.sizes[step.axes[0]] - 1, 0))
                key = self._key(("index", step.axes))[0]
                return _Quotient(key, frozenset(step.axes), 0, 1, {}, rational=True, magnitude=last)
            case "sum":
                return self._sum(args[0], step.axes)
            case "contract":
                return self._sum(self.mul(*args), step.axes)
            case "max":
                reduced = frozenset(step.axes)
                value = args[0]
                key, new = self._key(("max", step.axes, value.key))
                if new:
                    self.ledger.compared += self._count(value.axes)
                factors, degree, terms = self._expand(value, reduced)
                left = None if value.exponential is None else value.exponential - reduced
                return _Quotient(key, value.axes - reduced, degree, terms, factors, left)
        mapping = dict(step.mapping)

        def moved(axes: frozenset[str]) -> frozenset[str]:
            targets = (mapping.get(axis, axis) for axis in axes)
            return frozenset(target for target in targets if isinstance(target, str))

        value = args[0]
        factors = {}
        for factor, count in value.factors.items():
            relevant = tuple(sorted((old, new) for old, new in mapping.items() if old in factor.axes))
            name = self._key((step.op, relevant, factor.key))[0] if relevant else factor.key
            image = _Factor(name, moved(factor.axes), factor.degree, factor.terms)
            factors[image] = factors.get(image, 0) + count
        key = self._key((step.op, tuple(sorted(step.mapping)), value.key))[0]
        left = None if value.exponential is None else moved(value.exponential)
        return replace(value, key=key, axes=moved(value.axes), factors=factors, exponential=left)

    # Scalars[_Quotient].

    def const(self, value: Fraction) -> _Quotient:
        return _Quotient(
            self._key(("const", value))[0], frozenset(), 0, 1, {}, rational=True, magnitude=abs(value)
        )

    def infinity(self) -> _Quotient:
        return _Quotient(self._key("infinity")[0], frozenset(), 1, 1, {})

    def add(self, a: _Quotient, b: _Quotient) -> _Quotient:
        magnitude = None
        if a.magnitude is not None and b.magnitude is not None:
            magnitude = a.magnitude + b.magnitude
        degree, terms, factors = _common(a, b)
        return self._made("add", (a, b), degree, terms, factors, magnitude=magnitude)

    def mul(self, a: _Quotient, b: _Quotient) -> _Quotient:
        magnitude = None
        if a.magnitude is not None and b.magnitude is not None:
            magnitude = a.magnitude * b.magnitude
        factors = dict(a.factors)
        for factor, count in b.factors.items():
            factors[factor] = factors.get(factor, 0) + count
        terms = min(a.terms * b.terms, _TOO_MANY)
        return self._made("mul", (a, b), a.degree + b.degree, terms, factors, magnitude=magnitude)

    def neg(self, a: _Quotient) -> _Quotient:
        return self._made("neg", (a,), a.degree, a.terms, a.factors, magnitude=a.magnitude)

    def inv(self, a: _Quotient) -> _Quotient:
        bottom = _Factor(a.key, a.axes, a.degree, a.terms)
        factors = {bottom: 1} if a.degree or a.terms > 1 else {}
        return self._made("inv", (a,), _degree(a.factors), _terms(a.factors), factors)

    def exp(self, a: _Quotient) -> _Quotient:
        if self.sealed:
            return self.function("exp", a)
        key, new = self._key(("exp", a.key))
        if new:
            ledger, count = self.ledger, self._count(a.axes)
            ledger.exponents = max(ledger.exponents, a.degree)
            ledger.exponent_factors += count * _degree(a.factors)
            terms = min(ledger.exponent_terms * a.terms * _terms(a.factors), _TOO_MANY)
            ledger.exponent_terms = terms ** min(count, 24) if terms > 1 else 1
        return _Quotient(key, a.axes, 0, 1, {}, exponential=a.axes)

    def sqrt(self, a: _Quotient) -> _Quotient:
        if self.sealed:
            return self.function("sqrt", a)
        key, new = self._key(("sqrt", a.key))
        if new:
            self.ledger.roots += self._count(a.axes)
            self.ledger.rooted_exponential |= a.exponential is not None
        # sqrt(N/F) = sqrt(N F) / F: a number whose square has the degree of N F.
        degree = (a.degree + _degree(a.factors) + 1) // 2
        return _Quotient(key, a.axes, degree, 1, dict(a.factors), a.exponential, a.rational)

    def maximum(self, a: _Quotient, b: _Quotient) -> _Quotient:
        self.less(a, b)
        degree, terms, factors = _common(a, b)
        return self._made("maximum", (a, b), degree, terms, factors)

    def less(self, a: _Quotient, b: _Quotient) -> _Quotient:
        axes = a.axes | b.axes
        new = self._key(("order", frozenset({a.key, b.key})))[1]
        magnitudes = (a.magnitude, b.magnitude)
        static = all(size is not None and size <= LARGE_INTEGER for size in magnitudes)
        if new and not static:
            for value in (a, b):
                self.ledger.compared += self._count(value.axes) if self._key(("seen", value.key))[1] else 0
        key = self._key(("less", a.key, b.key))[0]
        return _Quotient(key, axes, 0, 1, {}, rational=static and self.fixed, magnitude=Fraction(1))

    def equal(self, a: _Quotient, b: _Quotient) -> _Quotient:
        # Level 0 is compared itself: as for an oracle, only an accident makes different ones equal.
        key, new = self._key(("equal", a.key, b.key))
        if new:
            degree, _, _ = _common(a, b)
            self.ledger.collisions += self._count(a.axes | b.axes) * degree / self.prime
        return _Quotient(key, a.axes | b.axes, 0, 1, {}, magnitude=Fraction(1))

    def where(self, mask: _Quotient, a: _Quotient, b: _Quotient) -> _Quotient:
        return self.add(self.mul(mask, a), self.mul(mask, b))

    def function(self, name: str, *args: _Quotient) -> _Quotient:
        axes = frozenset[str]().union(*(arg.axes for arg in args))
        key, new = self._key((name, tuple(arg.key for arg in args)))
        if new:
            degree = max(2 * (arg.degree + _degree(arg.factors)) for arg in args)
            terms = max(2 * arg.terms * _terms(arg.factors) for arg in args)
            terms = 1 if _exponential(args) is None else terms
            self.ledger.oracles.setdefault(name, []).append((self._count(axes), degree, terms))
        return _Quotient(key, axes, 1, 1, {})

    # How it is done.

    def _made(
        self,
        op: str,
        args: tuple[_Quotient, ...],
        degree: int,
        terms: int,
        factors: _Factors,
        *,
        magnitude: Fraction | None = None,
    ) -> _Quotient:
        keys = tuple(sorted(arg.key for arg in args))  # add, mul and maximum commute
        axes = frozenset[str]().union(*(arg.axes for arg in args))
        key = self._key((op, keys))[0]
        rational = op != "maximum" and all(arg.rational for arg in args)
        return _Quotient(key, axes, degree, terms, factors, _exponential(args), rational, magnitude)

    def _sum(self, value: _Quotient, axes: tuple[str, ...]) -> _Quotient:
        summed = frozenset(axes)
        factors, degree, terms = self._expand(value, summed)
        key = self._key(("sum", summed, value.key))[0]
        # One degree for each axis: the weights.
        left = None
        if value.exponential is not None:
            left = value.exponential - summed
            terms = min(terms * self._count(summed & value.exponential), _TOO_MANY)
        return _Quotient(key, value.axes - summed, degree + len(axes), terms, factors, left, value.rational)

    def _expand(self, value: _Quotient, axes: frozenset[str]) -> tuple[_Factors, int, int]:
        """Return value as if at one position of some axes, over the factors of all positions."""
        factors: _Factors = {}
        degree, terms = value.degree, value.terms
        for factor, count in value.factors.items():
            gone = factor.axes & axes
            if not gone:
                factors[factor] = factors.get(factor, 0) + count
                continue
            n = self._count(gone)
            key = self._key(("all", gone, factor.key))[0]
            whole_terms = min(factor.terms ** min(n, 24), _TOO_MANY)
            whole = _Factor(key, factor.axes - gone, n * factor.degree, whole_terms)
            factors[whole] = factors.get(whole, 0) + count
            degree += count * (n - 1) * factor.degree
            terms = min(terms * factor.terms ** min(count * (n - 1), 24), _TOO_MANY)
        return factors, degree, terms

    def _count(self, axes: frozenset[str]) -> int:
        return prod(self.sizes[axis] for axis in axes)

    def _key(self, value: object) -> tuple[Key, bool]:
        new = value not in self.keys
        return self.keys.setdefault(value, len(self.keys)), new


def _exponential(args: tuple[_Quotient, ...]) -> frozenset[str] | None:
    known = [arg.exponential for arg in args if arg.exponential is not None]
    return frozenset[str]().union(*known) if known else None


def _common(a: _Quotient, b: _Quotient) -> tuple[int, int, _Factors]:
    """Return degree and terms of a sum over the least common denominator, and that denominator."""
    whole = dict(a.factors)
    for factor, count in b.factors.items():
        whole[factor] = max(whole.get(factor, 0), count)
    degree, terms = 0, 0
    for value in (a, b):
        missing = {factor: count - value.factors.get(factor, 0) for factor, count in whole.items()}
        degree = max(degree, value.degree + _degree(missing))
        terms += value.terms * _terms(missing)
    if a.exponential is None and b.exponential is None:
        terms = 1
    return degree, min(terms, _TOO_MANY), whole


def _degree(factors: _Factors) -> int:
    return sum(count * factor.degree for factor, count in factors.items())


def _terms(factors: _Factors) -> int:
    terms: int = prod(factor.terms ** min(count, 24) for factor, count in factors.items())
    return min(terms, _TOO_MANY)


def _roots_of_sparse(terms: int, order: int) -> float:
    """Return the largest fraction of zeros of a polynomial of so many terms on a group of prime order."""
    if terms <= 1:
        return 0.0
    return 1 / order if terms == 2 else 2 * 2 ** (-log2(order) / (terms - 1))


def error_bound(
    a: Graph,
    b: Graph,
    sizes: Mapping[str, int],
    *,
    tower: tuple[int, ...] = TOWER,
    classes: tuple[Sequence[int], Sequence[int]] | None = None,
    extents: Mapping[str, int] | None = None,
    fixed: bool = True,
    sealed: bool = False,
) -> Bound:
    """Return the bound for one trial of two graphs that share axes and input names.

    `classes` numbers the values of both graphs; rational ones of one number are known to be equal.
    `extents` has what the weights of an axis add up to, where that is fixed.
    `fixed` says that indices are the same in all trials, `sealed` that the field is.
    """
    analysis = _Analysis(
        sizes, tower[0], extents=extents or {}, fixed=fixed, sealed=sealed, integers=drawn_integers(a, b)
    )
    of_a, of_b = classes or (None, None)
    left, right = analysis.graph(a, of_a), analysis.graph(b, of_b)
    degree, terms = 0, 1
    for x, y in zip(left, right, strict=True):
        d, t, _ = _common(x, y)
        degree, terms = max(degree, d), max(terms, t)
    ledger = analysis.ledger
    conjugates = 2.0 ** min(ledger.roots, 64)
    leaves = degree / tower[0] + ledger.collisions
    bases = _roots_of_sparse(terms, tower[1])
    reason = ""
    for uses in ledger.oracles.values():
        # Any two arguments of one function may collide.
        count = sum(use[0] for use in uses)
        meetings = count * (count - 1) / 2
        leaves += meetings * max(use[1] for use in uses) / tower[0]
        most = max(use[2] for use in uses)
        bases += meetings * _roots_of_sparse(most, tower[1])
        terms = max(terms, most)
    if terms > 1:
        pairs = terms * (terms - 1) / 2
        leaves += pairs * (ledger.exponents + ledger.exponent_factors) / tower[1]
        if ledger.exponent_terms > 1:
            nested = min(2 * ledger.exponent_terms, _TOO_MANY)
            bases += pairs * (_roots_of_sparse(nested, tower[2]) if len(tower) > 2 else 1.0)
            reason = "nested exponentials"
    leaves *= conjugates
    if ledger.rooted_exponential:
        bases += inf
        reason = "the square root of an exponential"
    order = 1 / factorial(min(ledger.compared, 100)) / 2.0 ** min(ledger.bits, 1000)
    return Bound(leaves, bases, order, degree, terms, reason)
