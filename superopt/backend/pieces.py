"""Pieces: connected, convex parts of a graph that may become regions, cut where few tensors are live."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, fx

from superopt.rivals.aten import (
    VIEWS,
    bytes_of,
    flops_of,
    heavy,
    is_attention,
    is_dense,
    is_matmul,
    is_maximum,
    is_window,
    operator_name,
    value_of,
)
from superopt.rivals.composites import is_part
from superopt.rivals.kinds import Kind

__all__ = ["SOON", "Piece", "mostly_attention", "pieces_of", "reads_of", "why_no_search"]

SOON = 5
"""The matmuls and reductions of a piece up to which a search ends soon and kernels compile fast."""

_MERGED = 6  # matmuls and reductions up to which neighbours become one piece
_MOST_HEAVY = 8  # a piece of more matmuls and reductions is cut where the fewest tensors are live
_MOST_NODES = 120
_AVERAGES = frozenset({"mean", "var", "var_mean", "std", "std_mean"})
_NORMS = frozenset({"native_layer_norm", "_fused_rms_norm"})
_SOFTMAX = ("amax", "_softmax", "_safe_softmax", "max")  # operators of a softmax
_FEW_ROWS = 16  # operations for each byte, below which a matmul waits for memory, as libraries may too long
# A matmul that reads so much, as the head of a language model, is worth a search by itself.
_LONG_BYTES = 1 << 20
_NEVER = 1000  # the count of live tensors that forbids a cut, between a tuple and its items


@dataclass(frozen=True, slots=True)
class Piece:
    """Computing nodes of a graph in order; a view between them belongs to the piece that reads it."""

    nodes: tuple[fx.Node, ...]

    @property
    def heavy(self) -> int:
        """How many matmuls and reductions there are."""
        return sum(map(heavy, self.nodes))


def pieces_of(graph: fx.Graph, kinds: Mapping[fx.Node, Kind]) -> list[Piece]:
    """Return all pieces, in order; together they hold every computing node once.

    A value made before any matmul or reduction, such as a mask, is part of the piece that alone reads it; if
    several pieces read it, it is a piece by itself. So equal layers are equal pieces.
    """
    late = _late(graph)
    streams = _streams(graph, kinds, late)
    groups = [[node for node in group if node in late] for group in _groups(graph, kinds, late)]
    parts = [part for group in groups if group for part in _cut(group, kinds, streams)]
    order = {node: at for at, node in enumerate(graph.nodes)}
    found = [sorted(part, key=order.__getitem__) for part in _with_early(graph, parts, kinds, late)]
    within = {node for part in found for node in part}
    apart: dict[fx.Node, Kind] = {node: "outside" if node in within else kind for node, kind in kinds.items()}
    found += _groups(graph, apart, apart)
    return [Piece(tuple(part)) for part in sorted(found, key=lambda part: order[part[0]])]


def why_no_search(piece: Piece) -> str | None:
    """Return why Inductor's code of a piece is good enough, or None where a search may find better code."""
    matmuls = sum(map(is_matmul, piece.nodes))
    if piece.heavy == 1 and any(map(is_maximum, piece.nodes)) and _reads_what_is_made(piece):
        return "one pool, which Inductor fuses with what makes its image"
    if any(map(is_attention, piece.nodes)) or any(map(is_window, piece.nodes)):
        return None
    if piece.heavy == 0:
        return "one pointwise chain"
    if matmuls == 1 and len(piece.nodes) == 1 and not _waits_for_memory(piece.nodes[0]):
        return "one matmul"
    if matmuls == 0 and piece.heavy == 1 and not any(map(is_part, piece.nodes)):
        return "one reduction and what is pointwise around it"
    return None


def mostly_attention(piece: Piece) -> bool:
    """Whether a piece is little more than attention, of which a search soon makes one kernel."""
    softmax = any(operator_name(node) in _SOFTMAX for node in piece.nodes)
    product = any(map(is_matmul, piece.nodes))
    return piece.heavy <= SOON and ((softmax and product) or any(map(is_attention, piece.nodes)))


def _reads_what_is_made(piece: Piece) -> bool:
    """Whether a piece reads what pointwise operators outside of it make."""
    read = {one for node in piece.nodes for one in node.all_input_nodes}.difference(piece.nodes)
    computed = {one for one in read if one.op == "call_function" and not heavy(one)}
    return any(name is not None and name not in VIEWS for name in map(operator_name, computed))


def _waits_for_memory(matmul: fx.Node) -> bool:
    """Whether a matmul is of few rows and a large matrix."""
    moved = bytes_of(matmul)
    return moved >= _LONG_BYTES and flops_of(matmul) < _FEW_ROWS * moved


def reads_of(node: fx.Node, kinds: Mapping[fx.Node, Kind]) -> Iterable[fx.Node]:
    """Return the nodes that one reads, through views, which are computed or come from outside."""
    return _through_views(node, kinds, lambda one: one.all_input_nodes)


def _users_of(node: fx.Node, kinds: Mapping[fx.Node, Kind]) -> Iterable[fx.Node]:
    """Return the nodes that read a node, directly or through views."""
    return _through_views(node, kinds, lambda one: one.users)


def _through_views(
    node: fx.Node, kinds: Mapping[fx.Node, Kind], next_to: Callable[[fx.Node], Iterable[fx.Node]]
) -> Iterable[fx.Node]:
    for one in next_to(node):
        if kinds[one] == "free":
            yield from _through_views(one, kinds, next_to)
        else:
            yield one


def _with_early(
    graph: fx.Graph, parts: list[list[fx.Node]], kinds: Mapping[fx.Node, Kind], late: Container[fx.Node]
) -> list[list[fx.Node]]:
    """Return parts with the nodes before them that no other part reads, unless equal parts lack them."""
    owner = {node: at for at, part in enumerate(parts) for node in part}
    before: list[list[fx.Node]] = [[] for _ in parts]
    for node in reversed(graph.nodes):
        readers = {owner.get(user) for user in _users_of(node, kinds)}
        [only] = readers if len(readers) == 1 else [None]
        if kinds[node] == "compute" and node not in late and only is not None:
            owner[node] = only
            before[only].insert(0, node)
    alike = {_operators([*first, *part]) for first, part in zip(before, parts, strict=True)}
    found = []
    for first, part in zip(before, parts, strict=True):
        less = (first[at:] for at in range(1, len(first) + 1))
        same = next((one for one in less if _operators([*one, *part]) in alike), first)
        found.append([*same, *part] if len(same) + len(part) <= _MOST_NODES else part)
    return found


def _operators(nodes: Iterable[fx.Node]) -> frozenset[tuple[str | None, int]]:
    """Return how often each operator is among nodes."""
    return frozenset(Counter(map(operator_name, nodes)).items())


def _late(graph: fx.Graph) -> set[fx.Node]:
    """Return the matmuls, the reductions, and all nodes after them."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if heavy(node) or any(read in found for read in node.all_input_nodes):
            found.add(node)
    return found


def _streams(graph: fx.Graph, kinds: Mapping[fx.Node, Kind], late: Container[fx.Node]) -> list[set[fx.Node]]:
    """Return the late readers of each early value that a reduction reads, as a model's first norm does.

    Later layers read the values of the layer before, and an early value is live in the same way.
    """
    readers: dict[fx.Node, set[fx.Node]] = {}
    for node in reversed(graph.nodes):
        if node not in late and kinds[node] != "free":
            found = readers[node] = set()
            for user in _users_of(node, kinds):
                found |= {user} if user in late else readers[user] if kinds[user] == "compute" else set()
    return [
        found
        for found in readers.values()
        if any(heavy(one) and not is_matmul(one) and not is_attention(one) for one in found)
    ]


def _groups(graph: fx.Graph, kinds: Mapping[fx.Node, Kind], late: Container[fx.Node]) -> list[list[fx.Node]]:
    """Return the computing nodes in connected groups; no path leaves the late nodes of a group and reenters.

    A node's level is the largest number of changes from late to outside on any way to it, so a way
    through the outside never comes back to its level; within one level, connected nodes are a group.
    """
    level: dict[fx.Node, int] = {}
    group: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        reads = list(reads_of(node, kinds))
        inside = kinds[node] == "compute"
        level[node] = max((level[one] for one in reads), default=0)
        if not inside:
            came = [level[one] + 1 for one in reads if kinds[one] == "compute" and one in late]
            level[node] = max([level[node], *came])
            continue
        own = [node]
        group[node] = own
        for one in reads:
            other = group.get(one)
            if other is not None and level[one] == level[node] and other is not own:
                small, large = sorted((own, other), key=len)
                large.extend(small)
                group.update(dict.fromkeys(small, large))
                own = large
    order = {node: at for at, node in enumerate(graph.nodes)}
    found = {id(one): sorted(one, key=order.__getitem__) for one in group.values()}
    return sorted(found.values(), key=lambda nodes: order[nodes[0]])


def _cut(
    nodes: Sequence[fx.Node], kinds: Mapping[fx.Node, Kind], streams: Iterable[set[fx.Node]]
) -> list[list[fx.Node]]:
    """Cut a group where one tensor is live, join parts that belong together, and cut large parts again.

    Pointwise operators join the part before them, norms and casts the part that reads them; a norm begins a
    new part, as it begins a layer.
    """
    live = _live(nodes, kinds, streams)
    waists = [at for at in range(1, len(nodes)) if live[at] <= 1]
    atoms = [list(nodes[a:b]) for a, b in zip([0, *waists], [*waists, len(nodes)], strict=True)]
    tailed = _joined(atoms, lambda before, after: _is_tail(after) and _fit(before, after, _MOST_HEAVY))
    led = _joined(tailed, lambda before, after: _is_norm(before) and _fit(before, after, _MOST_HEAVY))
    joined = _joined(
        led,
        lambda before, after: _fit(before, after, _MERGED) and not (_heavy(before) and _begins_layer(after)),
    )
    return [part for one in joined for part in _bounded(one, kinds, streams)]


def _joined(
    parts: Iterable[list[fx.Node]], fit: Callable[[list[fx.Node], list[fx.Node]], bool]
) -> list[list[fx.Node]]:
    """Join neighbours that fit, beginning with the first."""
    found: list[list[fx.Node]] = []
    for part in parts:
        if found and fit(found[-1], part):
            found[-1] = found[-1] + part
        else:
            found.append(part)
    return found


def _heavy(nodes: Sequence[fx.Node]) -> int:
    return sum(map(heavy, nodes))


def _fit(before: Sequence[fx.Node], after: Sequence[fx.Node], most: int) -> bool:
    """Whether neighbours are small enough for one piece."""
    small = _heavy(before) + _heavy(after) <= most and len(before) + len(after) <= _MOST_NODES
    late = len(_late_windows([*before, *after])) > len(_late_windows(before)) + len(_late_windows(after))
    return small and not late


def _late_windows(nodes: Sequence[fx.Node]) -> list[int]:
    """Return the places of dense convolutions after other heavy operators, and of pools after these."""
    return [
        at
        for at, node in enumerate(nodes)
        if (is_dense(node) and _heavy(nodes[:at])) or (is_maximum(node) and any(map(is_dense, nodes[:at])))
    ]


def _is_cast(node: fx.Node) -> bool:
    return operator_name(node) == "_to_copy"


def _is_tail(nodes: Sequence[fx.Node]) -> bool:
    """Whether all operators are pointwise, but not all are casts, which may make results larger."""
    return not _heavy(nodes) and not all(map(_is_cast, nodes))


def _is_norm(nodes: Sequence[fx.Node]) -> bool:
    """Whether nodes are only casts, or one norm: neither is worth a search by itself."""
    if all(map(_is_cast, nodes)):
        return True
    if _heavy(nodes) != 1 or any(map(is_matmul, nodes)):
        return False
    last = value_of(nodes[-1])
    read = [value_of(one) for node in nodes if heavy(node) for one in node.all_input_nodes]
    return isinstance(last, Tensor) and any(_size(last) == _size(one) for one in read)


def _begins_layer(nodes: Sequence[fx.Node]) -> bool:
    """Whether the first matmul or reduction belongs to a norm."""
    first = next(filter(heavy, nodes), None)
    if first is None or _is_norm(nodes):
        return _is_norm(nodes)
    name = operator_name(first)
    return name in _NORMS or (name in _AVERAGES and _scales(first, nodes))


def _scales(average: fx.Node, nodes: Sequence[fx.Node]) -> bool:
    """Whether an average scales or shifts the values that it is taken of, before any other heavy operator."""
    sizes = [_size(value_of(one)) for one in average.all_input_nodes]
    after = takewhile(lambda one: one is average or not heavy(one), nodes[nodes.index(average) :])
    return any(_size(value_of(one)) in sizes for one in after if one is not average)


def _size(value: Any) -> Any:
    """Return a tensor's number of elements; a symbol stays an expression, since comparing it would fix it."""
    if not isinstance(value, Tensor):
        return None
    size: Any = value.numel()
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _bounded(
    nodes: list[fx.Node], kinds: Mapping[fx.Node, Kind], streams: Iterable[set[fx.Node]]
) -> list[list[fx.Node]]:
    """Return a piece in parts that are not too large, each cut where the fewest tensors are live."""
    late = _late_windows(nodes)
    if _heavy(nodes) <= _MOST_HEAVY and len(nodes) <= _MOST_NODES and not late:
        return [nodes]
    live = _live(nodes, kinds, streams)
    places = [at for at in range(1, len(nodes)) if live[at] < _NEVER]
    if late:
        # A dense convolution begins a piece: a kernel reads windows only of what another kernel has stored,
        # so nothing is saved, and what is proven for any window takes little time.
        places = [at for at in places if at in late]
    if not places:
        return [nodes]
    at = min(places, key=lambda place: (live[place], abs(place - len(nodes) / 2)))
    thin = min(at, len(nodes) - at) < len(nodes) // 8
    if thin:  # cuts near an end leave the other part too large
        middle = [place for place in places if len(nodes) // 4 <= place <= 3 * len(nodes) // 4] or places
        at = min(middle, key=lambda place: (live[place], abs(place - len(nodes) / 2)))
    return [part for half in (nodes[:at], nodes[at:]) for part in _bounded(half, kinds, streams)]


def _live(
    nodes: Sequence[fx.Node], kinds: Mapping[fx.Node, Kind], streams: Iterable[set[fx.Node]]
) -> list[int]:
    """Return, for each place between nodes, how many tensors made before it are read after it.

    A stream is live from its first reader on.
    """
    place = {node: at for at, node in enumerate(nodes)}
    last: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        for read in reads_of(node, kinds):
            if read in place:
                last[read] = at
    spans = [(place[node], end, isinstance(value_of(node), tuple | list)) for node, end in last.items()]
    for stream in streams:
        if found := sorted(place[node] for node in stream if node in place):
            spans.append((found[0], found[-1], False))
    live = [0] * (len(nodes) + 1)
    for start, end, parts in spans:
        for at in range(start + 1, end + 1):
            live[at] += _NEVER if parts else 1
    return live
