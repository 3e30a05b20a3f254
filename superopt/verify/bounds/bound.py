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

**Outcomes.** Each comparison of two numbers, and each element of a boolean input, is a random bit. For
given outcomes the outputs are quotients as above, so the difference is a polynomial in the bits with such
coefficients. One of degree d, linear in each bit, that is not zero everywhere is not zero for at least one
in 2^d of all outcomes. The degree is followed step by step; it is at most the number of bits that one
element of an output depends on, which counts where trials were dismissed for orders that no real numbers
have, and where a comparison reads results of other comparisons. Indices and constants are known, so that
comparing them takes no luck.

**Oracles.** A function the algebra does not know gives fresh numbers, except where two different
arguments collide.

Assumed: hashes, and the signs and logarithms of unrelated numbers, are as good as random, and so are powers
of a random base with unrelated exponents where the bound above for exponentials says too little; no root is
taken of what is identically a square; an axis whose positions nothing tells apart shows a difference on two
or three of them, or on as many as sums over it are multiplied; if programs differ in floats only, that is
not a difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log2

from superopt.ir import Graph
from superopt.verify.bounds.degrees import Degrees
from superopt.verify.bounds.quotients import TOO_MANY, over_common
from superopt.verify.field.primes import HIGHEST

__all__ = ["Bound", "error_bound"]

_TOO_MANY_BITS = 60
_POOR = 2.0**-4  # a bound for one trial above which another way to bound it is tried


@dataclass(frozen=True, slots=True)
class Bound:
    """How one trial can be fooled: by leaves, by the bases of exponentials, by the outcomes drawn.

    `leaves` grows where trials are thrown away for their roots, since the rest is not uniform;
    `bases` does so only if roots are taken of exponentials. `bits` is the degree of the difference in
    random bits, `outcomes` the number of bits that one element depends on; under random ranks both are the
    logarithm of how many orders there are for one that matters (`ranks.py`).
    """

    leaves: float
    bases: float
    bits: float
    outcomes: float
    degree: int
    terms: int
    reason: str = ""

    def per_trial(self, *, kept: float = 1.0, dismissed: bool = False) -> float:
        """Return the bound when a fraction of all trials is kept; 1 or more is no bound.

        `dismissed` says that trials disagreed which were dismissed for their impossible orders.
        """
        fooled = self.leaves / kept + (self.bases / kept if self.reason else self.bases)
        bits = min(self.outcomes if dismissed else self.bits, _TOO_MANY_BITS)
        return 1 - 2.0**-bits * (1 - fooled) if fooled < 1 else inf


def error_bound(
    a: Graph,
    b: Graph,
    sizes: Mapping[str, int],
    *,
    tower: tuple[int, ...] = HIGHEST,
    classes: tuple[Sequence[int], Sequence[int]] | None = None,
    sealed: bool = False,
    integers: int = 4,
    wide: bool = False,
    known: tuple[Sequence[bool], Sequence[bool]] | None = None,
) -> Bound:
    """Return the bound for one trial of two graphs that share axes and input names.

    `classes` numbers the values of both graphs; rational ones of one number are known to be equal.
    `sealed` says that the field is. `integers` is how many numbers tensors of integers are drawn from, and
    `wide` whether half of their elements are any numbers. `known` has the values that read no tensor and
    whose numbers are known, so that no luck decides how they compare.
    """
    degrees = Degrees(sizes, tower[0], sealed=sealed, integers=integers, wide=wide)
    of_a, of_b = classes or (None, None)
    known_a, known_b = known or (None, None)
    left, right = degrees.graph(a, of_a, known_a), degrees.graph(b, of_b, known_b)
    degree, terms, bits, outcomes = 0, 1, 0, 0
    for x, y in zip(left, right, strict=True):
        d, t, _, own = over_common(x, y)
        most = degrees.outcomes(x, y)
        degree, terms = max(degree, d), max(terms, t)
        bits, outcomes = max(bits, min(own, most)), max(outcomes, most)
    ledger = degrees.ledger
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
            nested = min(2 * ledger.exponent_terms, TOO_MANY)
            bases += pairs * (_roots_of_sparse(nested, tower[2]) if len(tower) > 2 else 1.0)
            reason = "nested exponentials"
    leaves *= conjugates
    if ledger.rooted_exponential:
        bases += inf
        reason = "the square root of an exponential"
    found = Bound(leaves, bases, bits, outcomes, degree, terms, reason)
    if sealed or leaves + bases < _POOR:
        return found
    # Powers of a random base with unrelated exponents, and roots, count as random numbers of their own.
    unrelated = error_bound(
        a,
        b,
        sizes,
        tower=tower[-1:] * 2,
        classes=classes,
        sealed=True,
        integers=integers,
        wide=wide,
        known=known,
    )
    other = replace(found, leaves=unrelated.leaves * conjugates, bases=0.0, reason="")
    return min(found, other, key=lambda one: one.leaves + one.bases)


def _roots_of_sparse(terms: int, order: int) -> float:
    """Return the largest fraction of zeros of a polynomial of so many terms on a group of prime order."""
    if terms <= 1:
        return 0.0
    return 1 / order if terms == 2 else 2 * 2 ** (-log2(order) / (terms - 1))
