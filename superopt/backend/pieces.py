"""Pieces: the parts of a graph that may become regions, connected, convex, cut where little is live."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.nodes import Kind, heavy, is_attention, is_matmul, operator_name, value_of

__all__ = ["Piece", "pieces_of", "reads_of", "worth_a_search"]

_MERGED = 5  # matmuls and reductions up to which neighbours become one piece
_MOST_HEAVY = 8  # of them above which a piece is cut wherever least is live
_MOST_NODES = 120
_NEVER = 1000  # tensors live where a cut would part a tuple from its items


@dataclass(frozen=True, slots=True)
class Piece:
    """Computing nodes of a graph in order; views between them belong to whoever reads them."""

    nodes: tuple[fx.Node, ...]

    @property
    def heavy(self) -> int:
        """How many matmuls and reductions there are."""
        return sum(map(heavy, self.nodes))


def pieces_of(graph: fx.Graph, kinds: Mapping[fx.Node, Kind]) -> list[Piece]:
    """Return all pieces, in order; together they hold every computing node once."""
    return [piece for group in _groups(graph, kinds) for piece in _cut(group, kinds)]


def worth_a_search(piece: Piece) -> str | None:
    """Return why Inductor does a piece well by itself, or None where a search may find something."""
    matmuls = sum(map(is_matmul, piece.nodes))
    if any(map(is_attention, piece.nodes)):
        return None
    if piece.heavy == 0:
        return "one pointwise chain"
    if matmuls == 1 and len(piece.nodes) == 1:
        return "one matmul"
    if matmuls == 0 and piece.heavy == 1:
        return "one reduction and what is pointwise around it"
    return None


def reads_of(node: fx.Node, kinds: Mapping[fx.Node, Kind]) -> Iterable[fx.Node]:
    """Yield the nodes that one reads, through views, which are computed or come from outside."""
    for read in node.all_input_nodes:
        if kinds[read] == "free":
            yield from reads_of(read, kinds)
        else:
            yield read


def _groups(graph: fx.Graph, kinds: Mapping[fx.Node, Kind]) -> list[list[fx.Node]]:
    """Return the computing nodes in connected groups that no path leaves and enters again.

    A node's level is the largest number of changes from inside to outside on any way to it, so a way
    through the outside never comes back to its level; within one level, what is connected is a group.
    """
    level: dict[fx.Node, int] = {}
    group: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        reads = list(reads_of(node, kinds))
        inside = kinds[node] == "compute"
        level[node] = max((level[one] for one in reads), default=0)
        if not inside:
            came = [level[one] + 1 for one in reads if kinds[one] == "compute"]
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


def _cut(nodes: Sequence[fx.Node], kinds: Mapping[fx.Node, Kind]) -> list[Piece]:
    """Cut a group where one tensor is live, join what belongs together, and cut again what is still large.

    Pointwise operators belong to what is before them, norms and casts to what reads them.
    """
    live = _live(nodes, kinds)
    waists = [at for at in range(1, len(nodes)) if live[at] <= 1]
    atoms = [list(nodes[a:b]) for a, b in zip([0, *waists], [*waists, len(nodes)], strict=True)]
    tailed = _joined(atoms, lambda before, after: _is_tail(after) and _fit(before, after, _MOST_HEAVY))
    led = _joined(tailed, lambda before, after: _is_norm(before) and _fit(before, after, _MOST_HEAVY))
    joined = _joined(led, lambda before, after: not _is_norm(after) and _fit(before, after, _MERGED))
    return [Piece(tuple(part)) for one in joined for part in _bounded(one, kinds)]


def _joined(
    parts: Iterable[list[fx.Node]], fit: Callable[[list[fx.Node], list[fx.Node]], bool]
) -> list[list[fx.Node]]:
    """Join neighbours that fit, from the first on."""
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
    return _heavy(before) + _heavy(after) <= most and len(before) + len(after) <= _MOST_NODES


def _is_cast(node: fx.Node) -> bool:
    return operator_name(node) == "_to_copy"


def _is_tail(nodes: Sequence[fx.Node]) -> bool:
    """Whether there are only pointwise operators, and not only casts, which may make more to write."""
    return not _heavy(nodes) and not all(map(_is_cast, nodes))


def _is_norm(nodes: Sequence[fx.Node]) -> bool:
    """Whether there is one reduction that only scales: nothing to search by itself, but for its reader.

    So are casts.
    """
    if all(map(_is_cast, nodes)):
        return True
    if _heavy(nodes) != 1 or any(map(is_matmul, nodes)):
        return False
    last = value_of(nodes[-1])
    read = [value_of(one) for node in nodes if heavy(node) for one in node.all_input_nodes]
    return isinstance(last, Tensor) and any(_size(last) == _size(one) for one in read)


def _size(value: Any) -> Any:
    """Return how many elements a tensor has; symbols as expressions, as to compare them would fix them."""
    if not isinstance(value, Tensor):
        return None
    size: Any = value.numel()
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _bounded(nodes: list[fx.Node], kinds: Mapping[fx.Node, Kind]) -> list[list[fx.Node]]:
    """Return a piece in parts that are not too large, each cut where least is live."""
    if sum(map(heavy, nodes)) <= _MOST_HEAVY and len(nodes) <= _MOST_NODES:
        return [nodes]
    live = _live(nodes, kinds)
    places = [at for at in range(1, len(nodes)) if live[at] < _NEVER]
    if not places:
        return [nodes]
    at = min(places, key=lambda place: (live[place], abs(place - len(nodes) / 2)))
    thin = min(at, len(nodes) - at) < len(nodes) // 8
    if thin:  # a cut near an end would hardly help
        middle = [place for place in places if len(nodes) // 4 <= place <= 3 * len(nodes) // 4] or places
        at = min(middle, key=lambda place: (live[place], abs(place - len(nodes) / 2)))
    return [*_bounded(nodes[:at], kinds), *_bounded(nodes[at:], kinds)]


def _live(nodes: Sequence[fx.Node], kinds: Mapping[fx.Node, Kind]) -> list[int]:
    """Return, for each place between nodes, how many tensors made before it are read after it."""
    place = {node: at for at, node in enumerate(nodes)}
    last: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        for read in reads_of(node, kinds):
            if read in place:
                last[read] = at
    live = [0] * (len(nodes) + 1)
    for node, end in last.items():
        weight = _NEVER if isinstance(value_of(node), tuple | list) else 1
        for at in range(place[node] + 1, end + 1):
            live[at] += weight
    return live
