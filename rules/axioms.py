"""The axioms say which tensor expressions are equal, each in one line and with a name.

Axioms that hold for some axes only are the classic source of wrong results, so an axiom that moves a
factor across a sum carries a guard: the factor must lack the summed axis. All axioms here are identities
of the real numbers, wherever both sides are defined; `superopt rules check` proves each.

An axiom that shrinks a term (`x * 1`, `x - x`, `log(exp x)`) is applied before all others, and the
term that it shrinks is given up: the other axioms would make many forms of a term that vanishes anyway.

Some identities are left out on purpose. a / a = 1 is false where a may be 0, and in the other direction it
would make every term a part of every other, because t = (t / e) * e for any e; inverse pairs of rules that
grow without bound are left out for the same reason. sqrt(a) sqrt(a) = a, together with the root of a
product, would make sqrt(a a) = a, which is false where a < 0. An axiom of which only one side may be
defined asks for the signs of its terms: chained with others, it would call terms equal that differ where
both are defined.
"""

from dataclasses import dataclass
from functools import cache

from superopt.rules.patterns import operators, parse_pattern

__all__ = ["AXIOMS", "Axiom", "axioms_between_terms"]


@dataclass(frozen=True, slots=True)
class Axiom:
    """One identity, left = right; used in both directions unless it is `oneway`."""

    name: str
    left: str
    right: str
    oneway: bool = False
    # (factor, axis): the factor must not depend on the axis, or on what a window of this name reads
    lacks: tuple[str, str] | None = None
    apart: tuple[str, str] | None = None  # (axis or window, window): they have no axis in common
    narrow: tuple[str, str] | None = None  # (factor, window): it has no axis of the window but taps
    moved: tuple[str, ...] = ()  # (window, terms ...): the terms have what the window reads
    keeps_zero: str | None = None  # a function that is 0 at 0
    nonnegative: tuple[str, ...] = ()  # terms that must be known to be nonnegative
    positive: tuple[str, ...] = ()  # terms that must be known to be positive
    nonzero: str | None = None  # a number that must not be 0
    negative: str | None = None  # a number that must be negative
    once: tuple[str, ...] = ()  # terms that must be made of weights alone, so that they cost a call nothing
    shrinks: bool = False  # used in one direction, before all others; the left side is given up
    note: str = ""

    def directions(self) -> list[tuple[str, str]]:
        """Return the directions in which the axiom rewrites: (from, to)."""
        return [(self.left, self.right)] + ([] if self.oneway or self.shrinks else [(self.right, self.left)])


OUTWARD = "outward only: signs inside every factor would multiply the terms and help no kernel"

UNDER_SUM = "products of sums are written out under a reduction only, where the parts can leave it"

AXIOMS = (
    # -- products and sums
    Axiom("mul-commutes", "(Mul a b)", "(Mul b a)", oneway=True),
    Axiom("mul-associates", "(Mul (Mul a b) c)", "(Mul a (Mul b c))"),
    Axiom("add-commutes", "(Add a b)", "(Add b a)", oneway=True),
    Axiom("add-associates", "(Add (Add a b) c)", "(Add a (Add b c))"),
    Axiom("common-factor", "(Add (Mul a b) (Mul a c))", "(Mul a (Add b c))", oneway=True, note=UNDER_SUM),
    Axiom(
        "weight-distributes",
        "(Mul a (Add b c))",
        "(Add (Mul a b) (Mul a c))",
        oneway=True,
        once=("a", "b"),
        note="the product of weights is made once, and the other factor may go into a contraction",
    ),
    # -- quotients: a / b is a * (1 / b)
    Axiom("inv-of-product", "(Inv (Mul a b))", "(Mul (Inv a) (Inv b))"),
    Axiom("inv-of-inv", "(Inv (Inv a))", "a", oneway=True, note="no way back: it has no end"),
    # -- signs
    Axiom("neg-leaves-product", "(Mul (Neg a) b)", "(Neg (Mul a b))", oneway=True, note=OUTWARD),
    Axiom("neg-leaves-inv", "(Inv (Neg a))", "(Neg (Inv a))", oneway=True, note=OUTWARD),
    Axiom("neg-leaves-add", "(Add (Neg a) (Neg b))", "(Neg (Add a b))", oneway=True, note=OUTWARD),
    Axiom("neg-leaves-sum", "(Sum k (Neg a))", "(Neg (Sum k a))", oneway=True, note=OUTWARD),
    Axiom("neg-of-neg", "(Neg (Neg a))", "a", oneway=True),
    # -- constants
    Axiom("constants-multiply", "(Mul (Const p) (Const q))", "(Const (* p q))", shrinks=True),
    Axiom("constants-add", "(Add (Const p) (Const q))", "(Const (+ p q))", shrinks=True),
    Axiom("inv-of-constant", "(Inv (Const p))", "(Const (/ 1 p))", nonzero="p", shrinks=True),
    Axiom("neg-of-constant", "(Neg (Const p))", "(Const (neg p))", shrinks=True),
    Axiom("exp-of-zero", "(Exp (Const 0))", "(Const 1)", shrinks=True),
    Axiom("sqrt-of-one", "(Sqrt (Const 1))", "(Const 1)", shrinks=True),
    Axiom("times-one", "(Mul a (Const 1))", "a", shrinks=True),
    Axiom("times-zero", "(Mul a (Const 0))", "(Const 0)", shrinks=True),
    Axiom("plus-zero", "(Add a (Const 0))", "a", shrinks=True),
    Axiom(
        "negative-multiple",
        "(Mul (Const p) a)",
        "(Neg (Mul (Const (neg p)) a))",
        oneway=True,
        negative="p",
        note=OUTWARD,
    ),
    # -- what adds up or cancels
    Axiom("difference", "(Add a (Neg a))", "(Const 0)", shrinks=True),
    Axiom("difference-plus", "(Add a (Add (Neg a) b))", "b", shrinks=True),
    Axiom("sum-minus", "(Add (Neg a) (Add a b))", "b", shrinks=True),
    Axiom("minus-sum", "(Add a (Neg (Add a b)))", "(Neg b)", shrinks=True),
    Axiom("quotient", "(Mul a (Inv a))", "(Const 1)", positive=("a",), shrinks=True),
    Axiom("quotient-times", "(Mul a (Mul (Inv a) b))", "b", positive=("a",), shrinks=True),
    Axiom("product-over", "(Mul (Inv a) (Mul a b))", "b", positive=("a",), shrinks=True),
    Axiom(
        "multiple-of-multiple", "(Mul (Const p) (Mul (Const q) a))", "(Mul (Const (* p q)) a)", shrinks=True
    ),
    Axiom("twice", "(Add a a)", "(Mul (Const 2) a)", shrinks=True),
    Axiom("one-more", "(Add a (Mul (Const p) a))", "(Mul (Const (+ p 1)) a)", shrinks=True),
    Axiom(
        "one-minus-multiple",
        "(Add a (Neg (Mul (Const p) a)))",
        "(Mul (Const (+ 1 (neg p))) a)",
        shrinks=True,
    ),
    Axiom("one-less", "(Add (Neg a) (Mul (Const p) a))", "(Mul (Const (+ p -1)) a)", shrinks=True),
    Axiom(
        "multiples-add",
        "(Add (Mul (Const p) a) (Mul (Const q) a))",
        "(Mul (Const (+ p q)) a)",
        shrinks=True,
    ),
    Axiom(
        "multiples-subtract",
        "(Add (Mul (Const p) a) (Neg (Mul (Const q) a)))",
        "(Mul (Const (+ p (neg q))) a)",
        shrinks=True,
    ),
    # -- reductions
    Axiom("sum-of-add", "(Sum k (Add a b))", "(Add (Sum k a) (Sum k b))"),
    Axiom(
        "sum-of-distributed",
        "(Sum k (Mul a (Add b c)))",
        "(Add (Sum k (Mul a b)) (Sum k (Mul a c)))",
        oneway=True,
        note=UNDER_SUM,
    ),
    Axiom("sum-of-product", "(Sum k (Mul a b))", "(Mul a (Sum k b))", lacks=("a", "k")),
    Axiom("max-of-constant", "(Max k a)", "a", lacks=("a", "k"), shrinks=True),
    Axiom("sums-commute", "(Sum j (Sum k a))", "(Sum k (Sum j a))", oneway=True),
    Axiom("maxima-commute", "(Max j (Max k a))", "(Max k (Max j a))", oneway=True),
    Axiom("max-of-maximum", "(Max k (Maximum a b))", "(Maximum (Max k a) (Max k b))"),
    Axiom("maximum-of-same", "(Maximum a a)", "a", shrinks=True),
    Axiom("maximum-commutes", "(Maximum a b)", "(Maximum b a)", oneway=True),
    Axiom("maximum-associates", "(Maximum (Maximum a b) c)", "(Maximum a (Maximum b c))"),
    # -- functions
    Axiom("exp-of-add", "(Mul (Exp a) (Exp b))", "(Exp (Add a b))"),
    Axiom("product-of-sqrts", "(Mul (Sqrt a) (Sqrt b))", "(Sqrt (Mul a b))", oneway=True),
    Axiom(
        "sqrt-of-product",
        "(Sqrt (Mul a b))",
        "(Mul (Sqrt a) (Sqrt b))",
        oneway=True,
        nonnegative=("a", "b"),
        note="of two negative numbers the right side is undefined where the left is not",
    ),
    Axiom("sqrt-of-inv", "(Sqrt (Inv a))", "(Inv (Sqrt a))", oneway=True, note="one form is enough"),
    # -- logarithms, defined where their argument is positive
    Axiom("log-of-exp", "(Log (Exp a))", "a", shrinks=True),
    Axiom("exp-of-log", "(Exp (Log a))", "a", positive=("a",), shrinks=True),
    Axiom("log-of-one", "(Log (Const 1))", "(Const 0)", shrinks=True),
    Axiom(
        "log-of-product",
        "(Log (Mul a b))",
        "(Add (Log a) (Log b))",
        oneway=True,
        positive=("a", "b"),
        note="the product of two negative numbers has a logarithm, they have none",
    ),
    Axiom("sum-of-logs", "(Add (Log a) (Log b))", "(Log (Mul a b))", oneway=True),
    Axiom("log-of-inv", "(Log (Inv a))", "(Neg (Log a))"),
    Axiom(
        "log-of-sqrt", "(Log (Sqrt a))", "(Mul (Const 1/2) (Log a))", oneway=True, note="one form is enough"
    ),
)
"""All axioms, in the order in which they are explained."""


@cache
def axioms_between_terms() -> tuple[Axiom, ...]:
    """Return the axioms that know nothing of constants, extents and logarithms, and shrink nothing."""
    return tuple(
        axiom
        for axiom in AXIOMS
        if not axiom.shrinks
        and not {"Const", "Size", "Log"}
        & (operators(parse_pattern(axiom.left)) | operators(parse_pattern(axiom.right)))
    )
