"""Entry: what `torch.compile(model, backend="superopt")` calls for every graph."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from superopt.backend.decision import Ledger
from superopt.backend.graphpass import RegionPass
from superopt.backend.hosting import with_inductor
from superopt.backend.options import mode_options, read_options

__all__ = ["compile_graph", "explain", "ledger_of"]

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
    quick. With gradients enabled, the graphs of the backward pass are explained too.
    """
    import torch

    given = dict(options or {})
    ledger = Ledger(read_options(given))

    def compile_here(module: fx.GraphModule, values: Sequence[Any], **unused: Any) -> Callable[..., Any]:
        return _compiled(module, values, ledger, fx_graph_cache=False, force_disable_caches=True)

    torch.compile(model, backend=compile_here)(*inputs)
    return ledger.text()


def _compiled(
    module: fx.GraphModule, inputs: Sequence[Any], ledger: Ledger, **patches: Any
) -> Callable[..., Any]:
    patches = {**patches, **ledger.options.inductor, "post_grad_custom_pre_pass": RegionPass(ledger)}
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
