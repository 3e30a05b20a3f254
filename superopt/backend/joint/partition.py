"""Partition: a joint graph is split into forward and backward pass by what superopt keeps between them.

With "fast" that is what PyTorch keeps. Where less memory is asked for, what is kept and in which chunks the
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
from superopt.backend.joint.chunks.choice import Chunks
from superopt.backend.joint.joint_pass import JOINT, Chunked, JointPass, chunks_in_pass
from superopt.backend.joint.limits import limits
from superopt.backend.joint.memory.choice import (
    MORE_TIME,
    JointGraph,
    StepChoice,
    choices_within_bytes,
    choices_within_time,
    pytorchs_choice,
    step_choices,
    without_higher_peaks,
)
from superopt.backend.joint.memory.kept import keep_readers_of_changed, tags, untag
from superopt.backend.joint.placement import place_products
from superopt.backend.joint.scaled import scale_in_place
from superopt.backend.joint.step import Split, Step, copy_module, inputs_of, race, split
from superopt.backend.options import BackendOptions
from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.errors import kind_and_line
from superopt.rivals.aten import flops_of, operators_text, runs_on_anything, tensors_in, value_of
from superopt.rivals.inductor import alone, settings_text
from superopt.targets import Target, pick_target
from superopt.tune.measure import bytes_of

__all__ = ["Partitioner"]

log = logging.getLogger("superopt")

_SURELY = 0.88
"""With "fast", chunks that no race of the step measures are to hold this share of Inductor's peak.

Peaks are told from the graph: where 21.3 MB were expected of both, chunks held 24.6 and Inductor's step 22.0.
"""

_FORM = 12  # the version of a decision's record
_ALL = 0.9  # a part with this share of a step's operations was timed like the whole step
_MOST_BYTES = 4 << 30  # inputs of more bytes are not drawn beside the model
_MOST_RACED = 2  # choices that are raced where the user allows a number of bytes
_LEAST_SPEED = 0.98  # the least speed of a step whose chunks must cost no time


@dataclass(frozen=True, slots=True)
class _Selection:
    """The choice that was selected, None where the graph stays as it is without chunks; and why."""

    choice: StepChoice | None
    why: str
    settled: bool = True  # whether more time would tell no more

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        choice, told = self.choice, {"why": self.why, "settled": self.settled}
        if choice is None:
            return {"kept": None, "chunks": None, **told}
        # An empty list says that nothing is kept; None says that PyTorch chooses.
        ours = choice.kept_by_us
        names = sorted(node.name for node in ours.kept) if ours is not None else None
        chunks = choice.chunks.to_json() if choice.chunks is not None else None
        return {"kept": names, "chunks": chunks, **told}


@dataclass(frozen=True, slots=True)
class _Case:
    """A joint graph to be split: with a part in chunks, and as it is without chunks."""

    joint: JointGraph
    base: JointGraph  # the same as `joint` where no part may be computed in chunks
    chunked: Chunked | None
    target: Target

    @property
    def choices(self) -> list[StepChoice]:
        """What may be kept, with the chunks that there are."""
        return step_choices(self.joint, self.base, self.chunked)


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
            place_products(made[1])
            for module, title in zip(made, ("forward pass", "backward pass"), strict=True):
                self._put_chunks_in(module, title)
        return made

    def _put_chunks_in(self, module: fx.GraphModule, title: str) -> None:
        """Put chunks into one pass; a fault of ours leaves it as it is."""
        try:
            copy = copy_module(module, module.graph, {})
            if chunks_in_pass(copy.graph, self.ledger, title):
                module.graph = copy.graph
                module.recompile()
        except Exception as error:
            log.warning("a %s is left as it is: %s", title, kind_and_line(error))

    def _choose(self, gm: fx.GraphModule, told: Mapping[str, Any]) -> None:
        """Select what is kept, and in which chunks a part is computed; tag the nodes of the graph with it."""
        case = self._case(gm, told)
        if case is None:
            return
        key = self._key(case, told)
        found = self._recall(key, case)
        if found is None or (self._has_time and not found.settled):
            short = self._timed and not self._has_time
            with self.ledger.spending():
                found = alone(lambda: self._select(case))
            found = replace(found, settled=found.settled and not short)
            if self.ledger.options.cache:
                Cache.open().put(key, Record(found.to_json(), "backend"))
        self._note(case.base, found)
        _apply(gm, case, found.choice)

    def _case(self, gm: fx.GraphModule, told: Mapping[str, Any]) -> _Case | None:
        """Return a joint graph with what may be chosen for it, or None where PyTorch splits it alone."""
        memory, chunked = self.ledger.options.memory, self.joint.take_chunked()
        if not _is_ours(gm.graph) or (memory == "fast" and chunked is None):
            return None
        target = pick_target("cpu")
        _merge_equal(gm)
        joint = JointGraph.of(gm, told, target)
        if chunked is None:
            few = joint.by_pytorch.bytes < limits().kept_bytes
            return None if few else _Case(joint, joint, None, target)
        keep_readers_of_changed(chunked.without)
        whole = fx.GraphModule(gm, chunked.without)
        _merge_equal(whole)
        return _Case(joint, JointGraph.of(whole, told, target), chunked, target)

    def _key(self, case: _Case, told: Mapping[str, Any]) -> Key:
        joint, base = case.joint.module.graph, case.base.module.graph
        graphs = (joint,) if case.chunked is None else (joint, base)
        return _key(graphs, self.ledger.options, told, case.target, timed=self._timed)

    @property
    def _timed(self) -> bool:
        """Whether the budget is large enough to compile and race a step."""
        return (self.ledger.options.budget_s or 0.0) >= limits().step_budget_s

    @property
    def _has_time(self) -> bool:
        """Whether enough of the budget is left for that."""
        return self._timed and self.ledger.left_s >= limits().step_budget_s

    def _recall(self, key: Key, case: _Case) -> _Selection | None:
        """Return what was selected for this graph before, if the cache has it."""
        record = Cache.open().get(key) if self.ledger.options.cache else None
        names = record.data.get("kept", ...) if record is not None else ...
        if record is None or not (names is None or isinstance(names, list)):
            return None
        why, data = str(record.data.get("why")), record.data.get("chunks")
        settled = record.data.get("settled") is True
        chunked = case.chunked
        chunks = (
            Chunks.read(chunked.found.plan.goal, data) if chunked is not None and data is not None else None
        )
        joint = case.joint if chunks is not None else case.base
        if names is None:
            choice = StepChoice(joint, joint.by_pytorch, chunks) if chunks is not None else None
            return _Selection(choice, why, settled)
        values = joint.keep_options.of_names(names)
        if {node.name for node in values.kept} != set(names):  # of another graph
            return None
        return _Selection(StepChoice(joint, values, chunks), why, settled)

    # -- the selection, by what the user asks of memory

    def _select(self, case: _Case) -> _Selection:
        """Return what is kept, and in which chunks a part is computed."""
        memory = self.ledger.options.memory
        if isinstance(memory, int):
            return self._select_within_bytes(case, memory)
        if memory == "fast":
            assert case.chunked is not None
            chunks = sorted(case.chunked.found.chunks, key=lambda one: -one.speed)
            tried = [StepChoice(case.joint, case.joint.by_pytorch, one) for one in chunks]
            return self._race(tried, case) or self._select_untimed(tried, case, "", share=_SURELY)
        pytorch_bytes, step_s = pytorchs_choice(case.base).bytes, case.base.keep_options.step_s
        tried, surely = choices_within_time(case.choices, pytorch_bytes, step_s)
        hardly = "expected to take hardly more time"
        why = hardly if surely else "to hold less memory is expected to take more time"
        return self._race(tried, case) or self._select_untimed(surely, case, why)

    def _select_within_bytes(self, case: _Case, bytes_: int) -> _Selection:
        """Return the fastest choice that holds at most so many bytes."""
        if pytorchs_choice(case.base).bytes <= bytes_:
            return _Selection(None, "")
        tried = choices_within_bytes(case.choices, bytes_)
        holding, told = without_higher_peaks(tried, case.base)
        if not holding:
            return _Selection(None, told)
        raced = self._race(holding[:_MOST_RACED], case)
        return raced or _Selection(holding[0], f"for {bytes_ / 2**20:.0f} MB", settled=not self._timed)

    def _select_untimed(
        self, surely: Sequence[StepChoice], case: _Case, why: str, share: float = 1.0
    ) -> _Selection:
        """Return the first choice that needs no race, and holds such a share of Inductor's step."""
        holding, told = without_higher_peaks(surely, case.base, share)
        chosen = holding[0] if holding else None
        return _Selection(chosen, why if holding else told or why, settled=not self._timed)

    # -- the race

    def _race(self, tried: Sequence[StepChoice], case: _Case) -> _Selection | None:
        """Return the first choice that is fast enough and holds no more memory at its peak, or PyTorch's own.

        None where time is short.
        """
        tried, _ = without_higher_peaks(tried, case.base)
        if not tried or not self._has_time:
            return None
        first, chunked = tried[0], case.chunked
        if chunked is not None and chunked.found.share >= _ALL and first.chunks and first.kept_by_us is None:
            return _Selection(first, "the part is the step")
        inputs = inputs_of(case.base.module)
        if bytes_of(inputs) > _MOST_BYTES or not runs_on_anything(case.base.module.graph):
            return None
        begun = time.monotonic()
        theirs = Step.of(case.base.split(None), inputs, self.ledger.options.inductor)
        their_peak = theirs.peak_bytes()
        each_s, told = time.monotonic() - begun, ""
        for one in tried:
            if time.monotonic() - begun + each_s > self.ledger.left_s:
                break
            ours = self._step_of(one, chunked, inputs)
            peak = ours.peak_bytes()
            if peak is not None and their_peak is not None and peak > their_peak:
                told = f"the step holds {peak / 2**20:.1f} MB instead of {their_peak / 2**20:.1f}"
                continue
            if isinstance(self.ledger.options.memory, int):  # no speed is asked for
                return _Selection(one, f"for {self.ledger.options.memory / 2**20:.0f} MB")
            speed = race(ours, theirs, case.target)
            told = f"the step runs at {speed:.2f} times Inductor's speed"
            if speed >= self._least_speed:
                return _Selection(one, told)
        return _Selection(None, f"{told} with it") if told else None

    @property
    def _least_speed(self) -> float:
        """The least speed of a step beside Inductor's, at which a choice is taken."""
        return _LEAST_SPEED if self.ledger.options.memory == "fast" else 1 / (1 + MORE_TIME)

    def _step_of(self, choice: StepChoice, chunked: Chunked | None, inputs: Sequence[Tensor]) -> Step:
        """Return a compiled step that keeps what a choice says, with its chunks."""
        if chunked is not None and choice.chunks is not None:
            chunked.choose(choice.joint.module.graph, choice.chunks)
        return Step.of(choice.joint.split(choice.kept_by_us), inputs, self.ledger.options.inductor)

    def _note(self, base: JointGraph, found: _Selection) -> None:
        """Add what was selected to the ledger."""
        decisions, choice = self.ledger.decisions, found.choice
        if choice is None or choice.chunks is None:
            for at, one in enumerate(decisions):
                if one.graph == JOINT and one.taken:
                    decisions[at] = replace(one, taken=False, why=found.why)
        if choice is None or choice.kept_by_us is None:
            return
        remade, theirs = choice.kept_by_us.remade, pytorchs_choice(base).bytes
        does = "it keeps" if base.is_part else "a step holds about"
        told = f"{does} {choice.bytes / 2**20:.1f} MB instead of {theirs / 2**20:.1f}; {found.why}"
        flops = sum(map(flops_of, remade))
        self.ledger.note(Decision(operators_text(remade), "", True, told, flops=flops), JOINT)


def _apply(gm: fx.GraphModule, case: _Case, choice: StepChoice | None) -> None:
    """Let a joint graph compute a part in the chunks of a choice, if any, and tag what the choice keeps."""
    if case.chunked is not None and choice is not None and choice.chunks is not None:
        case.chunked.choose(gm.graph, choice.chunks)
    elif case.chunked is not None:
        gm.graph = case.base.module.graph
    if choice is not None and choice.kept_by_us is not None:
        choice.kept_by_us.tag({})


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
    """Return the key of what is decided for a graph, with and without chunks, by the clock or without."""
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
