"""Joint pass: the part of a training step around its largest values, in turns where that is no slower.

The loss of a language model is the example: its logits are larger than all that enters and leaves the step.
Forward and backward pass are one graph here, so that both are computed for a few rows at a time, and what is
kept between the passes are the gradients themselves. They are those of a loss that counts once; the backward
pass multiplies them by what it really counts.
"""

import logging
import operator
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from superopt.backend.decision import Decision, Ledger
from superopt.backend.graphpass import RegionPass
from superopt.backend.joint.choice import LEAST_SPEED, chosen
from superopt.backend.joint.factored import factored
from superopt.backend.joint.integers import holds_integers
from superopt.backend.joint.piece import gate_of, is_tangent, large_bytes, largest_component, piece_around
from superopt.backend.joint.run import TiledKernel
from superopt.backend.joint.tiles import Tiles
from superopt.backend.joint.tiling import largest_bytes, tiled, with_undefined
from superopt.backend.options import BackendOptions, Memory
from superopt.backend.region_plan import REGION, RegionPlan, kept_plan
from superopt.backend.subgraph import Subgraph
from superopt.cache import Cache, Record, key_of, program_text, versions
from superopt.candidates.sizes import resized
from superopt.errors import SuperoptError, first_line, kind_and_line
from superopt.ir import Graph
from superopt.rivals.aten import is_matmul, listed, value_of
from superopt.rivals.inductor import alone, compiled_by_inductor
from superopt.targets import Target, pick_target
from superopt.trace import trace
from superopt.trace.run import TORCH_DTYPES, run_graph
from superopt.tune import confirm
from superopt.verify.floats.compare import compare_floats, typical
from superopt.verify.floats.report import FloatReport

__all__ = ["JOINT", "JointPass"]

JOINT = "joint graph"
"""The title under which decisions are listed."""

log = logging.getLogger("superopt")

_LEAST_BYTES = 8 << 20  # of a value that is worth turns
_LEAST_S = 3.0  # seconds of a budget that was told, below which no race begins
_SCALES = 1, 4096  # by which random numbers are multiplied, to see what overflows
_MANY_ROWS = 128  # of a turn, of which comparing two takes long
# Of the largest number, beyond which results are not the same, by the dtype of products.
_APART = {torch.float32: 1e-3, torch.bfloat16: 3e-2}
_RACE_S, _MOST_RACE_S = 1.0, 6.0
_LONG_S, _ROUNDS = 0.5, 3  # a call that takes so long is timed so often


@dataclass(frozen=True, slots=True)
class _Found:
    """A piece in turns: its plan, the results that the gradient of the loss multiplies, and what it reads."""

    subgraph: Subgraph
    plan: RegionPlan
    names: tuple[str, ...]  # of each result
    scaled: frozenset[str]
    tangent: fx.Node
    inputs: Mapping[str, fx.Node]
    tiles: Tiles

    def with_tiles(self, tiles: Tiles, target: str) -> "_Found":
        """Return the piece in other turns."""
        return replace(self, plan=RegionPlan.of_operators(self.plan.goal, target, tiles), tiles=tiles)

    def given(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs of the piece in the order of the plan."""
        known = dict(zip(self.subgraph.inputs, tensors, strict=True))
        return [known[self.inputs[name]] for name in self.plan.inputs]


class JointPass(CustomGraphPass):
    """Replaces a part of a joint graph by a call of a plan that computes it in turns."""

    def __init__(self, ledger: Ledger, regions: RegionPass, before: Sequence[Any] = ()) -> None:
        self.ledger, self.regions = ledger, regions
        self.before = tuple(one for one in before if not isinstance(one, JointPass))
        self._without: fx.Graph | None = None

    def uuid(self) -> Any:
        """Return what the pass depends on, or None where no graph may come from a cache."""
        known = self.regions.uuid()
        before = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.before]
        return None if known is None or not all(before) else (b"joint", known, *before)

    def __call__(self, graph: fx.Graph) -> None:
        """Run the user's passes, and replace a part; a fault of ours leaves the graph as it is."""
        for one in self.before:
            one(graph)
        self._without = None
        try:
            self._run(graph)
        except SuperoptError as error:
            log.info("no part of a joint graph is computed in turns: %s", first_line(error))
        except Exception as error:  # Inductor compiles the graph without us
            log.warning("a joint graph is left as it is: %s", kind_and_line(error))

    def _run(self, graph: fx.Graph) -> None:
        # Where less memory is asked for, what is larger than that is worth turns beside larger weights, too.
        fast = self.ledger.options.memory == "fast"
        limit_bytes = large_bytes(graph, _LEAST_BYTES) if fast else _LEAST_BYTES
        seeds = largest_component(graph, limit_bytes)
        if torch._inductor.config.cpp_wrapper:  # it makes wrong code of a call of a plan
            return
        if not seeds or not any(map(is_tangent, graph.nodes)) or _devices(seeds) != {"cpu"}:
            return
        target = pick_target("cpu")
        gate = gate_of(graph)
        found = _found(graph, seeds, None, target, limit_bytes)
        if found is None and gate is not None:  # it may depend on the loss itself
            found = _found(graph, seeds, gate, target, limit_bytes)
        if found is None:
            return
        if any(node.meta.get("recompute") for node in found.subgraph.piece.nodes):
            log.info("what the user checkpoints is not computed in turns")
            return
        decision, found = self._decided(found, target)
        self.ledger.note(decision, JOINT)
        if decision.taken:
            without = fx.Graph()
            output = without.output(without.graph_copy(graph, {}))
            output.meta = dict(graph.find_nodes(op="output")[0].meta)
            _put_in(graph, found)
            self._without = without

    def take_without(self) -> fx.Graph | None:
        """Return the latest graph as it was before a part was replaced, once; None where none was."""
        without, self._without = self._without, None
        return without

    def _decided(self, found: _Found, target: Target) -> tuple[Decision, _Found]:
        """Return whether the piece is computed in turns and in which, as was decided before or by a race."""
        nodes = found.subgraph.piece.nodes
        goal = found.plan.goal
        inputs = ", ".join(f"{port.dtype}{list(goal.shape(port))}".replace(" ", "") for port in goal.inputs)
        blank = Decision(listed(nodes), inputs, False, "")
        ledger, tiles = self.ledger, found.tiles
        memory = ledger.options.memory
        told = {
            "axis": tiles.axis,
            "limit_bytes": tiles.limit_bytes,
            "memory": memory,
            "least": _least(memory),
        }
        options = {"backend": "joint", **told, "results": list(found.names)}
        parts = {**versions(), **target.key_parts()}
        key = key_of("plan", program=program_text(goal), options=options, **parts)
        record = Cache.open().get(key) if ledger.options.cache else None
        if record is not None and isinstance(record.data.get("taken"), bool):
            why, verdict = (str(record.data.get(name, "")) for name in ("why", "verdict"))
            found = found.with_tiles(Tiles.read(goal, record.data.get("tiles")), target.name)
            taken = record.data["taken"]
            return replace(blank, taken=taken, why=why, verdict=verdict, recalled=True), found
        if ledger.options.budget_s is not None and ledger.left_s < _LEAST_S:
            return replace(blank, why="no time to race it in turns", open=True), found
        with ledger.spending():
            made, found = alone(lambda: _judged(blank, found, target, ledger.options))
        if ledger.options.cache:
            kept = {"taken": made.taken, "why": made.why, "verdict": made.verdict}
            Cache.open().put(key, Record({**kept, "tiles": found.tiles.to_json()}, made.operators))
        return made, found


def _devices(nodes: Iterable[fx.Node]) -> set[str]:
    return {value.device.type for value in map(value_of, nodes) if isinstance(value, Tensor)}


def _found(
    graph: fx.Graph,
    seeds: Sequence[fx.Node],
    gate: fx.Node | None,
    target: Target,
    limit_bytes: int,
    outside: Collection[str] = (),
) -> _Found | None:
    """Return a piece in turns, or None where no axis serves, or it is no multiple of the loss's gradient."""
    subgraph = piece_around(graph, seeds, gate, outside)
    tangents = [node for node in subgraph.inputs if node is gate or is_tangent(node)]
    results = [value_of(one.node) for one in subgraph.results]
    floats = [value for value in (*map(value_of, subgraph.inputs), *results) if value.dtype.is_floating_point]
    dtypes = {value_of(node).dtype for node in subgraph.piece.nodes if is_matmul(node)}
    if len(tangents) != 1 or len(dtypes) != 1 or subgraph.symbols:
        return None
    [dtype] = dtypes
    # Not float16: what is multiplied by the gradient of the loss afterwards may be too small for it before.
    if dtype not in _APART or not {torch.float32, dtype}.issuperset(value.dtype for value in floats):
        return None
    if not all(value.dtype.is_floating_point for value in results):
        return None
    traced = alone(lambda: trace(subgraph.module, *subgraph.example(), name="step", for_proof=True))
    if traced.program.opaque and not outside:  # what is made of labels, as by padding, can be read instead
        return _found(graph, seeds, gate, target, limit_bytes, {one.target for one in traced.program.opaque})
    if traced.program.opaque or len(traced.program.regions) != 1:
        return None
    nodes = dict(zip(traced.input_names, subgraph.inputs, strict=True))
    [name] = [name for name, node in nodes.items() if node is tangents[0]]
    made = {one.port.name for one in traced.graph.outputs}
    without = factored(traced.graph, name) if name in {one.name for one in traced.graph.inputs} else None
    if without is None or not made.issuperset(traced.program.outputs):
        return None
    goal, scaled = without
    tiles = _tiles_of(goal, limit_bytes, dtype)
    if tiles is None or not holds_integers(goal):
        return None
    plan = RegionPlan.of_operators(goal, target.name, tiles)
    return _Found(subgraph, plan, traced.program.outputs, scaled, tangents[0], nodes, tiles)


def _tiles_of(goal: Graph, limit_bytes: int, dtype: torch.dtype) -> Tiles | None:
    """Return tiles of a goal along its longest axis that serves, of one position each."""
    name = "bf16" if dtype == torch.bfloat16 else "f32"
    checked = with_undefined(goal)
    for axis in sorted(goal.axes, key=lambda one: -one.size):
        tiling = tiled(checked, axis.name, limit_bytes)
        if tiling is not None:
            return Tiles(goal, axis.name, 1, limit_bytes, dtype=name)
    return None


def _judged(
    blank: Decision, found: _Found, target: Target, options: BackendOptions
) -> tuple[Decision, _Found]:
    """Decide for turns where they are accurate, and fast enough beside Inductor's code of the whole piece."""
    inputs = _drawn(found.subgraph.example())
    given, memory = found.given(inputs), options.memory
    tiles = chosen(found.tiles, dict(zip(found.plan.inputs, given, strict=True)), memory)
    found = found.with_tiles(tiles, target.name)
    report = _compared(found)
    blank = replace(blank, verdict=str(report))
    if not report.ok:
        return replace(blank, why="not as accurate as PyTorch in turns"), found
    text = kept_plan(found.plan)
    inductor = compiled_by_inductor(found.subgraph.module, inputs, options.inductor)
    if not _agrees(found, text, inductor, inputs):
        return replace(
            blank, why="in turns it differs from Inductor's code, or overflows where that does not"
        ), found
    tangent = inputs[found.subgraph.inputs.index(found.tangent)]

    def turns() -> list[Tensor]:  # with what the backward pass then does
        made = zip(found.plan.outputs, REGION(text, given), strict=True)
        return [one * tangent if name in found.scaled else one for name, one in made]

    start = time.perf_counter()
    inductor(*inputs)
    long = time.perf_counter() - start > _LONG_S
    raced = confirm(
        {"turns": turns, "whole": lambda: inductor(*inputs)},
        "turns",
        "whole",
        [()],
        seconds=_RACE_S,
        most_seconds=0.0 if long else _MOST_RACE_S,
        times=partial(target.times, least_rounds=_ROUNDS) if long else target.times,
    )
    speed = raced.speed_of("turns")
    size, turn = largest_bytes(found.plan.goal), tiles.kernel.shared_bytes(tiles.rows)
    needed = isinstance(memory, int) and turn <= memory < size
    taken = needed or speed >= _least(memory)
    short = f"{turn / 2**20:.0f} MB in place of {size / 2**20:.0f}"
    why = f"in turns it has {speed:.2f} times Inductor's speed, and {short}"
    whole_us, turns_us = (raced.measurements[name].median_us for name in ("whole", "turns"))
    return replace(blank, taken=taken, why=why, before_us=whole_us, after_us=turns_us), found


def _least(memory: Memory) -> float:
    """Return the speed beside Inductor's from which on turns are taken for their speed."""
    return LEAST_SPEED.get(str(memory), LEAST_SPEED["fast"])


def _compared(found: _Found) -> FloatReport:
    """Return how the errors of turns compare with PyTorch's, of one or two whole turns and the last one."""
    tiles, goal = found.tiles, found.plan.goal
    whole = goal.sizes[tiles.axis]
    size = min(whole, tiles.rows * (1 if tiles.rows > _MANY_ROWS else 2) + whole % tiles.rows)
    small = resized(goal, {tiles.axis: size})
    tiling = tiled(with_undefined(small), tiles.axis, tiles.limit_bytes, whole=whole)
    assert tiling is not None
    kernel = TiledKernel(tiling, tiles.rows, last=tiles.last, own=tiles.own, dtype=tiles.kernel.dtype)
    # In one turn, a program is rounded where PyTorch rounds it; `_agrees` compares with Inductor's code.
    whole_kernel = TiledKernel(tiling, size, dtype=tiles.kernel.dtype)
    names = [port.name for port in small.inputs]
    results = [one.port.name for one in small.outputs]

    def theirs(*tensors: Tensor) -> list[Tensor]:
        dtypes = {one.dtype for one in tensors if one.dtype.is_floating_point}
        given = dict(zip(names, tensors, strict=True))
        if kernel.dtype != torch.float32 and torch.float64 not in dtypes:
            made = whole_kernel(given)
        else:
            made = run_graph(small, given, max(dtypes, key=lambda one: one.itemsize))
        return [made[name] for name in results]

    def ours(*tensors: Tensor) -> list[Tensor]:
        made = kernel(dict(zip(names, tensors, strict=True)))
        return [made[name] for name in results]

    blank = [
        torch.empty(small.shape(port), dtype=TORCH_DTYPES[port.dtype], device="meta") for port in small.inputs
    ]
    return compare_floats(theirs, ours, _drawn(tuple(blank)), seed=1, distributions=("normal",))


def _agrees(
    found: _Found, text: str, inductor: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
) -> bool:
    """Whether turns compute what Inductor's code of the whole does, and are finite where that is."""
    tangent = inputs[found.subgraph.inputs.index(found.tangent)]
    for scale in _SCALES:
        given = [one * scale if one.dtype.is_floating_point and one.dim() else one for one in inputs]
        made = dict(zip(found.plan.outputs, REGION(text, found.given(given)), strict=True))
        for name, wanted in zip(found.names, inductor(*given), strict=True):
            ours = made[name] * tangent if name in found.scaled else made[name]
            if bool((wanted.isfinite() & ~ours.isfinite()).any()):
                return False
            apart = _APART[found.tiles.kernel.dtype] * wanted.abs().max()
            if scale == 1 and not bool(((ours - wanted).abs() <= apart).all()):
                return False
    return True


def _drawn(example: tuple[Tensor, ...]) -> list[Tensor]:
    """Return random tensors like an example; integers are 0 or 1, which are valid as indices and labels."""
    return [
        made if one.dtype.is_floating_point else torch.randint(0, 2, one.shape).to(one.dtype)
        for one, made in zip(example, typical(example), strict=True)
    ]


def _put_in(graph: fx.Graph, found: _Found) -> None:
    """Replace the piece by a call of its plan, and what is multiplied by the gradient of the loss."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    text = kept_plan(found.plan)
    results = found.subgraph.results
    place = {name: at for at, name in enumerate(found.plan.outputs)}
    given = [found.inputs[name] for name in found.plan.inputs]
    first = found.subgraph.piece.nodes[0]
    with graph.inserting_before(first):
        call = graph.call_function(REGION, (text, given))
    mode = torch._guards.detect_fake_mode([value_of(node) for node in given])
    assert mode is not None
    with mode:
        call.meta["val"] = REGION(text, [value_of(node) for node in given])
    call.meta["partitioner_tag"] = "is_forward"
    point = call
    for result, name in zip(results, found.names, strict=True):
        with graph.inserting_after(point):
            made = graph.call_function(operator.getitem, (call, place[name]))
        made.meta["val"] = call.meta["val"][place[name]]
        made.meta["partitioner_tag"] = "is_forward"
        point = made
        if name in found.scaled:
            made = _after(graph, made, torch.ops.aten.mul.Tensor, (made, found.tangent))
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
