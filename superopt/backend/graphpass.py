"""Graphpass: the pass over Inductor's functional graph in which regions become calls of plans."""

import hashlib
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch._guards import detect_fake_mode
from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from superopt.backend.budget import decisions_of
from superopt.backend.cache import epoch
from superopt.backend.checks.room import in_their_rooms
from superopt.backend.checks.verdict import Taken
from superopt.backend.checks.whole import Stay, WholeRace, offered_of
from superopt.backend.checks.wide_calls import learn_wide_calls, put_wide_calls
from superopt.backend.cut import Cut, device_of
from superopt.backend.decision import Decision, Ledger
from superopt.backend.deferred.mode import mode_of
from superopt.backend.deferred.queue import bound_queue, defer_graph
from superopt.backend.region import RECORDS, Region
from superopt.backend.region_plan import REGION, RegionPlan, calls_directly, kept_plan, plan_of
from superopt.cache import Key, versions
from superopt.errors import SuperoptError, first_line, kind_and_line
from superopt.funnel.warm_up import WarmUp
from superopt.rivals.aten import add_call, bytes_of, flops_of, pass_of, value_of
from superopt.rivals.images import channels_last_strides
from superopt.targets import pick_target
from superopt.weights.sources import can_be_watched

__all__ = ["RegionPass", "passes_of", "replace_all", "watched_of"]

log = logging.getLogger("superopt")

_AWARE: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)


class RegionPass(CustomGraphPass):
    """Replaces the regions of a graph that superopt computes faster than Inductor.

    Inductor has one place for passes like this one; the user's passes that stood there run before it.
    """

    def __init__(
        self,
        ledger: Ledger,
        before: Sequence[Any] = (),
        warm_up: WarmUp | None = None,
        watched: Sequence[bool] = (),
    ) -> None:
        self.ledger = ledger
        self.before = tuple(before)
        self.warm_up = warm_up  # started for the first graph
        self.watched = tuple(watched)  # for each input, whether a change of it can be seen
        self.pending: dict[str, Key] | None = None  # what waits for more time; None: no graph came yet
        self.on_waiting: Callable[[], None] | None = None  # called when some regions of a graph wait

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
                RECORDS,
                parts,
                options.budget_s,
                options.preset,
                options.verify,
                options.cache,
                options.weights,
                options.memory,
            ),
            *(left, before, mode_of(options) != "off", self.watched),
        )
        return hashlib.sha256(repr(told).encode()).digest()

    def __call__(self, graph: fx.Graph) -> None:
        """Run the user's passes, and replace regions; a fault of ours leaves the graph as it is."""
        for one in self.before:
            if _AWARE is not None and isinstance(one, _AWARE):
                one(graph, pass_of(graph) == "inference")
            else:
                one(graph)
        warm_up, self.warm_up = self.warm_up or WarmUp(), None
        self.ledger.graphs += 1
        try:
            with warm_up:
                learn_wide_calls(graph, self.ledger)
                self._run(graph, warm_up)
        except Exception as error:  # Inductor compiles the graph without us
            log.warning("a graph is left to Inductor: %s", kind_and_line(error))
        try:
            put_wide_calls(graph, self.ledger, self._title(graph))
        except Exception as error:  # the calls stay in half precision
            log.warning("library calls of a graph are left as they are: %s", kind_and_line(error))
        self._report()

    def _title(self, graph: fx.Graph) -> str:
        return f"graph {self.ledger.graphs}, {pass_of(graph)}"

    def _run(self, graph: fx.Graph, warm_up: WarmUp) -> None:
        role, title = pass_of(graph), self._title(graph)
        self.ledger.note_arrival(graph, joint=role == "forward", alone=warm_up.alone)
        searched, spent = self.ledger.searched, self.ledger.spent_s
        device = device_of(graph)
        if device is None:
            return
        target = pick_target(device)
        weights = weights_of(graph, self.watched)
        cut = Cut(graph, target, self.ledger, weights, title)
        self.ledger.total_flops += sum(map(flops_of, cut.kinds))
        self.ledger.total_bytes += sum(map(bytes_of, cut.kinds))
        regions: list[Region] = []

        def read() -> Iterator[Region]:
            for region in in_their_rooms(graph, cut.regions(), race.replaced, target, self.ledger):
                regions.append(region)
                yield region

        race = WholeRace(graph, target, self.ledger, lambda *given: replace_all(*given), weights)
        with self.ledger.leaving_for_backward(role):
            found = decisions_of(read(), target, self.ledger, warm_up)
        waiting = {digest: self.ledger.pending[digest] for digest in found if digest in self.ledger.pending}
        decided = [(region, found[region.key.digest]) for region in regions]
        stay = race.kept(offered_of(decided))
        self._note_waiting(waiting, race, stay, decided)
        staying = {region.key.digest: decision for region, decision in stay.taken}
        for region, decision in decided:
            digest = region.key.digest
            noted = staying.get(digest, decision)
            if decision.taken and digest in stay.lost:
                noted = replace(decision, taken=False, why=stay.lost[digest])
            self.ledger.note(noted, title)
        if stay.taken:
            replace_all(graph, stay.taken)
        log.info(
            "%s: %d regions, %d taken, %d searched in %.1f s",
            title,
            len(decided),
            len(stay.taken),
            self.ledger.searched - searched,
            self.ledger.spent_s - spent,
        )

    def _note_waiting(self, waiting: Mapping[str, Key], race: WholeRace, stay: Stay, decided: Taken) -> None:
        """Note what waits of a graph for more time: its regions, and its race as a whole."""
        keys = dict(waiting)
        due = (waiting or not stay.raced) and not race.is_whole(decided)
        if due and mode_of(self.ledger.options) != "off":
            gain_us = sum((one.before_us or 0.0) - (one.after_us or 0.0) for _, one in stay.taken)
            try:
                if defer_graph(race, gain_us, waiting.values(), len(decided), self.ledger):
                    keys[race.key.digest] = race.key
                    bound_queue()
            except Exception as error:  # the decisions stand even if the race cannot be queued
                log.warning("the race of a whole graph is not queued: %s", kind_and_line(error))
        self.pending = {**(self.pending or {}), **keys}
        if keys and self.on_waiting is not None:
            self.on_waiting()

    def _report(self) -> None:
        try:
            self.ledger.write()
        except SuperoptError as error:  # a missing report must not stop a model
            log.warning("no report was written: %s", first_line(error))


def weights_of(graph: fx.Graph, watched: Sequence[bool] = ()) -> set[fx.Node]:
    """Return the inputs of a graph that PyTorch says are the same tensors in each call: a module's own.

    Where calls are replayed by CUDA graphs nobody would see that a weight has changed: then none are. Nor
    are they in training, which changes them, nor what the graph itself writes to, as counters and caches.
    Nor are inputs that cannot be `watched` for changes: nothing is ever kept of them.
    """
    context = torch._guards.TracingContext.try_get()
    about: Any = getattr(context, "fw_metadata", None)
    known = getattr(about, "static_input_indices", None)
    replayed = torch._inductor.config.triton.cudagraphs and device_of(graph) == "cuda"
    # Where operators have effects, PyTorch counts inputs that order these, and that the graph no longer has.
    ordered = graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    if not known or replayed or ordered or pass_of(graph) != "inference":
        return set()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    changed = {at for at, one in enumerate(about.input_info) if one.mutates_data or one.mutates_metadata}
    if len(watched) == len(inputs):  # else PyTorch has taken some apart, or added some
        changed |= {at for at, one in enumerate(watched) if not one}
    return {inputs[at] for at in known if at < len(inputs) and at not in changed} - _written(graph)


def watched_of(inputs: Sequence[Any]) -> tuple[bool, ...]:
    """Return for each input whether a change of it can be seen; True for what is no weight.

    It is True also for a weight that PyTorch takes apart: the tensors in it are asked.
    """

    def is_weight(one: Any) -> bool:
        return isinstance(one, nn.Parameter) or getattr(one, "_dynamo_static_input_type", None) is not None

    return tuple(
        not is_weight(one) or is_traceable_wrapper_subclass(one) or can_be_watched(one) for one in inputs
    )


def _written(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes whose memory operators of a graph write to."""
    found = set[fx.Node]()
    for node in graph.nodes:
        schema = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
        told = {one.name: one.alias_info for one in schema.arguments} if schema else {}
        for name, given in (*zip(told, node.args, strict=False), *node.kwargs.items()):
            if (alias := told.get(name)) is not None and alias.is_write:
                found.update(one for one in tree_leaves(given) if isinstance(one, fx.Node))
    return found


def passes_of(given: Any) -> tuple[Any, ...]:
    """Return the passes in a setting of Inductor's, but not ours, which another thread may have put there."""
    if given is None:
        return ()
    passes = given if isinstance(given, list | tuple) else (given,)
    return tuple(one for one in passes if not isinstance(one, RegionPass))


def replace_all(graph: fx.Graph, taken: Sequence[tuple[Region, Decision]]) -> None:
    """Replace regions by calls of plans; if that fails for a region, its operators stay."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    calls_directly()
    moved: dict[fx.Node, fx.Node] = {}
    for region, decision in taken:
        try:
            plan = plan_of(str(decision.plan))
            _replace(graph, region, plan.apart() if decision.apart else [plan], moved)
        except Exception as error:  # PyTorch may raise anything for a call that it cannot handle
            log.warning("%s: left to Inductor: %s", decision.operators, kind_and_line(error))
    stable_topological_sort(graph)
    graph.eliminate_dead_code()
    graph.lint()


def _replace(
    graph: fx.Graph, region: Region, plans: Sequence[RegionPlan], moved: dict[fx.Node, fx.Node]
) -> None:
    """Replace a region by calls of plans in a row, and note the nodes of its results."""
    subgraph = region.subgraph
    known = dict(
        zip(region.traced.input_names, (moved.get(one, one) for one in subgraph.inputs), strict=True)
    )
    for at in subgraph.channels_last:
        name = region.traced.input_names[at]
        with graph.inserting_after(_last_of(graph, [known[name]])):
            known[name] = _as_it_lies(graph, known[name])
    before: list[fx.Node] = []
    for plan in plans:
        before = [_call(graph, plan, known, before)]
    for result, name in zip(subgraph.results, region.names, strict=True):
        made = known[name]
        if result.back is not None:
            with graph.inserting_after(made):
                made = graph.call_function(torch.ops.aten.permute.default, (made, list(result.back)))
        made.meta = {**result.node.meta}
        result.node.replace_all_uses_with(made)
        moved[result.node] = made
    for node in reversed(subgraph.piece.nodes):
        if not node.users:
            graph.erase_node(node)


def _call(graph: fx.Graph, plan: RegionPlan, known: dict[str, fx.Node], before: Sequence[fx.Node]) -> fx.Node:
    """Put a call of a plan behind all that it reads and the calls before it, and return it.

    Its results are `known` by their names from now on.
    """
    plan.enter_graph()
    text, inputs = kept_plan(plan), [known[name] for name in plan.inputs]
    mode = detect_fake_mode([value_of(node) for node in inputs])
    with graph.inserting_after(_last_of(graph, [*inputs, *before])):
        call = add_call(graph, mode, REGION, text, inputs)
    point = call
    for at, name in enumerate(plan.outputs):
        with graph.inserting_after(point):
            point = known[name] = graph.call_function(operator.getitem, (call, at))
        point.meta["val"] = call.meta["val"][at]
    return call


def _last_of(graph: fx.Graph, nodes: Sequence[fx.Node]) -> fx.Node:
    """Return the last of some nodes, or the last input of a graph where they are inputs."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    last = max(nodes, key=order.__getitem__)
    return list(graph.find_nodes(op="placeholder"))[-1] if last.op == "placeholder" else last


def _as_it_lies(graph: fx.Graph, image: fx.Node) -> fx.Node:
    """Return an image under another name that says how it lies: so Inductor hands it to a call."""
    value = value_of(image)
    made = graph.call_function(torch.ops.aten.alias.default, (image,))
    mode = detect_fake_mode(value)
    assert mode is not None
    with mode:
        made.meta["val"] = value.new_empty_strided(value.shape, channels_last_strides(value.shape))
    return made
