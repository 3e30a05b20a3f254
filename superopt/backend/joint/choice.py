"""Choice: what a step keeps between its passes, and in which turns it computes its part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from superopt.backend.joint.joint_pass import Turned
from superopt.backend.joint.kept import Choices, Kept, Passes
from superopt.backend.joint.limits import limits
from superopt.backend.joint.liveness import expected_peak
from superopt.backend.joint.scaled import scale_in_place
from superopt.backend.joint.step import Split, copied, saved_names, split
from superopt.backend.joint.turns.choice import Turns
from superopt.backend.joint.turns.tiling import largest_bytes
from superopt.targets import Target

__all__ = [
    "MORE_TIME",
    "Choice",
    "Joint",
    "choices_of",
    "for_bytes",
    "for_time",
    "holding_no_more",
    "unchanged",
]

MORE_TIME = 0.05
"""The time of a step that less memory may take."""

_DOUBT = 2.0  # how often the time that is expected must find room in it, where only a prediction tells
_SHARE = 0.5  # of the bytes that PyTorch keeps, which "balanced" is to reach
_HARDLY = 0.005  # of a step, that is hardly more time
_FEWER = 0.98  # the bytes, over those that PyTorch keeps, above which nothing is changed
_MOST_SPLIT = 6  # choices for a number of bytes whose step is split, which takes a while


@dataclass(frozen=True, slots=True)
class Joint:
    """A joint graph, what is told about its split, and what may be kept of it."""

    module: fx.GraphModule
    told: Mapping[str, Any]
    choices: Choices
    theirs: Kept

    @classmethod
    def of(cls, module: fx.GraphModule, told: Mapping[str, Any], target: Target) -> "Joint":
        """Return a joint graph with what PyTorch keeps of it."""
        choices = Choices(Passes(module.graph, told["num_fwd_outputs"]), target.cost_device())
        forward, _ = split(copied(module, module.graph, {}), (), told)
        names = saved_names(forward, told["num_fwd_outputs"])
        theirs = choices.of({node for node in choices.passes.early if node.name in names})
        return cls(module, told, choices, theirs)

    def split(self, kept: Kept | None) -> Split:
        """Return both graphs, split by a choice or by PyTorch's own; the joint graph stays as it is."""
        moved: dict[fx.Node, fx.Node] = {}
        copy = copied(self.module, self.module.graph, moved)
        if kept is not None:
            kept.tag(moved)
        made = split(copy, (), self.told)
        scale_in_place(*made, self.told["num_fwd_outputs"])
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What is kept of a joint graph, and the turns in which it computes its part, None where it has none."""

    joint: Joint
    kept: Kept
    turns: Turns | None = None
    turns_s: float = 0.0  # more than without turns
    beside: int = 0  # the bytes that the part takes beside what is kept

    @property
    def bytes(self) -> int:
        """The bytes that are held while the part is computed, and otherwise between the passes."""
        return self.kept.bytes + self.beside

    @property
    def remade_s(self) -> float:
        """The seconds that the backward pass is expected to take longer than with what PyTorch keeps."""
        return max(self.kept.seconds - self.joint.theirs.seconds, 0.0)

    @property
    def more_s(self) -> float:
        """The seconds that a step is expected to take longer."""
        return self.turns_s + self.remade_s

    def expected_peak(self) -> int:
        """Return about the most bytes that a step holds with it."""
        outputs: int = self.joint.told["num_fwd_outputs"]
        turns_bytes = self.turns.bytes if self.turns is not None else 0
        return expected_peak(self.joint.split(self.tagged), outputs, turns_bytes)

    @property
    def is_ours(self) -> bool:
        """Whether anything is chosen otherwise than PyTorch does."""
        return self.turns is not None or self.tagged is not None

    @property
    def tagged(self) -> Kept | None:
        """What PyTorch is told to keep, None where that is its own choice."""
        return None if self.kept is self.joint.theirs else self.kept


def choices_of(joint: Joint, base: Joint, turned: Turned | None) -> list[Choice]:
    """Return the choices for a graph, each of what is kept in all turns there are.

    The first is PyTorch's own; it is not among them where turns are taken whatever they cost.
    """
    base_choices = [Choice(base, kept, beside=_held_by_largest(base, kept, turned)) for kept in _kept(base)]
    if turned is None:
        return base_choices
    part_s = turned.found.share * base.choices.step_s
    forced = limits().any_speed
    made = [
        Choice(joint, kept, turns, 0.0 if forced else (1 / turns.speed - 1) * part_s, turns.bytes)
        for turns in turned.found.turns
        for kept in _kept(joint)
    ]
    return made if forced else base_choices + made


def _kept(joint: Joint) -> list[Kept]:
    """Return what may be kept of a graph: what PyTorch keeps, and less."""
    return [joint.theirs, *(one for one in joint.choices.best() if one.bytes < _FEWER * joint.theirs.bytes)]


def unchanged(base: Joint, turned: Turned | None) -> Choice:
    """Return what PyTorch does by itself."""
    return Choice(base, base.theirs, beside=_held_by_largest(base, base.theirs, turned))


def _held_by_largest(joint: Joint, kept: Kept, turned: Turned | None) -> int:
    """Return the bytes of the largest value of a part that is computed at once, where that is not kept."""
    largest = largest_bytes(turned.found.plan.goal) if turned is not None else 0
    known = max((joint.choices.bytes[node] for node in kept.kept), default=0)
    return largest if known < largest else 0


def _by_time(choice: Choice) -> tuple[float, int]:
    return choice.more_s, choice.bytes


def for_time(
    choices: Sequence[Choice], theirs_bytes: int, step_s: float
) -> tuple[list[Choice], list[Choice]]:
    """Return what to race for "balanced", and of these what surely takes hardly more time.

    First comes what holds half of their bytes for the least time, then what is safer.
    """
    allowed_s = MORE_TIME * step_s
    fast = [one for one in choices if one.more_s <= allowed_s]
    few = [one for one in fast if one.bytes <= _SHARE * theirs_bytes]
    found = list[Choice]()
    if few:
        most = min(one.more_s for one in few) + _HARDLY * step_s
        found.append(min((one for one in few if one.more_s <= most), key=lambda one: one.bytes))
        found.append(min(few, key=_by_time))
    for share in (1.0, 1 / _DOUBT):
        several = [one for one in fast if one.more_s <= share * allowed_s]
        if several and not few:
            found.append(min(several, key=lambda one: one.bytes))
    plain = [one for one in fast if one.turns is None and one.more_s <= allowed_s / _DOUBT]
    if plain:  # what turns cost is told by a race of the part alone
        found.append(min(plain, key=lambda one: one.bytes))
    tried = list(dict.fromkeys(one for one in found if one.is_ours))
    return tried, [one for one in tried if one.turns_s + _DOUBT * one.remade_s <= allowed_s]


def for_bytes(choices: Sequence[Choice], bytes_: int) -> list[Choice]:
    """Return what holds no more than so many bytes, the fastest first, and at last what holds the fewest."""
    enough = sorted((one for one in choices if one.bytes <= bytes_), key=_by_time)
    some = enough[:: max(len(enough) // _MOST_SPLIT, 1)]
    fewest = min(choices, key=lambda one: one.bytes)
    return list(dict.fromkeys(one for one in (*some, fewest) if one.is_ours))


def holding_no_more(tried: Sequence[Choice], base: Joint) -> tuple[list[Choice], str]:
    """Return the choices whose step is expected to hold no more than Inductor's, and why if there is none."""
    if not tried or limits().any_speed:
        return list(tried), ""
    theirs = Choice(base, base.theirs).expected_peak()
    peaks = {one: one.expected_peak() for one in tried}
    least = min(peaks.values())
    told = f"a step would hold {least / 2**20:.1f} MB in place of {theirs / 2**20:.1f}"
    return [one for one, peak in peaks.items() if peak <= theirs], told
