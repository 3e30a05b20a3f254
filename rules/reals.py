"""Sides of an axiom as formulas over the reals: what refutes the axiom by values, and what proves it.

A side is translated as it stands: a reciprocal is a number whose product with its argument is 1, a
root is a number that is not negative and whose square is its argument, so both sides are compared where
both are defined. exp is any positive one-to-one function with exp(a + b) = exp(a) exp(b), stated only
for the additions that occur under an exp and for those of logarithms; a logarithm is a number whose
exp is its argument. A variable depends on every axis that the axiom names, except the one its guard
excludes; a number, as in `(Const p)`, depends on none.

For a counterexample every reduction is written out over one or two elements; a model counts only if floats
confirm it. A proof about reductions goes by induction over the extent of one axis: an accumulator is an
unknown number, and one more element turns it into accumulator + element. A reduction over another axis
around it is taken apart by its own law (sums of sums, maxima of maxima), which the caller has to prove.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import z3

from superopt.rules.patterns import Pattern, number_of, operators

__all__ = ["Reals", "UntranslatableError"]

TIMEOUT_MS = 2_000  # milliseconds of one query

REDUCTIONS = ("Sum", "Max")

NEXT = "next"
"""The position of the element that an induction step adds."""

EACH = "each"
"""The position, on another axis, that an outer reduction runs over."""


class UntranslatableError(Exception):
    """The proof language has no meaning for an operator."""


_PASSED = "windows"  # what stands for the windows that a place is read through, outermost first
_INSIDE = "inside"

Position = int | str
Environment = Mapping[str, Position]
Value = Any
"""A z3 real."""

Key = tuple[Any, ...]
"""A variable at a place: (name, (axis, position), ...)."""


@dataclass(slots=True)
class Reals:
    """Translates sides of one axiom into formulas over the reals and asks z3 about them."""

    names: list[str]
    axes: list[str]
    lacks: tuple[str, str] | None
    constants: list[str] = field(default_factory=list)  # variables that stand for numbers
    apart: tuple[str, str] | None = None  # an axis or window that has nothing to do with a window
    keeps_zero: str | None = None  # a function that is 0 at 0
    conditions: list[Any] = field(default_factory=list)
    atoms: dict[tuple[object, ...], Value] = field(default_factory=dict)
    exponents: list[tuple[Pattern, Pattern, dict[str, Position]]] = field(default_factory=list)
    logarithms: list[Value] = field(default_factory=list)
    reduce: Any = None  # how the present strategy reads a reduction
    laws: set[str] = field(default_factory=set)
    met: dict[Key, None] = field(default_factory=dict)  # the variables and insides of the present query

    # -- translation

    def value(self, side: Pattern, at: Environment) -> Value:
        """Return the value of a side where its free axes are at the given positions."""
        if isinstance(side, str):
            return self.variable(side, at)
        name, *rest = side
        if name in REDUCTIONS:
            return self.reduce(side, at)
        if name == "Window":
            inside = self.truth(*self.inside(str(rest[0]), at))
            return z3.If(inside, self.value(rest[1], self.through(str(rest[0]), at)), z3.RealVal(0))
        if name == "Call1":
            function = z3.Function(str(rest[0]), z3.RealSort(), z3.RealSort())
            self.conditions += [function(z3.RealVal(0)) == 0] if rest[0] == self.keeps_zero else []
            return function(self.value(rest[1], at))
        if name == "Const":
            known = {constant: self.atom(constant) for constant in self.constants}
            return number_of(rest[0], known, lambda number: z3.RealVal(str(number)))
        args = [self.value(part, at) for part in rest]
        if name == "Add":
            return args[0] + args[1]
        if name == "Mul":
            return args[0] * args[1]
        if name == "Neg":
            return -args[0]
        if name == "Maximum":
            return _larger(*args)
        if name == "Inv":
            number = self.atom("inv", args[0])
            self.conditions.append(number * args[0] == 1)
            return number
        if name == "Sqrt":
            number = self.atom("sqrt", args[0])
            self.conditions += [number >= 0, number * number == args[0]]
            return number
        if name == "Exp":
            if isinstance(rest[0], tuple) and rest[0][0] == "Add":
                self.exponents.append((rest[0][1], rest[0][2], dict(at)))
            return self.exponential(args[0])
        if name == "Log":
            number = self.atom("log", args[0])
            self.conditions.append(self.exponential(number) == args[0])
            self.logarithms.append(number)
            return number
        raise UntranslatableError(f"{name} has no meaning over the reals")

    def variable(self, name: str, at: Environment) -> Value:
        """Return a variable's value at a place."""
        return self.atom(*self.key(name, at))

    def key(self, name: str, at: Environment) -> Key:
        """Return what tells a variable's values apart: its positions on the axes it depends on."""
        missing = self.lacks[1] if self.lacks and self.lacks[0] == name else None
        passed = [window for window in _passed(at) if window != missing]
        places = [(axis, at.get(axis, 0)) for axis in self.axes if axis != missing]
        found = (name, *places, *([(_PASSED, " ".join(passed))] if passed else []))
        self.met[found] = None
        return found

    def through(self, window: str, at: Environment) -> Environment:
        """Return the places at which a window reads what is at others."""
        passed = [*_passed(at), window]
        moved = {axis: f"{window} of {at.get(axis, 0)}" for axis in self.axes if self.apart != (axis, window)}
        if self.apart is not None and set(self.apart) == set(passed):
            passed.sort()  # the order of windows that are apart changes nothing
        return {**at, **moved, _PASSED: " ".join(passed)}

    def inside(self, window: str, at: Environment) -> Key:
        """Return what tells apart whether a window reads inside: where, as far as it matters to it."""
        places = [(axis, at.get(axis, 0)) for axis in self.axes if self.apart != (axis, window)]
        passed = [one for one in _passed(at) if self.apart is None or {one, window} != set(self.apart)]
        found = (_INSIDE, window, *places, *passed)
        self.met[found] = None
        return found

    def truth(self, *key: object) -> Any:
        """Return the unknown truth of a key, the same for the same key."""
        parts = tuple(str(part) for part in key)
        if parts not in self.atoms:
            self.atoms[parts] = z3.Bool(" ".join(parts))
        return self.atoms[parts]

    def atom(self, *key: object) -> Value:
        """Return the unknown number of a key, the same for the same key."""
        parts = tuple(str(part) for part in key)
        if parts not in self.atoms:
            self.atoms[parts] = z3.Real(" ".join(parts))
        return self.atoms[parts]

    def exponential(self, argument: Value) -> Value:
        """Return exp of a number; it is positive."""
        number = z3.Function("exp", z3.RealSort(), z3.RealSort())(argument)
        self.conditions.append(number > 0)
        return number

    def solve(self, claim: Any, *given: Any) -> Any:
        """Return a model in which the claim fails, None where there is none, "unknown" else."""
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT_MS)
        solver.add(*self.conditions, *given, z3.Not(claim))
        result = solver.check()
        if result == z3.sat:
            return solver.model()
        return None if result == z3.unsat else "unknown"

    def start(self, reduce: Any) -> None:
        """Forget the last query."""
        self.conditions, self.atoms, self.exponents, self.reduce = [], {}, [], reduce
        self.logarithms, self.met = [], {}

    # -- refutation

    def counterexample(self, left: Pattern, right: Pattern, extent: int) -> str | None:
        """Return values for which the sides differ if every axis has the extent, None if none are found."""

        def written_out(side: Pattern, at: Environment) -> Value:
            name, axis, body = _reduction(side)
            values = [self.value(body, {**at, axis: i}) for i in range(extent)]
            total = values[0]
            for value in values[1:]:
                total = total + value if name == "Sum" else _larger(total, value)
            return total

        self.start(written_out)
        model = self.solve(self.value(left, {}) == self.value(right, {}))
        if model is None:
            return None
        keys = [*self.met, *((constant,) for constant in self.constants)]
        samples = [] if model == "unknown" else [{key: self._number(model, key) for key in keys}]
        # What z3 calls exp need not be exp, and its numbers may lie at a border: try plain ones too.
        samples += [
            {
                key: (i + number) % 2 if key[0] == _INSIDE else 0.5 + ((7 * i + 3 * number + 1) % 11) / 4
                for i, key in enumerate(keys)
            }
            for number in range(4)
        ]
        for sample in samples:
            sides = [self.evaluated(side, {}, sample, extent) for side in (left, right)]
            if all(map(math.isfinite, sides)) and not math.isclose(*sides, rel_tol=1e-7, abs_tol=1e-9):
                shown = ", ".join(f"{_spelled(key)} = {value:.6g}" for key, value in sample.items())
                return f"{shown}: {sides[0]:.6g} is not {sides[1]:.6g}"
        return None

    def _number(self, model: Any, key: Key) -> float:
        if key[0] == _INSIDE:
            return float(z3.is_true(model.eval(self.truth(*key), model_completion=True)))
        return _number(model, self.atom(*key))

    def evaluated(self, side: Pattern, at: Environment, sample: Mapping[Key, float], extent: int) -> float:
        """Return a side in floats; NaN where it is not defined."""
        if isinstance(side, str):
            return sample[self.key(side, at)]
        name, *rest = side
        if name == "Const":
            known = {str(key[0]): value for key, value in sample.items() if len(key) == 1}
            try:
                return number_of(rest[0], known, float)
            except ZeroDivisionError:
                return math.nan
        if name == "Window":
            window = str(rest[0])
            inside = sample[self.inside(window, at)]
            return self.evaluated(rest[1], self.through(window, at), sample, extent) if inside else 0.0
        if name in REDUCTIONS:
            _, axis, body = _reduction(side)
            values = [self.evaluated(body, {**at, axis: i}, sample, extent) for i in range(extent)]
            return sum(values) if name == "Sum" else max(values)
        if name == "Call1":
            function = math.sin if rest[0] == self.keeps_zero else math.cos
            return function(self.evaluated(rest[1], at, sample, extent))
        args = [self.evaluated(part, at, sample, extent) for part in rest]
        try:
            return _FLOATS[str(name)](*args)
        except (ValueError, ZeroDivisionError, OverflowError):
            return math.nan

    # -- proof

    def identity(self, left: Pattern, right: Pattern) -> str | None:
        """Return the laws of exp that an axiom without reductions needs, "" for none, None if it fails."""
        self.start(None)
        claim = self.value(left, {}) == self.value(right, {})
        if self.solve(claim) is None:
            return ""
        given = []
        if "Exp" in operators(left):
            nought = z3.RealVal(0)
            given.append(self.exponential(nought) == self.exponential(nought) * self.exponential(nought))
        for a, b, at in list(self.exponents):
            x, y = self.value(a, at), self.value(b, at)
            given.append(self.exponential(x + y) == self.exponential(x) * self.exponential(y))
        given += self.laws_of_logarithms(left, right)
        if given and self.solve(claim, *given) is None:
            laws = "exp(a + b) = exp(a) exp(b)"
            return f"{laws}, one-to-one" if self.logarithms else laws
        return None

    def laws_of_logarithms(self, left: Pattern, right: Pattern) -> list[Any]:
        """Return what holds of exp for the logarithms that occur: it is additive, and one-to-one."""
        logs = list(dict.fromkeys(self.logarithms))
        if not logs:
            return []
        sums = [a + b for i, a in enumerate(logs) for b in logs[i:]]
        laws = [
            self.exponential(a + b) == self.exponential(a) * self.exponential(b)
            for i, a in enumerate(logs)
            for b in logs[i:]
        ]
        laws += [self.exponential(-a) * self.exponential(a) == 1 for a in logs]
        nought = z3.RealVal(0)
        laws.append(self.exponential(nought) == 1)
        exponents = [*logs, *sums, *(-a for a in logs), nought, self.value(left, {}), self.value(right, {})]
        for i, a in enumerate(exponents):
            laws += [
                z3.Implies(self.exponential(a) == self.exponential(b), a == b) for b in exponents[i + 1 :]
            ]
        return laws

    def induction(self, left: Pattern, right: Pattern, axis: str) -> frozenset[str] | None:
        """Return the reductions that an induction over an axis takes apart, None where it fails."""
        self.laws = set()

        def first(side: Pattern, at: Environment) -> Value:
            name, over, body = _reduction(side)
            if over == axis:
                return self.value(body, {**at, over: NEXT})
            return self.folded(name, over, [self.value(body, {**at, over: EACH})])

        self.start(first)
        if self.solve(self.value(left, {}) == self.value(right, {})) is not None:
            return None

        def before(side: Pattern, at: Environment) -> Value:
            name, over, body = _reduction(side)
            if over == axis:
                return self.atom("held", side, sorted(at.items()))
            return self.folded(name, over, [self.value(body, {**at, over: EACH})])

        def after(side: Pattern, at: Environment) -> Value:
            name, over, body = _reduction(side)
            if over == axis:
                parts = extended(side, at)
                return parts[0] + parts[1] if name == "Sum" else _larger(*parts)
            at = {**at, over: EACH}
            if body[0] == name and body[1] == axis:
                return self.folded(name, over, extended(body, at))
            return self.folded(name, over, [self.value(body, at)])

        def extended(side: Pattern, at: Environment) -> list[Value]:
            _, over, body = _reduction(side)
            return [self.atom("held", side, sorted(at.items())), self.value(body, {**at, over: NEXT})]

        self.start(before)
        hypothesis = self.value(left, {}) == self.value(right, {})
        self.reduce = after
        claim = self.value(left, {}) == self.value(right, {})
        if self.solve(claim, hypothesis) is not None:
            return None
        return frozenset(self.laws)

    def folded(self, name: str, over: str, parts: list[Value]) -> Value:
        """Return a reduction over an axis other than that of the induction, taken apart by its law."""
        folds = [self.atom("fold", name, over, part.sexpr()) for part in parts]
        if len(folds) == 1:
            return folds[0]
        self.laws.add(name)
        return folds[0] + folds[1] if name == "Sum" else _larger(*folds)


def _reduction(side: Pattern) -> tuple[str, str, Pattern]:
    assert not isinstance(side, str)
    name, axis, body = side
    assert isinstance(name, str)
    assert isinstance(axis, str)
    return name, axis, body


def _larger(a: Value, b: Value) -> Value:
    return z3.If(a >= b, a, b)


def _number(model: Any, value: Value) -> float:
    found = model.eval(value, model_completion=True)
    if z3.is_algebraic_value(found):
        found = found.approx(12)
    return float(found.as_fraction())


def _spelled(key: Key) -> str:
    name, *positions = key
    inside = ", ".join(one if isinstance(one, str) else f"{one[0]}={one[1]}" for one in positions)
    return f"{name}[{inside}]" if inside else str(name)


def _passed(at: Environment) -> list[str]:
    """Return the windows that a place is read through, outermost first."""
    return str(at.get(_PASSED, "")).split()


_FLOATS: dict[str, Callable[..., float]] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Neg": lambda a: -a,
    "Inv": lambda a: 1 / a,
    "Maximum": max,
    "Sqrt": math.sqrt,
    "Exp": math.exp,
    "Log": math.log,
}
