"""Choice: what a step keeps between its passes, and in which turns it computes its part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from superopt.backend.joint.joint_pass import Turned
from superopt.backend.joint.limits import limits
from superopt.backend.joint.memory.kept import Choices, Kept, Passes
from superopt.backend.joint.memory.liveness import Held, Liveness, Most
from superopt.backend.joint.scaled import scale_in_place
from superopt.backend.joint.step import Split, copied, saved_names, split
from superopt.backend.joint.turns.choice import Turns
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
"""The share of a step's time that may be spent to hold less memory."""

_DOUBT = 2.0  # an expected time counts this many times where no race checks it
_SHARE = 0.5  # "balanced" is to hold this share of the bytes that PyTorch's step holds
_HARDLY = 0.005  # this share of a step's time is hardly more time
_FEWER = 0.98  # a choice holds less memory only if it holds this share of the other's bytes


@dataclass(frozen=True, slots=True)
class Joint:
    """A joint graph, what is told about its split, and what may be kept of it."""

    module: fx.GraphModule
    told: Mapping[str, Any]
    choices: Choices
    theirs: Kept
    _liveness: Liveness
    _held: dict[Kept, Held] = field(default_factory=dict)
    _fewer: list[Kept] = field(default_factory=list)

    @classmethod
    def of(cls, module: fx.GraphModule, told: Mapping[str, Any], target: Target) -> "Joint":
        """Return a joint graph with what PyTorch keeps of it."""
        choices = Choices(Passes(module.graph, told["num_fwd_outputs"]), target.cost_device())
        forward, _ = split(copied(module, module.graph, {}), (), told)
        theirs = choices.named(saved_names(forward, told["num_fwd_outputs"]))
        return cls(module, told, choices, theirs, Liveness(choices.passes))

    def held(self, kept: Kept) -> Held:
        """Return about what a step holds at most with a choice."""
        if kept not in self._held:
            self._held[kept] = self._liveness.held(kept.kept, self.choices.remade(kept.kept))
        return self._held[kept]

    def kept(self) -> list[Kept]:
        """Return choices of what is kept: PyTorch's own, then those of fewer bytes and more time."""
        if not self._fewer:
            self._fewer.append(self.theirs)
            least = self._most(self.theirs)
            both = least.bytes + self.theirs.bytes
            for one in sorted(self.choices.several(), key=lambda one: (one.seconds, one.bytes)):
                most = self._most(one)
                fewer = most.bytes < _FEWER * least.bytes or most.in_turns < _FEWER * least.in_turns
                if (fewer or most.bytes + one.bytes <= both) and one.kept != self.theirs.kept:
                    self._fewer.append(one)
                    least = Most(min(most.bytes, least.bytes), min(most.in_turns, least.in_turns))
                    both = min(most.bytes + one.bytes, both)
        return self._fewer

    def _most(self, kept: Kept) -> Most:
        return Most(kept.bytes) if self.choices.passes.is_part else self.held(kept).passing

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
    """What is kept of a joint graph between its passes, and in which turns its part is computed, if any."""

    joint: Joint
    kept: Kept
    turns: Turns | None = None
    turns_s: float = 0.0  # the seconds that turns take longer

    @property
    def bytes(self) -> int:
        """About the most bytes that a step holds at once, without the gradients that it leaves.

        For a graph that another graph goes on from, the bytes that it keeps until the backward pass.
        """
        if self.joint.choices.passes.is_part:
            return self.kept.bytes + self._turns_bytes
        return self.joint.held(self.kept).passing.with_turns(self._turns_bytes)

    @property
    def whole_bytes(self) -> int:
        """About the most bytes that a step holds beside its inputs."""
        return self.joint.held(self.kept).whole.with_turns(self._turns_bytes)

    @property
    def _turns_bytes(self) -> int:
        return self.turns.bytes if self.turns is not None else 0

    @property
    def remade_s(self) -> float:
        """The seconds that the backward pass is expected to take longer than with what PyTorch keeps."""
        return max(self.kept.seconds - self.joint.theirs.seconds, 0.0)

    @property
    def more_s(self) -> float:
        """The seconds that a step is expected to take longer."""
        return self.turns_s + self.remade_s

    @property
    def is_ours(self) -> bool:
        """Whether anything is chosen otherwise than PyTorch does."""
        return self.turns is not None or self.tagged is not None

    @property
    def tagged(self) -> Kept | None:
        """What PyTorch is told to keep, None where that is its own choice."""
        return None if self.kept is self.joint.theirs else self.kept


def choices_of(joint: Joint, base: Joint, turned: Turned | None) -> list[Choice]:
    """Return the choices for a graph: each choice of what is kept, with each choice of turns.

    The first is PyTorch's own, unless turns are taken whatever they cost.
    """
    base_choices = [Choice(base, kept) for kept in base.kept()]
    if turned is None:
        return base_choices
    part_s = turned.found.share * base.choices.step_s
    forced = limits().any_speed
    made = [
        Choice(joint, kept, turns, 0.0 if forced else (1 / turns.speed - 1) * part_s)
        for turns in turned.found.turns
        for kept in joint.kept()
    ]
    return made if forced else base_choices + made


def unchanged(base: Joint) -> Choice:
    """Return what PyTorch does by itself."""
    return Choice(base, base.theirs)


def _least(choices: Sequence[Choice]) -> Choice:
    """Return the choice of the fewest bytes; those that are kept between the passes count twice.

    Parts of either pass may be computed in turns later, which saves other bytes, but not those that are kept.
    """
    least = min(one.bytes + one.kept.bytes for one in choices)
    few = (one for one in choices if _FEWER * (one.bytes + one.kept.bytes) <= least)
    return min(few, key=lambda one: (one.kept.bytes, one.more_s))


def _by_time(choice: Choice) -> tuple[float, int]:
    return choice.more_s, choice.bytes


def for_time(
    choices: Sequence[Choice], theirs_bytes: int, step_s: float
) -> tuple[list[Choice], list[Choice]]:
    """Return the choices to race for "balanced", and those of them that surely take hardly more time.

    The first one holds half of PyTorch's bytes for the least time; safer ones follow.
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
            found.append(_least(several))
    plain = [one for one in fast if one.turns is None and one.more_s <= allowed_s / _DOUBT]
    if plain:  # the cost of turns is known from a race of the part alone only
        found.append(_least(plain))
    tried = list(dict.fromkeys(one for one in found if one.is_ours))
    return tried, [one for one in tried if one.turns_s + _DOUBT * one.remade_s <= allowed_s]


def for_bytes(choices: Sequence[Choice], bytes_: int) -> list[Choice]:
    """Return the choices that hold at most so many bytes, the fastest first; the smallest comes last."""
    enough = sorted((one for one in choices if one.bytes <= bytes_), key=_by_time)
    return list(dict.fromkeys(one for one in (*enough, _least(choices)) if one.is_ours))


def holding_no_more(tried: Sequence[Choice], base: Joint) -> tuple[list[Choice], str]:
    """Return the choices whose step is expected to hold no more than Inductor's, and why if there is none."""
    if not tried or limits().any_speed:
        return list(tried), ""
    theirs = Choice(base, base.theirs).whole_bytes
    peaks = {one: one.whole_bytes for one in tried}
    least = min(peaks.values())
    told = f"a step would hold {least / 2**20:.1f} MB instead of {theirs / 2**20:.1f}"
    return [one for one, peak in peaks.items() if peak <= theirs], told
