"""Recalled: whether a decision from the cache still holds, on a machine that may be in another state.

The key of a decision names the processor, not its clock, nor what else runs on it. So recalled kernels are
timed for a moment. Where they take about as long as when they were raced, the decision stands. Where they do
not, they race anew: against Inductor's code if there is time to compile it, else against eager PyTorch.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from superopt.backend.checks.inputs import RegionInputs
from superopt.backend.decision import Decision, Ledger
from superopt.backend.operators import eager_module
from superopt.backend.region import Region
from superopt.backend.region_plan import calling
from superopt.backend.region_race import even
from superopt.errors import kind_and_line
from superopt.rivals.inductor import alone
from superopt.rivals.opponents import Opponents
from superopt.rivals.rivals import EAGER, INDUCTOR, Function
from superopt.targets import Target
from superopt.tune import measure_together
from superopt.tune.measure import HeadToHead

__all__ = ["recheck"]

log = logging.getLogger("superopt")

_CHANGED = 1.3  # kernels whose time has changed by this factor show a machine in another state
_LOOK_S = 0.03  # seconds of timing them for that
_RACE_S = 0.5
_COMPILING_S = 2.5  # about the seconds that Inductor takes to compile a region


def recheck(known: Decision, region: Region, target: Target, ledger: Ledger) -> Decision:
    """Return a recalled decision, or why its kernels are not used now; checked once for each model."""
    digest = region.key.digest
    measured = known.taken and known.recalled and known.after_us is not None
    if not measured or digest in ledger.checked or ledger.options.budget_s == 0:
        return known
    ledger.checked.add(digest)
    try:
        with ledger.spending():
            found = alone(lambda: _recheck_now(known, region, target, ledger))
    except Exception as error:  # what is known was raced and proven before
        log.info("%s is not checked again: %s", known.operators, kind_and_line(error))
        found = known
    ledger.known[digest] = found
    return found


def _recheck_now(known: Decision, region: Region, target: Target, ledger: Ledger) -> Decision:
    ours = calling(region, str(known.plan))
    copies = RegionInputs(region, target, known.flops).copies()
    now_us = _now_us(ours, copies, target)
    before_us = known.after_us or now_us
    if max(now_us, before_us) < _CHANGED * min(now_us, before_us):
        return known
    raced, name = _race(ours, copies, region, target, ledger)
    speed = raced.speed_of("superopt")
    log.info("%s: %.2f times the speed of %s now", known.operators, speed, name)
    if speed >= even() or not raced.sure:
        return known
    why = f"{known.why} when it was raced, but {speed:.2f} times the speed of {name} on this machine now"
    return replace(known, taken=False, plan=None, open=True, why=why)


def _now_us(ours: Function, copies: Sequence[tuple[Tensor, ...]], target: Target) -> float:
    """Return the time of a few calls; the faster ones tell the state, the slower ones who else was busy."""
    timed = measure_together({"superopt": ours}, copies, seconds=_LOOK_S, times=target.times)
    return timed["superopt"].low_us


def _race(
    ours: Function, copies: Sequence[tuple[Tensor, ...]], region: Region, target: Target, ledger: Ledger
) -> tuple[HeadToHead, str]:
    """Race kernels with the best rival that there is time for."""
    options = ledger.options.inductor
    rival = Opponents(region.subgraph.module, lambda: copies, target, options, eager=eager_module(region)[0])
    other = INDUCTOR if ledger.left_s > _COMPILING_S else EAGER
    return rival.against(ours, other, seconds=_RACE_S), other.name
