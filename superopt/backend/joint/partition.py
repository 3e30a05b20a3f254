"""Partition: a joint graph is split into forward and backward pass by what superopt keeps between them.

With "fast" that is what PyTorch keeps. Where less memory is asked for, what is kept and in which turns the
largest part is computed are chosen together: "balanced" takes the fastest choice with half the bytes that
PyTorch keeps, or else the least for which a step takes 5% more time: by the clock where a budget leaves time
to compile the step both ways, else by what its operators are expected to take, with a margin. With a number
of bytes, it is the fastest choice that holds no more. Where a step is compiled both ways, a choice whose peak
is above Inductor's is dropped in any setting.
"""

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from superopt.backend.decision import Decision, Ledger
from superopt.backend.joint.joint_pass import JOINT, JointPass, Turned, turns_in_pass
from superopt.backend.joint.kept import Choices, Kept, Passes, keep_readers_of_changed, tags, untag
from superopt.backend.joint.limits import limits
from superopt.backend.joint.scaled import scale_in_place
from superopt.backend.joint.step import Split, Step, copied, inputs_of, race, saved_names, split
from superopt.backend.joint.turns.choice import Turns
from superopt.backend.joint.turns.tiling import largest_bytes
from superopt.backend.options import Memory
from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.errors import kind_and_line
from superopt.rivals.aten import flops_of, listed, tensors_in, value_of
from superopt.rivals.inductor import alone
from superopt.targets import Target, pick_target
from superopt.tune.measure import bytes_of

__all__ = ["Partitioner"]

log = logging.getLogger("superopt")

_FORM = 4  # of what is kept of a decision
_MORE_TIME = 0.05  # of a step, that less memory may take
_DOUBT = 2.0  # how often the time that is expected must find room in it, where only a prediction tells
_SHARE = 0.5  # of the bytes that PyTorch keeps, which "balanced" is to reach
_HARDLY = 0.005  # of a step, that is hardly more time
_ALL = 0.9  # of the operations of a step; a part with so many was timed as the step is
_FEWER = 0.98  # the bytes, over those that PyTorch keeps, above which nothing is changed
_MOST_BYTES = 4 << 30  # of inputs, above which no others are drawn beside the model
_LEAST_SPEED = 0.98  # of a step with turns that are to cost no time


@dataclass(frozen=True, slots=True)
class _Joint:
    """A joint graph, what is told about its split, and what may be kept of it."""

    module: fx.GraphModule
    told: Mapping[str, Any]
    choices: Choices
    theirs: Kept

    @classmethod
    def of(cls, module: fx.GraphModule, told: Mapping[str, Any], target: Target) -> "_Joint":
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
class _Choice:
    """What is kept of a joint graph, and the turns in which it computes its part, None where it has none."""

    joint: _Joint
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

    @property
    def is_ours(self) -> bool:
        """Whether anything is chosen otherwise than PyTorch does."""
        return self.turns is not None or self.tagged is not None

    @property
    def tagged(self) -> Kept | None:
        """What PyTorch is told to keep, None where that is its own choice."""
        return None if self.kept is self.joint.theirs else self.kept


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was chosen, None where the graph stays as it is without turns; and why."""

    choice: _Choice | None
    why: str
    settled: bool = True  # whether more time would tell no more

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        choice, told = self.choice, {"why": self.why, "settled": self.settled}
        if choice is None:
            return {"kept": [], "turns": None, **told}
        names = sorted(node.name for node in choice.kept.kept) if choice.tagged is not None else []
        turns = choice.turns.to_json() if choice.turns is not None else None
        return {"kept": names, "turns": turns, **told}


class Partitioner(CustomPartitionerFn):
    """What Inductor calls to split a joint graph."""

    def __init__(self, ledger: Ledger, joint: JointPass) -> None:
        self.ledger, self.joint = ledger, joint

    def uuid(self) -> Any:
        """Return what the choice depends on, or None where no graph may come from a cache."""
        return self.joint.uuid()

    def __deepcopy__(self, memo: Any) -> "Partitioner":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Give Inductor's cache what its key depends on; other processes do without a partitioner."""
        return _nothing, (repr(self.uuid()),)

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[Any], **told: Any) -> Split:
        """Choose what is kept, and split the graph; a fault of ours leaves the choice to PyTorch."""
        keep_readers_of_changed(gm.graph)
        graph, before = gm.graph, tags(gm.graph)
        try:
            self._choose(gm, told)
        except Exception as error:
            gm.graph = graph  # by now it may be a copy, whose tags are not known
            untag(graph, before)
            log.warning("what a backward pass keeps is left to PyTorch: %s", kind_and_line(error))
        made = split(gm, joint_inputs, told)
        if _is_ours(gm.graph):
            scale_in_place(*made, told["num_fwd_outputs"])
            for module, title in zip(made, ("forward pass", "backward pass"), strict=True):
                self._turn(module, title)
        return made

    def _turn(self, module: fx.GraphModule, title: str) -> None:
        """Put turns into one pass; a fault of ours leaves it as it is."""
        try:
            copy = copied(module, module.graph, {})
            if turns_in_pass(copy.graph, self.ledger, title):
                module.graph = copy.graph
                module.recompile()
        except Exception as error:
            log.warning("a %s is left as it is: %s", title, kind_and_line(error))

    def _choose(self, gm: fx.GraphModule, told: Mapping[str, Any]) -> None:
        """Tag the nodes of a graph."""
        memory, turned = self.ledger.options.memory, self.joint.take_turned()
        if not _is_ours(gm.graph) or (memory == "fast" and turned is None):
            return
        target = pick_target("cpu")
        _merge_equal(gm)
        base = joint = _Joint.of(gm, told, target)
        if turned is not None:
            keep_readers_of_changed(turned.without)
            whole = fx.GraphModule(gm, turned.without)
            _merge_equal(whole)
            base = _Joint.of(whole, told, target)
        elif joint.theirs.bytes < limits().kept_bytes:
            return
        key = _key(gm.graph, memory, told, target, timed=self._timed)
        outcome = self._recalled(key, joint, base, turned)
        if outcome is None or (self._has_time and not outcome.settled):
            short = self._timed and not self._has_time
            with self.ledger.spending():
                outcome = alone(lambda: self._decided(joint, base, turned, target))
            outcome = replace(outcome, settled=outcome.settled and not short)
            if self.ledger.options.cache:
                Cache.open().put(key, Record(outcome.to_json(), "backend"))
        choice = outcome.choice
        self._note(base, outcome)
        if turned is not None and choice is not None and choice.turns is not None:
            turned.choose(gm.graph, choice.turns)
        elif turned is not None:
            gm.graph = base.module.graph
        if choice is not None and choice.tagged is not None:
            choice.tagged.tag({})

    @property
    def _timed(self) -> bool:
        """Whether the budget is large enough to compile and race a step."""
        return (self.ledger.options.budget_s or 0.0) >= limits().step_budget_s

    @property
    def _has_time(self) -> bool:
        """Whether enough of the budget is left for that."""
        return self._timed and self.ledger.left_s >= limits().step_budget_s

    def _recalled(self, key: Key, joint: _Joint, base: _Joint, turned: Turned | None) -> _Outcome | None:
        record = Cache.open().get(key) if self.ledger.options.cache else None
        names = record.data.get("kept") if record is not None else None
        if record is None or not isinstance(names, list):
            return None
        why, data = str(record.data.get("why")), record.data.get("turns")
        settled = record.data.get("settled") is True
        turns = Turns.read(turned.found.plan.goal, data) if turned is not None and data is not None else None
        if turns is None:
            joint = base
        if not names:
            return _Outcome(_Choice(joint, joint.theirs, turns) if turns is not None else None, why, settled)
        kept = joint.choices.of({node for node in joint.choices.passes.early if node.name in names})
        return _Outcome(_Choice(joint, kept, turns), why, settled)

    def _decided(self, joint: _Joint, base: _Joint, turned: Turned | None, target: Target) -> _Outcome:
        """Return what is kept, and in which turns a part is computed."""
        memory, step_s = self.ledger.options.memory, base.choices.step_s
        allowed = _MORE_TIME * step_s
        if memory == "fast":
            assert turned is not None
            only = [_Choice(joint, joint.theirs, turned.found.turns[0])]
            return self._raced(only, base, turned, target) or _Outcome(only[0], "")
        choices = _choices(joint, base, turned)
        theirs = base.theirs.bytes + _beside(base, base.theirs, turned)
        if isinstance(memory, int):
            if theirs <= memory:
                return _Outcome(None, "")
            enough = sorted((one for one in choices if one.bytes <= memory), key=_by_time)
            fewest = min(choices, key=lambda one: one.bytes)
            several = [one for one in (*enough[:1], fewest) if one.is_ours]
            raced = self._raced(several, base, turned, target)
            if raced is not None or not several:
                return raced or _Outcome(None, "")
            return _Outcome(several[0], f"for {memory / 2**20:.0f} MB")
        tried = _tried(choices, _SHARE * theirs, allowed, _HARDLY * step_s)
        raced = self._raced(tried, base, turned, target)
        if raced is not None:
            return raced
        surely = [one for one in tried if one.turns_s + _DOUBT * one.remade_s <= allowed]
        return _Outcome(surely[0] if surely else None, "expected to take hardly more time")

    def _raced(
        self, tried: Sequence[_Choice], base: _Joint, turned: Turned | None, target: Target
    ) -> _Outcome | None:
        """Return the first choice that is fast enough and holds no more memory at its peak, or PyTorch's own.

        None where time is short.
        """
        options = self.ledger.options
        if not tried or not self._has_time:
            return None
        first = tried[0]
        if turned is not None and turned.found.share >= _ALL and first.turns and first.tagged is None:
            return _Outcome(first, "the part is the step")
        inputs = inputs_of(base.module)
        if bytes_of(inputs) > _MOST_BYTES:
            return None
        least = _LEAST_SPEED if options.memory == "fast" else 1 / (1 + _MORE_TIME)
        begun = time.monotonic()
        theirs = Step.of(base.split(None), inputs, options.inductor)
        their_peak = theirs.peak_bytes()
        each, told = time.monotonic() - begun, ""
        for one in tried:
            if time.monotonic() - begun + each > self.ledger.left_s:
                break
            if turned is not None and one.turns is not None:
                turned.choose(one.joint.module.graph, one.turns)
            ours = Step.of(one.joint.split(one.tagged), inputs, options.inductor)
            peak = ours.peak_bytes()
            if peak is not None and their_peak is not None and peak > their_peak:
                told = f"the step holds {peak / 2**20:.1f} MB in place of {their_peak / 2**20:.1f}"
                continue
            if isinstance(options.memory, int):  # no speed is asked for
                return _Outcome(one, f"for {options.memory / 2**20:.0f} MB")
            speed = race(ours, theirs, target)
            told = f"the step has {speed:.2f} times Inductor's speed"
            if speed >= least:
                return _Outcome(one, told)
        if not told:
            return _Outcome(None, "no time to race the step", settled=False)
        return _Outcome(None, f"{told} with it")

    def _note(self, base: _Joint, outcome: _Outcome) -> None:
        """Add what was decided to the ledger."""
        decisions, choice = self.ledger.decisions, outcome.choice
        if choice is None or choice.turns is None:
            for at, one in enumerate(decisions):
                if one.graph == JOINT and one.taken:
                    decisions[at] = replace(one, taken=False, why=outcome.why)
        if choice is None or choice.tagged is None:
            return
        kept, held = choice.tagged, f"{choice.bytes / 2**20:.1f} MB are held"
        beside = f", {choice.turns.bytes / 2**20:.1f} of them by turns," if choice.turns is not None else ""
        told = f"{held}{beside} in place of {base.theirs.bytes / 2**20:.1f}"
        self.ledger.note(
            Decision(
                listed(kept.again), "", True, f"{told}; {outcome.why}", flops=sum(map(flops_of, kept.again))
            ),
            JOINT,
        )


def _choices(joint: _Joint, base: _Joint, turned: Turned | None) -> list[_Choice]:
    """Return the choices for a graph, each of what is kept in all turns there are."""
    base_choices = [_Choice(base, kept, beside=_beside(base, kept, turned)) for kept in _kept(base)]
    if turned is None:
        return base_choices
    part_s = turned.found.share * base.choices.step_s
    forced = limits().any_speed
    made = [
        _Choice(joint, kept, turns, 0.0 if forced else (1 / turns.speed - 1) * part_s, turns.bytes)
        for turns in turned.found.turns
        for kept in _kept(joint)
    ]
    return made if forced else base_choices + made


def _kept(joint: _Joint) -> list[Kept]:
    """Return what may be kept of a graph: what PyTorch keeps, and less."""
    return [joint.theirs, *(one for one in joint.choices.best() if one.bytes < _FEWER * joint.theirs.bytes)]


def _beside(joint: _Joint, kept: Kept, turned: Turned | None) -> int:
    """Return the bytes of the largest value of a part that is computed at once, where that is not kept."""
    largest = largest_bytes(turned.found.plan.goal) if turned is not None else 0
    known = max((joint.choices.bytes[node] for node in kept.kept), default=0)
    return largest if known < largest else 0


def _by_time(choice: _Choice) -> tuple[float, int]:
    return choice.more_s, choice.bytes


def _tried(choices: Sequence[_Choice], bytes_: float, allowed_s: float, hardly_s: float) -> list[_Choice]:
    """Return what to race for "balanced": what has so many bytes for the least time, then safer choices."""
    fast = [one for one in choices if one.more_s <= allowed_s]
    few = [one for one in fast if one.bytes <= bytes_]
    found = list[_Choice]()
    if few:
        most = min(one.more_s for one in few) + hardly_s
        found.append(min((one for one in few if one.more_s <= most), key=lambda one: one.bytes))
        found.append(min(few, key=_by_time))
    for share in (1.0, 1 / _DOUBT):
        several = [one for one in fast if one.more_s <= share * allowed_s]
        if several and not few:
            found.append(min(several, key=lambda one: one.bytes))
    plain = [one for one in fast if one.turns is None and one.more_s <= allowed_s / _DOUBT]
    if plain:  # what turns cost is told by a race of the part alone
        found.append(min(plain, key=lambda one: one.bytes))
    return list(dict.fromkeys(one for one in found if one.is_ours))


def _nothing(known: str) -> None:
    return None


def _is_ours(graph: fx.Graph) -> bool:
    """Whether a graph is on the CPU, of known sizes, and no user tells what it keeps otherwise."""
    if torch._functorch.config.activation_memory_budget != 1:
        return False
    for node in graph.nodes:
        value = value_of(node)
        custom = node.meta.get("custom")
        if "memory_budget" in node.meta or (isinstance(custom, dict) and "memory_budget" in str(custom)):
            return False
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return False
        for one in tensors_in(value):
            if one.device.type != "cpu" or not all(isinstance(size, int) for size in one.shape):
                return False
        if node.op == "placeholder" and not isinstance(value, Tensor):
            return False
    return True


def _merge_equal(module: fx.GraphModule) -> None:
    """Merge what is computed twice, as PyTorch's partitioner would, before nodes are told apart."""
    from torch._functorch.compile_utils import fx_graph_cse

    module.graph.eliminate_dead_code()
    if torch._functorch.config.cse:
        module.graph = fx_graph_cse(module.graph)


def _key(graph: fx.Graph, memory: Memory, told: Mapping[str, Any], target: Target, *, timed: bool) -> Key:
    """Return the key of what is decided for a graph, by the clock or without."""
    lines = [f"{node.format_node()} {node.meta.get('recompute')} {_form(node)}" for node in graph.nodes]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    options = {
        "backend": "kept",
        "form": _FORM,
        "graph": digest,
        "memory": memory,
        "timed": timed,
        "results": told["num_fwd_outputs"],
    }
    return key_of("plan", program="none", options=options, **{**versions(), **target.key_parts()})


def _form(node: fx.Node) -> str:
    return " ".join(f"{one.dtype}{list(one.shape)}{list(one.stride())}" for one in tensors_in(value_of(node)))
