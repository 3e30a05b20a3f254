"""Pass memory: which regions let a pass of a training step hold no more memory than Inductor's code of it.

A region reads memory over which Inductor's code may write, and what its kernels hand to each other lies in
memory, too. Whether a pass holds more for that, at the moment when it holds most, is told from its graph.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import torch
from torch import Tensor, fx

from superopt.backend.checks.verdict import Taken
from superopt.backend.decision import Decision
from superopt.backend.joint.memory.liveness import most_of_pass
from superopt.backend.joint.memory.peak import peak_bytes
from superopt.backend.joint.memory.values import kept_inputs
from superopt.backend.region import Region
from superopt.backend.region_plan import REGION, RegionPlan, plan_of
from superopt.codegen.statements import contiguous_strides
from superopt.cost.memory import available_bytes
from superopt.errors import kind_and_line
from superopt.ir import Graph
from superopt.rivals.aten import pass_of, tensors_in, value_of
from superopt.trace.run import TORCH_DTYPES
from superopt.tune.measure import bytes_of

__all__ = ["Replaced", "is_counted", "most_bytes", "regions_that_fit"]

log = logging.getLogger("superopt")

_FREE = 0.25  # the inputs of a region may take this share of the free memory

Replaced = Callable[[Taken], fx.Graph]
"""Returns the graph of a pass with some of its regions replaced by calls of their plans."""


def regions_that_fit(graph: fx.Graph, offered: Taken, replaced: Replaced) -> tuple[Taken, dict[str, str]]:
    """Return the regions with which a pass on a CPU holds no more than without any, and why others go.

    Regions that are taken come first, then those that gain most. The reasons are by the digests of the
    regions' keys.
    """
    if not offered or not is_counted(graph):
        return offered, {}
    try:
        return _chosen(graph, offered, replaced)
    except Exception as error:  # regions stay where memory cannot be counted
        log.info("the memory of a pass is not counted: %s", kind_and_line(error))
        return offered, {}


def _chosen(graph: fx.Graph, offered: Taken, replaced: Replaced) -> tuple[Taken, dict[str, str]]:
    theirs = most_bytes(graph, {})
    within: dict[str, int] = {}
    staying: list[tuple[Region, Decision]] = []
    lost: dict[str, str] = {}
    for plan, alike in _most_gain_first(offered):
        for apart in (False, True):
            tried = [(region, replace(one, apart=apart)) for region, one in alike]
            calls = plan_of(plan).apart() if apart else [plan_of(plan)]
            if apart and len(calls) == 1:
                break
            within |= {one.text: _bytes_within(one) for one in calls if one.text not in within}
            most = most_bytes(replaced([*staying, *tried]), within)
            if most <= theirs:
                staying += tried
                break
        else:
            told = f"the pass would hold {most / 2**20:.1f} MB with it instead of {theirs / 2**20:.1f}"
            lost |= {region.key.digest: told for region, _ in alike}
    at = {id(region): number for number, (region, _) in enumerate(offered)}
    return sorted(staying, key=lambda one: at[id(one[0])]), lost


def _most_gain_first(offered: Taken) -> list[tuple[str, Taken]]:
    """Return the plans, each with its regions: taken ones first, then those that gain most."""
    alike: dict[str, list[tuple[Region, Decision]]] = {}
    for region, one in offered:
        alike.setdefault(str(one.plan), []).append((region, one))

    def order(plan: str) -> tuple[bool, float]:
        gains = ((one.before_us or 0.0) - (one.after_us or 0.0) for _, one in alike[plan])
        return any(one.taken for _, one in alike[plan]), sum(gains)

    return [(plan, alike[plan]) for plan in sorted(alike, key=order, reverse=True)]


def is_counted(graph: fx.Graph) -> bool:
    """Whether a graph is a pass of a training step on a CPU, of known sizes."""
    tensors = [one for node in graph.nodes for one in tensors_in(value_of(node))]
    return pass_of(graph) != "inference" and all(
        one.device.type == "cpu" and all(isinstance(size, int) for size in one.shape) for one in tensors
    )


def most_bytes(graph: fx.Graph, within: dict[str, int]) -> int:
    """Return the most bytes that a pass holds at once; calls of plans take so many bytes `within` them."""
    calls = graph.find_nodes(op="call_function", target=REGION)
    return most_of_pass(graph, kept_inputs(graph), {node: within.get(node.args[0], 0) for node in calls})


def _bytes_within(plan: RegionPlan) -> int:
    """Return the bytes that a plan takes while it runs, beside those of its results."""
    if bytes_of(_blank_inputs(plan.goal, "meta")) > _FREE * (available_bytes() or inf):
        return 0
    given = [one.zero_() for one in _blank_inputs(plan.goal, "cpu")]
    results: Sequence[Tensor] = ()

    def run() -> None:
        nonlocal results
        results = plan(given)

    run()  # the first call makes what is made once, which does not count
    results = ()
    peak = peak_bytes(run)
    return max(0, (peak or 0) - bytes_of(results))


def _blank_inputs(graph: Graph, device: str) -> list[Tensor]:
    """Return tensors for the inputs of a graph, whatever is in them."""
    made = [(graph.shape(port), port.strides, TORCH_DTYPES[port.dtype]) for port in graph.inputs]
    return [
        torch.empty_strided(shape, strides or contiguous_strides(shape), dtype=dtype, device=device)
        for shape, strides, dtype in made
    ]
