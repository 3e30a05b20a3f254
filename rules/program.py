"""The axioms in the language of egglog: the terms, the analysis of their axes and signs, the rewrites."""

from fractions import Fraction
from functools import cache

from superopt.rules.axioms import AXIOMS, Axiom, axioms_between_terms
from superopt.rules.patterns import Pattern, operators, parse_pattern, variables, windows
from superopt.rules.windows import WINDOW_AXIOMS

__all__ = ["ANALYSIS", "LANGUAGE", "commands", "constant_text"]

LANGUAGE = """
(datatype Term
  (Leaf i64) (Mul Term Term) (Add Term Term) (Inv Term) (Neg Term) (Exp Term) (Sqrt Term)
  (Maximum Term Term) (Call1 i64 Term) (Call2 i64 Term Term) (Call3 i64 Term Term Term)
  (Sum i64 Term) (Max i64 Term) (Access i64 Term) (Log Term) (Const BigRat) (Size i64) (Window i64 Term))
(function axes (Term) i64 :merge (& old new))
(function reads (i64) i64 :no-merge)
(function makes (i64) i64 :no-merge)
(function keeps (i64) i64 :no-merge)
(relation keeps-zero (i64))
(relation nonnegative (Term))
(relation positive (Term))
(relation once (Term))
(ruleset analysis)
(ruleset commuting)
(ruleset vanishing)
(ruleset folding)
(ruleset axioms)
(rule ((positive e)) ((nonnegative e)) :ruleset analysis)
"""
"""The term language; egglog itself keeps the axes each term depends on (a bit set), and which terms
are known to be nonnegative or positive, or to be made of weights once. The extent of several axes is a
term by their bit set. Of each window it knows the axes that it reads, that it makes, and those of these that
nothing sums over."""

ANALYSIS = "(run-schedule (run commuting) (saturate (run analysis)))"
"""What runs before terms are shrunk and before the axioms. A shrinking rule is matched with the operands in
one order only, so both orders must be there; a guard reads the axes and signs of every term."""

COMMUTE = ("Mul", "Add", "Maximum")


def constant_text(value: Fraction) -> str:
    """Return a number as egglog reads it, of any size."""
    return f'(bigrat (from-string "{value.numerator}") (from-string "{value.denominator}"))'


@cache
def commands(
    *, plain: bool = False, more: tuple[Axiom, ...] = (), weights: bool = False
) -> tuple[tuple[frozenset[str], str], ...]:
    """Return every rule with its operators, or only the rules without constants, extents and logarithms.

    Further axioms, as discovered ones, come after the others. Axioms of `weights` are left out without these.
    A rule whose operators a goal does not have can do nothing there, and need not be loaded.
    """
    found = [(parse_pattern(term), rule) for term, rule in (*_axes_rules(), *_sign_rules())]
    found += [(parse_pattern(term), rule) for term, rule in (_once_rules() if weights else ())]
    axioms = (*(axioms_between_terms() if plain else AXIOMS), *WINDOW_AXIOMS)
    taken = (axiom for axiom in (*axioms, *more) if weights or not axiom.once)
    found += [rule for axiom in taken for rule in _rewrites(axiom)]
    return tuple(dict.fromkeys((frozenset(operators(left)), rule) for left, rule in found))


def _axes_rules() -> list[tuple[str, str]]:
    """Return how the axes of a term follow from those of its operands."""
    cases = [(f"({op} a)", "x") for op in ("Inv", "Neg", "Exp", "Sqrt", "Log", "Call1 f")]
    cases += [(f"({op} a b)", "(| x y)") for op in ("Mul", "Add", "Maximum", "Call2 f")]
    cases += [(f"({op} k a)", "(- x (& x (<< 1 k)))") for op in ("Sum", "Max")]
    cases += [("(Call3 f a b c)", "(| x (| y z))"), ("(Const p)", "0"), ("(Size s)", "0")]
    rules = [
        (
            "(Window w a)",
            "(rule ((= e (Window w a)) (= x (axes a)) (= y (reads w)) (= z (makes w)))"
            " ((set (axes e) (| (- x (& x y)) z))) :ruleset analysis)",
        )
    ]
    for term, axes in cases:
        known = [f"(= {name} (axes {arg}))" for name, arg in zip("xyz", "abc", strict=True) if name in axes]
        rules.append(
            (term, f"(rule ((= e {term}) {' '.join(known)}) ((set (axes e) {axes})) :ruleset analysis)")
        )
    return rules


def _sign_rules() -> list[tuple[str, str]]:
    """Return which terms are known to be nonnegative, and which to be positive."""
    alike = [
        (term, "({s} a)") for term in ("(Sum k a)", "(Max k a)", "(Maximum a b)", "(Access f a)", "(Inv a)")
    ]
    alike += [("(Mul a b)", "({s} a) ({s} b)")]
    cases = [
        (term, known.format(s=sign), sign) for term, known in alike for sign in ("nonnegative", "positive")
    ]
    cases += [
        ("(Mul a a)", "", "nonnegative"),
        ("(Add a b)", "(nonnegative a) (nonnegative b)", "nonnegative"),
        ("(Add a b)", "(positive a) (nonnegative b)", "positive"),
        ("(Add a b)", "(nonnegative a) (positive b)", "positive"),
        ("(Sqrt a)", "", "nonnegative"),
        ("(Sqrt a)", "(positive a)", "positive"),
        ("(Exp a)", "", "positive"),
        ("(Window w a)", "(nonnegative a)", "nonnegative"),
        ("(Size s)", "", "positive"),
        ("(Const p)", f"(>= p {_NOUGHT})", "nonnegative"),
        ("(Const p)", f"(> p {_NOUGHT})", "positive"),
    ]
    return [
        (term, f"(rule ((= e {term}) {known}) (({sign} e)) :ruleset analysis)") for term, known, sign in cases
    ]


def _once_rules() -> list[tuple[str, str]]:
    """Return which terms are made of weights and numbers alone."""
    cases = [
        (f"({op} a)", "a")
        for op in ("Inv", "Neg", "Exp", "Sqrt", "Log", "Sum k", "Max k", "Call1 f", "Access f", "Window w")
    ]
    cases += [(f"({op} a b)", "ab") for op in ("Mul", "Add", "Maximum", "Call2 f")]
    cases += [("(Call3 f a b c)", "abc"), ("(Const p)", ""), ("(Size s)", "")]
    return [
        (
            term,
            f"(rule ((= e {term}) {' '.join(f'(once {one})' for one in args)}) ((once e)) :ruleset analysis)",
        )
        for term, args in cases
    ]


def _rewrites(axiom: Axiom) -> list[tuple[Pattern, str]]:
    """Return the left side and the command of each rewrite of an axiom."""
    found = []
    for source, target in axiom.directions():
        left, right = parse_pattern(source), parse_pattern(target)
        ruleset = "commuting" if set(left[1:]) == set(right[1:]) and left[0] in COMMUTE else "axioms"
        guard = " ".join(_guards(axiom))
        if axiom.shrinks:
            found.append((left, _shrinking(left, right, guard)))
        else:
            when = f":when ({guard})" if guard else ""
            found.append((left, f"(rewrite {_text(left)} {_text(right)} {when} :ruleset {ruleset})"))
    return found


def _shrinking(left: Pattern, right: Pattern, guard: str) -> str:
    """Return the rule that replaces the left side by the right one, and gives the left side up."""
    assert not isinstance(left, str)
    name, *rest = left
    names = [part if isinstance(part, str) else f"part{i}" for i, part in enumerate(rest)]
    facts = [f"(= {names[i]} {_text(part)})" for i, part in enumerate(rest) if not isinstance(part, str)]
    term = f"({' '.join([str(name), *names])})"
    gone = [term, f"({name} {names[1]} {names[0]})"] if name in COMMUTE else [term]
    actions = [f"(union e {_text(right)})", *(f"(subsume {one})" for one in dict.fromkeys(gone))]
    # Saturation begins again only where a term vanished, not where several constants became one.
    vanishes = isinstance(right, str) or len(variables(right)[0]) < len(variables(left)[0])
    ruleset = "vanishing" if vanishes else "folding"
    return f"(rule ((= e {term}) {' '.join(facts)} {guard}) ({' '.join(actions)}) :ruleset {ruleset})"


def _guards(axiom: Axiom) -> list[str]:
    """Return the facts about its terms that an axiom asks for."""
    facts = [f"(nonnegative {term})" for term in axiom.nonnegative]
    facts += [f"(positive {term})" for term in axiom.positive]
    facts += [f"(once {term})" for term in axiom.once]
    known = dict.fromkeys([*windows(parse_pattern(axiom.left)), *windows(parse_pattern(axiom.right))])
    guards = (axiom.lacks, axiom.apart, axiom.narrow, axiom.moved)
    guarded = [name for pair in guards if pair for name in pair]
    facts += [
        f"(= {window}_{what} ({what} {window}))"
        for window in known
        if window in guarded
        for what in ("reads", "makes", "keeps")
    ]
    if axiom.lacks:
        factor, axis = axiom.lacks
        bits = f"{axis}_reads" if axis in known else f"(<< 1 {axis})"
        facts += [f"(= mask (axes {factor}))", f"(= 0 (& mask {bits}))"]
    if axiom.narrow:
        factor, window = axiom.narrow
        facts += [f"(= mask (axes {factor}))", f"(= 0 (& mask {window}_keeps))"]
    if axiom.apart:
        one, window = axiom.apart
        bits = f"{one}_reads" if one in known else f"(<< 1 {one})"
        facts.append(f"(= 0 (& {bits} (| {window}_reads {window}_makes)))")
        facts += [f"(= 0 (& {window}_reads {one}_makes))"] if one in known else []
    for term in axiom.moved[1:]:
        facts += [f"(= {term}_axes (axes {term}))", f"(!= 0 (& {term}_axes {axiom.moved[0]}_reads))"]
    if axiom.keeps_zero:
        facts.append(f"(keeps-zero {axiom.keeps_zero})")
    if axiom.nonzero:
        facts.append(f"(!= {axiom.nonzero} {_NOUGHT})")
    if axiom.negative:
        facts.append(f"(< {axiom.negative} {_NOUGHT})")
    return facts


def _text(pattern: Pattern) -> str:
    """Return a side of an axiom as egglog reads it."""
    if isinstance(pattern, str):
        return pattern
    name, *rest = pattern
    return f"({' '.join([str(name), *map(_number_text if name == 'Const' else _text, rest)])})"


def _number_text(pattern: Pattern) -> str:
    if not isinstance(pattern, str):
        name, *rest = pattern
        return f"({' '.join([str(name), *map(_number_text, rest)])})"
    return pattern if pattern.isalpha() else constant_text(Fraction(pattern))


_NOUGHT = constant_text(Fraction(0))
