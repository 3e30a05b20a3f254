"""In chunks: a part of a graph as algebra that is computed in chunks, and its call in place of operators."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.joint.chunks.choice import Chunks
from superopt.backend.joint.chunks.factored import factored
from superopt.backend.joint.chunks.integers import holds_integers
from superopt.backend.joint.chunks.joined import joined
from superopt.backend.joint.chunks.tiles import Tiles
from superopt.backend.joint.chunks.tiling import tiled, with_undefined
from superopt.backend.joint.piece import is_tangent, piece_around
from superopt.backend.joint.scaled import leave_zeros
from superopt.backend.region_plan import REGION, RegionPlan, kept_plan
from superopt.backend.subgraph import Subgraph
from superopt.ir import Graph
from superopt.rivals.aten import add_call, flops_of, is_matmul, tensors_in, value_of
from superopt.rivals.inductor import alone
from superopt.targets import Target
from superopt.trace import trace

__all__ = ["APART", "InChunks", "chunks_around", "put_in"]

APART = {torch.float32: 1e-3, torch.bfloat16: 3e-2}
"""The difference of two equal results at most, as a share of the largest number, by the dtype of products."""

_WAYS = 2  # axes along which chunks are tried


@dataclass(frozen=True, slots=True)
class InChunks:
    """A part in chunks: its plan, what it reads, and the results that the gradient of the loss multiplies."""

    subgraph: Subgraph
    plan: RegionPlan
    names: tuple[str, ...]  # the names of the results
    inputs: Mapping[str, fx.Node]
    tiles: Tiles
    ways: tuple[Tiles, ...]  # tiles along several axes, of which one is chosen
    tangent: fx.Node | None = None
    scaled: frozenset[str] = frozenset()
    share: float = 1.0  # the share of the operations of the graph that the part has
    chunks: tuple[Chunks, ...] = ()  # the ways to choose from; the first where nothing else decides

    def with_tiles(self, tiles: Tiles, target: str) -> "InChunks":
        """Return the part in other chunks."""
        return replace(self, plan=RegionPlan.of_operators(self.plan.goal, target, tiles), tiles=tiles)

    def with_chunks(self, chunks: tuple[Chunks, ...], target: str) -> "InChunks":
        """Return the part with several ways to compute it in chunks: the first one, until one is chosen."""
        return replace(self.with_tiles(chunks[0].tiles, target), chunks=chunks)

    def given(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs of the part in the order of the plan."""
        known = dict(zip(self.subgraph.inputs, tensors, strict=True))
        return [known[self.inputs[name]] for name in self.plan.inputs]

    def scale(
        self,
        name: str,
        made: Tensor,
        tensors: Sequence[Tensor],
        by: Callable[[Tensor, Tensor], Tensor] = torch.mul,
    ) -> Tensor:
        """Return a result as the backward pass then scales it, for these inputs."""
        if self.tangent is None or name not in self.scaled:
            return made
        return by(made, tensors[self.subgraph.inputs.index(self.tangent)])


def chunks_around(
    graph: fx.Graph,
    seeds: Sequence[fx.Node],
    gates: Collection[fx.Node],
    target: Target,
    limit_bytes: int,
    outside: Collection[str] = (),
) -> InChunks | None:
    """Return a part in chunks, or None where no axis serves.

    Where gates are given, through which the gradient of a loss enters, the part takes in both passes, and
    must be a multiple of it.
    """
    subgraph = piece_around(graph, seeds, gates, outside)
    tangents = [node for node in subgraph.inputs if gates and (node in gates or is_tangent(node))]
    dtype = _dtype(subgraph)
    if len(tangents) != bool(gates) or dtype is None:
        return None
    traced = alone(lambda: trace(subgraph.module, *subgraph.example(), name="step", for_proof=True))
    if traced.program.opaque and not outside:  # what is made of labels, as by padding, can be read instead
        opaque = {one.target for one in traced.program.opaque}
        return chunks_around(graph, seeds, gates, target, limit_bytes, opaque)
    if traced.program.opaque or len(traced.program.regions) != 1:
        return None
    nodes = dict(zip(traced.input_names, subgraph.inputs, strict=True))
    if not {one.port.name for one in traced.graph.outputs}.issuperset(traced.program.outputs):
        return None
    goal, scaled = traced.graph, frozenset[str]()
    for gate in tangents:
        [name] = [name for name, node in nodes.items() if node is gate]
        known = {one.name for one in goal.inputs}
        without = factored(goal, name) if name in known else None
        if without is None:
            return None
        goal, scaled = without
    ways = _ways(goal, limit_bytes, dtype, most=1 if gates else _WAYS) if holds_integers(goal) else ()
    if not ways:
        return None
    plan = RegionPlan.of_operators(goal, target.name, ways[0])
    tangent = tangents[0] if tangents else None
    inside, whole = (sum(map(flops_of, nodes)) for nodes in (subgraph.piece.nodes, graph.nodes))
    return InChunks(
        subgraph, plan, traced.program.outputs, nodes, ways[0], ways, tangent, scaled, inside / max(whole, 1)
    )


def _dtype(subgraph: Subgraph) -> torch.dtype | None:
    """Return in which dtype a part multiplies, None where chunks cannot."""
    results = [value_of(one.node) for one in subgraph.results]
    nodes = *subgraph.inputs, *subgraph.piece.nodes
    read = (one for node in nodes for one in tensors_in(value_of(node)))
    floats = [one for one in (*read, *results) if one.dtype.is_floating_point]
    dtypes = {value_of(node).dtype for node in subgraph.piece.nodes if is_matmul(node)}
    if len(dtypes) != 1 or subgraph.symbols or not all(one.dtype.is_floating_point for one in results):
        return None
    [dtype] = dtypes
    # Not float16: what is multiplied by the gradient of the loss afterwards may be too small for it before.
    known = dtype in APART and {torch.float32, dtype}.issuperset(value.dtype for value in floats)
    return dtype if known else None


def _ways(program: Graph, limit_bytes: int, dtype: torch.dtype, *, most: int) -> tuple[Tiles, ...]:
    """Return tiles of a program along its longest axes that serve, of one position each."""
    name, found = "bf16" if dtype == torch.bfloat16 else "f32", list[Tiles]()
    goal = joined(program).goal
    checked = with_undefined(goal)
    for axis in sorted(goal.axes, key=lambda one: -one.size):
        if len(found) < most and tiled(checked, axis.name, limit_bytes) is not None:
            found.append(Tiles(program, axis.name, 1, limit_bytes, dtype=name))
    return tuple(found)


def put_in(graph: fx.Graph, found: InChunks) -> None:
    """Replace a part by a call of its plan, and what the gradient of the loss then multiplies."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    text = kept_plan(found.plan)
    results = found.subgraph.results
    place = {name: at for at, name in enumerate(found.plan.outputs)}
    given = [found.inputs[name] for name in found.plan.inputs]
    mode = torch._guards.detect_fake_mode([value_of(node) for node in given])
    with graph.inserting_before(found.subgraph.piece.nodes[0]):
        call = add_call(graph, mode, REGION, text, given)
    call.meta["partitioner_tag"] = "is_forward"
    point = call
    for result, name in zip(results, found.names, strict=True):
        with graph.inserting_after(point):
            made = graph.call_function(operator.getitem, (call, place[name]))
        made.meta["val"] = call.meta["val"][place[name]]
        made.meta["partitioner_tag"] = "is_forward"
        point = made
        if name in found.scaled and found.tangent is not None:
            product = _after(graph, made, torch.ops.aten.mul.Tensor, (made, found.tangent))
            made = product if is_tangent(found.tangent) else leave_zeros(product, made)
        if result.back is not None:
            made = _after(graph, made, torch.ops.aten.permute.default, (made, list(result.back)))
        made.meta = {**result.node.meta}
        result.node.replace_all_uses_with(made)
    stable_topological_sort(graph)
    graph.eliminate_dead_code()
    graph.lint()


def _after(graph: fx.Graph, node: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    with graph.inserting_after(node):
        made = graph.call_function(target, args)
    made.meta["val"] = value_of(node)
    made.meta["partitioner_tag"] = "is_backward"
    return made
