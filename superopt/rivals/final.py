"""Final: the last race, of the whole program with our kernels against PyTorch."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from superopt.candidates.candidate import RegionCandidates
from superopt.candidates.floors import is_too_fast, least_us, program_floor_us
from superopt.fate import Kind
from superopt.funnel.assembly import assemble
from superopt.funnel.race import copies_for
from superopt.funnel.state import LOST, State
from superopt.rivals.rivals import EAGER, PEERS, products_of, rivals_of
from superopt.rivals.stand_in import stand_in
from superopt.tune import Measurement, confirm, measure_together
from superopt.tune.errors import MeasurementError
from superopt.tune.measure import HeadToHead, Times
from superopt.verify.floats.compare import tensors_of

__all__ = ["STAGE", "FinalRace", "alone", "copies_of", "final_race", "together", "withdraw"]

log = logging.getLogger("superopt")

STAGE = "final race"
"""The stage at which a program leaves that could not be raced to the end."""

Timer = Callable[..., Mapping[str, Times]]
"""Takes the times of functions call by call, as `Target.times` does."""

_WIN = 1.02  # how much faster than PyTorch a program must be to be preferred
_LONGER = 3.0  # an undecided race goes on for up to this many times its planned time
_TOGETHER = 0.7  # the share of the time that the race of all may take
_ROUNDS = 40  # rounds of all, which say whom ours must beat; how sure that is, the race of two says
_HASTE_S = 1.0  # seconds of the last race, once Ctrl-C asked to stop


@dataclass(frozen=True, slots=True)
class FinalRace:
    """The times of whole programs."""

    contenders: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    confirmed: HeadToHead | None = None  # ours against the best of PyTorch, once more
    fault: str = ""  # why our program is out of the race, though there is one

    @property
    def best_rival(self) -> str:
        """The fastest program of PyTorch."""
        times = {name: one.median_us for name, one in self.measurements.items() if name in PEERS}
        return min(times, key=lambda name: times[name], default=EAGER.name)

    @property
    def ahead(self) -> bool:
        """Whether ours is the fastest in the race of all."""
        ours, theirs = self.measurements.get("superopt"), self.measurements.get(self.best_rival)
        if self.fault or ours is None or theirs is None:
            return False
        return ours.median_us * _WIN < theirs.median_us

    @property
    def winner(self) -> str:
        """The fastest, ours only if it is surely faster, by more than noise."""
        won = self.confirmed
        ours = self.ahead and won is not None and won.winner == "superopt" and won.speedup > _WIN
        return "superopt" if ours and won is not None and won.sure else self.best_rival

    @property
    def unsettled(self) -> str:
        """Why ours is not taken though it may well be faster, or nothing."""
        won = self.confirmed
        if not self.ahead or won is None or won.winner != "superopt" or won.sure:
            return ""
        advice = "close other programs, or give --seconds more"
        if won.is_steady:
            return f"superopt was ahead in only {won.share:.0%} of the rounds: {advice}"
        return f"times vary {won.spread:.0f} times, which leaves the race undecided: {advice}"


def final_race(
    state: State,
    regions: Sequence[RegionCandidates],
    *,
    known: bool,
    made: Mapping[str, Callable[..., Any]] | None = None,
) -> FinalRace:
    """Measure all contenders; any error leaves the original as the winner.

    `known` says whether the function is the original, not the program as it was traced. `made` are the rivals
    where they are made.
    """
    if state.lost:
        return FinalRace(fault=LOST)
    options = state.options
    with torch.no_grad():
        copies = copies_of(state)
        contenders = dict(made or {EAGER.name: state.function})
        with state.clock.phase("torch.compile"), state.stoppable():
            wanted = options.torch_compile and not state.interrupted
            raced = state.function if known else _stand_in(state, copies[0])
            if made is None:
                contenders = rivals_of(
                    raced,
                    copies[0],
                    state.target,
                    compiled=wanted,
                    products=products_of(state.traced.program),
                    tell=state.tell,
                )
        if state.kernels:
            contenders["superopt"] = assemble(state.traced, state.kernels)
        elif state.interrupted:
            return FinalRace(contenders)
        state.tell("racing against PyTorch")
        seconds = min(_HASTE_S, options.seconds / 2) if state.interrupted else options.seconds / 2
        found, times = FinalRace(contenders), state.target.times
        floor = _floor_us(state, regions)
        with state.clock.phase("race"), state.stoppable():
            try:
                found = together(contenders, copies, seconds=seconds, times=times)
                _check_floor(found, floor)
                if found.ahead:
                    state.tell(f"racing against {found.best_rival} alone")
                    found = alone(found, copies, seconds=seconds, patient=not state.interrupted, times=times)
                    _check_floor(found, floor)
            except Exception as error:  # a program or the device may raise anything
                why = f"the race against PyTorch failed: {state.fault(error)}"
                log.warning("%s: the original is what comes back: %s", state.traced.program.name, why)
                state.interrupted |= state.lost
                theirs = {name: one for name, one in found.measurements.items() if name in PEERS}
                found = replace(found, measurements=theirs, fault=why)
    return found


def together(
    contenders: Mapping[str, Callable[..., Any]],
    copies: Sequence[tuple[Any, ...]],
    *,
    seconds: float,
    times: Timer,
) -> FinalRace:
    """Return the race of all contenders, in at most some of the seconds that the whole takes."""
    measured = measure_together(
        contenders, copies, seconds=seconds * _TOGETHER, most_rounds=_ROUNDS, times=times
    )
    return FinalRace(contenders, measured)


def alone(
    race: FinalRace, copies: Sequence[tuple[Any, ...]], *, seconds: float, patient: bool = True, times: Timer
) -> FinalRace:
    """Return a race with ours once more against the best of PyTorch alone, until that is decided."""
    spent = seconds * (1 - _TOGETHER)
    confirmed = confirm(
        race.contenders,
        "superopt",
        race.best_rival,
        copies,
        seconds=spent,
        most_seconds=spent * _LONGER if patient else 0.0,
        level=_WIN,
        times=times,
    )
    return replace(race, confirmed=confirmed)


def withdraw(region: RegionCandidates, why: str) -> RegionCandidates:
    """Return a region whose chosen candidate is refused after all."""
    candidates = tuple(
        one.ended(STAGE, Kind.REFUSED, why) if one is region.chosen else one for one in region.candidates
    )
    return replace(region, candidates=candidates)


def copies_of(state: State) -> list[tuple[Any, ...]]:
    """Return inputs several times over, more than caches hold."""
    count, seed = copies_for(tensors_of(state.typical)), state.options.seed
    return [state.typical, *(state.draw(seed + at) for at in range(1, count))]


def _stand_in(state: State, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    try:
        return stand_in(state.traced, inputs)
    except RuntimeError as error:  # torch lacks an operator in some dtype
        log.warning("%s: PyTorch races in fp32: %s", state.traced.program.name, state.fault(error))
        return state.function


def _floor_us(state: State, regions: Sequence[RegionCandidates]) -> float | None:
    """Return the least time of the whole program, where no cache can make it shorter."""
    if not state.target.clears_caches:
        return None
    floors = {
        one.goal.name: least_us(
            state.target, (one.goal, *([one.chosen.run] if one.chosen else [])), kept=True
        )
        for one in regions
    }
    return program_floor_us(state.traced.program, floors)


def _check_floor(race: FinalRace, floor: float | None) -> None:
    """Refuse a time of ours that cannot be right."""
    latest = race.measurements if race.confirmed is None else race.confirmed.measurements
    ours = latest.get("superopt")
    if ours is not None and is_too_fast(ours.median_us, floor):
        raise MeasurementError(f"{ours.median_us:.2f} µs, but the program's data takes {floor:.2f} µs")
