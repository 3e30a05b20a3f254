"""Inductor time: about how long Inductor compiles a graph, before it does.

Inductor lowers a graph node by node, which takes little time, and compiles kernels, which takes most of it: a
few kernels that any model needs, and more for the operators that it fuses. Equal layers share their kernels.
"""

from collections.abc import Container

from torch import fx

from superopt.rivals.aten import MATMULS, VIEWS, is_attention, operator_name, value_of

__all__ = ["kernels_of", "node_seconds"]

_FEW, _MANY = (1.0, 0.33), (4.5, 0.07)  # kernels of a graph, and how many more for each fused operator
_LEAST_NODES = 60  # a smaller graph counts as this large, for the work that every graph takes once
_JOINT = 2.5  # nodes prepared for a forward graph and its backward graph, for each node of the forward graph
_LIBRARY_OPERATORS = MATMULS | {"convolution"}  # operators that Inductor calls a library for

NODES = 256
"""Nodes that Inductor lowers while it compiles a kernel."""


def node_seconds(graph: fx.Graph, prepared_s: float, *, joint: bool, alone: float = 1.0) -> float:
    """Return how long a node takes, of a graph that was prepared in so many seconds.

    `joint` says that the graph of its gradients was prepared with it, `alone` what share of
    the time it would have taken with nothing beside it.
    """
    nodes = max(len(graph.nodes), _LEAST_NODES) * (_JOINT if joint else 1.0)
    return prepared_s / nodes * alone


def kernels_of(graph: fx.Graph, *, without: Container[fx.Node] = ()) -> float:
    """Return about how many kernels Inductor compiles for a graph, or for the rest of it."""
    groups: dict[fx.Node, list[fx.Node]] = {}
    owner: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in without or node.op != "call_function" or value_of(node) is None or _is_called(node):
            continue
        group = [node]
        for first in {owner[read] for read in node.all_input_nodes if read in owner}:
            group += groups.pop(first)
        groups[node] = group
        owner.update(dict.fromkeys(group, node))
    different = {tuple(sorted(filter(None, map(_fused, group)))) for group in groups.values()}
    operators = sum(map(len, different))
    return min(base + each * operators for base, each in (_FEW, _MANY))


def _is_called(node: fx.Node) -> bool:
    return operator_name(node) in _LIBRARY_OPERATORS or is_attention(node)


def _fused(node: fx.Node) -> str | None:
    """Return the name of an operator, None for a view."""
    name = operator_name(node)
    return None if name in VIEWS else name
