"""Parts: a forward pass divided where little is handed on, as between the layers of a model.

A value is handed on at a place in the order of operators if it is made before and read after it. Places lie
about equally far apart in time: of those near such a time, the one where the fewest bytes are handed on.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf

from torch import fx

from superopt.backend.joint.memory.values import readers_of

__all__ = ["handed_on"]

_NEAR = 0.5  # a place may lie this share of a part away from the part's end
_CHEAP = 0.5  # a value is cheap if it takes less than this share of a part's time, from the inputs on


def handed_on(
    order: Sequence[fx.Node],
    bytes_: Mapping[fx.Node, float],
    seconds: Mapping[fx.Node, float],
    count: int,
) -> frozenset[fx.Node]:
    """Return what so many parts of a pass hand on, but for what is cheap to make of its inputs."""
    times = {node: seconds[node] if seconds[node] < inf else 0.0 for node in order}
    ends = list(accumulate(times.values()))  # of each operator
    if count < 2 or not ends or ends[-1] == 0.0:
        return frozenset()
    place = {node: at for at, node in enumerate(order)}
    last = {node: _last_read(node, place) for node in order if bytes_[node] < inf}
    changes = [0.0] * (len(order) + 1)
    for node, end in last.items():
        changes[place[node]] += bytes_[node]
        changes[max(end, place[node])] -= bytes_[node]
    widths = list(accumulate(changes))  # bytes that are handed on after each operator
    part = ends[-1] / count
    found = set[fx.Node]()
    for number in range(1, count):
        middle = number * part
        near = [at for at, end in enumerate(ends) if abs(end - middle) <= _NEAR * part]
        if near:
            least = min(near, key=lambda at: (widths[at], abs(ends[at] - middle)))
            found.update(node for node, end in last.items() if place[node] <= least < end)
    return frozenset(node for node in found if _time_from_inputs(node, times) >= _CHEAP * part)


def _last_read(node: fx.Node, place: Mapping[fx.Node, int]) -> int:
    """Return the place of the last operator that reads a value or a view of it; -1 where none does."""
    return max((place[one] for one in readers_of([node]) if one in place), default=-1)


def _time_from_inputs(node: fx.Node, times: Mapping[fx.Node, float]) -> float:
    """Return the time to make a value of what is given."""
    found, left = set[fx.Node](), [node]
    while left:
        one = left.pop()
        if one in times and one not in found:
            found.add(one)
            left += one.all_input_nodes
    return sum(times[one] for one in found)
