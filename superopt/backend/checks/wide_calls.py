"""Wide calls: a graph's library calls in half precision that are computed in float32, as that is faster.

They are what regions leave to PyTorch. In a pass of a training step, they take no more memory than there is
while they run.
"""

import logging
from collections.abc import Sequence
from math import inf

from torch import fx

from superopt.backend.checks.pass_memory import is_counted
from superopt.backend.decision import Decision, Ledger
from superopt.backend.joint.memory.liveness import room_beside
from superopt.backend.joint.memory.values import kept_inputs
from superopt.errors import kind_and_line
from superopt.rivals.aten import operator_name, operators_text, pass_of, tensor_bytes, tensors_in, value_of
from superopt.rivals.inductor import alone
from superopt.rivals.wide.calls import GROUPED, PRODUCTS, make_kernels, may_be_wide, put_wide
from superopt.rivals.wide.choice import is_faster_wide, is_left, learn_speeds, speed_of
from superopt.rivals.wide.products import MOST_BYTES

__all__ = ["learn_wide_calls", "put_wide_calls"]

log = logging.getLogger("superopt")

_LEARNING_S = 3.0  # of a budget that the user gives, seconds of races
_MARGIN = 2.0  # what a pass holds is told from its graph, and may be more
_LEAST_BYTES = 1 << 18  # a product takes so much even where there is no room


def learn_wide_calls(graph: fx.Graph, ledger: Ledger) -> None:
    """Time the calls of a graph that may be computed in float32, where no run before did."""
    if not any(map(may_be_wide, graph.nodes)):
        return
    options = ledger.options
    seconds = _LEARNING_S if options.budget_s else 0.0 if options.budget_s == 0 else inf
    try:
        with ledger.spending():
            alone(lambda: learn_speeds(graph, cached=options.cache, racing_s=seconds))
    except Exception as error:  # what is not known stays in half precision
        log.info("calls of a graph are not timed in float32: %s", kind_and_line(error))


def put_wide_calls(graph: fx.Graph, ledger: Ledger, title: str) -> None:
    """Let a graph compute calls in float32 that are faster so, as far as there is room."""
    nodes = [node for node in graph.nodes if is_faster_wide(node) and not is_left(node, {})]
    rooms: dict[fx.Node, int] = {}
    if nodes and is_counted(graph):
        nodes, rooms = _with_room(graph, nodes, scarce=ledger.options.memory != "fast")
    if not nodes:
        return
    text, calls = operators_text(nodes), len(nodes)
    speed = calls / sum(1 / speed_of(node) for node in nodes)
    put_wide(graph, nodes, rooms)
    ledger.note(Decision(text, "", True, f"in float32, which is {speed:.1f} times as fast here"), title)
    try:
        with ledger.spending():
            alone(lambda: make_kernels(graph))
    except Exception as error:  # the first call of the graph makes them, or does without
        log.info("kernels of products are not made ahead: %s", kind_and_line(error))


def _with_room(
    graph: fx.Graph, nodes: Sequence[fx.Node], *, scarce: bool
) -> tuple[list[fx.Node], dict[fx.Node, int]]:
    """Return the calls that a pass has room for in float32, and how many bytes products may hold.

    Where memory is `scarce`, products take as little as they can, and others need a margin.
    """
    rooms = room_beside(graph, kept_inputs(graph), gradients=pass_of(graph) == "backward")
    products = {
        node: _LEAST_BYTES if scarce else min(max(rooms.get(node, 0), _LEAST_BYTES), MOST_BYTES)
        for node in nodes
        if operator_name(node) in PRODUCTS
    }
    margin = _MARGIN if scarce else 1.0
    fits = [
        node for node in nodes if node in products or margin * _converted_bytes(node) <= rooms.get(node, 0)
    ]
    return fits, products


def _converted_bytes(node: fx.Node) -> int:
    """Return the bytes that are converted at once of what a call reads and makes in half precision."""
    if operator_name(node) == GROUPED:
        return MOST_BYTES
    tensors = [one for each in (*node.all_input_nodes, node) for one in tensors_in(value_of(each))]
    return sum(2 * tensor_bytes(one) for one in tensors if one.itemsize == 2)
