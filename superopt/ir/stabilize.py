"""Stabilize: take each exponential of x less the maximum of x, where its shift is free.

e = exp(s)                      m = max[n](s);  e = exp(s - m)
z = sum[n](e)                   z = sum[n](e)
o = div(e, z)                   o = div(e, z)
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from superopt.errors import GraphError
from superopt.ir.check import check_graph
from superopt.ir.graph import REDUCTIONS, Graph, Step, live_graph, made_from, value_axes
from superopt.ir.masks import mask_values
from superopt.ir.shift import Shift, free_shifts

__all__ = ["LOWEST", "LOWEST_F64", "stabilize"]

LOWEST = Fraction(-(2**128 - 2**104))
"""What `stabilize` takes for the maximum of nothing but minus infinities: the least number of fp32.

Above it, rows of very low numbers would be taken less something else than their maximum, so that all of their
exponentials would be 0. Such rows are what `masked_fill` leaves with the least number of a dtype.
"""

LOWEST_F64 = Fraction(-(2**1024 - 2**971))
"""The same for programs with a tensor in fp64: the least number of that."""


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
    own = frozenset(parts)
    shifted = _shifted(graph, shifts, own)
    if shifted is not None:
        return shifted
    shifted, kept = graph, list[Shift]()
    for shift in shifts:
        more = _shifted(graph, [*kept, shift], own)
        if more is not None:
            shifted, kept = more, [*kept, shift]
    return shifted


def _shifted(graph: Graph, shifts: Sequence[Shift], parts: frozenset[str]) -> Graph | None:
    """Return the graph with some shifts chosen; None where values have axes then for which there is no place.

    The maximum of exp(x) and exp(y) that share a shift has the axes of x and of y. So x / sum(x) has those of
    y as well, though it does not change along them.
    """
    try:
        return check_graph(live_graph(_Rewrite(graph, shifts, parts).run()))
    except GraphError:
        return None


class _Rewrite:
    """Builds the shifted graph step by step."""

    def __init__(self, graph: Graph, shifts: Iterable[Shift], parts: frozenset[str]) -> None:
        self.graph = graph
        self.first = len(graph.inputs)
        self.axes = value_axes(graph)
        self.shift_of = {exp: shift for shift in shifts for exp in shift.exps}
        self.shifts = list(shifts)
        self.masks = _masks(graph, self.shifts)
        self.parts = parts
        ports = (*graph.inputs, *(output.port for output in graph.outputs))
        self.lowest = LOWEST_F64 if any(port.dtype == "f64" for port in ports) else LOWEST
        self.steps: list[Step] = []
        self.at = list(range(self.first))
        self.local: set[tuple[int, int]] = set()  # (value, number of a shift): still under a part's maximum
        self.common: dict[tuple[int, int], int] = {}  # the same, under the maximum of all parts
        self.shift_values: dict[tuple[int, bool], int] = {}
        self.logarithms: dict[int, tuple[int, int]] = {}  # value l + c -> l and c

    def run(self) -> Graph:
        """Return the graph; steps keep their order, so that a shift stands after all it is made from."""
        for value in self._order():
            step = self.graph.step_at(value)
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
                self.at[value] = self._emit(step.reading(inputs))
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
            needed = set(self.graph.step_at(value).inputs)
            if value in self.shift_of:
                for exp in self.shift_of[value].exps:
                    needed.add(self.graph.step_at(exp).inputs[0])
                    needed |= {self.masks[exp]} if exp in self.masks else set()
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
            meets = step.op in REDUCTIONS and bool(self.parts & shift.reduced & set(step.axes))
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
            lowest = self._emit(Step("const", value=Fraction(0) if shift.units else self.lowest))
            self.shift_values[key] = self._emit(Step("maximum", (whole, lowest)))
        return self.shift_values[key]

    def _taken(self, exp: int) -> int:
        """Return what an exponential is taken of, minus infinity where a mask hides it."""
        inner = self.at[self.graph.step_at(exp).inputs[0]]
        mask = self.masks.get(exp)
        if mask is None:
            return inner
        below = self._emit(Step("neg", (self._emit(Step("infinity")),)))
        return self._emit(Step("where", (self.at[mask], inner, below)))


def _masks(graph: Graph, shifts: Sequence[Shift]) -> dict[int, int]:
    """Return for exponentials the mask that hides some of them, where it is known before their shift.

    A mask may be made from an exponential, as `p > 0.1` is from a softmax p. It is known only after the shift
    of that one, so it does not say what the same shift is the maximum of.
    """
    number_of = {exp: number for number, shift in enumerate(shifts) for exp in shift.exps}
    made: list[frozenset[int]] = [frozenset()] * len(graph.inputs)  # shifts that a value is made from
    needs: dict[int, frozenset[int]] = dict.fromkeys(range(len(shifts)), frozenset())
    for value, step in graph.numbered:
        before = frozenset[int]().union(*(made[i] for i in step.inputs))
        if value in number_of:
            needs[number_of[value]] |= before
            before |= {number_of[value]}
        made.append(before)
    found: dict[int, int] = {}
    for exp, number in number_of.items():
        mask = _mask(graph, exp)
        if mask is not None and number not in made_from(made[mask], lambda one: needs[one]):
            needs[number] |= made[mask]
            found[exp] = mask
    return found


def _mask(graph: Graph, exp: int) -> int | None:
    """Return the mask that everything that reads an exponential multiplies it by."""
    masks = set()
    for step in graph.steps:
        if exp in step.inputs:
            others = [i for i in step.inputs if i != exp]
            if step.op != "mul" or len(others) != 1 or not mask_values(graph)[others[0]]:
                return None
            masks.add(others[0])
    mask = masks.pop() if len(masks) == 1 else None
    axes = value_axes(graph)
    return mask if mask is not None and axes[mask] <= axes[exp] else None
