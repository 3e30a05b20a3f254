"""Answers: what the verifier says of a pair, and of each of its programs against itself."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from superopt.bench.verdicts.pairs import Function, Pair, example, parse

__all__ = ["Answer", "ask", "ask_by_name", "ask_random", "known", "seed_of"]

_LONGEST = 400  # characters of a reason that are kept


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said of one pair."""

    name: str
    family: str
    truth: str  # equal, different, or undecided: a mistake whose effect float64 does not show
    said: str  # equal, different, unknown, refused (with a reason, before any verdict), or error
    same: str  # the worst that was said of a program against itself
    reason: str
    seconds: float
    programs: str = ""  # both programs, where they are random

    @property
    def wrong(self) -> bool:
        """Whether the word is wrong: neither the truth nor that there is no verdict."""
        return self.truth != "undecided" and self.said not in (self.truth, "unknown", "refused")

    @property
    def contradicted(self) -> bool:
        """Whether the algebra called programs equal that differ in numbers."""
        from superopt.verify.decide import CONTRADICTION

        return CONTRADICTION in self.reason

    @property
    def itself(self) -> bool:
        """Whether no program was found not to equal itself."""
        return self.same in ("equal", "refused", "")

    @property
    def open(self) -> bool:
        """Whether there is no verdict."""
        return self.said in ("unknown", "refused")

    @property
    def broken(self) -> bool:
        """Whether a promise is broken: by a word, by the algebra, or on a program against itself."""
        return self.wrong or self.contradicted or not self.itself

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def seed_of(name: str, seed: int) -> int:
    """Return the seed of one pair in a run."""
    return Random(f"{seed} {name}").randrange(2**31)


def known() -> dict[str, Pair]:
    """Return all pairs that have a name of their own."""
    from superopt.bench.verdicts.idioms import IDIOMS, WRONG
    from superopt.bench.verdicts.tensors.equations import EQUATIONS

    return {**IDIOMS, **WRONG, **EQUATIONS}


def ask_by_name(names: Sequence[str], seed: int) -> list[Answer]:
    """Return the answers on pairs that have names."""
    pairs = known()
    return [ask(pairs[name], seed) for name in names]


def ask_random(numbers: Sequence[int], seed: int, *, largest: int | None = None) -> list[Answer]:
    """Return the answers on random pairs, or on those of them that have few nodes."""
    from superopt.bench.verdicts.programs.pairs import random_pair

    answers = []
    for number in numbers:
        made = random_pair(number, seed)
        if largest is not None and made.size > largest:
            continue
        if made.pair is not None:
            answers.append(ask(made.pair, seed, programs=str(made)))
            continue
        reason = f"the judge doubts a law: {made.difference}" if made.truth else ""
        answers.append(Answer(f"random {number}", made.family, "undecided", "", "", reason, 0.0, str(made)))
    return answers


def ask(pair: Pair, seed: int, *, programs: str = "") -> Answer:
    """Return what the verifier says of a pair."""
    start = time.perf_counter()
    own = seed_of(pair.name, seed)
    said, reason = _say(pair.f, pair.g, pair.inputs, own)
    same = "equal"
    for function in (pair.f,) if programs else (pair.f, pair.g):  # one of random ones: there are many
        again, why = _say(function, function, pair.inputs, own, floats=False)  # its own rounding is no matter
        if again != "equal":  # what is refused is so on both sides
            side = "first" if function is pair.f else "second"
            same = again
            reason += f" | the {side} against itself: {again}: {why}"
    truth = "equal" if pair.equal else "different"
    seconds = round(time.perf_counter() - start, 3)
    return Answer(pair.name, pair.family, truth, said, same, reason[:_LONGEST], seconds, programs)


def _say(f: Function, g: Function, inputs: str, seed: int, *, floats: bool = True) -> tuple[str, str]:
    """Return the verdict's word and its reasons; whatever is raised is an error of the verifier's."""
    from superopt import equivalent
    from superopt.errors import TraceError

    try:
        verdict = equivalent(f, g, *example(parse(inputs), seed), seed=seed, floats=floats)
    except TraceError as error:
        return "refused", str(error)
    except Exception as error:  # none of these programs is bad input
        return "error", f"{type(error).__name__}: {error}"
    reasons = list(verdict.notes)
    if verdict.counterexample is not None:
        reasons.append(str(verdict.counterexample).splitlines()[0])
    elif verdict.witness is not None and not verdict.unknown:
        reasons.append(str(verdict.witness))
    return verdict.outcome, "; ".join(reasons)
