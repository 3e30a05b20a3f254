"""Outcome: what came of a contest."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from superopt.plans.peers import PEERS
from superopt.plans.plan import RegionPlan
from superopt.plans.ranking import RankedBy
from superopt.targets import Kernel
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead
from superopt.verify.report import FloatReport

__all__ = ["Outcome"]

_WIN = 1.02  # how much faster than PyTorch a program must be to be preferred


@dataclass(slots=True)
class Outcome:
    """What came of a contest."""

    regions: list[RegionPlan] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    contenders: dict[str, Callable[..., Any]] = field(default_factory=dict)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    confirmed: HeadToHead | None = None  # ours against the best of PyTorch, once more
    floats: FloatReport | None = None
    ranked_by: RankedBy | None = None
    interrupted: bool = False

    @property
    def winner(self) -> str:
        """The fastest, ours only if it is faster by more than noise."""
        times = {name: one.median_us for name, one in self.measurements.items() if name in PEERS}
        if not times:
            return "eager"
        best = min(times, key=lambda name: times[name])
        ours = self.measurements.get("superopt")
        faster = ours is not None and ours.median_us * _WIN < times[best]
        if faster and self.confirmed is not None:
            faster = self.confirmed.winner == "superopt" and self.confirmed.speedup > _WIN
        return "superopt" if faster else best

    def withdraw(self, why: str) -> None:
        """Refuse all kernels of ours; what was measured of PyTorch stays."""
        self.kernels.clear()
        self.contenders.pop("superopt", None)
        self.measurements.pop("superopt", None)
        self.floats = None
        for at, plan in enumerate(self.regions):
            candidates = (
                replace(one, rejected=why) if one is plan.chosen else one for one in plan.candidates
            )
            self.regions[at] = replace(plan, candidates=tuple(candidates), chosen=None)
