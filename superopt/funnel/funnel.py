"""Funnel: the list of the stages that every candidate goes through, until one is chosen for each region.

Each stage is a function `(candidates, context) -> candidates`: it adds what it finds out to the candidates,
or ends some of them with a fate, and hands on all of them in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.funnel.build import build
from superopt.funnel.check import check
from superopt.funnel.choose import choose
from superopt.funnel.compile_ahead import compile_ahead
from superopt.funnel.predict import predict
from superopt.funnel.race import favor_live, race
from superopt.funnel.rehearse import rehearse
from superopt.funnel.state import Context, State
from superopt.funnel.tune import tune
from superopt.funnel.write import write
from superopt.weights.kept import keep_only

__all__ = ["FUNNEL", "RETUNING", "Stage", "run", "run_regions", "write_regions"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of the funnel."""

    run: Callable[[Sequence[Candidate], Context], list[Candidate]]
    # True: only where the device is here; False: only where it is not; None: always.
    device: bool | None = None


FUNNEL = (
    Stage(predict),
    Stage(write),
    Stage(rehearse, device=False),
    Stage(compile_ahead, device=False),
    Stage(build, device=True),
    Stage(race, device=True),
    Stage(tune, device=True),
    Stage(favor_live, device=True),
    Stage(check, device=True),
    Stage(choose),
)
"""All stages in order. A device that is not here leaves some out, and needs others in their place."""

RETUNING = (Stage(write), Stage(build), Stage(race), Stage(tune))
"""The stages by which a candidate gets configurations for other sizes, where the device is here."""

_ON_PAPER = FUNNEL[:2]  # the stages that run nothing


def run(stages: Sequence[Stage], candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Return candidates after some stages; after a first Ctrl-C the stages keep the best so far."""
    found = list(candidates)
    for stage in stages:
        if stage.device in (None, context.state.measures):
            with context.state.stoppable():
                found = stage.run(found, context)
    return found


def run_regions(regions: Sequence[RegionCandidates], state: State) -> list[RegionCandidates]:
    """Return the regions of a program with their candidates as the whole funnel leaves them."""
    done = []
    with state.ready():
        for region, context in zip(regions, state.contexts(regions), strict=True):
            found = run(FUNNEL, region.candidates, context)
            assert len({one.id for one in found}) == len(found)
            done.append(replace(region, candidates=tuple(found)))
            keep_only(state.kernels.values(), context.kernels.values())
    return done


def write_regions(regions: Sequence[RegionCandidates], state: State) -> list[RegionCandidates]:
    """Return regions with their candidates predicted and written, from where `run_regions` goes on."""
    return [
        replace(region, candidates=tuple(run(_ON_PAPER, region.candidates, context)), recalled=True)
        for region, context in zip(regions, state.contexts(regions), strict=True)
    ]
