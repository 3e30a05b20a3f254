"""Placement: where in a backward pass a gradient is made to which rows are added later.

As soon as such a product is made, what it reads may go. But it lies in memory itself from then on, while most
is still held for other layers. Autograd makes it early; Inductor, which makes one call of the product and the
sum, at the end. Here it is made where the pass holds less.
"""

import logging
from typing import Any

from torch import fx

from superopt.backend.joint.accumulate import adds_rows
from superopt.backend.joint.memory.liveness import most_of_pass
from superopt.backend.joint.memory.values import is_view, kept_inputs
from superopt.errors import kind_and_line

__all__ = ["place_products"]

log = logging.getLogger("superopt")


def place_products(module: fx.GraphModule) -> int:
    """Make products late to which rows are added, where a backward pass holds less so; return how many."""
    try:
        moved = sum(_is_moved(module.graph, node) for node in list(module.graph.nodes) if adds_rows(node))
    except Exception as error:  # the graph computes the same in any of these orders
        log.warning("the order of a backward pass is left as it is: %s", kind_and_line(error))
        moved = 1
    if moved:
        module.recompile()
    return moved


def _is_moved(graph: fx.Graph, rows: fx.Node) -> bool:
    """Move what some rows are added to before them, if the pass holds less then."""
    made: Any = rows.args[0]
    chain: list[fx.Node] = [made]
    while is_view(chain[0]):
        chain.insert(0, chain[0].all_input_nodes[0])
    if chain[0].op != "call_function" or any(len(one.users) != 1 for one in chain):
        return False
    most, following = _most(graph), [one.next for one in chain]
    for one in chain:
        rows.prepend(one)
    if _most(graph) < most:
        return True
    for one, place in reversed(list(zip(chain, following, strict=True))):
        place.prepend(one)
    return False


def _most(graph: fx.Graph) -> int:
    return most_of_pass(graph, kept_inputs(graph), {})
