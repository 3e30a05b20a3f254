"""Refute that a term is a part of a goal, by an invariant of terms that every axiom preserves.

The invariant of a term is a polynomial: a set of monomials, each a bag of atoms. An atom is a leaf,
or a term that no axiom looks into, under the operators that reach it from the outside (its *path*:
reciprocals and roots, and sums over axes that it depends on). Equal terms have equal invariants, and the
invariant of a part occurs in the invariant of the whole. So a candidate whose invariant does not occur in
that of the goal is refuted: the invariants are a model of the axioms in which it is no part of the goal.

The model leaves out axioms that shrink terms, or speak of constants or logarithms: a part of the goal that
only these axioms show may be refuted where saturation was cut short. Saturation applies the shrinking axioms
first, so little is missed. A goal with a logarithm refutes nothing.

The invariant does not see signs, and counts products of the same exponential once, because exp(a) * exp(a)
is exp(a + a). The tests instantiate every axiom over a pool of values, and wrap values in operators.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from superopt.rules.axioms import axioms_between_terms
from superopt.rules.patterns import operators, parse_pattern
from superopt.rules.terms import OPERATORS, Goal, Node

__all__ = ["Polynomial", "Refuter", "TooLargeError", "apply", "atom", "axes_of", "inside", "occurs"]

Block = tuple[str, int, int]
"""One stretch of a path: ("root", reciprocals, square roots), ("sum", set of axes, 0) or SPLIT."""
Atom = tuple[tuple[Block, ...], tuple[object, ...], int]
"""(path from the outside in, what it leads to, set of axes)"""
Monomial = frozenset[tuple[Atom, int]]
Polynomial = frozenset[Monomial]

SPLIT: Block = ("split", 0, 0)
"""Stands under a reciprocal or root of an addition: the atom below is no factor of its argument."""

LARGEST = 256
"""More monomials than this are not worth multiplying out: the invariant then says nothing."""


class TooLargeError(Exception):
    """An invariant has too many monomials to be useful."""


class Refuter:
    """Tells for terms whether their invariant refutes that they are a part of one goal."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._operators = _reachable_operators(node.op for node in goal.nodes)
        self._known: dict[tuple[object, ...], Polynomial] = {}
        self._views: list[Polynomial] | None = []
        try:
            values = self.values(goal.nodes)
        except TooLargeError:
            self._views = None
            return
        seen: set[Polynomial] = set()
        pending = [values[root] for root in goal.roots]
        while pending:
            view = pending.pop()
            if view not in seen:
                seen.add(view)
                pending.extend(inside(view))
        if "log" in self._operators:
            self._views = None
            self._operators = frozenset(OPERATORS)
            return
        # 1 / (1 / a) = a lets every reciprocal into every term; such a goal refutes nothing.
        nested = any(
            kind == "root" and reciprocals > 1
            for view in seen
            for monomial in view
            for (path, _, _), _ in monomial
            for kind, reciprocals, _ in path
        )
        self._views = None if nested else sorted(seen, key=len)

    def refutes(self, term: Sequence[Node]) -> bool:
        """Return whether the last node of a term is certainly no part of the goal."""
        if any(node.op not in self._operators for node in term):
            return True
        if self._views is None:
            return False
        try:
            value = self.values(term)[-1]
        except TooLargeError:
            return False
        return not any(occurs(value, view) for view in self._views)

    def values(self, term: Sequence[Node]) -> list[Polynomial]:
        """Return the invariant of every node."""
        values: list[Polynomial] = []
        for node in term:
            args = tuple(values[i] for i in node.args)
            key = (node.op, node.attr, args)
            if key not in self._known:
                self._known[key] = self._value(node, args)
            values.append(self._known[key])
        return values

    def _value(self, node: Node, args: tuple[Polynomial, ...]) -> Polynomial:
        if node.op == "leaf":
            return atom("leaf", node.attr, axes=self._goal.leaves[node.attr].mask)
        if node.op == "access":
            axes = self._goal.mask_after("access", node.attr, axes_of(args[0]))
            return atom("access", node.attr, args, axes=axes)
        return apply(node.op, node.attr, args)


def apply(op: str, attr: int, args: tuple[Polynomial, ...]) -> Polynomial:
    """Return the invariant of an operator's application."""
    if op == "neg":
        return args[0]
    if op == "add":
        return _checked(args[0] | args[1])
    if op == "mul":
        if len(args[0]) * len(args[1]) > LARGEST * 4:
            raise TooLargeError
        return _checked(frozenset(_bag((*a, *b)) for a in args[0] for b in args[1]))
    if op == "inv":
        return _rooted(args[0], (1, 0))
    if op == "sqrt":
        return _rooted(args[0], (0, 1))
    if op == "exp":
        return frozenset({frozenset((_atom("exp", m, axes=axes_of([m])), 1) for m in args[0])})
    if op == "sum":
        return frozenset(_summed(monomial, attr) for monomial in args[0])
    if op in ("max", "maximum"):
        bound = 1 << attr if op == "max" else 0
        parts = frozenset((axes | bound, value) for arg in args for axes, value in _maximands(arg))
        mask = 0
        for axes, value in parts:
            mask |= axes_of(value) & ~axes
        return atom("max", parts, axes=mask)
    assert op.startswith("call") or op == "log", op
    mask = 0
    for arg in args:
        mask |= axes_of(arg)
    return atom("call", attr, args, axes=mask)


def atom(*core: object, axes: int) -> Polynomial:
    """Return the polynomial of one atom."""
    return frozenset({frozenset({(_atom(*core, axes=axes), 1)})})


def _atom(*core: object, axes: int) -> Atom:
    return ((), core, axes)


def _checked(value: Polynomial) -> Polynomial:
    if len(value) > LARGEST:
        raise TooLargeError
    return value


def axes_of(value: Iterable[Monomial]) -> int:
    """Return the set of axes a value depends on."""
    mask = 0
    for monomial in value:
        for (_, _, axes), _ in monomial:
            mask |= axes
    return mask


def _idempotent(atom: Atom) -> bool:
    """Return whether a product of the atom with itself counts once: exp, but not a sum of it."""
    path, core, _ = atom
    return core[0] == "exp" and all(kind != "sum" for kind, _, _ in path)


def _bag(pairs: Iterable[tuple[Atom, int]]) -> Monomial:
    counts: dict[Atom, int] = {}
    for key, count in pairs:
        counts[key] = 1 if _idempotent(key) else counts.get(key, 0) + count
    return frozenset(counts.items())


def _rooted(value: Polynomial, powers: tuple[int, int]) -> Polynomial:
    """Return the invariant of a reciprocal or root, which is multiplicative.

    An addition does not stay visible. For each atom there remain its least degree (as a factor of the
    whole) and how far its greatest degree exceeds that; both are additive over products. For an
    idempotent atom only the greatest degree remains: a difference would not be multiplicative.
    """
    least: dict[Atom, int] = {}
    greatest: dict[Atom, int] = {}
    for monomial in value:
        for key, count in monomial:
            greatest[key] = max(greatest.get(key, 0), count)
    for key in greatest:
        least[key] = min(dict(monomial).get(key, 0) for monomial in value)
    pairs: list[tuple[Atom, int]] = []
    for key, most in greatest.items():
        path, core, axes = key
        factor = most if _idempotent(key) else least[key]
        if factor:
            pairs.append(((_root_path(path, powers), core, axes), factor))
        if most > factor:
            pairs.append(((_root_path((SPLIT, *path), powers), core, axes), most - factor))
    return frozenset({_bag(pairs)})


def _root_path(path: tuple[Block, ...], powers: tuple[int, int]) -> tuple[Block, ...]:
    if path and path[0][0] == "root":
        _, reciprocals, roots = path[0]
        return (("root", reciprocals + powers[0], roots + powers[1]), *path[1:])
    return (("root", *powers), *path)


def _summed(monomial: Monomial, axis: int) -> Monomial:
    """Return the invariant of a sum over an axis: factors that lack the axis stay outside."""
    pairs: list[tuple[Atom, int]] = []
    depends = False
    for (path, core, axes), count in monomial:
        if axes >> axis & 1:
            depends = True
            block = path[0] if path and path[0][0] == "sum" else None
            bound = 1 << axis | (block[1] if block else 0)
            outer: Block = ("sum", bound, 0)
            inner = path[1:] if block else path
            pairs.append((((outer, *inner), core, axes & ~(1 << axis)), count))
        else:
            pairs.append(((path, core, axes), count))
    if not depends:
        pairs.append((_atom("size", axis, axes=0), 1))
    return _bag(pairs)


def _maximands(value: Polynomial) -> Iterable[tuple[int, Polynomial]]:
    """Return the (axes, polynomial) pairs whose maximum a value is; else the value alone."""
    if len(value) == 1:
        (monomial,) = value
        if len(monomial) == 1:
            (((path, core, _), count),) = monomial
            if core[0] == "max" and not path and count == 1:
                parts: frozenset[tuple[int, Polynomial]] = core[1]  # type: ignore[assignment]
                return parts
    return ((0, value),)


def inside(value: Polynomial) -> Iterable[Polynomial]:
    """Return the polynomials that the atoms of a value look into."""
    for monomial in value:
        exponents = frozenset(core[1] for (_, core, _), _ in monomial if core[0] == "exp")
        if exponents:
            yield exponents  # type: ignore[misc]
        for (_, core, _), _ in monomial:
            if core[0] in ("call", "access"):
                yield from core[2]  # type: ignore[misc]
            elif core[0] == "max":
                yield from (part for _, part in core[1])  # type: ignore[attr-defined]


def occurs(value: Polynomial, view: Polynomial) -> bool:
    """Return whether sums, products, roots and additions around a value can make the view.

    Without a root all monomials get the same cofactor. Below a root they become one monomial, in
    which every atom that told them apart stands behind a SPLIT.
    """
    hosts = [[large for large in view if _divides(small, large, _summed_to)] for small in value]
    if len(value) == 1 and hosts[0]:
        return True
    kinds = [_kinds(small) for small in value]
    if all(hosts):
        cofactors = [
            {frozenset((_kinds(large) - kind).items()) for large in found if kind <= _kinds(large)}
            for kind, found in zip(kinds, hosts, strict=True)
        ]
        if set.intersection(*cofactors):
            return True
    common = kinds[0]
    for kind in kinds:
        common = common & kind
    apart = {key for kind in kinds for key in kind - common}
    return any(
        apart <= _below_splits(large) and all(_divides(small, large, _rooted_to) for small in value)
        for large in view
    )


def _kinds(monomial: Monomial) -> Counter[object]:
    """Count the atoms without what a sum around them may change, and without idempotent ones."""
    kinds: Counter[object] = Counter()
    for key, count in monomial:
        kind = _kind(*key[:2])
        if kind is not None:
            kinds[kind] += count
    return kinds


def _kind(path: tuple[Block, ...], core: tuple[object, ...]) -> object | None:
    _, inner = _front_sum(path)
    return None if core[0] == "size" or _idempotent((inner, core, 0)) else (inner, core)


def _below_splits(monomial: Monomial) -> set[object]:
    return {
        _kind(path[i + 1 :], core)
        for (path, core, _), _ in monomial
        for i, block in enumerate(path)
        if block == SPLIT
    }


def _divides(small: Monomial, large: Monomial, becomes: Callable[[Atom, Atom], bool]) -> bool:
    """Return whether each atom of a bag finds its own atoms in another, counted."""
    groups: dict[object, list[tuple[Atom, int]]] = {}
    for wanted, needed in small:
        if sum(count for key, count in large if becomes(wanted, key)) < needed:
            return False
        groups.setdefault(wanted[1], []).append((wanted, needed))
    return all(
        sum(count for key, count in large if any(becomes(wanted, key) for wanted, _ in group))
        >= sum(needed for _, needed in group)
        for group in groups.values()
        if len(group) > 1
    )


def _summed_to(small: Atom, large: Atom) -> bool:
    """Return whether sums around the small atom can make the large one, or maxima of a maximum."""
    (path, core, _), (longer, larger_core, _) = small, large
    if core != larger_core and not _maximum_of(core, larger_core):
        return False
    bound, inner = _front_sum(path)
    more, longer_inner = _front_sum(longer)
    return inner == longer_inner and bound & ~more == 0


def _rooted_to(small: Atom, large: Atom) -> bool:
    """Return whether operators around the small atom, a root among them, can make the large one."""
    (path, core, _), (longer, larger_core, _) = small, large
    if core != larger_core and not _maximum_of(core, larger_core):
        return False
    if _powers(path) >= _powers(longer):
        return False
    if not path:
        return True
    if len(path) > len(longer) or path[1:] != longer[len(longer) - len(path) + 1 :]:
        return False
    (kind, first, second), (other, more, most) = path[0], longer[len(longer) - len(path)]
    if kind != other:
        return False
    return first & ~more == 0 if kind == "sum" else first <= more and second <= most


def _front_sum(path: tuple[Block, ...]) -> tuple[int, tuple[Block, ...]]:
    return (path[0][1], path[1:]) if path and path[0][0] == "sum" else (0, path)


def _powers(path: tuple[Block, ...]) -> int:
    return sum(first + second for kind, first, second in path if kind == "root")


def _maximum_of(core: tuple[object, ...], larger: tuple[object, ...]) -> bool:
    if core[0] != "max" or larger[0] != "max":
        return False
    parts: frozenset[tuple[int, Polynomial]] = core[1]  # type: ignore[assignment]
    others: frozenset[tuple[int, Polynomial]] = larger[1]  # type: ignore[assignment]
    return all(any(value == other and axes & ~more == 0 for more, other in others) for axes, value in parts)


def _reachable_operators(start: Iterable[str]) -> frozenset[str]:
    """Return the operators that rewriting can bring into terms that have these."""
    found = set(start)
    rewrites = [
        tuple({name.lower() for name in operators(parse_pattern(side))} for side in (left, right))
        for axiom in axioms_between_terms()
        for left, right in axiom.directions()
    ]
    size = -1
    while size != len(found):
        size = len(found)
        for left, right in rewrites:
            if left <= found:
                found |= right
    return frozenset(found)
