"""Piece: the part of a joint graph around values that are larger than all that enters and leaves it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from math import prod

from torch import Tensor, fx

from superopt.backend.pieces import Piece
from superopt.backend.subgraph import Subgraph, subgraph_of
from superopt.rivals.aten import VIEWS, operator_name, role_of, tensors_in, value_of
from superopt.rivals.kinds import Kind

__all__ = ["bytes_made", "gate_of", "is_tangent", "large_groups", "piece_around"]


_MOVES = frozenset({"cat", "constant_pad_nd", "flip", "roll", "slice"})
"""Operators that move integers and masks along an axis: chunks along it cannot, and need not, do that."""

_PARTS = VIEWS | {"add", "clone", "index_put", "_unsafe_index_put"}
"""Operators that add parts, or only move them."""


def bytes_made(node: fx.Node) -> int:
    """Return the bytes of a node's tensor, 0 where it makes no single tensor of a known size."""
    value = value_of(node)
    if not isinstance(value, Tensor) or not all(isinstance(size, int) for size in value.shape):
        return 0
    return prod(value.shape) * value.element_size()


def is_tangent(node: fx.Node) -> bool:
    """Whether a node is the gradient of one of the program's results."""
    return role_of(node) == "tangents"


def gate_of(graph: fx.Graph) -> fx.Node | None:
    """Return the one number through which the gradients of results enter all tensors, if there is one."""
    tangents = {node for node in graph.nodes if is_tangent(node)}
    numbers = {node for node in _reach(tangents, lambda node: node.users) if _is_number(node)}
    gates = {node for node in numbers if any(user not in numbers for user in node.users)}
    return next(iter(gates)) if tangents <= numbers and len(gates) == 1 else None


def _is_number(node: fx.Node) -> bool:
    value = value_of(node)
    return isinstance(value, Tensor) and value.dim() == 0


def large_groups(graph: fx.Graph, limit_bytes: int) -> list[list[fx.Node]]:
    """Return groups of nodes of the graph's own with values of more bytes, that read one another.

    What enters the graph, as it is or as a view, is not its own, nor is what leaves it, or is only added to
    what leaves it; nor are constants. The group with the most bytes comes first.
    """
    outside = _leaving(graph) | set(graph.find_nodes(op="placeholder"))
    for node in graph.nodes:
        read = node.all_input_nodes
        if (
            node.op == "call_function"
            and (operator_name(node) in VIEWS or not read)
            and outside.issuperset(read)
        ):
            outside.add(node)
    large = [
        node
        for node in graph.nodes
        if node.op == "call_function" and node not in outside and bytes_made(node) > limit_bytes
    ]
    groups = list[set[fx.Node]]()
    members = set(large)
    while members:
        left = [members.pop()]
        groups.append(set(left))
        while left:
            node = left.pop()
            near = {*node.all_input_nodes, *node.users} & members
            members -= near
            groups[-1] |= near
            left += near
    groups.sort(key=lambda group: -sum(map(bytes_made, group)))
    return [[node for node in large if node in group] for group in groups]


def _leaving(graph: fx.Graph) -> set[fx.Node]:
    """Return what leaves a graph, and the parts of sums that leave it, as gradients of a tied weight are."""
    [output] = graph.find_nodes(op="output")
    leaving = set(output.all_input_nodes)
    for node in reversed(graph.nodes):
        sums = [one for one in node.users if one in leaving and operator_name(one) in _PARTS]
        if (
            node.users
            and len(sums) == len(node.users)
            and all(bytes_made(one) == bytes_made(node) for one in sums)
        ):
            leaving.add(node)
    return leaving


def piece_around(
    graph: fx.Graph, seeds: Iterable[fx.Node], gates: Collection[fx.Node], outside: Collection[str] = ()
) -> Subgraph:
    """Return the piece around some nodes, with what is made for it alone.

    Where there are gates, what is made of them for the piece, or of the piece alone, belongs to it, too.
    Gates stay outside, as does what is made for them alone. So do integers and masks that are moved, as by a
    loss that shifts labels, or that some operators make. Raise InputError where the piece cannot stand alone.
    """
    order = {node: at for at, node in enumerate(graph.nodes)}
    members = set(seeds)
    members |= {user for node in members for user in node.users if user.op == "call_function"}
    late, closed = _reach(gates, lambda node: node.users), set(gates)
    while True:
        after = _reach(members, lambda node: node.users)
        before = _reach(members, lambda node: [one for one in node.all_input_nodes if one not in closed])
        more = (after & before) | (before & late)  # what is made of gradients for the piece belongs to it
        # What else reads a cheap node for the piece would have to belong to it, too.
        for node in sorted(before - members, key=order.__getitem__, reverse=True):
            readers = before.intersection(node.users)
            if _is_cheap(node) and str(node.target) not in outside and readers <= members | more:
                more.add(node)
        more = {node for node in more if node.op == "call_function"} - members
        if not more:
            break
        members |= more
    if gates:
        _follow(members, order)
    kinds: dict[fx.Node, Kind] = dict.fromkeys(graph.nodes, "outside")
    kinds.update(dict.fromkeys(members, "compute"))
    return subgraph_of(Piece(tuple(sorted(members, key=order.__getitem__))), kinds)


def _reach(start: Iterable[fx.Node], step: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    found = set(start)
    left = list(found)
    while left:
        for near in step(left.pop()):
            if near not in found:
                found.add(near)
                left.append(near)
    return found


def _is_cheap(node: fx.Node) -> bool:
    """Whether a node is made of integers, masks and constants alone, each where it stands."""
    if node.op == "placeholder" or operator_name(node) in _MOVES:
        return False
    value = value_of(node)
    floats = [
        one
        for read in node.all_input_nodes
        for one in tensors_in(value_of(read))
        if one.dtype.is_floating_point
    ]
    return isinstance(value, Tensor) and not floats


def _follow(members: set[fx.Node], order: Mapping[fx.Node, int]) -> None:
    """Add what is computed of the piece's results, of constants and of masks of what enters, alone."""
    entering = {read for one in members for read in one.all_input_nodes} - members
    pending = sorted({user for one in members for user in one.users} - members, key=order.__getitem__)
    while pending:
        node = pending.pop(0)
        made = {
            one
            for one in node.all_input_nodes
            if one.op == "call_function"
            and _is_cheap(one)
            and entering.issuperset(one.all_input_nodes)
            and (not one.all_input_nodes or members.issuperset({*one.users} - {node}))
        }
        if node.op == "call_function" and node not in members and members | made >= set(node.all_input_nodes):
            members |= {node, *made}
            pending += sorted(node.users, key=order.__getitem__)
