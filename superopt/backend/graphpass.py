"""Graphpass: the pass over Inductor's functional graph in which regions become calls of plans."""

import hashlib
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass

from superopt.backend.budget import decisions_of
from superopt.backend.cache import epoch
from superopt.backend.checks.whole import WholeRace
from superopt.backend.decision import Decision, Ledger
from superopt.backend.deferred.mode import mode_of
from superopt.backend.pieces import Piece, pieces_of, worth_a_search
from superopt.backend.region import OpaqueError, Region, region_of
from superopt.backend.region_plan import REGION, plan_of
from superopt.backend.subgraph import NumberError, Subgraph, masks_leaving, subgraph_of, weight_bytes_of
from superopt.cache import Key, versions
from superopt.errors import SuperoptError, first_line, kind_and_line
from superopt.funnel.warm_up import WarmUp
from superopt.rivals.aten import bytes_of, flops_of, listed, operator_name, tensors_in, value_of
from superopt.rivals.kinds import Kind, kinds_of, reasons_of
from superopt.targets import Target, pick_target

__all__ = ["RegionPass", "passes_of"]

log = logging.getLogger("superopt")

_AWARE: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)
_ROUNDS = 4  # how often a piece is cut anew without the operators that turned out to be opaque


class RegionPass(CustomGraphPass):
    """Replaces the regions of a graph that superopt computes faster than Inductor.

    Inductor has one place for passes like this one; the user's passes that stood there run before it.
    """

    def __init__(self, ledger: Ledger, before: Sequence[Any] = (), warm_up: WarmUp | None = None) -> None:
        self.ledger = ledger
        self.before = tuple(before)
        self.warm_up = warm_up  # started for the first graph
        self.weight_bytes: int | None = None  # of the graph under way
        self.pending: dict[str, Key] | None = None  # keys of waiting regions; None: no graph was seen
        self.told: Callable[[], None] | None = None  # called when a graph's waiting regions are known

    def uuid(self) -> bytes | None:
        """Return a digest of all that the pass depends on, or None where no graph may come from a cache."""
        options = self.ledger.options
        if options.report is not None or options.retry:
            return None
        try:
            parts = pick_target("auto").key_parts()
        except SuperoptError:
            return None
        left = epoch() if options.cache else 0
        before = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.before]
        if not all(before):  # a pass without an identity: Inductor must not cache what it may have changed
            return None
        told = (
            *(
                versions(),
                parts,
                options.budget_s,
                options.preset,
                options.verify,
                options.cache,
                options.weights,
                options.memory,
            ),
            *(left, before, mode_of(options) != "off"),
        )
        return hashlib.sha256(repr(told).encode()).digest()

    def __call__(self, graph: fx.Graph) -> None:
        """Run the user's passes, and replace regions; a fault of ours leaves the graph as it is."""
        for one in self.before:
            if _AWARE is not None and isinstance(one, _AWARE):
                one(graph, _role(graph) == "inference")
            else:
                one(graph)
        warm_up, self.warm_up = self.warm_up or WarmUp(), None
        try:
            with warm_up:
                self._run(graph, warm_up)
        except Exception as error:  # Inductor compiles the graph without us
            log.warning("a graph is left to Inductor: %s", kind_and_line(error))

    def _run(self, graph: fx.Graph, warm_up: WarmUp) -> None:
        self.ledger.graphs += 1
        role = _role(graph)
        self.ledger.arrived(graph, joint=role == "forward", alone=warm_up.alone)
        searched, spent = self.ledger.searched, self.ledger.spent_s
        title = f"graph {self.ledger.graphs}, {role}"
        device = _device(graph)
        if device is None:
            return
        target = pick_target(device)
        kinds = kinds_of(graph, device)
        self.weight_bytes = weight_bytes_of(graph, kinds)
        self._note_outside(reasons_of(graph, device).items())
        self.ledger.total_flops += sum(map(flops_of, kinds))
        self.ledger.total_bytes += sum(map(bytes_of, kinds))
        regions: list[Region] = []

        def read() -> Iterator[Region]:
            for piece in pieces_of(graph, kinds):
                with self.ledger.spending():
                    several = self._regions(piece, kinds, target, title)
                regions.extend(several)
                yield from several

        found = decisions_of(read(), target, self.ledger, warm_up)
        waiting = {digest: self.ledger.pending[digest] for digest in found if digest in self.ledger.pending}
        self.pending = {**(self.pending or {}), **waiting}
        if waiting and self.told is not None:
            self.told()
        decided = [(region, found[region.key.digest]) for region in regions]
        taken = [(region, decision) for region, decision in decided if decision.taken and decision.plan]
        lost: dict[str, str] = {}
        if taken:
            whole = WholeRace(graph, target, self.ledger, lambda *given: _replace_all(*given))
            taken, lost = whole.kept(taken)
        for region, decision in decided:
            why = lost.get(region.key.digest)
            self.ledger.note(decision if why is None else replace(decision, taken=False, why=why), title)
        if taken:
            _replace_all(graph, taken)
        log.info(
            "%s: %d regions, %d taken, %d searched in %.1f s",
            title,
            len(decided),
            len(taken),
            self.ledger.searched - searched,
            self.ledger.spent_s - spent,
        )
        self._report()

    def _report(self) -> None:
        try:
            self.ledger.write()
        except SuperoptError as error:  # a missing report must not stop a model
            log.warning("no report: %s", first_line(error))

    def _regions(
        self, piece: Piece, kinds: dict[fx.Node, Kind], target: Target, title: str, rounds: int = _ROUNDS
    ) -> list[Region]:
        """Return a piece as one region, or as several regions around operators that are not algebra."""
        why = worth_a_search(piece) or _never(piece)
        if why is not None:
            if piece.heavy:
                self._note(piece, why, title)
            return []
        bad = dict.fromkeys(masks_leaving(piece, kinds), "it makes truth values that are read elsewhere")
        try:
            if not bad:
                return [region_of(self._subgraph(piece, kinds), target, self.ledger)]
        except (OpaqueError, NumberError) as error:
            if isinstance(error, NumberError):
                bad = dict.fromkeys(error.nodes, str(error))
            else:
                bad = _unruled(piece, kinds, error.reasons)
            if not bad or not rounds:
                self._note(piece, str(error), title)
                return []
        except SuperoptError as error:
            self._note(piece, first_line(error), title)
            return []
        except Exception as error:  # the other pieces do not depend on this one
            log.warning("a region is left to Inductor: %s", kind_and_line(error))
            self._note(piece, f"failed: {kind_and_line(error)}", title)
            return []
        kinds.update(dict.fromkeys(bad, "outside"))
        self._note_outside(bad.items())
        left = set(piece.nodes) - set(bad)
        inner: dict[fx.Node, Kind] = {
            node: "outside" if kind == "compute" and node not in left else kind
            for node, kind in kinds.items()
        }
        found: list[Region] = []
        for smaller in pieces_of(piece.nodes[0].graph, inner):
            found += self._regions(smaller, kinds, target, title, rounds - 1)
        return found

    def _subgraph(self, piece: Piece, kinds: dict[fx.Node, Kind]) -> Subgraph:
        """Return a piece as a subgraph that knows which of its inputs are weights, unless these stay live."""
        found = replace(subgraph_of(piece, kinds), weight_bytes=self.weight_bytes)
        if self.ledger.options.weights == "live":
            return found
        weights = weights_of(piece.nodes[0].graph)
        return replace(found, constant=tuple(at for at, one in enumerate(found.inputs) if one in weights))

    def _note_outside(self, several: Iterable[tuple[fx.Node, str]]) -> None:
        """Note operators that no region will have, with the reason; only makers of tensors count."""
        made = (one for one in several if one[0].target is not operator.getitem)
        self.ledger.outside.update(
            f"{operator_name(node) or node.target}: {why}"
            for node, why in made
            if node.op == "call_function" and tensors_in(value_of(node))
        )

    def _note(self, piece: Piece, why: str, title: str) -> None:
        self.ledger.decisions.append(Decision(listed(piece.nodes), "", False, why, graph=title))


def _unruled(piece: Piece, kinds: Mapping[fx.Node, Kind], reasons: Mapping[str, str]) -> dict[fx.Node, str]:
    """Return, of a piece and the views that it reads through, the nodes without a rule, with the reason."""
    near, left = set(piece.nodes), list(piece.nodes)
    while left:
        views = {one for one in left.pop().all_input_nodes if kinds[one] == "free"} - near
        near |= views
        left += views

    def why(node: fx.Node) -> str | None:
        """Return the reason; operators of `prims` have other names in a region."""
        name = f"aten.{operator_name(node)}."
        renamed = str(node.target).startswith("prims.")
        other = next((one for target, one in reasons.items() if renamed and target.startswith(name)), None)
        return reasons.get(str(node.target), other)

    return {node: found for node in near if (found := why(node)) is not None}


def weights_of(graph: fx.Graph) -> set[fx.Node]:
    """Return the inputs of a graph that PyTorch says are the same tensors in each call: a module's own.

    Where calls are replayed by CUDA graphs nobody would see that a weight has changed: then none are. Nor
    are they in training, which changes them.
    """
    context = torch._guards.TracingContext.try_get()
    known = getattr(getattr(context, "fw_metadata", None), "static_input_indices", None)
    replayed = torch._inductor.config.triton.cudagraphs and _device(graph) == "cuda"
    if not known or replayed or _role(graph) != "inference":
        return set()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return {inputs[at] for at in known if at < len(inputs)}


def passes_of(given: Any) -> tuple[Any, ...]:
    """Return the passes in a setting of Inductor's, but not ours, which another thread may have put there."""
    if given is None:
        return ()
    passes = given if isinstance(given, list | tuple) else (given,)
    return tuple(one for one in passes if not isinstance(one, RegionPass))


def _replace_all(graph: fx.Graph, taken: Sequence[tuple[Region, Decision]]) -> None:
    """Replace regions by calls of plans; if that fails for a region, its operators stay."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    moved: dict[fx.Node, fx.Node] = {}
    for region, decision in taken:
        try:
            _replace(graph, region, str(decision.plan), moved)
        except Exception as error:  # PyTorch may raise anything for a call that it cannot handle
            log.warning("%s: left to Inductor: %s", decision.operators, kind_and_line(error))
    stable_topological_sort(graph)
    graph.eliminate_dead_code()
    graph.lint()


def _replace(graph: fx.Graph, region: Region, plan: str, moved: dict[fx.Node, fx.Node]) -> None:
    """Replace a region by a call of a plan, and note the nodes of its results."""
    subgraph = region.subgraph
    found = plan_of(plan)
    found.settle()
    order = {node: at for at, node in enumerate(graph.nodes)}
    given = region.in_order(found.inputs, subgraph.inputs)
    inputs = [moved.get(node, node) for node in given]
    last = max(inputs, key=order.__getitem__)
    if last.op == "placeholder":
        last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    place = {name: at for at, name in enumerate(found.outputs)}
    with graph.inserting_after(last):
        call = graph.call_function(REGION, (plan, inputs))
    call.meta["val"] = _fake(plan, inputs)
    point = call
    for result, name in zip(subgraph.results, region.names, strict=True):
        with graph.inserting_after(point):
            made = graph.call_function(operator.getitem, (call, place[name]))
        made.meta["val"] = call.meta["val"][place[name]]
        point = made
        if result.back is not None:
            with graph.inserting_after(point):
                made = graph.call_function(torch.ops.aten.permute.default, (made, list(result.back)))
            point = made
        made.meta = {**result.node.meta}
        result.node.replace_all_uses_with(made)
        moved[result.node] = made
    for node in reversed(subgraph.piece.nodes):
        if not node.users:
            graph.erase_node(node)


def _fake(plan: str, inputs: Sequence[fx.Node]) -> Any:
    values = [value_of(node) for node in inputs]
    mode = detect_fake_mode(values)
    assert mode is not None
    with mode:
        return REGION(plan, values)


def _never(piece: Piece) -> str | None:
    """Return why a piece is never worth a plan; None where it may be."""
    if torch._inductor.config.cpp_wrapper:
        return "Inductor's cpp_wrapper makes wrong code of a call of a plan"
    around = [read for node in piece.nodes for read in (node, *node.all_input_nodes)]
    shapes = [tensor.shape for node in around for tensor in tensors_in(value_of(node))]
    if any(isinstance(size, int) and size == 0 for shape in shapes for size in shape):  # no symbol is 0
        return "it has an empty tensor"
    return None


def _device(graph: fx.Graph) -> str | None:
    """Return the type of device that a graph's tensors are on and that we have kernels for."""
    found = {tensor.device.type for node in graph.nodes for tensor in tensors_in(value_of(node))}
    return "cuda" if "cuda" in found else "cpu" if "cpu" in found else None


def _role(graph: fx.Graph) -> str:
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    if any(name.startswith("tangents") for name in names):
        return "backward"
    return "forward" if any(name.startswith("primals") for name in names) else "inference"
