"""Names of axes: short, readable, unique, taken from where an axis first appears."""

from collections.abc import Iterable
from itertools import chain, count

from superopt.trace.axes import Axes, Dim

__all__ = ["name_axes"]

_BY_PLACE = {
    (1, 0): "knij",
    (2, 0): "mnij",
    (2, 1): "knrjl",
    (3, 0): "bgh",
    (3, 1): "mnst",
    (3, 2): "kdne",
    (4, 0): "bag",
    (4, 1): "hgn",
    (4, 2): "stuv",
    (4, 3): "dekf",
}
"""(rank of the tensor, position of the dimension) -> letters to try."""

_FACTORS = {
    (2, True): ("hgst", "dekf"),
    (2, False): ("hbs", "gnt"),
    (3, True): ("hgs", "gcst", "dekf"),
    (4, True): ("hgs", "gst", "ctuv", "dekf"),
}
"""(number of factors, whether the last is a feature rather than a group) -> letters for each factor."""

_ANY = "abcdefghijklmnopqrstuvwxyz"


def name_axes(axes: Axes, tensors: Iterable[tuple[Dim, ...]], others: Iterable[int]) -> dict[int, str]:
    """Return a name for every leaf axis of these tensors' dimensions, and of the others."""
    names: dict[int, str] = {}
    taken: set[str] = set()

    def give(axis: int, letters: str) -> None:
        if axis in names:
            return
        numbered = (f"{letters[0]}{i}" for i in count(2))
        names[axis] = next(name for name in chain(letters, numbered) if name not in taken)
        taken.add(names[axis])

    for dims in tensors:
        for position, dim in enumerate(dims):
            leaves = axes.leaves(dim)
            if len(leaves) == 1:
                give(leaves[0], _BY_PLACE.get((len(dims), position), _ANY))
            feature = position == len(dims) - 1 or len(dims) <= 2 or len(leaves) > 2
            letters = _FACTORS.get((len(leaves), feature), (_ANY,) * len(leaves))
            for place, axis in enumerate(leaves):
                give(axis, letters[place])
    for axis in others:
        twins = [names[twin][0] for twin in axes.twins(axis) if twin in names]
        if twins and axis not in names:
            numbered = (f"{twins[0]}{i}" for i in count(2))
            names[axis] = next(name for name in numbered if name not in taken)
            taken.add(names[axis])
        give(axis, "tuvw" if axes.sizes[axis] <= 4 else "ijlpq")
    return names
