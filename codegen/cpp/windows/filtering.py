"""Filtering: which convolutions take fewer products, by sums of neighbours (see `filtered.hpp`)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from superopt.codegen.cpp.plan import Contraction, Item, Walk, make_plan
from superopt.codegen.lowering import lower_for_cpp
from superopt.codegen.statements import KernelProgram
from superopt.ir import Graph, value_axes

__all__ = ["Filtering", "filtering_of", "is_filterable"]

_TAPS = 3
_STEPS = (1, 2)  # places between the windows of neighbouring results
_MOST_SLID = 2  # axes of an image along which windows slide, at most


@dataclass(frozen=True, slots=True)
class Filtering:
    """A convolution that reads three neighbours along one axis of an image or along two."""

    image: int
    weights: int
    channel: str
    filter: str
    slid: tuple[tuple[str, str, int], ...]  # along each axis of the image: that of results, of taps, the step
    around: tuple[str, ...]  # the axes of loops around it


def filtering_of(graph: Graph, item: Contraction, tiles: Mapping[str, int]) -> Filtering | None:
    """Return how a contraction of windows, in tiles of some axes, takes fewer products; None: it does not."""
    assert item.gathered is not None
    rows, columns, summed = item.gathered
    axes = value_axes(graph)
    for image, weights in ((item.a, item.b), (item.b, item.a)):
        step = graph.step_of(image)
        if step is None or step.op != "window" or _is_view(graph, weights):
            continue
        slid = []
        for place in step.places:
            tap = [axis for axis, factor in place.terms if axis in summed and factor == 1]
            made = [one for one in place.terms if one[0] in (*rows, *columns) and one[1] in _STEPS]
            if len(place.axes) != 1 or len(place.terms) != 2 or len(tap) != 1 or len(made) != 1:
                return None
            if graph.sizes[tap[0]] != _TAPS:
                return None
            slid.append((made[0][0], tap[0], made[0][1]))
        results, taps = {made for made, _, _ in slid}, {tap for _, tap, _ in slid}
        channels = [axis for axis in summed if axis not in taps]
        filters = [axis for axis in (*rows, *columns) if axis in axes[weights]]
        fits = 1 <= len(slid) <= _MOST_SLID and len(results) == len(taps) == len(slid)
        fits = fits and all(tiles.get(tap, _TAPS) == _TAPS for tap in taps)
        if not fits or len(channels) != 1 or len(filters) != 1 or not taps <= axes[weights]:
            return None
        rest = [axis for axis in (*rows, *columns) if axis not in (*results, *filters)]
        return Filtering(image, weights, channels[0], filters[0], tuple(slid), (*item.around, *rest))
    return None


def is_filterable(program: KernelProgram, tiles: Mapping[str, int], whole: Collection[str]) -> bool:
    """Whether a kernel in tiles of some axes has a convolution that may take fewer products."""
    lowered = lower_for_cpp(program, tuple(whole))
    single = frozenset(axis for axis, tile in tiles.items() if tile == 1 and axis in program.grid)
    tiles = {axis: tile for axis, tile in tiles.items() if axis not in whole}

    def found(items: list[Item]) -> bool:
        return any(
            found(item.body)
            if isinstance(item, Walk)
            else isinstance(item, Contraction)
            and item.gathered is not None
            and filtering_of(lowered.graph, item, tiles) is not None
            for item in items
        )

    return found(make_plan(lowered, single).body)


def _is_view(graph: Graph, value: int) -> bool:
    step = graph.step_of(value)
    return step is not None and step.op == "window"
