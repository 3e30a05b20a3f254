"""Joint pass: the part of a training step around its largest values, in chunks where that is no slower.

The loss of a language model is the example: its logits are larger than all that enters and leaves the step.
Forward and backward pass are one graph here, so that both are computed for a few rows at a time, and what is
kept between the passes are the gradients themselves. They are those of a loss that counts once; the backward
pass multiplies them by what it really counts.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from superopt.backend.checks.wide_calls import learn_wide_calls
from superopt.backend.decision import Ledger
from superopt.backend.graphpass import RegionPass
from superopt.backend.joint.accumulate import add_rows_in_place
from superopt.backend.joint.chunk_race import decide_chunks
from superopt.backend.joint.chunks.choice import Chunks
from superopt.backend.joint.in_chunks import InChunks, chunks_around, put_in
from superopt.backend.joint.limits import limits
from superopt.backend.joint.piece import bytes_made, gate_of, is_tangent, large_groups
from superopt.backend.region_plan import REGION, kept_plan
from superopt.errors import SuperoptError, first_line, kind_and_line
from superopt.rivals.aten import value_of
from superopt.targets import Target, pick_target

__all__ = ["JOINT", "Chunked", "JointPass", "chunks_in_pass"]

JOINT = "joint graph"
"""The title under which decisions are listed."""

log = logging.getLogger("superopt")

_LEAST_S = 20.0  # with a smaller budget no parts of a single pass are raced
_LEAST_LARGEST = 0.75  # the largest value over what leaves, from which on chunks lower a step's peak
_MOST_PARTS, _MOST_NODES = 3, 60  # in one pass: different parts, and large values of each part


@dataclass(frozen=True, slots=True)
class Chunked:
    """A graph as it was before a part was replaced, and the part, whose chunks may still be chosen."""

    without: fx.Graph
    found: InChunks
    target: str

    def choose(self, graph: fx.Graph, chunks: Chunks) -> None:
        """Let the graph in which the part is replaced compute it in other chunks."""
        texts = {kept_plan(self.found.with_tiles(one.tiles, self.target).plan) for one in self.found.chunks}
        text = kept_plan(self.found.with_tiles(chunks.tiles, self.target).plan)
        for node in graph.find_nodes(op="call_function", target=REGION):
            if node.args[0] in texts:
                node.args = (text, *node.args[1:])


class JointPass(CustomGraphPass):
    """Replaces a part of a joint graph by a call of a plan that computes it in chunks."""

    def __init__(self, ledger: Ledger, regions: RegionPass, before: Sequence[Any] = ()) -> None:
        self.ledger, self.regions = ledger, regions
        self.before = tuple(one for one in before if not isinstance(one, JointPass))
        self._chunked: Chunked | None = None

    def uuid(self) -> Any:
        """Return what the pass depends on, or None where no graph may come from a cache."""
        known = self.regions.uuid()
        before = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.before]
        return None if known is None or not all(before) else (b"joint 4", known, *before)

    def __call__(self, graph: fx.Graph) -> None:
        """Run the user's passes, and replace a part; after a fault of ours the graph computes the same."""
        for one in self.before:
            one(graph)
        self._chunked = None
        try:
            self._run(graph)
        except SuperoptError as error:
            log.info("no part of a joint graph is computed in chunks: %s", first_line(error))
        except Exception as error:  # Inductor compiles the graph without us
            log.warning("a joint graph is left as it is: %s", kind_and_line(error))

    def _run(self, graph: fx.Graph) -> None:
        from torch._inductor.pattern_matcher import stable_topological_sort

        stable_topological_sort(graph)  # Inductor's passes before this one leave nodes in any order
        add_rows_in_place(graph)
        learn_wide_calls(graph, self.ledger)
        limit_bytes = limits().value_bytes
        if torch._inductor.config.cpp_wrapper:  # it makes wrong code of a call of a plan
            return
        groups = large_groups(graph, limit_bytes)
        tangents = [node for node in graph.nodes if is_tangent(node)]
        if not tangents and self.ledger.options.memory == "fast":  # regions may gain more
            return
        if not groups or _devices(groups[0]) != {"cpu"}:
            return
        options = self.ledger.options
        unmeasured = options.memory == "fast" and options.budget_s is None and not limits().any_speed
        if unmeasured and not _may_hold_less(graph, groups[0]):
            return
        target = pick_target("cpu")
        # A graph without tangents may make its gradients itself, as with `torch.func.grad`.
        found = chunks_around(graph, groups[0], tangents, target, limit_bytes)
        gate = gate_of(graph) if tangents else None
        if found is None and gate is not None:  # it may depend on the loss itself
            found = chunks_around(graph, groups[0], [gate], target, limit_bytes)
        if found is None:
            return
        if any(node.meta.get("recompute") for node in found.subgraph.piece.nodes):
            log.info("operators that the user checkpoints are not computed in chunks")
            return
        decision, found = decide_chunks(found, self.ledger, target)
        self.ledger.note(decision, JOINT)
        if decision.taken:
            without = fx.Graph()
            output = without.output(without.graph_copy(graph, {}))
            output.meta = dict(graph.find_nodes(op="output")[0].meta)
            put_in(graph, found)
            self._chunked = Chunked(without, found, target.name) if tangents else None

    def take_chunked(self) -> Chunked | None:
        """Return what the latest graph was before a part was replaced, once; None where none was."""
        chunked, self._chunked = self._chunked, None
        return chunked


def chunks_in_pass(graph: fx.Graph, ledger: Ledger, title: str) -> int:
    """Replace parts of a forward or a backward pass by calls of plans; return how many.

    Attention by hand is the example: its probabilities are larger than all that enters and leaves the part.
    """
    fast = ledger.options.memory == "fast"
    if torch._inductor.config.cpp_wrapper or (fast and (ledger.options.budget_s or 0.0) < _LEAST_S):
        return 0
    limit_bytes = limits().pass_bytes if fast else limits().fewer_bytes
    target, replaced = pick_target("cpu"), 0
    raced = set[str]()
    for group in large_groups(graph, limit_bytes):
        there = set(graph.nodes).issuperset(group)  # masks may have gone with a part that was replaced
        if not there or len(group) > _MOST_NODES or len(raced) == _MOST_PARTS or _devices(group) != {"cpu"}:
            continue
        found = _found_alone(graph, group, target, limit_bytes)
        if found is None:
            continue
        decision, found = decide_chunks(found, ledger, target)
        raced.add(f"{decision.operators} {decision.inputs}")
        ledger.note(decision, title)
        if decision.taken:
            put_in(graph, found)
            replaced += 1
    return replaced


def _found_alone(
    graph: fx.Graph, group: Sequence[fx.Node], target: Target, limit_bytes: int
) -> InChunks | None:
    try:
        return chunks_around(graph, group, (), target, limit_bytes)
    except SuperoptError as error:
        log.info("a part of one pass is not computed in chunks: %s", first_line(error))
        return None


def _may_hold_less(graph: fx.Graph, group: Sequence[fx.Node]) -> bool:
    """Whether chunks may surely lower the peak of a step: its end, where all gradients are there, stays."""
    [output] = graph.find_nodes(op="output")
    leaving = sum(map(bytes_made, output.all_input_nodes))
    return max(map(bytes_made, group)) >= _LEAST_LARGEST * leaving


def _devices(nodes: Iterable[fx.Node]) -> set[str]:
    return {value.device.type for value in map(value_of, nodes) if isinstance(value, Tensor)}
