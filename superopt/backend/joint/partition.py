"""Partition: a joint graph is split into forward and backward pass by what superopt keeps between them.

With "fast" that is what PyTorch keeps. With "balanced", it is the least for which a step takes 5% more time:
by the clock where a budget leaves time to compile the step both ways, else by what its operators are expected
to take, with a margin. With a number of bytes, it is the fastest choice that keeps no more.
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
from superopt.backend.joint.joint_pass import JOINT, JointPass, turns_in_pass
from superopt.backend.joint.kept import Choices, Kept, Passes, keep_readers_of_changed, tags, untag
from superopt.backend.joint.step import Split, Step, copied, inputs_of, race, saved_names, split
from superopt.backend.options import Memory
from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.errors import kind_and_line
from superopt.rivals.aten import flops_of, listed, tensors_in, value_of
from superopt.rivals.inductor import alone
from superopt.targets import Target, pick_target
from superopt.tune.measure import bytes_of

__all__ = ["Partitioner"]

log = logging.getLogger("superopt")

_MORE_TIME = 0.05  # of a step, that less memory may take
_MARGIN, _BESIDE_TURNS = 0.5, 0.3  # the share of it that is used where only a prediction tells
_FEWER = 0.98  # the bytes, over those that PyTorch keeps, above which nothing is changed
_LEAST_BYTES = 1 << 20  # that PyTorch keeps, below which nothing is changed
_LEAST_S = 20.0  # seconds of a budget, below which no step is compiled to be raced
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

    def split(self, kept: Kept | None, graph: fx.Graph | None = None) -> Split:
        """Return both graphs, split by a choice or by PyTorch's own; the joint graph stays as it is."""
        moved: dict[fx.Node, fx.Node] = {}
        copy = copied(self.module, graph or self.module.graph, moved)
        if kept is not None:
            kept.tag(moved)
        return split(copy, (), self.told)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What is kept, None for PyTorch's own choice; whether turns stay; and why."""

    kept: Kept | None
    turns: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        names = sorted(node.name for node in self.kept.kept) if self.kept is not None else []
        return {"kept": names, "turns": self.turns, "why": self.why}


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
        before = tags(gm.graph)
        try:
            self._choose(gm, told)
        except Exception as error:
            untag(gm.graph, before)
            log.warning("what a backward pass keeps is left to PyTorch: %s", kind_and_line(error))
        made = split(gm, joint_inputs, told)
        if _is_ours(gm.graph):
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
        memory, without = self.ledger.options.memory, self.joint.take_without()
        if not _is_ours(gm.graph) or (memory == "fast" and without is None):
            return
        target = pick_target("cpu")
        _merge_equal(gm)
        joint = _Joint.of(gm, told, target)
        if without is None and joint.theirs.bytes < _LEAST_BYTES:
            return
        timed = (self.ledger.options.budget_s or 0.0) >= _LEAST_S
        key = _key(gm.graph, memory, told, target, timed=timed)
        outcome = self._recalled(key, joint)
        if outcome is None:
            with self.ledger.spending():
                outcome = alone(lambda: self._decided(joint, without, target))
            if self.ledger.options.cache:
                Cache.open().put(key, Record(outcome.to_json(), "backend"))
        self._note(joint, outcome)
        if without is not None and not outcome.turns:
            gm.graph = without
        elif outcome.kept is not None:
            outcome.kept.tag({})

    def _recalled(self, key: Key, joint: _Joint) -> _Outcome | None:
        record = Cache.open().get(key) if self.ledger.options.cache else None
        names = record.data.get("kept") if record is not None else None
        if record is None or not isinstance(names, list):
            return None
        kept = joint.choices.of({node for node in joint.choices.passes.early if node.name in names})
        return _Outcome(kept if names else None, bool(record.data.get("turns")), str(record.data.get("why")))

    def _decided(self, joint: _Joint, without: fx.Graph | None, target: Target) -> _Outcome:
        """Return what is kept, and whether turns stay."""
        memory, theirs = self.ledger.options.memory, joint.theirs
        if memory == "fast":
            return self._raced(joint, [None], without, target) or _Outcome(None, True, "")
        fewer = [one for one in joint.choices.best() if one.bytes < _FEWER * theirs.bytes]
        if isinstance(memory, int):
            enough = [one for one in fewer if one.bytes <= memory]
            least = min(fewer, key=lambda one: one.bytes, default=None)
            found = min(enough, key=lambda one: one.seconds) if enough else least
            return _Outcome(found if theirs.bytes > memory else None, True, f"for {memory / 2**20:.0f} MB")
        surely_more = _MORE_TIME * (_MARGIN if without is None else _BESIDE_TURNS)
        by_time = {
            share: [one for one in fewer if one.seconds - theirs.seconds <= share * joint.choices.step_s]
            for share in (_MORE_TIME, surely_more)
        }
        tried = [min(several, key=lambda one: one.bytes) for several in by_time.values() if several]
        raced = self._raced(joint, [*dict.fromkeys(tried), *[None] * (without is not None)], without, target)
        if raced is not None:
            return raced
        return _Outcome(
            tried[-1] if by_time[surely_more] else None, True, "expected to take hardly more time"
        )

    def _raced(
        self, joint: _Joint, tried: Sequence[Kept | None], without: fx.Graph | None, target: Target
    ) -> _Outcome | None:
        """Return the first choice that is fast enough, or PyTorch's own; None where time is short."""
        options = self.ledger.options
        inputs = inputs_of(joint.module)
        if (
            not tried
            or options.budget_s is None
            or self.ledger.left_s < _LEAST_S
            or bytes_of(inputs) > _MOST_BYTES
        ):
            return None
        least = _LEAST_SPEED if options.memory == "fast" else 1 / (1 + _MORE_TIME)
        begun = time.monotonic()
        base = Step.of(joint.split(None, without), inputs, options.inductor)
        each, told = time.monotonic() - begun, ""
        for kept in tried:
            if time.monotonic() - begun + each > self.ledger.left_s:
                break
            speed = race(Step.of(joint.split(kept), inputs, options.inductor), base, target)
            told = f"the step has {speed:.2f} times Inductor's speed"
            if speed >= least:
                return _Outcome(kept, True, told)
        return (
            _Outcome(None, False, f"{told} with it" if told else "no time to race the step") if told else None
        )

    def _note(self, joint: _Joint, outcome: _Outcome) -> None:
        """Add what was decided to the ledger."""
        decisions = self.ledger.decisions
        if not outcome.turns:
            for at, one in enumerate(decisions):
                if one.graph == JOINT and one.taken:
                    decisions[at] = replace(one, taken=False, why=outcome.why)
        kept = outcome.kept
        if kept is None:
            return
        told = f"{kept.bytes / 2**20:.1f} MB are kept in place of {joint.theirs.bytes / 2**20:.1f}"
        self.ledger.note(
            Decision(
                listed(kept.again), "", True, f"{told}; {outcome.why}", flops=sum(map(flops_of, kept.again))
            ),
            JOINT,
        )


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
        "graph": digest,
        "memory": memory,
        "timed": timed,
        "results": told["num_fwd_outputs"],
    }
    return key_of("plan", program="none", options=options, **{**versions(), **target.key_parts()})


def _form(node: fx.Node) -> str:
    return " ".join(f"{one.dtype}{list(one.shape)}{list(one.stride())}" for one in tensors_in(value_of(node)))
