"""Whole: a graph with the regions that won alone, raced in turns with the same graph without them.

A region that is faster by itself may still cost more than it gains: what Inductor would fuse across its
border has to be written and read. So the whole graph decides, where there is time to compile it both ways.
What is decided is kept, by the graph and by the plans in it. Where there is no time, a region stays only if
it gains more than its border can cost.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.decision import Decision, Ledger
from superopt.backend.inductor_time import NODES, kernels_of
from superopt.backend.pieces import Piece, reads_of
from superopt.backend.region import Region
from superopt.backend.region_race import even
from superopt.cache import Cache, Key, Record, key_of, versions
from superopt.errors import kind_and_line
from superopt.rivals.aten import is_attention, is_matmul, tensors_in, value_of
from superopt.rivals.inductor import alone, compiled_by_inductor
from superopt.rivals.kinds import Kind, kinds_of
from superopt.targets import Target
from superopt.tune import confirm
from superopt.tune.measure import HeadToHead, bytes_of
from superopt.verify.floats.compare import typical

__all__ = ["Taken", "WholeRace", "border_us"]

log = logging.getLogger("superopt")

Taken = Sequence[tuple[Region, Decision]]
Replace = Callable[[fx.Graph, Taken], None]

_RACE_S, _MOST_RACE_S = 0.6, 2.4  # seconds of a race, and of one that is not decided by then
_LEAST_SPEED = 0.98  # a race that nothing decides costs the regions their place below this
_MOST_BYTES = 4 << 30  # of inputs, above which no others are drawn beside the model


@dataclass(frozen=True, slots=True)
class WholeRace:
    """The race of one graph; `put_in` replaces regions of a graph by calls of their plans."""

    graph: fx.Graph
    target: Target
    ledger: Ledger
    put_in: Replace

    def kept(self, taken: Taken) -> tuple[list[tuple[Region, Decision]], dict[str, str]]:
        """Return the regions that stay, and why others go, by the digests of their keys."""
        if self._is_whole(taken) or self.ledger.options.budget_s == 0:
            return list(taken), {}
        key = self._key(taken)
        known = _recalled(key) if self.ledger.options.cache else None
        if known is not None:
            return self._without(taken, known)
        if not self._has_time(taken):
            return self._without(taken, self._dear(taken))
        try:
            with self.ledger.spending():
                lost = alone(lambda: self._raced(taken))
        except Exception as error:  # an operator that Inductor does not compile twice, or no memory
            log.info("the whole graph is not raced: %s", kind_and_line(error))
            return self._without(taken, self._dear(taken))
        if self.ledger.options.cache:
            Cache.open().put(key, Record({"lost": lost}, "backend"))
        return self._without(taken, lost)

    def _without(
        self, taken: Taken, lost: Mapping[str, str]
    ) -> tuple[list[tuple[Region, Decision]], dict[str, str]]:
        return [one for one in taken if one[0].key.digest not in lost], dict(lost)

    def _is_whole(self, taken: Taken) -> bool:
        """Whether one region is all that the graph computes, so that its own race was that of the graph."""
        if len(taken) != 1:
            return False
        members = set(taken[0][0].subgraph.piece.nodes)
        kinds = kinds_of(self.graph, self.target.torch_device)
        return all(
            kinds[node] == "free" or node in members
            for node in self.graph.nodes
            if node.op == "call_function"
        )

    def _has_time(self, taken: Taken) -> bool:
        """Whether the graph can be compiled both ways, and drawn inputs for."""
        values = [value_of(node) for node in self.graph.nodes if node.op == "placeholder"]
        if not all(isinstance(one, Tensor) and all(isinstance(n, int) for n in one.shape) for one in values):
            return False
        nodes = {node for region, _ in taken for node in region.subgraph.piece.nodes}
        kernels = kernels_of(self.graph) + kernels_of(self.graph, without=nodes)
        seconds = self.ledger.node_s * NODES * kernels + _RACE_S
        known = self.ledger.node_s > 0  # else nothing tells how long Inductor takes
        return known and bytes_of(values) < _MOST_BYTES and self.ledger.left_s > seconds

    def _dear(self, taken: Taken) -> dict[str, str]:
        """Return the regions that may gain less than what could be fused across their borders costs."""
        found: dict[str, str] = {}
        if not even():  # whatever is raced is taken
            return found
        kinds = kinds_of(self.graph, self.target.torch_device)
        for region, decision in taken:
            gain = (decision.before_us or 0.0) - (decision.after_us or 0.0)
            border = border_us(region, kinds, self.target)
            if decision.after_us is not None and gain < border:
                found[region.key.digest] = (
                    f"alone it gains {gain:.1f} µs; up to {border:.1f} µs may be lost where it is cut out"
                )
        return found

    def _raced(self, taken: Taken) -> dict[str, str]:
        """Return the regions that go, until what stays is no slower than the graph without any."""
        inputs = self._inputs()
        without = self._compiled(())
        left, lost = list(taken), dict[str, str]()
        while left:
            pair = {"with": self._compiled(left), "without": without}
            raced = confirm(
                {name: _called(one, inputs) for name, one in pair.items()},
                "with",
                "without",
                [()],
                seconds=_RACE_S,
                most_seconds=_MOST_RACE_S,
                times=self.target.times,
            )
            if not _is_lost(raced):
                return lost
            why = f"the whole graph has {raced.speed_of('with'):.2f} times the speed with it"
            late = not self._has_time(left)
            least = min(left, key=lambda one: _gain(one[1]))[0].key.digest
            going = {region.key.digest for region, _ in left if late or region.key.digest == least}
            lost |= dict.fromkeys(going, why)
            left = [one for one in left if one[0].key.digest not in going]
        return lost

    def _compiled(self, taken: Taken) -> Callable[..., Any]:
        """Return what Inductor makes of the graph with some regions replaced."""
        copied: dict[fx.Node, fx.Node] = {}
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.graph, copied))
        if taken:
            self.put_in(graph, [(_moved(region, copied), decision) for region, decision in taken])
        root = self.graph.owning_module or torch.nn.Module()
        module = fx.GraphModule(root, graph)
        return compiled_by_inductor(module, self._inputs(), self.ledger.options.inductor)

    def _inputs(self) -> list[Tensor]:
        """Return random inputs of the graph."""
        values = [value_of(node) for node in self.graph.nodes if node.op == "placeholder"]
        blank = [
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta") for one in values
        ]
        drawn = [
            made if one.dtype.is_floating_point else torch.zeros_like(made)
            for one, made in zip(blank, typical(tuple(blank)), strict=True)
        ]
        return [one.to(self.target.torch_device) for one in drawn]

    def _key(self, taken: Taken) -> Key:
        """Return the key of the outcome: the graph, and the plans in it."""
        lines = [f"{node.format_node()} {_form(value_of(node))}" for node in self.graph.nodes]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        plans = sorted(hashlib.sha256(str(one.plan).encode()).hexdigest() for _, one in taken)
        options = {"backend": "whole", "graph": digest, "plans": plans}
        parts = {**versions(), **self.target.key_parts()}
        return key_of("plan", program="none", options=options, **parts)


def border_us(region: Region, kinds: Mapping[fx.Node, Kind], target: Target) -> float:
    """Return how long it takes to write and read again what Inductor could fuse across a region's border.

    What is meant are tensors between operators of no library. What others read too is written anyway.
    """
    members = set(region.subgraph.piece.nodes)
    fused = {node for node in members if not _is_called(node)}
    entering = {
        read
        for node in fused
        for read in reads_of(node, kinds)
        if read not in members and kinds[read] == "compute" and not _is_called(read)
    }
    moved = sum(_bytes(node) * (1 if set(node.users) - members else 2) for node in entering)
    for node in fused.intersection(result.node for result in region.subgraph.results):
        readers = [user for user in node.users if user not in members]
        fusable = [user for user in readers if kinds[user] == "compute" and not _is_called(user)]
        if fusable:
            moved += _bytes(node) * (2 if fusable == readers else 1)
    device = target.cost_device()
    rate = device.l2_gbs if moved < device.l2_bytes else device.memory_gbs
    return moved / (rate * 1e3)


def _is_called(node: fx.Node) -> bool:
    """Whether a library computes a node."""
    return is_matmul(node) or is_attention(node)


def _bytes(node: fx.Node) -> int:
    return bytes_of(one for one in tensors_in(value_of(node)) if all(isinstance(n, int) for n in one.shape))


def _is_lost(raced: HeadToHead) -> bool:
    """Whether a graph is slower with its regions, or may be by more than noise."""
    speed = raced.speed_of("with")
    return speed < even() and (raced.sure or speed < _LEAST_SPEED)


def _gain(decision: Decision) -> float:
    return (decision.before_us or 0.0) / (decision.after_us or 1.0)


def _called(compiled: Callable[..., Any], inputs: Collection[Tensor]) -> Callable[[], Any]:
    return lambda: compiled(*inputs)


def _form(value: Any) -> str:
    return " ".join(f"{one.dtype}{list(one.shape)}{list(one.stride())}" for one in tensors_in(value))


def _moved(region: Region, copied: Mapping[fx.Node, fx.Node]) -> Region:
    """Return a region of a copy of its graph."""
    subgraph = region.subgraph
    moved = replace(
        subgraph,
        piece=Piece(tuple(copied[node] for node in subgraph.piece.nodes)),
        inputs=tuple(copied[node] for node in subgraph.inputs),
        results=tuple(replace(one, node=copied[one.node]) for one in subgraph.results),
    )
    return replace(region, subgraph=moved)


def _recalled(key: Key) -> dict[str, str] | None:
    """Return which regions went when the graph was raced before, and why; None where it was not."""
    record = Cache.open().get(key)
    lost = record.data.get("lost") if record else None
    if not isinstance(lost, dict) or not all(isinstance(one, str) for one in lost.values()):
        return None
    return lost
