"""Entry: what `torch.compile(model, backend="superopt")` calls for every graph."""

import inspect
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from superopt.backend.choice import line_of
from superopt.backend.decision import Ledger
from superopt.backend.graphpass import PASS, RegionPass, passes_of
from superopt.backend.hosting import with_inductor
from superopt.backend.options import mode_options, read_options

__all__ = ["compile_graph", "explain", "ledger_of"]

log = logging.getLogger("superopt")

_LEDGERS: dict[int, tuple[Mapping[str, Any], Ledger]] = {}
"""By the identity of the dict of options, which is one for all graphs of a call of torch.compile."""


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
    return _compiled(module, inputs, ledger_of(options, mode))


def explain(model: Callable[..., Any], *inputs: Any, options: Mapping[str, Any] | None = None) -> str:
    """Return, in plain text, what the backend does with each region of a model on inputs like these.

    The model is compiled anew and run once; what earlier runs found is used, so that a second call is
    quick. With gradients enabled, the graphs of the backward pass are explained too, which is run once
    where a result has a gradient; no tensor's `grad` changes.
    """
    ledger = Ledger(read_options(dict(options or {})))

    def compile_here(module: fx.GraphModule, values: Sequence[Any], **unused: Any) -> Callable[..., Any]:
        return _compiled(module, values, ledger, fx_graph_cache=False, force_disable_caches=True)

    # What is compiled here must not count among the sizes for which the user's own model is compiled.
    isolated: dict[str, Any] = {}
    limits: dict[str, int] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        isolated["isolate_recompiles"] = True
    else:
        limits["recompile_limit"] = sys.maxsize
    with torch._dynamo.config.patch(limits):
        made = torch.compile(model, backend=compile_here, **isolated)(*_detached(inputs))
    try:
        _run_backward(made)
    except RuntimeError as error:  # of a model whose gradients PyTorch cannot compute
        log.warning("the backward pass is not explained: %s", line_of(error))
    return ledger.text()


def _detached(inputs: tuple[Any, ...]) -> Any:
    """Return inputs of which no graph of the user's is run backward, and thereby used up."""

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


def _compiled(
    module: fx.GraphModule, inputs: Sequence[Any], ledger: Ledger, **patches: Any
) -> Callable[..., Any]:
    patches = {**patches, **ledger.options.inductor}
    theirs = patches.get(PASS, getattr(torch._inductor.config, PASS))
    patches[PASS] = RegionPass(ledger, passes_of(theirs))
    ledger.entered = time.monotonic()
    return with_inductor(module, inputs, patches)


def ledger_of(options: Mapping[str, Any] | None, mode: str | None = None) -> Ledger:
    """Return what was decided so far for a dict of options, the very one that torch.compile was given."""
    if not options:
        settings = read_options(options)
        if mode is not None:  # what Inductor is told for the graph, it is told for each region
            settings = replace(settings, inductor=mode_options(mode))
        return Ledger(settings)
    known = _LEDGERS.get(id(options))
    if known is None:
        known = _LEDGERS[id(options)] = options, Ledger(read_options(options))
    return known[1]
