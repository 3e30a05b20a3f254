"""Entry: what `torch.compile(model, backend="superopt")` calls for every graph."""

import inspect
import logging
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from superopt.backend.budget import FIRST_S
from superopt.backend.cache import graph_key, is_seen, note_seen, waiting_in
from superopt.backend.checks.uncompiled import EagerGraph
from superopt.backend.decision import Ledger
from superopt.backend.deferred.live import Waiting, place_of_compilation, with_take_up
from superopt.backend.deferred.mode import Mode, mode_of
from superopt.backend.graphpass import RegionPass, passes_of, watched_of
from superopt.backend.joint.double_backward import with_double_backward
from superopt.backend.joint.joint_pass import JointPass
from superopt.backend.joint.partition import Partitioner
from superopt.backend.options import BackendOptions, mode_options, read_options
from superopt.cache import Key
from superopt.errors import first_line, kind_and_line
from superopt.funnel.warm_up import WarmUp
from superopt.rivals.inductor import JOINT_PASS, PARTITIONER, PASS, changed_settings, with_inductor
from superopt.rivals.rivals import apart_from_others
from superopt.targets import pick_target
from superopt.tune.allocator import keep_freed_memory

__all__ = ["compile_graph", "explain", "ledger_of"]

log = logging.getLogger("superopt")

_PRODUCTS = ("linear", "matmul", "mm", "attention", "einsum")  # parts of names of operators


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of torch.compile with options: the options, how they were read, and the decisions since."""

    options: Mapping[str, Any]
    read: BackendOptions
    ledger: Ledger


_CALLS: dict[int, _Call] = {}
"""Calls by the identity of the object that torch.compile made of its arguments, as long as it lives."""


def compile_graph(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **unused: Any,
) -> Callable[..., Any]:
    """Compile a graph: superopt the regions where it is measured to be faster, Inductor the rest.

    `options` are those of `BackendOptions`; `mode` is one of Inductor's, which it gets.
    """
    keep_freed_memory()
    ledger = _ledger_of_call(options, mode)
    deferring = mode_of(ledger.options)
    # Compiling may change the graph, so its key and a copy of it are taken before.
    key = graph_key(module, inputs, ledger.options) if deferring != "off" else None
    differentiable = with_double_backward(module) if _is_differentiated(inputs) else None
    eager = EagerGraph.of(module, inputs, ledger, key) if key is not None and differentiable is None else None
    compiled, region_pass = _compile_or_leave(module, inputs, ledger, eager)
    if key is not None:
        compiled = _follow_up(compiled, region_pass, key, ledger, deferring)
    return compiled if differentiable is None else differentiable(compiled)


def _compile_or_leave(
    module: fx.GraphModule, inputs: Sequence[Any], ledger: Ledger, eager: EagerGraph | None
) -> tuple[Callable[..., Any], RegionPass | None]:
    """Return a compiled graph and the pass that saw it, or the graph as eager PyTorch runs it if faster."""
    if eager is not None and eager.is_known_faster():
        return eager.run, None
    start = time.monotonic()
    compiled, region_pass = _compile(module, inputs, ledger)
    if eager is not None and eager.is_faster(compiled, time.monotonic() - start):
        return eager.run, region_pass
    return compiled, region_pass


def _is_differentiated(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in inputs)


def _follow_up(
    compiled: Callable[..., Any], region_pass: RegionPass | None, key: Key, ledger: Ledger, mode: Mode
) -> Callable[..., Any]:
    """Return a graph that takes up better kernels as they are found, after noting which of its regions wait.

    The note serves later processes, which get the graph from Inductor's cache.
    """
    place = place_of_compilation() if mode == "background" else None
    graph = Waiting(place, ledger) if place is not None else None

    def note() -> None:
        try:
            if region_pass is not None and region_pass.pending is not None:
                note_seen(key, region_pass.pending.values())
            if graph is not None:
                graph.add(waiting_in(key))
        except Exception as error:  # no fault here may stop a model that is compiled already
            log.warning("no better kernels will be used in this run: %s", kind_and_line(error))

    note()
    was_seen = region_pass is not None and region_pass.pending is not None
    differentiated = was_seen and torch.is_grad_enabled()
    if region_pass is not None:
        region_pass.on_waiting = note  # the backward graph is compiled later
    return with_take_up(compiled, graph) if graph is not None and (graph.keys or differentiated) else compiled


def explain(model: Callable[..., Any], *inputs: Any, options: Mapping[str, Any] | None = None) -> str:
    """Return, in plain text, what the backend does with each region of a model on inputs like these.

    The model is compiled anew and run once; what earlier runs found is used, so that a second call is
    quick. With gradients enabled, the graphs of the backward pass are explained too, which is run once
    where a result has a gradient; no tensor's `grad` changes.
    """
    ledger = Ledger(_with_settings(read_options(options)))

    def compile_here(module: fx.GraphModule, values: Sequence[Any], **unused: Any) -> Callable[..., Any]:
        if not _is_differentiated(values):
            key = graph_key(module, values, ledger.options)
            eager = EagerGraph.of(module, values, ledger, key)
            if eager is not None:
                eager.is_known_faster()  # which the ledger notes
        return _compile(module, values, ledger, fx_graph_cache=False, force_disable_caches=True)[0]

    # What is compiled here must not count among the sizes for which the user's own model is compiled.
    isolated = apart_from_others()
    limits = {} if isolated else {"recompile_limit": sys.maxsize}
    with torch._dynamo.config.patch(limits):
        made = torch.compile(model, backend=compile_here, **isolated)(*_as_leaves(inputs))
    try:
        _run_backward(made)
    except RuntimeError as error:  # PyTorch cannot compute the gradients of every model
        log.warning("the backward pass is not explained: %s", first_line(error))
    return ledger.text()


def _as_leaves(inputs: tuple[Any, ...]) -> Any:
    """Return inputs without a history: running backward through the user's graph would use it up."""

    def leaf(tensor: Tensor) -> Tensor:
        return tensor if tensor.is_leaf else tensor.detach().requires_grad_(tensor.requires_grad)

    return tree_map_only(Tensor, leaf, inputs)


def _run_backward(made: Any) -> None:
    """Compute the gradients of results: PyTorch compiles a backward graph when it is first called."""
    results = [one for one in tree_leaves(made) if isinstance(one, Tensor) and one.grad_fn is not None]
    seen, left, leaves = set(), [one.grad_fn for one in results], {}
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [before for before, _ in node.next_functions]
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            leaves[id(variable)] = variable
    if leaves:
        ones = [torch.ones_like(one) for one in results]
        torch.autograd.grad(results, list(leaves.values()), ones, allow_unused=True)


def _compile(
    module: fx.GraphModule, inputs: Sequence[Any], ledger: Ledger, **patches: Any
) -> tuple[Callable[..., Any], RegionPass]:
    """Let Inductor compile a graph with superopt's passes; return the result, and the pass over its regions.

    The pass sees no graph that Inductor has in its cache.
    """
    patches = {**patches, **ledger.options.inductor}
    users_pass = patches.get(PASS, getattr(torch._inductor.config, PASS))
    with WarmUp() as warm_up:
        with ledger.spending():
            _start_early(warm_up, module, inputs, ledger.options)
        ours = patches[PASS] = RegionPass(ledger, passes_of(users_pass), warm_up, watched_of(inputs))
        users_joint_pass = patches.get(JOINT_PASS, getattr(torch._inductor.config, JOINT_PASS))
        joint = patches[JOINT_PASS] = JointPass(ledger, ours, passes_of(users_joint_pass))
        splits = patches.get(PARTITIONER, getattr(torch._inductor.config, PARTITIONER, None))
        if splits is None or isinstance(splits, Partitioner):  # another thread may have put ours there
            patches[PARTITIONER] = Partitioner(ledger, joint)
        ledger.entered = time.thread_time()
        try:
            return with_inductor(module, inputs, patches), ours
        finally:
            ours.warm_up = None  # it has ended before the backward graph is compiled


def _start_early(
    warm_up: WarmUp, module: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions
) -> None:
    """Start background work that regions will need, if the graph may have regions worth it."""
    if options.budget_s == 0 or not multiplies(module):
        return
    try:
        target = pick_target("auto")
        warm_up.share(target, [*inputs, *module.parameters()])
        if options.cache:
            key = graph_key(module, inputs, options)
            if is_seen(key):
                return
            note_seen(key)
        if options.budget_s is None or options.budget_s >= FIRST_S:
            warm_up.first_runs(target)
    except Exception as error:  # regions that need it fail with the same error, and are left to Inductor
        log.info("no work is started early: %s", first_line(error))


def multiplies(module: fx.GraphModule) -> bool:
    """Whether a module of dynamo's calls for a product of matrices."""
    called = [str(node.target) for node in module.graph.nodes if node.op.startswith("call")]
    return any(name in target for target in called for name in _PRODUCTS)


def ledger_of(options: Mapping[str, Any]) -> Ledger:
    """Return the ledger of the last call of torch.compile that got this very dict of options."""
    for call in reversed(_CALLS.values()):
        if call.options is options:
            return call.ledger
    return Ledger(read_options(options))


def _ledger_of_call(options: Mapping[str, Any] | None, mode: str | None) -> Ledger:
    """Return the ledger of the call of torch.compile that a graph comes from, a new one if it has none yet.

    Without options, each graph has its own.
    """
    settings = read_options(options)
    if mode is not None:  # Inductor's options for the graph hold for each region as well
        settings = replace(settings, inductor=mode_options(mode))
    settings = _with_settings(settings)
    owner = _call_object() if options else None
    if options is None or owner is None:
        return Ledger(settings)
    known = _CALLS.get(id(owner))
    if known is None or known.read != settings:  # a dict of options may change between two graphs
        if known is None:
            weakref.finalize(owner, _CALLS.pop, id(owner), None)
        known = _CALLS[id(owner)] = _Call(options, settings, Ledger(settings))
    return known.ledger


def _with_settings(options: BackendOptions) -> BackendOptions:
    """Return options with the settings of Inductor that hold for the whole program: races depend on them."""
    return replace(options, inductor={**changed_settings(), **options.inductor})


def _call_object() -> Any:
    """Return what torch.compile made of its arguments: an object for each call, that hands us the graph.

    One dict of options may be given to many calls, and PyTorch tells a backend nothing else of them.
    """
    wrapper = getattr(torch, "_TorchCompileWrapper", None)
    frame = inspect.currentframe()
    while wrapper is not None and frame is not None:
        if frame.f_code is wrapper.__call__.__code__:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None
