"""Verdict: equal, different or unknown; how sure that is, and what it rests on."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, log2
from typing import Any, Literal, TypeAlias

from superopt.verify.floats.report import Counterexample, FloatReport
from superopt.verify.words import called

__all__ = ["ENOUGH", "Outcome", "Verdict", "Witness", "combined"]

Outcome: TypeAlias = Literal["equal", "different", "unknown"]

ENOUGH = 2.0**-40
"""The largest chance of error with which two programs are called equal."""


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
    """The answer to whether two programs are equal. Only "equal" is ever acted upon.

    Equal comes with an error bound of at most `ENOUGH`. Different comes with a counterexample in numbers,
    or with a witness where the field refutes exactly. Unknown says in its notes what stands in the way.
    """

    outcome: Outcome
    trials: int = 0
    error_bound: float | None = None  # how likely different programs pass; None: no bound is known
    witness: Witness | None = None
    oracles: tuple[str, ...] = ()  # functions compared only as unknown functions of their arguments
    floats: FloatReport | None = None
    counterexample: Counterexample | None = None
    place: str = ""  # the first piece of the programs in which they differ, where they are long
    notes: tuple[str, ...] = ()
    seed: int = 0
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.equal

    @property
    def equal(self) -> bool:
        """Whether the programs are shown to be equal."""
        return self.outcome == "equal"

    @property
    def different(self) -> bool:
        """Whether the programs are shown to differ."""
        return self.outcome == "different"

    @property
    def unknown(self) -> bool:
        """Whether neither is shown."""
        return self.outcome == "unknown"

    def __str__(self) -> str:
        lines = [self._headline()]
        if self.place:
            lines.append(f"first difference: {self.place}")
        if self.oracles:
            lines.append(f"taken as unknown functions, equal for equal arguments: {called(self.oracles)}")
        if self.witness is not None and not self.unknown:
            lines.append(str(self.witness))
        lines += self.notes
        if self.counterexample is not None:
            lines.append(str(self.counterexample))
        elif self.floats is not None:
            lines.append(str(self.floats))
        return "\n".join(lines)

    def _headline(self) -> str:
        ending = f"({self.seconds:.2f} s, seed {self.seed})"
        if self.different:
            return f"different {ending}"
        if self.unknown:
            return f"unknown: neither shown to be equal nor to be different {ending}"
        bound = 1.0 if self.error_bound is None else max(self.error_bound, 2.0**-1000)
        exponent = ceil(log2(bound))  # upwards: a bound is not to sound smaller than it is
        chance = f"chance of error below 2^{exponent}"
        if not self.trials and self.error_bound == 0:
            return f"equal: made by the same steps {ending}"
        return f"equal: {self.trials} random trials over finite fields, {chance} {ending}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"equal": self.equal}


_RANK: dict[Outcome, int] = {"equal": 0, "unknown": 1, "different": 2}


def combined(verdicts: Sequence[Verdict], floats: FloatReport | None = None) -> Verdict:
    """Return the verdict on a whole from the verdicts on its parts: the worst, with the chances added up."""
    bounds = [one.error_bound for one in verdicts]
    known = [bound for bound in bounds if bound is not None]
    total = min(sum(known), 1.0) if len(known) == len(bounds) else None
    outcome: Outcome = max((one.outcome for one in verdicts), key=_RANK.__getitem__, default="equal")
    notes = dict.fromkeys(note for one in verdicts for note in one.notes)
    if outcome == "equal" and (total is None or total > ENOUGH):
        outcome = "unknown"
        notes["no proof: the chances of error of all parts add up to too much"] = None
    return Verdict(
        outcome,
        trials=min((one.trials for one in verdicts), default=0),
        error_bound=total,
        witness=next((one.witness for one in verdicts if one.witness), None),
        oracles=tuple(sorted({name for one in verdicts for name in one.oracles})),
        floats=floats,
        counterexample=next((one.counterexample for one in verdicts if one.counterexample), None),
        place=next((one.place for one in verdicts if one.place), ""),
        notes=tuple(notes),
        seed=next((one.seed for one in verdicts), 0),
        seconds=sum(one.seconds for one in verdicts),
    )
