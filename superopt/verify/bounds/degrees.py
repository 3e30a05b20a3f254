"""Degrees: the values of two graphs as quotients, followed step by step; `bound.py` says what for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

from superopt.dtypes import INTEGERS
from superopt.ir import Graph, Step, tensorless_values
from superopt.ops import OPS
from superopt.verify.bounds.quotients import (
    TOO_MANY,
    Atoms,
    Factor,
    Factors,
    Key,
    Quotient,
    bits_of,
    degree_of,
    exponential_of,
    joined_atoms,
    over_common,
    reduced_atoms,
    terms_of,
)

__all__ = ["Degrees", "Ledger"]


@dataclass(slots=True)
class Ledger:
    """What the steps of both graphs add up to, each different step counted once."""

    roots: int = 0
    rooted_exponential: bool = False
    collisions: float = 0.0  # degrees over p, of comparisons for equality
    oracles: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)  # count, degree, terms
    exponents: int = 0  # the largest degree of an exponent's numerator
    exponent_factors: int = 0  # the degrees of the denominators of all exponents
    exponent_terms: int = 1


class Degrees:
    """Follows degrees through scalar operators (as Scalars[Quotient]) and structural steps, on one level."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        prime: int,
        *,
        sealed: bool,
        integers: int,
        wide: bool,
    ) -> None:
        self.integers = integers
        self.wide = wide
        self.sealed = sealed  # exp and sqrt are functions like any other
        self.sizes = sizes
        self.prime = prime
        self.keys: dict[object, Key] = {}
        self.classes: dict[int, Key] = {}
        self.scales: set[Key] = set()  # sizes and constants that are not 0
        self.ledger = Ledger()

    def graph(
        self, graph: Graph, classes: Sequence[int] | None, known: Sequence[bool] | None = None
    ) -> list[Quotient]:
        """Return the outputs; rational values of one class are the same.

        `known` says which values that read no tensor have numbers that are known: all, unless it is given.
        """
        values: list[Quotient] = []
        tensorless = tensorless_values(graph) if known is None else known
        for port in graph.inputs:
            key = self._key(("input", port.name, port.axes))[0]
            axes, bits = frozenset(port.axes), self._bits(port.dtype)
            atoms: Atoms = {key: (axes, axes, bits)} if bits else {}
            degree = 0 if bits and not (self.wide and port.dtype in INTEGERS) else 1
            values.append(
                Quotient(
                    key,
                    axes,
                    degree,
                    1,
                    {},
                    rational=port.dtype not in INTEGERS,
                    bits=bits,
                    atoms=atoms,
                    drawn=port.dtype in INTEGERS,
                )
            )
        for step in graph.steps:
            value = self.step(step, [values[i] for i in step.inputs])
            value = replace(value, bits=min(value.bits, self.outcomes(value)))
            value = replace(value, tensorless=tensorless[len(values)])
            if value.tensorless:
                value = replace(value, bits=0, atoms={})
            if classes is not None and value.rational:
                # A class has the key of its first value, so that steps inside composite operators match too.
                value = replace(value, key=self.classes.setdefault(classes[len(values)], value.key))
            values.append(value)
        return [values[output.value] for output in graph.outputs]

    def _bits(self, dtype: str) -> int:
        if dtype in INTEGERS:
            return (self.integers - 1).bit_length() + self.wide
        return 1 if dtype == "bool" else 0

    def outcomes(self, *values: Quotient) -> int:
        """Return the number of random bits that one element of some values depends on."""
        atoms = joined_atoms(values)
        return sum(count * self._count(axes - free) for axes, free, count in atoms.values())

    def step(self, step: Step, args: list[Quotient]) -> Quotient:
        """Return the value of a step."""
        if step.op in OPS:
            result: Quotient = OPS[step.op].scalar(self, *args)
            return result
        match step.op:
            case "const":
                assert step.value is not None
                return self.const(step.value)
            case "infinity":
                return self.infinity()
            case "size":
                key = self._key(("size", step.axes))[0]
                self.scales.add(key)
                return Quotient(key, frozenset(), 1, 1, {}, rational=True)
            case "index":
                key = self._key(("index", step.axes))[0]
                return Quotient(key, frozenset(step.axes), 0, 1, {}, rational=True, place=step.axes[0])
            case "sum":
                return self._sum(args[0], step.axes)
            case "contract":
                return self._sum(self.mul(*args), step.axes)
            case "max":
                reduced = frozenset(step.axes)
                value = args[0]
                key = self._key(("max", step.axes, value.key))[0]
                factors, degree, terms, bits = self._expand(value, reduced)
                left = None if value.exponential is None else value.exponential - reduced
                axes = value.axes - reduced
                count = self._count(value.axes & reduced)
                # Of all pairs, one element at a time is compared with the largest before it.
                atoms = reduced_atoms(value.atoms, reduced) | {key: (axes, axes, count - 1)}
                made = Quotient(key, axes, degree, terms, factors, left, bits=bits, atoms=atoms)
                # Which element is the largest takes one comparison with each of the others.
                chosen = count - 1 if not value.atoms else self.outcomes(made)
                return replace(made, bits=bits + chosen)
        mapping = dict(step.mapping)

        def moved(axes: frozenset[str]) -> frozenset[str]:
            targets = (mapping.get(axis, axis) for axis in axes)
            return frozenset(target for target in targets if isinstance(target, str))

        value = args[0]
        factors = {}
        for factor, count in value.factors.items():
            relevant = tuple(sorted((old, new) for old, new in mapping.items() if old in factor.axes))
            name = self._key((step.op, relevant, factor.key))[0] if relevant else factor.key
            image = Factor(name, moved(factor.axes), factor.degree, factor.terms, factor.bits)
            factors[image] = factors.get(image, 0) + count
        key = self._key((step.op, tuple(sorted(step.mapping)), value.key))[0]
        left = None if value.exponential is None else moved(value.exponential)
        atoms = {
            self._key((step.op, tuple(sorted(step.mapping)), atom))[0]: (moved(axes), moved(free), count)
            for atom, (axes, free, count) in value.atoms.items()
        }
        return replace(value, key=key, axes=moved(value.axes), factors=factors, exponential=left, atoms=atoms)

    # Scalars[Quotient].

    def const(self, value: Fraction) -> Quotient:
        """Return a constant."""
        key = self._key(("const", value))[0]
        if value:
            self.scales.add(key)
        return Quotient(key, frozenset(), 0, 1, {}, rational=True, tensorless=True)

    def infinity(self) -> Quotient:
        """Return infinity, a symbol of its own."""
        return Quotient(self._key("infinity")[0], frozenset(), 1, 1, {}, tensorless=True)

    def add(self, a: Quotient, b: Quotient) -> Quotient:
        """Return a + b over the least common denominator."""
        degree, terms, factors, bits = over_common(a, b)
        return self._made("add", (a, b), degree, terms, factors, bits)

    def mul(self, a: Quotient, b: Quotient) -> Quotient:
        """Return a * b, over the factors of both."""
        factors = dict(a.factors)
        for factor, count in b.factors.items():
            factors[factor] = factors.get(factor, 0) + count
        terms = min(a.terms * b.terms, TOO_MANY)
        return self._made("mul", (a, b), a.degree + b.degree, terms, factors, a.bits + b.bits)

    def neg(self, a: Quotient) -> Quotient:
        """Return -a."""
        return self._made("neg", (a,), a.degree, a.terms, a.factors, a.bits)

    def inv(self, a: Quotient) -> Quotient:
        """Return 1 / a: what was the numerator becomes a factor below."""
        bottom = Factor(a.key, a.axes, a.degree, a.terms, a.bits)
        factors = {bottom: 1} if a.degree or a.terms > 1 or a.bits else {}
        return self._made("inv", (a,), degree_of(a.factors), terms_of(a.factors), factors, bits_of(a.factors))

    def exp(self, a: Quotient) -> Quotient:
        """Return a power of the random base, and note the degree of its exponent."""
        if self.sealed:
            return self.function("exp", a)
        key, new = self._key(("exp", a.key))
        if new:
            ledger, count = self.ledger, self._count(a.axes)
            ledger.exponents = max(ledger.exponents, a.degree)
            ledger.exponent_factors += count * degree_of(a.factors)
            terms = min(ledger.exponent_terms * a.terms * terms_of(a.factors), TOO_MANY)
            ledger.exponent_terms = terms ** min(count, 24) if terms > 1 else 1
        bits = self.outcomes(a)
        return Quotient(key, a.axes, 0, 1, {}, exponential=a.axes, bits=bits, atoms=a.atoms)

    def sqrt(self, a: Quotient) -> Quotient:
        """Return a root, and note it."""
        if self.sealed:
            return self.function("sqrt", a)
        key, new = self._key(("sqrt", a.key))
        if new:
            self.ledger.roots += self._count(a.axes)
            self.ledger.rooted_exponential |= a.exponential is not None
        # sqrt(N/F) = sqrt(N F) / F: a number whose square has the degree of N F.
        degree = (a.degree + degree_of(a.factors) + 1) // 2
        return Quotient(
            key,
            a.axes,
            degree,
            1,
            dict(a.factors),
            a.exponential,
            a.rational,
            bits=self.outcomes(a),
            atoms=a.atoms,
        )

    def maximum(self, a: Quotient, b: Quotient) -> Quotient:
        """Return the larger of a and b, which takes one random bit."""
        choice = self.less(a, b)
        degree, terms, factors, bits = over_common(a, b)
        made = self._made("maximum", (a, b), degree, terms, factors, bits + choice.bits)
        return replace(made, atoms=choice.atoms)

    def less(self, a: Quotient, b: Quotient) -> Quotient:
        """Return the random bit that says whether a < b."""
        return self._outcome("order", frozenset({a.key, b.key}), a, b)

    def equal(self, a: Quotient, b: Quotient) -> Quotient:
        """Return the random bit that says whether a = b."""
        return self._outcome("equal", frozenset({a.key, b.key}), a, b)

    def _outcome(self, kind: str, keys: object, a: Quotient, b: Quotient) -> Quotient:
        """Return the random bit of an order, or of an equality; drawn integers may be equal."""
        key, new = self._key((kind, keys))
        axes = a.axes | b.axes
        if a.tensorless and b.tensorless:
            picks = {
                one.place: (key, other.axes)
                for one, other in ((a, b), (b, a))
                if kind == "equal" and one.place is not None and one.place not in other.axes
            }
            return Quotient(key, axes, 0, 1, {}, tensorless=True, picks=picks)
        if new:
            # Only an accident makes different numbers equal.
            degree = over_common(a, b)[0]
            self.ledger.collisions += self._count(axes) * degree / self.prime
        atoms = joined_atoms((a, b))
        # Which integer is drawn decides how it compares with an index or a constant.
        settled = ((a.drawn and b.tensorless) or (a.tensorless and b.drawn)) and (
            kind == "equal" or not self.wide
        )
        if not settled:
            atoms |= {key: (axes, axes, 1)}
        made = Quotient(key, axes, 0, 1, {}, atoms=atoms)
        return replace(made, bits=self.outcomes(made))

    def where(self, mask: Quotient, a: Quotient, b: Quotient) -> Quotient:
        """Return m a + (1 - m) b."""
        return self.add(self.mul(mask, a), self.mul(self.add(self.const(Fraction(1)), self.neg(mask)), b))

    def function(self, name: str, *args: Quotient) -> Quotient:
        """Return fresh numbers, one for each argument that the function meets."""
        if name == "guard":
            return self.mul(*args)
        axes = frozenset[str]().union(*(arg.axes for arg in args))
        key, new = self._key((name, tuple(arg.key for arg in args)))
        if new:
            degree = max(2 * (arg.degree + degree_of(arg.factors)) for arg in args)
            terms = max(2 * arg.terms * terms_of(arg.factors) for arg in args)
            terms = 1 if exponential_of(args) is None else terms
            self.ledger.oracles.setdefault(name, []).append((self._count(axes), degree, terms))
        return Quotient(key, axes, 1, 1, {}, bits=self.outcomes(*args), atoms=joined_atoms(args))

    # How quotients are combined.

    def _made(
        self,
        op: str,
        args: tuple[Quotient, ...],
        degree: int,
        terms: int,
        factors: Factors,
        bits: int,
    ) -> Quotient:
        keys = tuple(sorted(arg.key for arg in args))  # add, mul and maximum commute
        axes = frozenset[str]().union(*(arg.axes for arg in args))
        key = self._key((op, keys))[0]
        rational = op != "maximum" and all(arg.rational for arg in args)
        tensorless = all(arg.tensorless for arg in args)
        spread = [arg for arg in args if arg.axes]
        moves = op in ("add", "neg") or (
            op == "mul" and all(arg.axes or arg.key in self.scales for arg in args)
        )
        return Quotient(
            key,
            axes,
            degree,
            terms,
            factors,
            exponential_of(args),
            rational,
            tensorless,
            bits,
            joined_atoms(args),
            place=spread[0].place if len(spread) == 1 and tensorless and moves else None,
            picks={axis: at for arg in args for axis, at in arg.picks.items()} if op == "mul" else {},
        )

    def _sum(self, value: Quotient, axes: tuple[str, ...]) -> Quotient:
        summed = frozenset(axes)
        factors, degree, terms, bits = self._expand(value, summed)
        key = self._key(("sum", summed, value.key))[0]
        # The weights of each summed axis add one degree.
        left = None
        if value.exponential is not None:
            left = value.exponential - summed
            for axis in summed & value.picks.keys() & value.exponential:
                left |= value.picks[axis][1] - summed
            terms = min(terms * self._count((summed - value.picks.keys()) & value.exponential), TOO_MANY)
        return Quotient(
            key,
            value.axes - summed,
            degree + len(axes),
            terms,
            factors,
            left,
            value.rational,
            value.tensorless,
            bits,
            reduced_atoms(self._picked(value, summed), summed),
        )

    def _picked(self, value: Quotient, axes: frozenset[str]) -> Atoms:
        """Return the random bits of a sum over axes where masks leave one place: the bits there."""
        atoms = value.atoms
        for axis in sorted(axes & value.picks.keys()):
            mask, to = value.picks[axis]
            found: Atoms = {}
            for key, (own, free, count) in atoms.items():
                if axis in free:
                    key = self._key(("picked", mask, key))[0]
                    own, free = own - {axis} | to, free - {axis} | to
                found[key] = own, free, count
            atoms = found
        return atoms

    def _expand(self, value: Quotient, axes: frozenset[str]) -> tuple[Factors, int, int, int]:
        """Return value as if at one position of some axes, over the factors of all positions."""
        factors: Factors = {}
        degree, terms, bits = value.degree, value.terms, value.bits
        for factor, count in value.factors.items():
            gone = factor.axes & axes
            if not gone:
                factors[factor] = factors.get(factor, 0) + count
                continue
            n = self._count(gone)
            key = self._key(("all", gone, factor.key))[0]
            whole_terms = min(factor.terms ** min(n, 24), TOO_MANY)
            whole = Factor(key, factor.axes - gone, n * factor.degree, whole_terms, n * factor.bits)
            bits += count * (n - 1) * factor.bits
            factors[whole] = factors.get(whole, 0) + count
            degree += count * (n - 1) * factor.degree
            terms = min(terms * factor.terms ** min(count * (n - 1), 24), TOO_MANY)
        return factors, degree, terms, bits

    def _count(self, axes: frozenset[str]) -> int:
        return prod(self.sizes[axis] for axis in axes)

    def _key(self, value: object) -> tuple[Key, bool]:
        new = value not in self.keys
        return self.keys.setdefault(value, len(self.keys)), new
