"""Fate: what became of a candidate: at which stage, in which of six ways, and why."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Fate", "Kind"]


class Kind(StrEnum):
    """The six ways in which a stage may leave a candidate."""

    KEPT = "kept"  # the candidate goes on to the next stage
    SLOWER = "slower"  # another candidate is faster, or is expected to be
    REFUSED = "refused"  # the candidate does not fit the device, or is less accurate than PyTorch
    FAILED = "failed"  # the candidate cannot be made or run
    NO_TIME = "no time"  # no time was left for the candidate
    CHOSEN = "chosen"


@dataclass(frozen=True, slots=True)
class Fate:
    """What the last stage that touched a candidate decided, and why."""

    stage: str
    kind: Kind
    reason: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with the candidate: it may be raced again elsewhere or later."""
        return self.kind in (Kind.KEPT, Kind.SLOWER, Kind.CHOSEN)

    def __str__(self) -> str:
        return self.reason or self.kind.value
