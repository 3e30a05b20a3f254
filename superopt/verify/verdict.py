"""Verdict: what a comparison found, how sure it is, and what it rests on."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, log2
from typing import Any

from superopt.verify.report import Counterexample, FloatReport

__all__ = ["Verdict", "Witness", "combined"]


@dataclass(frozen=True, slots=True)
class Witness:
    """A place where two graphs differ over the field, and what reproduces it."""

    output: str
    position: tuple[int, ...]  # one index for each axis of the output, at the tiny sizes
    left: int
    right: int
    seed: int
    variant: int

    def __str__(self) -> str:
        place = ", ".join(map(str, self.position))
        where = f"{self.output}[{place}] over the field"
        return f"{where}: {self.left} against {self.right} (seed {self.seed}, sizes {self.variant})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two programs are equal; false for `equal` always comes with a reason."""

    equal: bool
    proven: bool = True  # by the algebra; where false, only floats were compared
    trials: int = 0
    error_bound: float | None = None  # how likely different programs pass; None: no bound below 1
    witness: Witness | None = None
    oracles: tuple[str, ...] = ()  # functions compared only as unknown functions of their arguments
    floats: FloatReport | None = None
    counterexample: Counterexample | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        lines = [self._headline()]
        if self.oracles:
            lines.append(f"compared as unknown functions: {', '.join(self.oracles)}")
        if self.witness is not None:
            lines.append(str(self.witness))
        lines += self.notes
        if self.counterexample is not None:
            lines.append(str(self.counterexample))
        elif self.floats is not None:
            lines.append(str(self.floats))
        return "\n".join(lines)

    def _headline(self) -> str:
        if not self.proven:
            word = "equal as far as floats show, which is no proof" if self.equal else "not equal in floats"
            return f"{word} ({self.seconds:.2f} s)"
        if not self.equal:
            found = "" if self.witness is None else " as exact algebra"
            return f"not equal{found} ({self.seconds:.2f} s)"
        bound = 1.0 if self.error_bound is None else max(self.error_bound, 2.0**-1000)
        exponent = ceil(log2(bound))  # upwards: a bound is not to sound smaller than it is
        chance = "no bound on the chance of error" if exponent >= 0 else f"chance of error below 2^{exponent}"
        return f"equal: {self.trials} random trials over finite fields, {chance} ({self.seconds:.2f} s)"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def combined(verdicts: Sequence[Verdict], floats: FloatReport | None = None) -> Verdict:
    """Return the verdict on a whole from those on all its parts: it is equal where every part is."""
    bounds = [one.error_bound for one in verdicts]
    known = [bound for bound in bounds if bound is not None]
    return Verdict(
        equal=all(verdicts),
        proven=all(one.proven for one in verdicts),
        trials=min((one.trials for one in verdicts), default=0),
        error_bound=min(sum(known), 1.0) if len(known) == len(bounds) else None,
        witness=next((one.witness for one in verdicts if one.witness), None),
        oracles=tuple(sorted({name for one in verdicts for name in one.oracles})),
        floats=floats,
        counterexample=next((one.counterexample for one in verdicts if one.counterexample), None),
        notes=tuple(dict.fromkeys(note for one in verdicts for note in one.notes)),
        seconds=sum(one.seconds for one in verdicts),
    )
