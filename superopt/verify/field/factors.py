"""Factors: the numbers that what a program compares is a multiple of, wherever in it they arise.

In a field the positive numbers are the squares, so `x + x / 10 > 0` is `x > 0` only where 11/10 is a square,
and that number stands nowhere in the program. Here every value is a polynomial in atoms: inputs, and what is
neither a sum nor a product. Its factor is the greatest number that divides all its terms. The factor of a
product is the product of the factors, so it is enough to know those of what is compared.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import gcd, lcm
from typing import TypeAlias

from superopt.ir import Graph, Port, Step
from superopt.ops import OPS
from superopt.verify.field.constants import exact_constant

__all__ = ["compared_factors"]

_MOST_TERMS = 48
"""A polynomial of more terms becomes an atom."""

_HIGHEST = 6
"""Axes of an atom of more nested atoms are not moved in each of these."""

_MOST_MASKS = 4
"""Masks of one polynomial whose outcomes are looked at all together; of more, each by itself."""

_Monomial: TypeAlias = frozenset[tuple[int, Fraction]]
"""Atoms with their powers."""

_Terms: TypeAlias = frozenset[tuple[_Monomial, Fraction]]
"""A polynomial: monomials with their coefficients, none of which is 0."""

_Moves: TypeAlias = tuple[tuple[str, str | int], ...]
"""Axes, and the axis or position that takes the place of each."""

_ONE = Fraction(1)
_ZERO: _Terms = frozenset()
_REDUCTIONS = ("sum over", "max over")
_MOVED = "moved"


@lru_cache(maxsize=256)
def compared_factors(
    graph: Graph, narrow: bool, extents: frozenset[tuple[str, int]] = frozenset()
) -> frozenset[Fraction]:
    """Return the factors of all that a graph compares, chooses the larger of, or takes a root of.

    With `narrow`, constants were rounded to float32 or less; `extents` are those that are known.
    """
    walk = _Walk(narrow, dict(extents))
    values = [walk.read(port) for port in graph.inputs]
    for step in graph.steps:
        values.append(walk.take(step, [values[i] for i in step.inputs]))
    return frozenset(walk.found)


@dataclass(frozen=True, slots=True)
class _Atom:
    """What is neither a sum nor a product: a name, what it is made of, and its axes."""

    name: str
    marks: tuple[object, ...]  # an input's name and axes, the axes that a reduction ends, a constant's parts
    args: tuple[_Terms, ...]
    axes: frozenset[str]
    depth: int  # how many reductions are nested in it
    height: int  # how many atoms are
    mask: bool


class _Walk:
    """The arithmetic of polynomials, in which a graph is walked; it notes factors on its way."""

    def __init__(self, narrow: bool, extents: Mapping[str, int]) -> None:
        self.narrow, self.extents = narrow, extents
        self.atoms: list[_Atom] = []
        self.known: dict[tuple[object, ...], int] = {}
        self.moved: dict[tuple[int, _Moves], _Terms] = {}
        self.found: set[Fraction] = set()

    def read(self, port: Port) -> _Terms:
        """Return an input."""
        return self._leaf("input", (port.name,), port.axes, mask=port.dtype == "bool")

    def take(self, step: Step, args: list[_Terms]) -> _Terms:
        """Return what a step makes of its operands."""
        if step.op in OPS:
            made: _Terms = OPS[step.op].scalar(self, *args)
            return made
        match step.op:
            case "const":
                assert step.value is not None
                return self.const(step.value)
            case "infinity":
                return self.infinity()
            case "size":
                return self._size(step.axes[0])
            case "index":
                return self._leaf("index", (), step.axes)
            case "sum":
                return self._summed(args[0], step.axes)
            case "contract":
                return self._summed(self.mul(*args), step.axes)
            case "max":
                return self._largest(args[0], step.axes)
            case "rename" | "select":
                return self._move(args[0], step.mapping)
        return self._atom(step.op, (step.axes, step.mapping, step.places), args)

    def const(self, value: Fraction) -> _Terms:
        """Return a constant; one that is not rational is an atom."""
        meant = exact_constant(value, self.narrow)
        if meant.rational is not None:
            return _number(meant.rational)
        atom = self._atom("number", (meant.value, meant.symbol, meant.power, meant.root))
        return _scaled(atom, Fraction(meant.sign))

    def infinity(self) -> _Terms:
        """Return infinity."""
        return self._atom("infinity")

    def add(self, a: _Terms, b: _Terms) -> _Terms:
        """Return a + b."""
        made = _collected((*a, *b))
        return self._whole(made) if len(made) > _MOST_TERMS else made

    def neg(self, a: _Terms) -> _Terms:
        """Return -a."""
        return _scaled(a, -_ONE)

    def mul(self, a: _Terms, b: _Terms) -> _Terms:
        """Return a * b."""
        if len(a) * len(b) > _MOST_TERMS:
            a, b = self._whole(a), self._whole(b)
        made = _collected(
            (monomial, of_a * of_b * factor)
            for (one, of_a), (other, of_b) in product(a, b)
            for monomial, factor in self._times(one, other)
        )
        return self._whole(made) if len(made) > _MOST_TERMS else made

    def inv(self, a: _Terms) -> _Terms:
        """Return 1 / a."""
        a = self._whole(a)
        if not a or any(self.atoms[atom].mask for monomial, _ in a for atom, _ in monomial):
            return self._atom("inverse", (), (a,))
        return self._power(a, -_ONE)

    def exp(self, a: _Terms) -> _Terms:
        """Return e to the a: a product of the powers of its terms."""
        made = _number(_ONE)
        for monomial, factor in a:
            atom = self._atom("exp", (), (frozenset({(monomial, _ONE)}),))
            made = self.mul(made, self._power(atom, factor))
        return made

    def sqrt(self, a: _Terms) -> _Terms:
        """Return the root of a."""
        self._note(a)
        return self._atom("sqrt", (), (a,))

    def maximum(self, a: _Terms, b: _Terms) -> _Terms:
        """Return the larger of a and b."""
        self._note(self.add(b, self.neg(a)))
        if a == b:
            return a
        factor = _factor((*a, *b))
        both = sorted((_scaled(one, 1 / factor) for one in (a, b)), key=hash)
        return _scaled(self._atom("maximum", (), both), factor)

    def less(self, a: _Terms, b: _Terms) -> _Terms:
        """Return 1 where a < b, else 0."""
        difference = self.add(b, self.neg(a))
        if not difference:
            return _ZERO
        self._note(difference)
        return self._atom("less", (), (_scaled(difference, 1 / _factor(difference)),), mask=True)

    def equal(self, a: _Terms, b: _Terms) -> _Terms:
        """Return 1 where a = b, else 0."""
        difference = self.add(b, self.neg(a))
        return self._atom("equal", (), (difference,), mask=True) if difference else _number(_ONE)

    def where(self, mask: _Terms, a: _Terms, b: _Terms) -> _Terms:
        """Return a where mask is 1 and b where it is 0."""
        if any(not self.atoms[atom].mask for monomial, _ in mask for atom, _ in monomial):
            return self._atom("where", (), (mask, a, b))
        return self.add(b, self.mul(mask, self.add(a, self.neg(b))))

    def function(self, name: str, *args: _Terms) -> _Terms:
        """Return a named function; that of a logarithm's operand, too, is a sign that matters."""
        if name == "guard":
            return self.mul(*args)
        for one in args:
            self._note(one)
        return self._atom(name, (), args)

    def _note(self, terms: _Terms) -> None:
        """Note the factor of what has a sign that matters, whatever its masks hide of it.

        How two constants compare is known without this.
        """
        if any(monomial for monomial, _ in terms):
            self.found.add(_factor(terms))
            for shown in self._shown(terms):
                self.found.add(_factor(shown))

    def _shown(self, terms: _Terms) -> Iterator[_Terms]:
        """Yield what is left of a polynomial for outcomes of its masks."""
        masks = sorted({at for monomial, _ in terms for at, _ in monomial if self.atoms[at].mask})
        groups = [masks] if len(masks) <= _MOST_MASKS else [[mask] for mask in masks]
        for group in groups if masks else ():
            for outcome in product((False, True), repeat=len(group)):
                hidden = {mask for mask, shows in zip(group, outcome, strict=True) if not shows}
                left = _collected(
                    (frozenset(one for one in monomial if one[0] not in group), factor)
                    for monomial, factor in terms
                    if not any(atom in hidden for atom, _ in monomial)
                )
                if left:
                    yield left

    def _atom(
        self,
        name: str,
        marks: tuple[object, ...] = (),
        args: Iterable[_Terms] = (),
        *,
        axes: frozenset[str] = frozenset(),
        mask: bool = False,
    ) -> _Terms:
        args = tuple(args)
        key = (name, marks, args)
        if key not in self.known:
            parts = [self.atoms[at] for terms in args for monomial, _ in terms for at, _ in monomial]
            axes = axes.union(*(part.axes for part in parts))
            depth = max((part.depth for part in parts), default=0)
            height = max((part.height + 1 for part in parts), default=0)
            if name in _REDUCTIONS:
                axes, depth = axes - set(marks), depth + 1
            if name == _MOVED:
                [moves] = marks
                assert isinstance(moves, tuple)
                places: dict[str, str | int] = dict(moves)
                axes = frozenset(
                    place for place in (places.get(axis, axis) for axis in axes) if isinstance(place, str)
                )
            self.known[key] = len(self.atoms)
            self.atoms.append(_Atom(name, marks, args, axes, depth, height, mask))
        return self._alone(self.known[key])

    def _leaf(
        self, name: str, names: tuple[object, ...], axes: tuple[str | int, ...], *, mask: bool = False
    ) -> _Terms:
        """Return an input, or an index, at some axes and positions."""
        if name == "index" and isinstance(axes[0], int):
            return _number(Fraction(axes[0]))
        left = frozenset(axis for axis in axes if isinstance(axis, str))
        return self._atom(name, (*names, axes), axes=left, mask=mask)

    def _alone(self, atom: int) -> _Terms:
        return frozenset({(frozenset({(atom, _ONE)}), _ONE)})

    def _whole(self, terms: _Terms) -> _Terms:
        """Return a polynomial as one monomial: a number times an atom, the same for its negative."""
        if len(terms) <= 1:
            return terms
        first = min(terms, key=lambda term: sorted(term[0]))
        factor = _factor(terms) * (1 if first[1] > 0 else -1)
        return _scaled(self._atom("sum", (), (_scaled(terms, 1 / factor),)), factor)

    def _times(self, one: _Monomial, other: _Monomial) -> _Terms:
        """Return the product of two monomials: a mask is its own square, and a square of a root is none."""
        powers = dict(one)
        for atom, power in other:
            powers[atom] = powers.get(atom, Fraction(0)) + power
        rest = _number(_ONE)
        for atom, power in list(powers.items()):
            root = self.atoms[atom].name == "sqrt"
            squares = int(power / 2) if root and power.denominator == 1 else 0
            if squares:
                rest = self.mul(rest, self._power(self._whole(self.atoms[atom].args[0]), Fraction(squares)))
            powers[atom] = min(power, _ONE) if self.atoms[atom].mask else power - 2 * squares
        product_of_both = frozenset((atom, power) for atom, power in powers.items() if power)
        made: _Terms = frozenset({(product_of_both, _ONE)})
        return made if rest == _number(_ONE) else self.mul(made, rest)

    def _power(self, terms: _Terms, power: Fraction) -> _Terms:
        """Return a power of a monomial."""
        if len(terms) == 1:
            [(monomial, factor)] = terms
            if factor == 1 or power.denominator == 1:
                raised = frozenset((atom, own * power) for atom, own in monomial)
                return frozenset({(raised, factor ** int(power) if factor != 1 else factor)})
        return self._atom("power", (power,), (terms,))

    def _size(self, axis: str) -> _Terms:
        extent = self.extents.get(axis)
        return self._atom("size", (axis,)) if extent is None else _number(Fraction(extent))

    def _summed(self, terms: _Terms, axes: tuple[str, ...]) -> _Terms:
        """Return a sum over axes, term by term; what lacks the axes is a factor of it."""
        made = _ZERO
        for monomial, factor in terms:
            inner = frozenset(one for one in monomial if not self.atoms[one[0]].axes.isdisjoint(axes))
            term = frozenset({(monomial - inner, factor)})
            inside = frozenset({(inner, _ONE)})
            for axis in axes:
                if axis not in self._axes(inside):
                    term = self.mul(term, self._size(axis))
            if inner:
                term = self.mul(term, self._over("sum over", inside, axes))
            made = self.add(made, term)
        return made

    def _largest(self, terms: _Terms, axes: tuple[str, ...]) -> _Terms:
        """Return the maximum over axes, where any two elements may be compared."""
        if self._axes(terms).isdisjoint(axes):
            return terms
        differ = [
            (monomial, factor)
            for monomial, factor in terms
            if any(not self.atoms[atom].axes.isdisjoint(axes) for atom, _ in monomial)
        ]
        self._note(frozenset(differ))
        factor = _factor(terms)
        return _scaled(self._over("max over", _scaled(terms, 1 / factor), axes), factor)

    def _over(self, name: str, terms: _Terms, axes: tuple[str, ...]) -> _Terms:
        """Return a reduction, in which the names of the axes do not matter."""
        depth = max(self.atoms[atom].depth for monomial, _ in terms for atom, _ in monomial)
        named = sorted(self._axes(terms) & set(axes))
        moves = tuple((axis, f"#{depth}.{number}") for number, axis in enumerate(named))
        return self._atom(name, tuple(new for _, new in moves), (self._move(terms, moves),))

    def _axes(self, terms: _Terms) -> frozenset[str]:
        atoms = [self.atoms[atom] for monomial, _ in terms for atom, _ in monomial]
        return frozenset[str]().union(*(one.axes for one in atoms))

    def _move(self, terms: _Terms, moves: _Moves) -> _Terms:
        """Return a polynomial whose axes are moved, which makes some atoms equal."""
        made = _ZERO
        for monomial, factor in terms:
            term = _number(factor)
            for atom, power in monomial:
                term = self.mul(term, self._power(self._moved(atom, moves), power))
            made = self.add(made, term)
        return made

    def _moved(self, atom: int, moves: _Moves) -> _Terms:
        moves = tuple(move for move in moves if move[0] in self.atoms[atom].axes)
        if not moves:
            return self._alone(atom)
        if (atom, moves) not in self.moved:
            one = self.atoms[atom]
            high = one.height > _HIGHEST
            moved = self._atom(_MOVED, (moves,), (self._alone(atom),), mask=one.mask) if high else None
            self.moved[atom, moves] = moved or self._moved_anew(one, moves)
        return self.moved[atom, moves]

    def _moved_anew(self, one: _Atom, moves: _Moves) -> _Terms:
        if one.name not in ("input", "index"):
            args = [self._move(terms, moves) for terms in one.args]
            return self._atom(one.name, one.marks, args, mask=one.mask)
        names, axes = one.marks[:-1], one.marks[-1]
        assert isinstance(axes, tuple)
        places = {axis: axis for axis in axes} | dict(moves)
        return self._leaf(one.name, names, tuple(places[axis] for axis in axes), mask=one.mask)


def _number(value: Fraction) -> _Terms:
    return frozenset({(frozenset[tuple[int, Fraction]](), value)}) if value else _ZERO


def _scaled(terms: _Terms, factor: Fraction) -> _Terms:
    return frozenset((monomial, own * factor) for monomial, own in terms) if factor else _ZERO


def _collected(terms: Iterable[tuple[_Monomial, Fraction]]) -> _Terms:
    """Return a polynomial in which like terms are one."""
    found: dict[_Monomial, Fraction] = {}
    for monomial, factor in terms:
        found[monomial] = found.get(monomial, Fraction(0)) + factor
    return frozenset((monomial, factor) for monomial, factor in found.items() if factor)


def _factor(terms: Iterable[tuple[_Monomial, Fraction]]) -> Fraction:
    """Return the greatest number that divides all terms."""
    factors = [factor for _, factor in terms]
    return Fraction(gcd(*(one.numerator for one in factors)), lcm(*(one.denominator for one in factors)))
