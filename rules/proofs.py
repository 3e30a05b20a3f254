"""Proofs of the axioms over the reals, by z3, from the same text that egglog runs.

A side is translated as it stands: a reciprocal is a number whose product with its argument is 1, a
root one that is not negative and whose square is its argument, so both sides are compared where
both are defined. exp is any function with exp(a + b) = exp(a) exp(b), stated only for the additions
that occur under an exp; an axiom that needs it is its definition. A variable depends on every axis
the axiom names, except the one its guard excludes.

First a counterexample is looked for, with every reduction written out over one and over two
elements; a model counts only if floats confirm it. Then, where there are reductions, the proof goes
by induction over the extent of one axis. An accumulator is an unknown number, and one more element
turns it into accumulator + element; a reduction over another axis around that is taken apart by
its own law (sums of sums, maxima of maxima), which is itself proved by induction.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Literal

from superopt.rules.axioms import AXIOMS, Axiom, Pattern, parse_pattern, variables

__all__ = ["Proof", "Status", "format_proofs", "prove", "prove_axioms", "to_json"]

Status = Literal["proved", "definition", "abstract", "refuted", "unknown"]

REDUCTIONS = ("Sum", "Max")

LAWS = (
    Axiom("sum of sums", "(Sum k (Add a b))", "(Add (Sum k a) (Sum k b))"),
    Axiom("maximum of maxima", "(Max k (Maximum a b))", "(Maximum (Max k a) (Max k b))"),
)
"""What takes a reduction apart whose elements are themselves accumulated."""

NEXT = "next"
"""The position of the element that an induction step adds."""

EACH = "each"
"""The position, on another axis, that a reduction around it runs over."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of one axiom: proved, stated as a definition, refuted with values, or unknown."""

    axiom: Axiom
    status: Status
    method: str
    seconds: float
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the search may rely on the axiom."""
        return self.status in ("proved", "definition", "abstract")


class _UntranslatableError(Exception):
    """The proof language has no meaning for an operator."""


def prove_axioms(axioms: Sequence[Axiom] = AXIOMS, *, timeout_ms: int = 2_000) -> tuple[Proof, ...]:
    """Return a proof or a counterexample of each axiom; timeout_ms limits one query."""
    return tuple(prove(axiom, timeout_ms=timeout_ms) for axiom in axioms)


def prove(axiom: Axiom, *, timeout_ms: int = 2_000) -> Proof:
    """Return the proof of one axiom, or what refutes it."""
    start = time.perf_counter()
    status, method, detail = _decide(axiom, timeout_ms)
    return Proof(axiom, status, method, time.perf_counter() - start, detail)


def format_proofs(proofs: Iterable[Proof]) -> str:
    """Return the table of axioms and proofs as plain text."""
    head = ("axiom", "left", "right", "only if", "status", "method", "ms")
    rows = [head]
    for proof in proofs:
        axiom = proof.axiom
        guards = ["{} lacks {}".format(*axiom.lacks)] if axiom.lacks else []
        guard = ", ".join([*guards, *(f"{term} >= 0" for term in axiom.nonnegative)])
        arrow = f"-> {axiom.right}" if axiom.oneway else f"== {axiom.right}"
        ms = f"{proof.seconds * 1e3:.1f}"
        method = f"{proof.method}: {proof.detail}" if proof.detail else proof.method
        rows.append((axiom.name, axiom.left, arrow, guard, proof.status, method, ms))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def to_json(proofs: Iterable[Proof]) -> list[dict[str, Any]]:
    """Return one row of plain data for each proof."""
    rows = []
    for proof in proofs:
        row = asdict(proof.axiom)
        row["lacks"] = list(proof.axiom.lacks) if proof.axiom.lacks else None
        row["nonnegative"] = list(proof.axiom.nonnegative)
        row |= {"status": proof.status, "method": proof.method, "detail": proof.detail}
        rows.append({**row, "ms": round(proof.seconds * 1e3, 3)})
    return rows


def _decide(axiom: Axiom, timeout_ms: int) -> tuple[Status, str, str]:
    if axiom.note.startswith("abstract"):
        return "abstract", "claims no identity", axiom.note
    left, right = parse_pattern(axiom.left), parse_pattern(axiom.right)
    names, axes = variables(left)
    more_names, more_axes = variables(right)
    axes += [axis for axis in more_axes if axis not in axes]
    names += [name for name in more_names if name not in names]
    reals = _Reals(names, axes, axiom.lacks, timeout_ms)
    try:
        for extent in (1, 2) if axes else (1,):
            found = reals.counterexample(left, right, extent)
            if found is not None:
                return "refuted", "counterexample", found
        if not axes:
            return reals.identity(left, right)
        for axis in axes:
            law = reals.induction(left, right, axis)
            if law is not None:
                return "proved", f"induction over {axis}" + (f", with {law}" if law else ""), ""
    except _UntranslatableError as error:
        return "unknown", "none", str(error)
    return "unknown", "induction" if axes else "real algebra", "z3 found neither proof nor counterexample"


Position = int | str
Environment = Mapping[str, Position]
Value = Any
"""A z3 real."""

Key = tuple[Any, ...]
"""A variable at a place: (name, (axis, position), ...)."""

_KeyOf = Callable[[str, Environment], Key]


@dataclass(slots=True)
class _Reals:
    """Translates sides of one axiom into formulas over the reals and asks z3 about them."""

    names: list[str]
    axes: list[str]
    lacks: tuple[str, str] | None
    timeout_ms: int
    conditions: list[Any] = field(default_factory=list)
    atoms: dict[tuple[object, ...], Value] = field(default_factory=dict)
    exponents: list[tuple[Pattern, Pattern, dict[str, Position]]] = field(default_factory=list)
    reduce: Any = None  # how the strategy at hand reads a reduction
    laws: set[str] = field(default_factory=set)

    # -- translation

    def value(self, side: Pattern, at: Environment) -> Value:
        """Return the value of a side where its free axes are at the given positions."""
        if isinstance(side, str):
            return self.variable(side, at)
        name, *rest = side
        if name in REDUCTIONS:
            return self.reduce(side, at)
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
        raise _UntranslatableError(f"{name} has no meaning over the reals")

    def variable(self, name: str, at: Environment) -> Value:
        """Return a variable's value at a place."""
        return self.atom(*self.key(name, at))

    def key(self, name: str, at: Environment) -> Key:
        """Return what tells a variable's values apart: its positions on the axes it depends on."""
        missing = self.lacks[1] if self.lacks and self.lacks[0] == name else None
        return (name, *((axis, at.get(axis, 0)) for axis in self.axes if axis != missing))

    def atom(self, *key: object) -> Value:
        """Return the unknown number of a key, the same for the same key."""
        import z3

        parts = tuple(str(part) for part in key)
        if parts not in self.atoms:
            self.atoms[parts] = z3.Real(" ".join(parts))
        return self.atoms[parts]

    def exponential(self, argument: Value) -> Value:
        """Return exp of a number; it is positive."""
        import z3

        number = z3.Function("exp", z3.RealSort(), z3.RealSort())(argument)
        self.conditions.append(number > 0)
        return number

    def solve(self, claim: Any, *given: Any) -> Any:
        """Return a model in which the claim fails, None where there is none, "unknown" else."""
        import z3

        solver = z3.Solver()
        solver.set("timeout", self.timeout_ms)
        solver.add(*self.conditions, *given, z3.Not(claim))
        result = solver.check()
        if result == z3.sat:
            return solver.model()
        return None if result == z3.unsat else "unknown"

    def start(self, reduce: Any) -> None:
        """Forget the last query."""
        self.conditions, self.atoms, self.exponents, self.reduce = [], {}, [], reduce

    # -- refutation

    def counterexample(self, left: Pattern, right: Pattern, extent: int) -> str | None:
        """Return values that make the sides differ, every axis having the extent."""

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
        keys = self._inputs(extent)
        samples = [] if model == "unknown" else [{key: _number(model, self.atom(*key)) for key in keys}]
        # What z3 calls exp need not be exp, and its numbers may lie at a border: try plain ones too.
        samples += [
            {key: 0.5 + ((7 * i + 3 * number + 1) % 11) / 4 for i, key in enumerate(keys)}
            for number in range(4)
        ]
        for sample in samples:
            sides = [_evaluate(side, {}, sample, self.key, extent) for side in (left, right)]
            if all(map(math.isfinite, sides)) and not math.isclose(*sides, rel_tol=1e-7, abs_tol=1e-9):
                shown = ", ".join(f"{_spelled(key)} = {value:.6g}" for key, value in sample.items())
                return f"{shown}: {sides[0]:.6g} is not {sides[1]:.6g}"
        return None

    def _inputs(self, extent: int) -> list[Key]:
        places = [
            dict(zip(self.axes, positions, strict=True))
            for positions in product(range(extent), repeat=len(self.axes))
        ]
        return list(dict.fromkeys(self.key(name, place) for name in self.names for place in places))

    # -- proof

    def identity(self, left: Pattern, right: Pattern) -> tuple[Status, str, str]:
        """Return the verdict on an axiom without reductions."""
        self.start(None)
        claim = self.value(left, {}) == self.value(right, {})
        if self.solve(claim) is None:
            return "proved", "real algebra", ""
        given = []
        for a, b, at in list(self.exponents):
            x, y = self.value(a, at), self.value(b, at)
            given.append(self.exponential(x + y) == self.exponential(x) * self.exponential(y))
        if given and self.solve(claim, *given) is None:
            return "definition", "exp(a + b) = exp(a) exp(b)", ""
        return "unknown", "real algebra", "z3 found neither proof nor counterexample"

    def induction(self, left: Pattern, right: Pattern, axis: str) -> str | None:
        """Return the laws that an induction over an axis needs ("" for none), None where it fails."""
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
        laws = [law for law in LAWS if law.name in self.laws]
        if any(prove(law, timeout_ms=self.timeout_ms).status != "proved" for law in laws):
            return None
        return " and ".join(law.name for law in laws)

    def folded(self, name: str, over: str, parts: list[Value]) -> Value:
        """Return a reduction over an axis other than that of the induction, taken apart by its law."""
        folds = [self.atom("fold", name, over, part.sexpr()) for part in parts]
        if len(folds) == 1:
            return folds[0]
        self.laws.add(LAWS[0].name if name == "Sum" else LAWS[1].name)
        return folds[0] + folds[1] if name == "Sum" else _larger(*folds)


def _reduction(side: Pattern) -> tuple[str, str, Pattern]:
    assert not isinstance(side, str)
    name, axis, body = side
    assert isinstance(name, str)
    assert isinstance(axis, str)
    return name, axis, body


def _larger(a: Value, b: Value) -> Value:
    import z3

    return z3.If(a >= b, a, b)


def _number(model: Any, value: Value) -> float:
    import z3

    found = model.eval(value, model_completion=True)
    if z3.is_algebraic_value(found):
        found = found.approx(12)
    return float(found.as_fraction())


def _spelled(key: Key) -> str:
    name, *positions = key
    inside = ", ".join(f"{axis}={position}" for axis, position in positions)
    return f"{name}[{inside}]" if inside else str(name)


def _evaluate(
    side: Pattern, at: Mapping[str, int], sample: Mapping[Key, float], key_of: _KeyOf, extent: int
) -> float:
    """Return a side in floats; not a number where it is not defined."""
    if isinstance(side, str):
        return sample[key_of(side, at)]
    name, *rest = side
    if name in REDUCTIONS:
        _, axis, body = _reduction(side)
        values = [_evaluate(body, {**at, axis: i}, sample, key_of, extent) for i in range(extent)]
        return sum(values) if name == "Sum" else max(values)
    args = [_evaluate(part, at, sample, key_of, extent) for part in rest]
    try:
        return _FLOATS[str(name)](*args)
    except (ValueError, ZeroDivisionError, OverflowError):
        return math.nan


_FLOATS: dict[str, Callable[..., float]] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Neg": lambda a: -a,
    "Inv": lambda a: 1 / a,
    "Maximum": max,
    "Sqrt": math.sqrt,
    "Exp": math.exp,
}
