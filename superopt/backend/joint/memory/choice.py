"""Choice: what a step keeps between its passes, and in which chunks it computes its part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from superopt.backend.joint.chunks.choice import Chunks
from superopt.backend.joint.joint_pass import Chunked
from superopt.backend.joint.limits import limits
from superopt.backend.joint.memory.kept import KeepOptions, KeptValues, Passes
from superopt.backend.joint.memory.liveness import Liveness, PeakBytes, StepPeak
from superopt.backend.joint.placement import place_products
from superopt.backend.joint.scaled import scale_in_place
from superopt.backend.joint.step import Split, copy_module, saved_names, split
from superopt.targets import Target

__all__ = [
    "MORE_TIME",
    "JointGraph",
    "StepChoice",
    "choices_within_bytes",
    "choices_within_time",
    "pytorchs_choice",
    "step_choices",
    "without_higher_peaks",
]

MORE_TIME = 0.05
"""The share of a step's time that may be spent to hold less memory."""

_DOUBT = 2.0  # an expected time counts this many times where no race checks it
_SHARE = 0.5  # "balanced" is to hold this share of the bytes that PyTorch's step holds
_HARDLY = 0.005  # this share of a step's time is hardly more time
_FEWER = 0.98  # a choice holds less memory only if it holds this share of the other's bytes


@dataclass(frozen=True, slots=True)
class JointGraph:
    """A joint graph, what PyTorch tells of its split, and which of its values the forward pass may keep."""

    module: fx.GraphModule
    told: Mapping[str, Any]
    keep_options: KeepOptions
    by_pytorch: KeptValues  # what PyTorch's partitioner keeps
    _liveness: Liveness
    _peaks: dict[KeptValues, StepPeak] = field(default_factory=dict)
    _tradeoffs: list[KeptValues] = field(default_factory=list)

    @classmethod
    def of(cls, module: fx.GraphModule, told: Mapping[str, Any], target: Target) -> "JointGraph":
        """Return a joint graph with what PyTorch keeps of it."""
        options = KeepOptions(Passes(module.graph, told["num_fwd_outputs"]), target.cost_device())
        forward, _ = split(copy_module(module, module.graph, {}), (), told)
        by_pytorch = options.of_names(saved_names(forward, told["num_fwd_outputs"]))
        return cls(module, told, options, by_pytorch, Liveness(options.passes))

    @property
    def is_part(self) -> bool:
        """Whether another graph goes on from this one, so that it holds what it keeps until much later."""
        return self.keep_options.passes.is_part

    def peak(self, values: KeptValues) -> StepPeak:
        """Return about the most bytes that a step holds which keeps some values."""
        if values not in self._peaks:
            self._peaks[values] = self._liveness.peak(values.kept, self.keep_options.remade(values.kept))
        return self._peaks[values]

    def tradeoffs(self) -> list[KeptValues]:
        """Return the values to keep: PyTorch's own, then others in which more time saves more bytes."""
        if not self._tradeoffs:
            self._tradeoffs.append(self.by_pytorch)
            least = self._peak_bytes(self.by_pytorch)
            both = least.bytes + self.by_pytorch.bytes
            for one in sorted(self.keep_options.cheapest(), key=lambda one: (one.seconds, one.bytes)):
                peak = self._peak_bytes(one)
                lower = peak.bytes < _FEWER * least.bytes or peak.in_chunks < _FEWER * least.in_chunks
                if (lower or peak.bytes + one.bytes <= both) and one.kept != self.by_pytorch.kept:
                    self._tradeoffs.append(one)
                    least = PeakBytes(min(peak.bytes, least.bytes), min(peak.in_chunks, least.in_chunks))
                    both = min(peak.bytes + one.bytes, both)
        return self._tradeoffs

    def _peak_bytes(self, values: KeptValues) -> PeakBytes:
        return PeakBytes(values.bytes) if self.is_part else self.peak(values).without_gradients

    def split(self, values: KeptValues | None) -> Split:
        """Return both graphs, split by what is kept or by PyTorch's own choice; this graph stays as it is."""
        moved: dict[fx.Node, fx.Node] = {}
        copy = copy_module(self.module, self.module.graph, moved)
        if values is not None:
            values.tag(moved)
        made = split(copy, (), self.told)
        scale_in_place(*made, self.told["num_fwd_outputs"])
        place_products(made[1])
        return made


@dataclass(frozen=True, slots=True, eq=False)
class StepChoice:
    """What is kept of a joint graph between its passes, and in which chunks its part is computed, if any."""

    joint: JointGraph
    values: KeptValues
    chunks: Chunks | None = None
    chunks_s: float = 0.0  # the seconds that chunks take longer

    @property
    def bytes(self) -> int:
        """About the most bytes that a step holds at once, without the gradients that it leaves.

        For a graph that another graph goes on from, the bytes that it keeps until the backward pass.
        """
        if self.joint.is_part:
            return self.values.bytes + self._chunks_bytes
        return self.joint.peak(self.values).without_gradients.with_chunks(self._chunks_bytes)

    @property
    def whole_bytes(self) -> int:
        """About the most bytes that a step holds beside its inputs."""
        return self.joint.peak(self.values).with_gradients.with_chunks(self._chunks_bytes)

    @property
    def _chunks_bytes(self) -> int:
        return self.chunks.bytes if self.chunks is not None else 0

    @property
    def remade_s(self) -> float:
        """The seconds that the backward pass is expected to take longer than with what PyTorch keeps."""
        return max(self.values.seconds - self.joint.by_pytorch.seconds, 0.0)

    @property
    def more_s(self) -> float:
        """The seconds that a step is expected to take longer."""
        return self.chunks_s + self.remade_s

    @property
    def is_ours(self) -> bool:
        """Whether anything is chosen otherwise than PyTorch does."""
        return self.chunks is not None or self.kept_by_us is not None

    @property
    def kept_by_us(self) -> KeptValues | None:
        """The values that PyTorch is told to keep, None where that is its own choice."""
        return None if self.values is self.joint.by_pytorch else self.values


def step_choices(joint: JointGraph, base: JointGraph, chunked: Chunked | None) -> list[StepChoice]:
    """Return the choices for a graph: all values that may be kept, with each way to take chunks.

    The first is PyTorch's own, unless chunks are taken whatever they cost.
    """
    without_chunks = [StepChoice(base, values) for values in base.tradeoffs()]
    if chunked is None:
        return without_chunks
    part_s = chunked.found.share * base.keep_options.step_s
    forced = limits().any_speed
    made = [
        StepChoice(joint, values, chunks, 0.0 if forced else (1 / chunks.speed - 1) * part_s)
        for chunks in chunked.found.chunks
        for values in joint.tradeoffs()
    ]
    return made if forced else without_chunks + made


def pytorchs_choice(base: JointGraph) -> StepChoice:
    """Return the choice that PyTorch makes by itself."""
    return StepChoice(base, base.by_pytorch)


def _least(choices: Sequence[StepChoice]) -> StepChoice:
    """Return the choice of the fewest bytes; those that are kept between the passes count twice.

    Parts of either pass may be computed in chunks later: that saves other bytes, but not those that are kept.
    """
    least = min(one.bytes + one.values.bytes for one in choices)
    few = (one for one in choices if _FEWER * (one.bytes + one.values.bytes) <= least)
    return min(few, key=lambda one: (one.values.bytes, one.more_s))


def _by_time(choice: StepChoice) -> tuple[float, int]:
    return choice.more_s, choice.bytes


def choices_within_time(
    choices: Sequence[StepChoice], pytorch_bytes: int, step_s: float
) -> tuple[list[StepChoice], list[StepChoice]]:
    """Return the choices to race for "balanced", and those of them that surely take hardly more time.

    The first one holds half of PyTorch's bytes for the least time; safer ones follow.
    """
    allowed_s, half = MORE_TIME * step_s, _SHARE * pytorch_bytes
    surely = [one for one in choices if one.chunks_s + _DOUBT * one.remade_s <= allowed_s]
    found = list[StepChoice]()
    for fast in ([one for one in choices if one.more_s <= allowed_s], surely):
        few = [one for one in fast if one.bytes <= half]
        if few:
            most = min(one.more_s for one in few) + _HARDLY * step_s
            found.append(min((one for one in few if one.more_s <= most), key=lambda one: one.bytes))
            found.append(min(few, key=_by_time))
        elif fast:
            found.append(_least(fast))
    plain = [one for one in surely if one.chunks is None]
    if plain:  # the cost of chunks is known from a race of the part alone only
        found.append(_least(plain))
    tried = list(dict.fromkeys(one for one in found if one.is_ours))
    return tried, [one for one in tried if one in surely]


def choices_within_bytes(choices: Sequence[StepChoice], bytes_: int) -> list[StepChoice]:
    """Return the choices that hold at most so many bytes, the fastest first; the smallest comes last."""
    enough = sorted((one for one in choices if one.bytes <= bytes_), key=_by_time)
    return list(dict.fromkeys(one for one in (*enough, _least(choices)) if one.is_ours))


def without_higher_peaks(
    tried: Sequence[StepChoice], base: JointGraph, share: float = 1.0
) -> tuple[list[StepChoice], str]:
    """Return the choices whose step is expected to hold so much of Inductor's, and why if there is none."""
    if not tried or limits().any_speed:
        return list(tried), ""
    theirs = StepChoice(base, base.by_pytorch).whole_bytes
    peaks = {one: one.whole_bytes for one in tried}
    least = min(peaks.values())
    told = f"a step would hold {least / 2**20:.1f} MB instead of {theirs / 2**20:.1f}"
    return [one for one, peak in peaks.items() if peak <= share * theirs], told
