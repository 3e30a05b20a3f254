"""Room: how much memory each region of a training step's pass may take, known before it is searched.

A region that is faster alone is of no use where the pass would hold more with it. What else lies in memory
while the region runs is told from the graph of the pass in which each region is one call.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import fx

from superopt.backend.checks.pass_memory import Replaced, is_counted, most_bytes
from superopt.backend.decision import Ledger
from superopt.backend.joint.memory.liveness import Around, around_calls
from superopt.backend.joint.memory.values import kept_inputs
from superopt.backend.region import Region, draft_of, in_room
from superopt.backend.region_plan import RegionPlan, drop_plan, kept_plan
from superopt.backend.subgraph import SubgraphRoom
from superopt.errors import kind_and_line
from superopt.rivals.aten import tensor_bytes, value_of
from superopt.targets import Target

__all__ = ["in_their_rooms"]

log = logging.getLogger("superopt")

_AMPLE = 2.0  # room for so many times what a region reads last and makes is no limit


def in_their_rooms(
    graph: fx.Graph, regions: Iterable[Region], replaced: Replaced, target: Target, ledger: Ledger
) -> Iterable[Region]:
    """Return the regions of a graph; those of a pass on a CPU with their room, where that may limit them."""
    if not is_counted(graph):
        return regions
    regions = list(regions)
    try:
        most = most_bytes(graph, {})
        around = _around(graph, regions, replaced)
    except Exception as error:  # regions without a limit are judged by what they hold, later
        log.info("the room of regions is not known: %s", kind_and_line(error))
        return regions
    found = []
    for region, beside in zip(regions, around, strict=True):
        room = _room(region, most, beside) if beside else None
        found.append(region if room is None else in_room(region, room, target, ledger))
    return found


def _around(graph: fx.Graph, regions: Sequence[Region], replaced: Replaced) -> list[Around | None]:
    """Return what lies in memory around each region where all regions are calls, of plans without kernels."""
    plans = [RegionPlan(region.goal, f"none, {at}", {}) for at, region in enumerate(regions)]
    texts = [kept_plan(plan) for plan in plans]
    try:
        calls = [(one, replace(draft_of(one), plan=text)) for one, text in zip(regions, texts, strict=True)]
        graph = replaced(calls)
        found = {node.args[0]: one for node, one in around_calls(graph, kept_inputs(graph)).items()}
    finally:
        for text in texts:
            drop_plan(text)
    return [found.get(text) for text in texts]


def _room(region: Region, most: int, around: Around) -> SubgraphRoom | None:
    """Return the room of a region in a pass that holds so much at most, or None where it is ample."""
    inputs = region.goal.inputs
    places = sorted(region.traced.input_names.index(inputs[at].name) for at in around.ending)
    read = sum(tensor_bytes(value_of(region.subgraph.inputs[at])) for at in places)
    own = read + sum(tensor_bytes(value_of(one.node)) for one in region.subgraph.results)
    left = most - around.bytes
    if left >= _AMPLE * own:
        return None
    return SubgraphRoom(left, tuple(places))
