"""The axioms: which tensor expressions are equal. One line each, each with a name.

An axiom that held only for some axes would be the classic source of wrong results, so the ones
that move a factor across a sum carry their guard: the factor must lack the summed axis. All
axioms here are identities of the real numbers, wherever both sides are defined; `rules check`
proves each.

No cancellation such as a / a = 1: with it every term would be a part of every other, because
t = (t / e) * e for any e. No inverse pair of rules that grows without bound for the same reason.
No sqrt(a) sqrt(a) = a: with the root of a product it would make sqrt(a a) = a, false where a < 0.
"""

from dataclasses import dataclass

__all__ = ["AXIOMS", "PRELUDE", "Axiom", "Pattern", "parse_pattern", "program_text", "variables"]

Pattern = str | tuple["Pattern", ...]
"""A side of an axiom: a variable or axis by name, or (operator, ...)."""


def parse_pattern(text: str) -> Pattern:
    """Return the pattern that an s-expression spells."""
    stack: list[list[Pattern]] = [[]]
    for token in text.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            stack.append([])
        elif token == ")":
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    assert len(stack) == 1, text
    assert len(stack[0]) == 1, text
    return stack[0][0]


def variables(pattern: Pattern) -> tuple[list[str], list[str]]:
    """Return the variables of a pattern: those that stand for terms, and for axes."""
    terms: dict[str, None] = {}
    axes: dict[str, None] = {}
    pending: list[Pattern] = [pattern]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            terms[part] = None
            continue
        reduces = part[0] in ("Sum", "Max")
        if reduces:
            assert isinstance(part[1], str)
            axes[part[1]] = None
        pending.extend(reversed(part[2:] if reduces else part[1:]))
    return list(terms), list(axes)


@dataclass(frozen=True, slots=True)
class Axiom:
    """One identity, left = right; used in both directions unless it is `oneway`."""

    name: str
    left: str
    right: str
    oneway: bool = False
    lacks: tuple[str, str] | None = None  # (factor, axis): the factor must not depend on the axis
    nonnegative: tuple[str, ...] = ()  # terms that must be known to be so
    note: str = ""

    def directions(self) -> list[tuple[str, str]]:
        """Return the directions in which it rewrites: (from, to)."""
        return [(self.left, self.right)] + ([] if self.oneway else [(self.right, self.left)])

    def commands(self) -> list[str]:
        """Return the egglog commands of this axiom."""
        facts = [f"(nonnegative {term})" for term in self.nonnegative]
        if self.lacks:
            factor, axis = self.lacks
            facts += [f"(= mask (axes {factor}))", f"(= 0 (& mask (<< 1 {axis})))"]
        guard = f" :when ({' '.join(facts)})" if facts else ""
        return [f"(rewrite {left} {right}{guard} :ruleset axioms)" for left, right in self.directions()]


OUTWARD = "outward only: signs inside every factor would multiply the terms and help no kernel"

UNDER_SUM = "products of sums are written out under a reduction only, where the parts can leave it"

AXIOMS = (
    # -- products and sums
    Axiom("mul-commutes", "(Mul a b)", "(Mul b a)", oneway=True),
    Axiom("mul-associates", "(Mul (Mul a b) c)", "(Mul a (Mul b c))"),
    Axiom("add-commutes", "(Add a b)", "(Add b a)", oneway=True),
    Axiom("add-associates", "(Add (Add a b) c)", "(Add a (Add b c))"),
    Axiom("common-factor", "(Add (Mul a b) (Mul a c))", "(Mul a (Add b c))", oneway=True, note=UNDER_SUM),
    # -- quotients: a / b is a * (1 / b)
    Axiom("inv-of-product", "(Inv (Mul a b))", "(Mul (Inv a) (Inv b))"),
    Axiom("inv-of-inv", "(Inv (Inv a))", "a", oneway=True, note="no way back: it has no end"),
    # -- signs
    Axiom("neg-leaves-product", "(Mul (Neg a) b)", "(Neg (Mul a b))", oneway=True, note=OUTWARD),
    Axiom("neg-leaves-inv", "(Inv (Neg a))", "(Neg (Inv a))", oneway=True, note=OUTWARD),
    Axiom("neg-leaves-add", "(Add (Neg a) (Neg b))", "(Neg (Add a b))", oneway=True, note=OUTWARD),
    Axiom("neg-leaves-sum", "(Sum k (Neg a))", "(Neg (Sum k a))", oneway=True, note=OUTWARD),
    Axiom("neg-of-neg", "(Neg (Neg a))", "a", oneway=True),
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
    Axiom("sums-commute", "(Sum j (Sum k a))", "(Sum k (Sum j a))", oneway=True),
    Axiom("maxima-commute", "(Max j (Max k a))", "(Max k (Max j a))", oneway=True),
    Axiom("max-of-maximum", "(Max k (Maximum a b))", "(Maximum (Max k a) (Max k b))"),
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
)
"""All axioms, in the order in which they are explained."""

PRELUDE = """
(datatype Term
  (Leaf i64) (Mul Term Term) (Add Term Term) (Inv Term) (Neg Term) (Exp Term) (Sqrt Term)
  (Maximum Term Term) (Call1 i64 Term) (Call2 i64 Term Term) (Call3 i64 Term Term Term)
  (Sum i64 Term) (Max i64 Term) (Access i64 Term))
(function axes (Term) i64 :merge (& old new))
(relation nonnegative (Term))
(ruleset analysis)
(ruleset axioms)
(rule ((= e (Mul a b)) (= x (axes a)) (= y (axes b))) ((set (axes e) (| x y))) :ruleset analysis)
(rule ((= e (Add a b)) (= x (axes a)) (= y (axes b))) ((set (axes e) (| x y))) :ruleset analysis)
(rule ((= e (Maximum a b)) (= x (axes a)) (= y (axes b))) ((set (axes e) (| x y))) :ruleset analysis)
(rule ((= e (Call2 f a b)) (= x (axes a)) (= y (axes b))) ((set (axes e) (| x y))) :ruleset analysis)
(rule ((= e (Call3 f a b c)) (= x (axes a)) (= y (axes b)) (= z (axes c)))
      ((set (axes e) (| x (| y z)))) :ruleset analysis)
(rule ((= e (Inv a)) (= x (axes a))) ((set (axes e) x)) :ruleset analysis)
(rule ((= e (Neg a)) (= x (axes a))) ((set (axes e) x)) :ruleset analysis)
(rule ((= e (Exp a)) (= x (axes a))) ((set (axes e) x)) :ruleset analysis)
(rule ((= e (Sqrt a)) (= x (axes a))) ((set (axes e) x)) :ruleset analysis)
(rule ((= e (Call1 f a)) (= x (axes a))) ((set (axes e) x)) :ruleset analysis)
(rule ((= e (Sum k a)) (= x (axes a))) ((set (axes e) (- x (& x (<< 1 k))))) :ruleset analysis)
(rule ((= e (Max k a)) (= x (axes a))) ((set (axes e) (- x (& x (<< 1 k))))) :ruleset analysis)
(rule ((= e (Mul a a))) ((nonnegative e)) :ruleset analysis)
(rule ((= e (Mul a b)) (nonnegative a) (nonnegative b)) ((nonnegative e)) :ruleset analysis)
(rule ((= e (Add a b)) (nonnegative a) (nonnegative b)) ((nonnegative e)) :ruleset analysis)
(rule ((= e (Maximum a b)) (nonnegative a)) ((nonnegative e)) :ruleset analysis)
(rule ((= e (Sum k a)) (nonnegative a)) ((nonnegative e)) :ruleset analysis)
(rule ((= e (Max k a)) (nonnegative a)) ((nonnegative e)) :ruleset analysis)
(rule ((= e (Access f a)) (nonnegative a)) ((nonnegative e)) :ruleset analysis)
(rule ((= e (Inv a)) (nonnegative a)) ((nonnegative e)) :ruleset analysis)
(rule ((= e (Exp a))) ((nonnegative e)) :ruleset analysis)
(rule ((= e (Sqrt a))) ((nonnegative e)) :ruleset analysis)
"""
"""The term language; egglog itself keeps the axes each term depends on (a bit set), and which terms
are known to be nonnegative."""


def program_text() -> str:
    """Return the egglog program of the language and all axioms."""
    return PRELUDE + "\n".join(command for axiom in AXIOMS for command in axiom.commands())
