"""Layers: a layered drawing of a directed graph: longest paths, barycenters, positions without overlap.

1. every node goes below all that it depends on; a source goes right above its first user
2. an edge over several layers is a chain of thin nodes, so that it has a way between the others
3. the order in a layer follows the mean place of the neighbours, swept down and up, the best kept
4. positions are the nearest to the neighbours' that keep the order and the gaps
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Edge", "Placement", "place"]

GAP_X = 18.0
GAP_Y = 34.0
_LANE = 6.0  # the width of an edge that passes a layer
_SWEEPS = 12

Key = Hashable
Edge = tuple[Key, Key, int]  # from, to, and the value that flows
_Link = tuple[Key, float, float]  # a neighbour, and the distances from the middles, its own and ours


@dataclass(frozen=True, slots=True)
class Placement:
    """The left top corner of every node, the places that edges pass, and the size of the whole."""

    corners: dict[Key, tuple[float, float]]
    bends: dict[Edge, list[tuple[float, float, float]]]  # x, and the top and bottom of a layer
    rows: dict[Key, tuple[float, float]]  # the top and bottom of the layer of every node
    width: float
    height: float


def place(
    sizes: Mapping[Key, tuple[float, float]],
    edges: Sequence[Edge],
    *,
    first: frozenset[Key] = frozenset(),
    last: frozenset[Key] = frozenset(),
    starts: Mapping[Edge, float] | None = None,
    ends: Mapping[Edge, float] | None = None,
) -> Placement:
    """Return where nodes of given sizes go; `first` stay in the first layer, `last` in the last one.

    An edge leaves and reaches the middle of a node, or at a distance from it that `starts` and `ends` give.
    """
    if not sizes:
        return Placement({}, {}, {}, 0.0, 0.0)
    layer = _layers(list(sizes), edges, first, last)
    width = {key: size[0] for key, size in sizes.items()}
    rows: list[list[Key]] = [[] for _ in range(max(layer.values()) + 1)]
    for key in sizes:
        rows[layer[key]].append(key)
    lanes: dict[Edge, list[Key]] = {}
    above: dict[Key, list[_Link]] = {key: [] for key in sizes}
    below: dict[Key, list[_Link]] = {key: [] for key in sizes}
    for edge in edges:
        source, target, value = edge
        chain: list[Key] = []
        for at in range(layer[source] + 1, layer[target]):
            lane = ("lane", source, target, value, at)
            width[lane] = _LANE
            above[lane], below[lane] = [], []
            rows[at].append(lane)
            chain.append(lane)
        lanes[edge] = chain
        start, end = (starts or {}).get(edge, 0.0), (ends or {}).get(edge, 0.0)
        for upper, lower in pairwise([source, *chain, target]):
            leaves = start if upper == source else 0.0
            reaches = end if lower == target else 0.0
            above[lower].append((upper, leaves, reaches))
            below[upper].append((lower, reaches, leaves))
    rows = _ordered(rows, above, below, width)
    centers = _centers(rows, width, above, below)
    tops, bottoms = [], []
    y = 0.0
    for row in rows:
        height = max((sizes[key][1] for key in row if key in sizes), default=0.0)
        tops.append(y)
        bottoms.append(y + height)
        y += height + GAP_Y
    corners = {}
    for key, size in sizes.items():
        top, bottom = tops[layer[key]], bottoms[layer[key]]
        y = (top + bottom - size[1]) / 2 if above[key] else bottom - size[1]
        corners[key] = (centers[key] - width[key] / 2, y)
    spans = {key: (tops[layer[key]], bottoms[layer[key]]) for key in sizes}
    bends = {
        edge: [
            (centers[lane], tops[layer[edge[0]] + 1 + at], bottoms[layer[edge[0]] + 1 + at])
            for at, lane in enumerate(chain)
        ]
        for edge, chain in lanes.items()
    }
    return Placement(corners, bends, spans, max(centers[key] + width[key] / 2 for key in width), bottoms[-1])


def _layers(
    keys: Sequence[Key], edges: Sequence[Edge], first: frozenset[Key], last: frozenset[Key]
) -> dict[Key, int]:
    """Return the layer of every node; the keys stand in an order in which edges go forward."""
    above: dict[Key, list[Key]] = {key: [] for key in keys}
    below: dict[Key, list[Key]] = {key: [] for key in keys}
    for source, target, _ in edges:
        above[target].append(source)
        below[source].append(target)
    layer: dict[Key, int] = {}
    lowest = 1 if first else 0
    for key in keys:
        layer[key] = 0 if key in first else max((layer[one] + 1 for one in above[key]), default=lowest)
    for key in keys:
        if key not in first and not above[key] and below[key]:
            layer[key] = max(min(layer[one] for one in below[key]) - 1, lowest)
    inner = max((layer[key] for key in keys if key not in last), default=-1)
    for key in last:
        layer[key] = inner + 1
    used = sorted(set(layer.values()))
    return {key: used.index(at) for key, at in layer.items()}


def _ordered(
    rows: list[list[Key]],
    above: Mapping[Key, list[_Link]],
    below: Mapping[Key, list[_Link]],
    width: Mapping[Key, float],
) -> list[list[Key]]:
    """Return the rows in the order with the fewest crossings that sweeping finds."""
    best, fewest = rows, _crossings(rows, below, width)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        rows = [list(row) for row in rows]
        for at in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            place_of = {key: i for i, key in enumerate(rows[at - 1 if down else at + 1])}
            old = {key: i for i, key in enumerate(rows[at])}

            means: dict[Key, float] = {}
            for key in rows[at]:
                found = [place_of[one] + theirs / width[one] for one, theirs, _ in neighbours[key]]
                means[key] = sum(found) / len(found) if found else float(old[key])
            rows[at].sort(key=means.__getitem__)
        crossings = _crossings(rows, below, width)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _crossings(rows: list[list[Key]], below: Mapping[Key, list[_Link]], width: Mapping[Key, float]) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        place_of = {key: i for i, key in enumerate(lower)}
        ends: list[float] = []
        for key in upper:
            leaving = [(ours, place_of[one] + theirs / width[one]) for one, theirs, ours in below[key]]
            ends += [end for _, end in sorted(leaving)]
        total += sum(a > b for i, a in enumerate(ends) for b in ends[i + 1 :])
    return total


def _centers(
    rows: list[list[Key]],
    width: Mapping[Key, float],
    above: Mapping[Key, list[_Link]],
    below: Mapping[Key, list[_Link]],
) -> dict[Key, float]:
    """Return the middle of every node: near the middles of its neighbours, in order and apart."""
    centers: dict[Key, float] = {}
    for row in rows:
        x = 0.0
        for key in row:
            centers[key] = x + width[key] / 2
            x += width[key] + GAP_X
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted = []
            for key in row:
                near = (above if down else below)[key] or [(key, 0.0, 0.0)]
                wanted.append(sum(centers[one] + theirs - ours for one, theirs, ours in near) / len(near))
            for key, center in zip(row, _apart(row, wanted, width), strict=True):
                centers[key] = center
    left = min(centers[key] - width[key] / 2 for key in centers)
    return {key: center - left for key, center in centers.items()}


def _apart(row: Sequence[Key], wanted: Sequence[float], width: Mapping[Key, float]) -> list[float]:
    """Return the positions nearest to the wanted ones (least squares) that keep the order and the gaps."""
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (width[left] + width[right]) / 2 + GAP_X)
    blocks: list[tuple[float, int]] = []  # mean, how many: pooled while they are out of order
    for want, offset in zip(wanted, offsets, strict=True):
        blocks.append((want - offset, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, many), (b, more) = blocks[-2:]
            blocks[-2:] = [((a * many + b * more) / (many + more), many + more)]
    flat = [mean for mean, count in blocks for _ in range(count)]
    return [base + offset for base, offset in zip(flat, offsets, strict=True)]
