"""Pass memory: which regions let a pass of a training step hold no more memory than Inductor's code of it.

A region reads memory over which Inductor's code may write, and what its kernels hand to each other lies in
memory, too. Whether a pass holds more for that, at the moment when it holds most, is told from its graph.
"""

import logging
from collections.abc import Callable, Sequence
from math import inf

import torch
from torch import Tensor, fx

from superopt.backend.checks.verdict import Taken
from superopt.backend.joint.memory.liveness import most_of_pass
from superopt.backend.joint.memory.peak import peak_bytes
from superopt.backend.region import Region
from superopt.backend.region_plan import REGION, plan_of
from superopt.cost.memory import available_bytes
from superopt.errors import kind_and_line
from superopt.rivals.aten import pass_of, role_of, tensors_in, value_of
from superopt.tune.measure import bytes_of

__all__ = ["regions_that_fit"]

log = logging.getLogger("superopt")

_FREE = 0.25  # the inputs of a region may take this share of the free memory

Replaced = Callable[[Taken], fx.Graph]
"""Returns the graph of a pass with some of its regions replaced by calls of their plans."""


def regions_that_fit(graph: fx.Graph, offered: Taken, replaced: Replaced) -> tuple[Taken, dict[str, str]]:
    """Return the regions with which a pass on a CPU holds no more than without any, and why others go.

    Regions that are taken come first, then those that gain most. The reasons are by the digests of the
    regions' keys.
    """
    if not offered or not _is_counted(graph):
        return offered, {}
    try:
        return _chosen(graph, offered, replaced)
    except Exception as error:  # regions stay where memory cannot be counted
        log.info("the memory of a pass is not counted: %s", kind_and_line(error))
        return offered, {}


def _chosen(graph: fx.Graph, offered: Taken, replaced: Replaced) -> tuple[Taken, dict[str, str]]:
    theirs = _most_bytes(graph, {})
    gains, taken, regions = dict[str, float](), set[str](), dict[str, Region]()
    for region, one in offered:
        plan = str(one.plan)
        regions.setdefault(plan, region)
        gains[plan] = gains.get(plan, 0.0) + (one.before_us or 0.0) - (one.after_us or 0.0)
        taken |= {plan} if one.taken else set()
    within = {plan: _bytes_within(region, plan) for plan, region in regions.items()}
    left, lost = set[str](), dict[str, str]()
    for plan in sorted(gains, key=lambda plan: (plan in taken, gains[plan]), reverse=True):
        tried = [one for one in offered if one[1].plan in left | {plan}]
        most = _most_bytes(replaced(tried), within)
        if most <= theirs:
            left.add(plan)
            continue
        told = f"the pass would hold {most / 2**20:.1f} MB with it instead of {theirs / 2**20:.1f}"
        lost |= {region.key.digest: told for region, one in offered if one.plan == plan}
    return [one for one in offered if one[1].plan in left], lost


def _is_counted(graph: fx.Graph) -> bool:
    """Whether a graph is a pass of a training step on a CPU, of known sizes."""
    tensors = [one for node in graph.nodes for one in tensors_in(value_of(node))]
    return pass_of(graph) != "inference" and all(
        one.device.type == "cpu" and all(isinstance(size, int) for size in one.shape) for one in tensors
    )


def _most_bytes(graph: fx.Graph, within: dict[str, int]) -> int:
    """Return the most bytes that a pass holds at once; calls of plans take so many bytes `within` them."""
    given = list(filter(_is_kept, graph.find_nodes(op="placeholder")))
    calls = graph.find_nodes(op="call_function", target=REGION)
    return most_of_pass(graph, given, {node: within.get(node.args[0], 0) for node in calls})


def _is_kept(node: fx.Node) -> bool:
    """Whether an input was kept for this pass alone, so that it can go after its last read."""
    return not role_of(node) and isinstance(value_of(node), Tensor)


def _bytes_within(region: Region, plan: str) -> int:
    """Return the bytes that a plan takes while it runs, beside those of its results."""
    example = region.subgraph.example()
    if bytes_of(example) > _FREE * (available_bytes() or inf):
        return 0
    inputs = [
        torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cpu").zero_() for one in example
    ]
    found = plan_of(plan)
    given = region.in_order(found.inputs, inputs)
    results: Sequence[Tensor] = ()

    def run() -> None:
        nonlocal results
        results = found(given)

    run()  # the first call makes what is made once, which does not count
    results = ()
    peak = peak_bytes(run)
    return max(0, (peak or 0) - bytes_of(results))
