"""Proofs of the axioms over the reals, by z3, from the same text that egglog runs.

First a counterexample is looked for. Then an axiom without reductions is proved as an identity of real
algebra; one that needs the laws of exp is a definition of exp. An axiom with reductions is proved by
induction over an axis (see `reals`).
"""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from superopt.rules.axioms import AXIOMS, Axiom
from superopt.rules.patterns import numbers, parse_pattern, variables
from superopt.rules.windows import WINDOW_AXIOMS

__all__ = ["Proof", "Status", "format_proofs", "prove", "prove_axioms", "to_json"]

Status = Literal["proved", "definition", "refuted", "unknown"]

_LAWS = {
    "Sum": Axiom("sum of sums", "(Sum k (Add a b))", "(Add (Sum k a) (Sum k b))"),
    "Max": Axiom("maximum of maxima", "(Max k (Maximum a b))", "(Maximum (Max k a) (Max k b))"),
}
"""What takes a reduction apart whose elements are themselves accumulated."""

_NOTHING_FOUND = "z3 found neither proof nor counterexample"


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
        return self.status in ("proved", "definition")


def prove_axioms() -> tuple[Proof, ...]:
    """Return a proof or a counterexample of each axiom."""
    return tuple(map(prove, (*AXIOMS, *WINDOW_AXIOMS)))


def prove(axiom: Axiom) -> Proof:
    """Return the proof of one axiom, or what refutes it."""
    start = time.perf_counter()
    status, method, detail = _decide(axiom)
    return Proof(axiom, status, method, time.perf_counter() - start, detail)


def format_proofs(proofs: Iterable[Proof]) -> str:
    """Return the table of axioms and proofs as plain text."""
    head = ("axiom", "left", "right", "only if", "status", "method", "ms")
    rows = [head]
    for proof in proofs:
        axiom = proof.axiom
        guards = ["{} lacks {}".format(*axiom.lacks)] if axiom.lacks else []
        guards += ["{} is apart from {}".format(*axiom.apart)] if axiom.apart else []
        guards += ["{} has no axis of {} but taps".format(*axiom.narrow)] if axiom.narrow else []
        guards += [f"{axiom.moved[0]} reads an axis of {term}" for term in axiom.moved[1:]]
        guards += [f"{axiom.keeps_zero}(0) = 0"] if axiom.keeps_zero else []
        guards += [f"{term} >= 0" for term in axiom.nonnegative]
        guards += [f"{term} > 0" for term in axiom.positive]
        guards += [f"{term} is made of weights" for term in axiom.once]
        guards += [f"{axiom.nonzero} != 0"] * bool(axiom.nonzero) + [f"{axiom.negative} < 0"] * bool(
            axiom.negative
        )
        guard = ", ".join(guards)
        arrow = f"-> {axiom.right}" if len(axiom.directions()) == 1 else f"== {axiom.right}"
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
        row["apart"] = list(proof.axiom.apart) if proof.axiom.apart else None
        row["narrow"] = list(proof.axiom.narrow) if proof.axiom.narrow else None
        row["moved"] = list(proof.axiom.moved)
        row["nonnegative"] = list(proof.axiom.nonnegative)
        row["positive"] = list(proof.axiom.positive)
        row["once"] = list(proof.axiom.once)
        row |= {"status": proof.status, "method": proof.method, "detail": proof.detail}
        rows.append({**row, "ms": round(proof.seconds * 1e3, 3)})
    return rows


def _decide(axiom: Axiom) -> tuple[Status, str, str]:
    from superopt.rules.reals import Reals, UntranslatableError  # this module imports z3

    left, right = parse_pattern(axiom.left), parse_pattern(axiom.right)
    sides = [variables(side) for side in (left, right)]
    names, axes = (list(dict.fromkeys([*one, *other])) for one, other in zip(*sides, strict=True))
    constants = list(dict.fromkeys([*numbers(left), *numbers(right)]))
    reals = Reals(names, axes, axiom.lacks, constants, axiom.apart, axiom.keeps_zero)
    try:
        for extent in (1, 2) if axes else (1,):
            found = reals.counterexample(left, right, extent)
            if found is not None:
                return "refuted", "counterexample", found
        if not axes:
            needed = reals.identity(left, right)
            if needed is None:
                return "unknown", "real algebra", _NOTHING_FOUND
            return ("definition", needed, "") if needed else ("proved", "real algebra", "")
        for axis in axes:
            needs = reals.induction(left, right, axis)
            if needs is not None:
                laws = [law for name, law in _LAWS.items() if name in needs]
                if all(prove(law).status == "proved" for law in laws):
                    names_of_laws = " and ".join(law.name for law in laws)
                    return "proved", f"induction over {axis}" + f", with {names_of_laws}" * bool(laws), ""
    except UntranslatableError as error:
        return "unknown", "none", str(error)
    return "unknown", "induction", _NOTHING_FOUND
