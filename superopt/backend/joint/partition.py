"""Partition: a joint graph is split into forward and backward pass by what superopt keeps between them.

With "fast" that is what PyTorch keeps. Where less memory is asked for, what is kept and in which turns the
largest part is computed are chosen together: "balanced" takes the fastest choice with half the bytes that
a step of PyTorch's holds, or else the least for which a step takes 5% more time: by the clock where a budget
leaves time to compile the step both ways, else by what its operators are expected to take, with a margin.
With a number of bytes, it is the fastest choice that holds no more. In any setting a choice is dropped whose
peak is above Inductor's: as both are compiled, or else as their graphs tell it.
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
from superopt.backend.joint.limits import limits
from superopt.backend.joint.memory.choice import (
    MORE_TIME,
    Choice,
    Joint,
    choices_of,
    for_bytes,
    for_time,
    holding_no_more,
    unchanged,
)
from superopt.backend.joint.memory.kept import keep_readers_of_changed, tags, untag
from superopt.backend.joint.scaled import scale_in_place
from superopt.backend.joint.step import Split, Step, copied, inputs_of, race, split
from superopt.backend.joint.turns.choice import Turns
from superopt.backend.options import BackendOptions
from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.errors import kind_and_line
from superopt.rivals.aten import flops_of, listed, runs_on_anything, tensors_in, value_of
from superopt.rivals.inductor import alone, settings_text
from superopt.targets import Target, pick_target
from superopt.tune.measure import bytes_of

__all__ = ["Partitioner"]

log = logging.getLogger("superopt")

_FORM = 8  # the version of a decision's record
_ALL = 0.9  # a part with this share of a step's operations was timed like the whole step
_MOST_BYTES = 4 << 30  # inputs of more bytes are not drawn beside the model
_MOST_RACED = 2  # choices that are raced where the user allows a number of bytes
_LEAST_SPEED = 0.98  # the least speed of a step whose turns must cost no time


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was chosen, None where the graph stays as it is without turns; and why."""

    choice: Choice | None
    why: str
    settled: bool = True  # whether more time would tell no more

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        choice, told = self.choice, {"why": self.why, "settled": self.settled}
        if choice is None:
            return {"kept": None, "turns": None, **told}
        # What is kept may be nothing at all; None says that PyTorch chooses.
        names = sorted(node.name for node in choice.kept.kept) if choice.tagged is not None else None
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

        def leave_to_pytorch(error: Exception) -> None:
            gm.graph = graph  # by now it may be a copy, whose tags are not known
            untag(graph, before)
            log.warning("what a backward pass keeps is left to PyTorch: %s", kind_and_line(error))

        try:
            self._choose(gm, told)
        except Exception as error:
            leave_to_pytorch(error)
        try:
            made = split(gm, joint_inputs, told)
        except Exception as error:
            if gm.graph is graph and tags(graph) == before:
                raise
            leave_to_pytorch(error)
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
        base = joint = Joint.of(gm, told, target)
        if turned is not None:
            keep_readers_of_changed(turned.without)
            whole = fx.GraphModule(gm, turned.without)
            _merge_equal(whole)
            base = Joint.of(whole, told, target)
        elif joint.theirs.bytes < limits().kept_bytes:
            return
        graphs = (gm.graph,) if turned is None else (gm.graph, base.module.graph)
        key = _key(graphs, self.ledger.options, told, target, timed=self._timed)
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

    def _recalled(self, key: Key, joint: Joint, base: Joint, turned: Turned | None) -> _Outcome | None:
        record = Cache.open().get(key) if self.ledger.options.cache else None
        names = record.data.get("kept", ...) if record is not None else ...
        if record is None or not (names is None or isinstance(names, list)):
            return None
        why, data = str(record.data.get("why")), record.data.get("turns")
        settled = record.data.get("settled") is True
        turns = Turns.read(turned.found.plan.goal, data) if turned is not None and data is not None else None
        if turns is None:
            joint = base
        if names is None:
            return _Outcome(Choice(joint, joint.theirs, turns) if turns is not None else None, why, settled)
        kept = joint.choices.named(names)
        if {node.name for node in kept.kept} != set(names):  # of another graph
            return None
        return _Outcome(Choice(joint, kept, turns), why, settled)

    def _decided(self, joint: Joint, base: Joint, turned: Turned | None, target: Target) -> _Outcome:
        """Return what is kept, and in which turns a part is computed."""
        memory, without = self.ledger.options.memory, unchanged(base)
        if isinstance(memory, int):
            if without.bytes <= memory:
                return _Outcome(None, "")
            holding, told = holding_no_more(for_bytes(choices_of(joint, base, turned), memory), base)
            if not holding:
                return _Outcome(None, told)
            raced = self._raced(holding[:_MOST_RACED], base, turned, target)
            return raced or _Outcome(holding[0], f"for {memory / 2**20:.0f} MB", settled=not self._timed)
        if memory == "fast":
            assert turned is not None
            tried = surely = [Choice(joint, joint.theirs, turned.found.turns[0])]
            why = ""
        else:
            choices = choices_of(joint, base, turned)
            tried, surely = for_time(choices, without.bytes, base.choices.step_s)
            hardly = "expected to take hardly more time"
            why = hardly if surely else "to hold less memory is expected to take more time"
        raced = self._raced(holding_no_more(tried, base)[0], base, turned, target)
        if raced is not None:
            return raced
        holding, told = holding_no_more(surely, base)
        chosen = holding[0] if holding else None
        return _Outcome(chosen, why if holding else told or why, settled=not self._timed)

    def _raced(
        self, tried: Sequence[Choice], base: Joint, turned: Turned | None, target: Target
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
        if bytes_of(inputs) > _MOST_BYTES or not runs_on_anything(base.module.graph):
            return None
        least = _LEAST_SPEED if options.memory == "fast" else 1 / (1 + MORE_TIME)
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
                told = f"the step holds {peak / 2**20:.1f} MB instead of {their_peak / 2**20:.1f}"
                continue
            if isinstance(options.memory, int):  # no speed is asked for
                return _Outcome(one, f"for {options.memory / 2**20:.0f} MB")
            speed = race(ours, theirs, target)
            told = f"the step runs at {speed:.2f} times Inductor's speed"
            if speed >= least:
                return _Outcome(one, told)
        return _Outcome(None, f"{told} with it") if told else None

    def _note(self, base: Joint, outcome: _Outcome) -> None:
        """Add what was decided to the ledger."""
        decisions, choice = self.ledger.decisions, outcome.choice
        if choice is None or choice.turns is None:
            for at, one in enumerate(decisions):
                if one.graph == JOINT and one.taken:
                    decisions[at] = replace(one, taken=False, why=outcome.why)
        if choice is None or choice.tagged is None:
            return
        kept, theirs = choice.tagged, unchanged(base).bytes
        does = "it keeps" if base.choices.passes.is_part else "a step holds about"
        told = f"{does} {choice.bytes / 2**20:.1f} MB instead of {theirs / 2**20:.1f}"
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
    from torch._functorch.partitioners import cleanup_recompute_tags, has_recomputable_ops

    module.graph.eliminate_dead_code()
    if torch._functorch.config.cse:
        module.graph = fx_graph_cse(module.graph)
    if has_recomputable_ops(module):  # what one block that the user checkpoints hands to the next is kept
        cleanup_recompute_tags(module, is_default_partition=False)


def _key(
    graphs: Sequence[fx.Graph],
    settings: BackendOptions,
    told: Mapping[str, Any],
    target: Target,
    *,
    timed: bool,
) -> Key:
    """Return the key of what is decided for a graph, with and without turns, by the clock or without."""
    nodes = (node for graph in graphs for node in graph.nodes)
    lines = [f"{node.format_node()} {node.meta.get('recompute')} {_form(node)}" for node in nodes]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    options = {
        "backend": "kept",
        "form": _FORM,
        "graph": digest,
        "memory": settings.memory,
        "inductor": settings_text(settings.inductor),
        "timed": timed,
        "results": told["num_fwd_outputs"],
        "donated": torch._functorch.config.donated_buffer,
    }
    return key_of("plan", program="none", options=options, **{**versions(), **target.key_parts()})


def _form(node: fx.Node) -> str:
    return " ".join(f"{one.dtype}{list(one.shape)}{list(one.stride())}" for one in tensors_in(value_of(node)))
