"""Shift: exponentials that may be taken of x - c for any c.

Give every exp(x) of a group a factor t = exp(-c). The degree of a value in t follows the algebra: a
product adds, a quotient subtracts, a sum needs equal degrees, a logarithm turns it into d * c. Where
all outputs have degree 0 the program does not depend on c, as long as c is constant along every axis
that is reduced while the degree is not 0. What is added to a value of degree d and has none
itself, as 1 in 1 + sum(exp(x)), takes part as d exponentials of 0. Nothing here knows softmax: it is
one program of many whose degrees work out.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from superopt.ir.graph import POWERS, Graph, Step, value_axes, value_names
from superopt.ops import OPS

__all__ = ["Shift", "describe_shifts", "free_shifts"]


@dataclass(frozen=True, slots=True)
class Shift:
    """Exponentials that share one free shift, and the axes along which it must be constant."""

    exps: tuple[int, ...]  # values of exp steps
    reduced: frozenset[str]
    degrees: Mapping[int, Fraction]  # the degree of every value that has one, before logarithms
    units: frozenset[tuple[int, int]]  # (value, place of an operand): added to what has a degree, without one


class _ClashError(Exception):
    """Degrees that cannot be made equal; the exponentials they come from are taken as they are."""

    def __init__(self, exps: Iterable[int], why: str) -> None:
        super().__init__(why)
        self.exps = frozenset(exps)


def free_shifts(graph: Graph) -> tuple[Shift, ...]:
    """Return the groups of exponentials whose shift is free."""
    return _analysed(graph)[0]


def describe_shifts(graph: Graph) -> tuple[str, ...]:
    """Return a line for each exponential: what may be subtracted from its argument, or why nothing may."""
    shifts, fixed = _analysed(graph)
    names = value_names(graph)
    lines = {exp: f"{names[exp]}: taken as it is: {why}" for exp, why in fixed.items()}
    for shift in shifts:
        over = ", ".join(sorted(shift.reduced))
        for exp in shift.exps:
            others = ", ".join(names[other] for other in shift.exps if other != exp)
            which = f"any value that is constant over {over}" if over else "any value"
            shared = f", the same as in {others}" if others else ""
            lines[exp] = f"{names[exp]}: {which} may be subtracted from its argument{shared}"
    return tuple(lines[exp] for exp in sorted(lines))


def _analysed(graph: Graph) -> tuple[tuple[Shift, ...], dict[int, str]]:
    """Return the free groups, and why each other exponential is taken as it is."""
    fixed: dict[int, str] = {}
    while True:
        analysis = _Analysis(graph, fixed)
        try:
            analysis.run()
        except _ClashError as clash:
            fixed |= dict.fromkeys(clash.exps, str(clash))
            continue
        return analysis.shifts(), fixed


class _Analysis:
    """Degrees of all values, for exponentials that are not fixed."""

    def __init__(self, graph: Graph, fixed: Container[int]) -> None:
        self.graph = graph
        self.names = value_names(graph)
        self.axes = value_axes(graph)
        self.first = len(graph.inputs)
        self.leader = {
            value: value
            for value, step in enumerate(graph.steps, self.first)
            if step.op == "exp" and value not in fixed
        }
        self.reduced: dict[int, set[str]] = {value: set() for value in self.leader}
        self.degrees: list[dict[int, Fraction]] = []
        self.units: dict[tuple[int, int], int] = {}  # (value, place of an operand) -> group

    def run(self) -> None:
        """Compute all degrees, joining groups until nothing changes."""
        while True:
            before = dict(self.leader)
            self.degrees = [{} for _ in self.graph.inputs]
            self.units = {}
            for value, step in enumerate(self.graph.steps, self.first):
                self.degrees.append(self._degree(value, step))
            for output in self.graph.outputs:
                why = f"output {output.port.name!r} changes with the shift"
                self._need_zero(self.degrees[output.value], why)
            if self.leader == before:
                return self._require_order()

    def _require_order(self) -> None:
        """Refuse groups whose shift would be made from what an exponential under the same shift makes."""
        before: list[frozenset[int]] = [frozenset()] * self.first  # groups that a value is made from
        needs: dict[int, frozenset[int]] = {}  # groups that the shift of a group is made from
        for value, step in enumerate(self.graph.steps, self.first):
            made = frozenset[int]().union(*(before[i] for i in step.inputs))
            if value in self.leader:
                group = self._find(value)
                needs[group] = needs.get(group, frozenset()) | made
                made |= {group}
            before.append(made)
        for _ in needs:  # first those that need themselves directly: without them the others may be in order
            circles = {group: Fraction(1) for group, found in needs.items() if group in found}
            self._need_zero(circles, "its shift would be made from itself")
            needs = {group: found.union(*(needs[one] for one in found)) for group, found in needs.items()}

    def shifts(self) -> tuple[Shift, ...]:
        """Return the groups with what was found about each."""
        groups: dict[int, list[int]] = {}
        for exp in self.leader:
            groups.setdefault(self._find(exp), []).append(exp)
        found = []
        for leader, exps in groups.items():
            axes = frozenset[str]().union(*(self.reduced[exp] for exp in exps))
            degrees = {v: d[leader] for v, d in enumerate(self.degrees) if d.get(leader)}
            units = frozenset(place for place, group in self.units.items() if self._find(group) == leader)
            found.append(Shift(tuple(exps), axes, degrees, units))
        return tuple(found)

    def _degree(self, value: int, step: Step) -> dict[int, Fraction]:
        args = [self._led(self.degrees[i]) for i in step.inputs]
        if value in self.leader:
            # Nested exponentials: the inner one has to work out by itself.
            self._need_zero(args[0], f"{self.names[value]} is an exponential of what changes with the shift")
            return {self._find(value): Fraction(1)}
        if not any(args):
            return {}
        match step.op:
            case op if op in POWERS:
                result = _weighted(args, POWERS[op])
            case op if op in OPS and OPS[op].scales:
                result = self._same(value, args[0], args[1], op)
            case "log":
                result = {}  # log(v) = log(v') + d c: the rewrite adds what is missing
            case _:
                for arg in args:
                    self._need_zero(arg, f"{self.names[value]}, {step.op}, has no degree")
                result = {}
        moved = {axis for pair in step.mapping for axis in pair if isinstance(axis, str)}
        for group in {group for arg in args for group in arg}:
            self.reduced[group] |= moved.union(step.axes)
        return {group: degree for group, degree in result.items() if degree}

    def _same(
        self, value: int, a: dict[int, Fraction], b: dict[int, Fraction], op: str
    ) -> dict[int, Fraction]:
        """Return the common degree of two terms of a sum; groups of one exponential each may join."""
        if a == b:
            return a
        for place, (unit, grown) in enumerate(((a, b), (b, a))):
            if not unit and len(grown) == 1:
                self.units[value, place] = next(iter(grown))
                return grown
        if len(a) == len(b) == 1:
            (one, d), (other, e) = next(iter(a.items())), next(iter(b.items()))
            if d == e:
                self.leader[other] = one
                return a
        raise _ClashError(self._members({*a, *b}), f"{self.names[value]}, {op}, needs equal degrees")

    def _need_zero(self, degree: Mapping[int, Fraction], why: str) -> None:
        if degree:
            raise _ClashError(self._members(degree), why)

    def _members(self, groups: Iterable[int]) -> set[int]:
        wanted = {self._find(group) for group in groups}
        return {exp for exp in self.leader if self._find(exp) in wanted}

    def _find(self, exp: int) -> int:
        while self.leader[exp] != exp:
            exp = self.leader[exp]
        return exp

    def _led(self, degree: dict[int, Fraction]) -> dict[int, Fraction]:
        led: dict[int, Fraction] = {}
        for group, d in degree.items():
            led[self._find(group)] = led.get(self._find(group), Fraction(0)) + d
        return {group: d for group, d in led.items() if d}


def _weighted(degrees: Sequence[Mapping[int, Fraction]], powers: Sequence[Fraction]) -> dict[int, Fraction]:
    """Return the degree of a product of powers of values, each of which has a degree."""
    found: dict[int, Fraction] = {}
    for degree, power in zip(degrees, powers, strict=True):
        for group, d in degree.items():
            found[group] = found.get(group, Fraction(0)) + power * d
    return found
