"""Shift: exponentials that may be taken of x - c for any c, and the graph with c the maximum.

Give every exp(x) of a group a factor t = exp(-c). The degree of a value in t follows the algebra: a
product adds, a quotient subtracts, a sum needs equal degrees, a logarithm turns it into d * c. Where
all outputs have degree 0 the program does not depend on c, as long as c is constant along every axis
that is reduced while the degree is not 0. What is added to a value of degree d and has none
itself, as 1 in 1 + sum(exp(x)), takes part as d exponentials of 0. Nothing here knows softmax: it is
one program of many whose degrees work out.

    e = exp(s)                      m = max[n](s);  e = exp(s - m)
    z = sum[n](e)                   z = sum[n](e)
    o = div(e, z)                   o = div(e, z)
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from superopt.ir.check import check_graph
from superopt.ir.graph import Graph, Step, live_graph, value_axes
from superopt.ir.text import value_names
from superopt.ops import OPS

__all__ = ["Shift", "describe_shifts", "free_shifts", "release_shifts", "stabilize"]

_LINEAR = frozenset({"sum", "neg", "max"})
_REDUCTIONS = frozenset({"sum", "max", "contract"})
_LOWEST = Fraction(-(2**100))

Degree = Mapping[int, Fraction]  # group -> degree; 0 where absent


@dataclass(frozen=True, slots=True)
class Shift:
    """Exponentials that share one free shift, and the axes along which it must be constant."""

    exps: tuple[int, ...]  # values of exp steps
    reduced: frozenset[str]
    degrees: Mapping[int, Fraction]  # of every value that has one, before logarithms
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
    """Return a line for each exponential: over what its shift is free, or why it is not."""
    shifts, fixed = _analysed(graph)
    names = value_names(graph)
    lines = {exp: f"{names[exp]}: taken as it is: {why}" for exp, why in fixed.items()}
    for shift in shifts:
        over = ", ".join(sorted(shift.reduced))
        for exp in shift.exps:
            others = ", ".join(names[other] for other in shift.exps if other != exp)
            shared = f", shared with {others}" if others else ""
            lines[exp] = f"{names[exp]}: free of a shift that is constant over {over or 'nothing'}{shared}"
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
                return

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
            case "mul" | "contract":
                result = _sum(args[0], args[1], 1)
            case "div":
                result = _sum(args[0], args[1], -1)
            case "square":
                result = _sum(args[0], args[0], 1)
            case "reciprocal":
                result = {group: -degree for group, degree in args[0].items()}
            case "sqrt" | "rsqrt":
                sign = Fraction(1 if step.op == "sqrt" else -1, 2)
                result = {group: degree * sign for group, degree in args[0].items()}
            case "add" | "sub" | "maximum" | "minimum":
                result = self._same(value, args[0], args[1], step.op)
            case "log":
                result = {}  # log(v) = log(v') + d c: the rewrite adds what is missing
            case "rename" | "select":
                touched = {axis for pair in step.mapping for axis in pair if isinstance(axis, str)}
                for group in args[0]:
                    self._reduce(group, touched)
                result = args[0]
            case op if op in _LINEAR:
                result = args[0]
            case _:
                for arg in args:
                    self._need_zero(arg, f"{self.names[value]}, {step.op}, has no degree")
                result = {}
        if step.op in _REDUCTIONS:
            for arg in args:
                for group in arg:
                    self._reduce(group, step.axes)
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

    def _reduce(self, group: int, axes: Iterable[str]) -> None:
        self.reduced[group].update(axes)

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


def _sum(a: Mapping[int, Fraction], b: Mapping[int, Fraction], sign: int) -> dict[int, Fraction]:
    return {group: a.get(group, Fraction(0)) + sign * b.get(group, Fraction(0)) for group in {**a, **b}}


def stabilize(graph: Graph, parts: Iterable[str] = ()) -> Graph:
    """Return the graph with every free shift chosen as the maximum of what its exponentials take.

    Where all that reads an exponential masks it, the maximum is over what the mask leaves. `parts` are
    axes of parts that programs share out (see `split`): each part takes its own maximum, and what the
    parts made is brought to the common one where it meets.

        m0 = max[t_at](s);  z0 = sum[t_at](exp(s - m0))
        m = max[t_part](m0);  z = sum[t_part](z0 * exp(m0 - m))
    """
    shifts = [shift for shift in free_shifts(graph) if shift.reduced]
    if not shifts:
        return graph
    return check_graph(live_graph(_Rewrite(graph, shifts, frozenset(parts)).run()))


def release_shifts(graph: Graph) -> Graph:
    """Return the graph without shifts that its author chose where any would do: exp(x - m) is exp(x).

    The search then sees the freedom, and `stabilize` chooses again.
    """
    while True:
        released = _release(graph)
        if released is None:
            return graph
        graph = released


def _release(graph: Graph) -> Graph | None:
    """Return the graph with the shifts of one group of exponentials taken away, or None."""
    axes = value_axes(graph)
    for shift in free_shifts(graph):
        taken = [_difference(graph, exp) for exp in shift.exps]
        amounts = {pair[1] if pair else None for pair in taken}
        amount = next(iter(amounts))
        fits = amount is not None and not axes[amount] & shift.reduced
        if amount is not None and fits and len(amounts) == 1 and not shift.units:
            return live_graph(_without(graph, shift, amount))
    return None


def _difference(graph: Graph, exp: int) -> tuple[int | None, int] | None:
    """Return x and m where an exponential is of x - m; x is None where it is of -m."""
    step = graph.step_of(exp)
    inner = graph.step_of(step.inputs[0]) if step else None
    if inner is not None and inner.op == "neg":
        return None, inner.inputs[0]
    if inner is None or inner.op not in ("sub", "add"):
        return None
    x, m = inner.inputs
    if inner.op == "sub":
        return x, m
    negated = graph.step_of(m)
    return (x, negated.inputs[0]) if negated is not None and negated.op == "neg" else None


def _without(graph: Graph, shift: Shift, amount: int) -> Graph:
    """Return the graph with exp(x) for exp(x - amount), and logarithms put right."""
    first = len(graph.inputs)
    at = list(range(first))
    steps: list[Step] = []

    def emit(step: Step) -> int:
        steps.append(step)
        return first + len(steps) - 1

    def lowered(value: int) -> int | None:
        """Return v where a new value is v - amount."""
        made = steps[value - first] if value >= first and amount < len(at) else None
        return made.inputs[0] if made and made.op == "sub" and made.inputs[1] == at[amount] else None

    for value, step in enumerate(graph.steps, first):
        inputs = tuple(at[i] for i in step.inputs)
        if value in shift.exps:
            pair = _difference(graph, value)
            assert pair is not None
            x = pair[0]
            at.append(emit(Step("const", value=Fraction(1)) if x is None else Step("exp", (at[x],))))
            continue
        bare = [lowered(i) for i in inputs]
        if step.op == "add" and amount in step.inputs and any(one is not None for one in bare):
            kept = next(one for one in bare if one is not None)
            at.append(kept)
            continue
        if step.op == "sub" and bare[0] is not None and bare[1] is not None:
            inputs = (bare[0], bare[1])
        made = emit(replace(step, inputs=inputs))
        degree = shift.degrees.get(step.inputs[0]) if step.op == "log" else None
        if degree:
            added = at[amount]
            if degree != 1:
                added = emit(Step("mul", (added, emit(Step("const", value=degree)))))
            made = emit(Step("sub", (made, added)))
        at.append(made)
    outputs = tuple(replace(one, value=at[one.value]) for one in graph.outputs)
    return replace(graph, steps=tuple(steps), outputs=outputs)


class _Rewrite:
    """Builds the shifted graph step by step."""

    def __init__(self, graph: Graph, shifts: Iterable[Shift], parts: frozenset[str]) -> None:
        self.graph = graph
        self.first = len(graph.inputs)
        self.axes = value_axes(graph)
        self.shift_of = {exp: shift for shift in shifts for exp in shift.exps}
        self.shifts = list(shifts)
        self.parts = parts
        self.steps: list[Step] = []
        self.at = list(range(self.first))
        self.local: set[tuple[int, int]] = set()  # (value, number of a shift): still under a part's maximum
        self.common: dict[tuple[int, int], int] = {}  # the same, under the maximum of all parts
        self.shift_values: dict[tuple[int, bool], int] = {}
        self.logarithms: dict[int, tuple[int, int]] = {}  # value l + c -> l and c

    def run(self) -> Graph:
        """Return the graph; steps keep their order, so that a shift stands after all it is made from."""
        for value in self._order():
            step = self.graph.steps[value - self.first]
            while len(self.at) <= value:
                self.at.append(-1)
            if value in self.shift_of:
                self.at[value] = self._exp(value)
            else:
                inputs = self._inputs(value, step)
                if step.op == "sub" and inputs[1] in self.logarithms:
                    # (a - c) - l, not a - (l + c): c may be large and near a.
                    log, shift = self.logarithms[inputs[1]]
                    inputs = (self._emit(Step("sub", (inputs[0], shift))), log)
                self.at[value] = self._emit(replace(step, inputs=inputs))
                if step.op == "log":
                    self.at[value] = self._log(value, step)
        outputs = tuple(replace(one, value=self.at[one.value]) for one in self.graph.outputs)
        return replace(self.graph, steps=tuple(self.steps), outputs=outputs)

    def _order(self) -> list[int]:
        """Return the values of steps, each after what it needs, shifts and masks included."""
        order: list[int] = []
        done: set[int] = set()
        pending = list(range(self.first + len(self.graph.steps) - 1, self.first - 1, -1))
        while pending:
            value = pending[-1]
            needed = set(self.graph.steps[value - self.first].inputs)
            if value in self.shift_of:
                for exp in self.shift_of[value].exps:
                    needed.add(self.graph.steps[exp - self.first].inputs[0])
                    needed |= {mask for mask in [self._mask(exp)] if mask is not None}
            missing = [one for one in sorted(needed) if one >= self.first and one not in done]
            if value in done or not missing:
                pending.pop()
                if value not in done:
                    done.add(value)
                    order.append(value)
            else:
                pending += missing
        return order

    def _emit(self, step: Step) -> int:
        self.steps.append(step)
        return self.first + len(self.steps) - 1

    def _inputs(self, value: int, step: Step) -> tuple[int, ...]:
        """Return the inputs of a step, brought to the common maximum where parts meet."""
        found = {i: self.at[i] for i in step.inputs}
        for number, shift in enumerate(self.shifts):
            grown = [i for i in found if shift.degrees.get(i)]
            local = [i for i in grown if (i, number) in self.local]
            meets = step.op in _REDUCTIONS and bool(self.parts & shift.reduced & set(step.axes))
            if local and (meets or len(local) < len(grown)):
                for i in local:
                    found[i] = self._brought(i, found[i], number)
            elif local and (shift.degrees.get(value) or step.op == "log"):
                self.local.add((value, number))
        return tuple(self._unit(value, place, found[i]) for place, i in enumerate(step.inputs))

    def _unit(self, value: int, place: int, now: int) -> int:
        """Return an operand, times exp(-d c) where it is added to what has degree d."""
        for number, shift in enumerate(self.shifts):
            if (value, place) in shift.units:
                shifted = self._shift(number, (value, number) in self.local)
                power = self._times(shifted, -shift.degrees[value])
                now = self._emit(Step("mul", (now, self._emit(Step("exp", (power,))))))
        return now

    def _brought(self, value: int, now: int, number: int) -> int:
        """Return a value under the common maximum, from what it is under its part's."""
        key = value, number
        if key not in self.common:
            shift = self.shifts[number]
            difference = self._emit(Step("sub", (self._shift(number, True), self._shift(number, False))))
            factor = self._emit(Step("exp", (self._times(difference, shift.degrees[value]),)))
            self.common[key] = self._emit(Step("mul", (now, factor)))
        return self.common[key]

    def _times(self, value: int, degree: Fraction) -> int:
        if degree == 1:
            return value
        return self._emit(Step("mul", (value, self._emit(Step("const", value=degree)))))

    def _exp(self, value: int) -> int:
        number = self.shifts.index(self.shift_of[value])
        local = self._is_local(value, self.shifts[number])
        if local:
            self.local.add((value, number))
        shifted = self._emit(Step("sub", (self._taken(value), self._shift(number, local))))
        return self._emit(Step("exp", (shifted,)))

    def _is_local(self, exp: int, shift: Shift) -> bool:
        own = self.parts & shift.reduced
        return bool(own) and own <= self.axes[exp]

    def _log(self, value: int, step: Step) -> int:
        """Return log(v) as log(v') + d c for every shift that v has a degree in."""
        result = self.at[value]
        for number, shift in enumerate(self.shifts):
            degree = shift.degrees.get(step.inputs[0])
            if degree:
                added = self._shift(number, (value, number) in self.local)
                self.local.discard((value, number))
                added = self._times(added, degree)
                bare, result = result, self._emit(Step("add", (result, added)))
                self.logarithms[result] = (bare, added)
        return result

    def _shift(self, number: int, local: bool) -> int:
        """Return the maximum of what the exponentials of a shift take: of each part, or of all."""
        key = number, local
        if key not in self.shift_values:
            shift = self.shifts[number]
            own = self.parts & shift.reduced
            found: list[int] = []
            if not local and any(self._is_local(exp, shift) for exp in shift.exps):
                over = tuple(sorted(own))
                found.append(self._emit(Step("max", (self._shift(number, True),), axes=over)))
            for exp in shift.exps:
                if self._is_local(exp, shift) == local:
                    left = self.axes[exp] & shift.reduced - (own if local else frozenset())
                    over = tuple(sorted(left))
                    taken = self._taken(exp)
                    found.append(self._emit(Step("max", (taken,), axes=over)) if over else taken)
            whole = found[0]
            for one in found[1:]:
                whole = self._emit(Step("maximum", (whole, one)))
            # Where nothing is left of a row, the shift must still be a number that can be taken away.
            lowest = self._emit(Step("const", value=Fraction(0) if shift.units else _LOWEST))
            self.shift_values[key] = self._emit(Step("maximum", (whole, lowest)))
        return self.shift_values[key]

    def _taken(self, exp: int) -> int:
        """Return what an exponential is taken of, minus infinity where a mask hides it."""
        inner = self.at[self.graph.steps[exp - self.first].inputs[0]]
        mask = self._mask(exp)
        if mask is None:
            return inner
        below = self._emit(Step("neg", (self._emit(Step("infinity")),)))
        return self._emit(Step("where", (self.at[mask], inner, below)))

    def _mask(self, exp: int) -> int | None:
        """Return the mask that everything that reads an exponential multiplies it by."""
        masks = set()
        for step in self.graph.steps:
            if exp in step.inputs:
                others = [i for i in step.inputs if i != exp]
                if step.op != "mul" or len(others) != 1 or not self._is_mask(others[0]):
                    return None
                masks.add(others[0])
        mask = masks.pop() if len(masks) == 1 else None
        return mask if mask is not None and self.axes[mask] <= self.axes[exp] else None

    def _is_mask(self, value: int) -> bool:
        step = self.graph.step_of(value)
        if step is None:
            return self.graph.inputs[value].dtype == "bool"
        return step.op in OPS and OPS[step.op].mask
