"""Shared: what several kernels make of the same weights in the same way is made and kept once.

So a prefill and a decode of one model, compiled apart, have one copy of each matrix in panels.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from superopt.ir import Graph, only_used, rename_axes
from superopt.weights.sources import Sources

__all__ = ["Part", "Shared", "let_go", "parts_of", "share", "shared"]

_Key = tuple[str, tuple[int, ...]]


class Shared:
    """A tensor that is made of weights, and these as they were; it lives as long as somebody reads it."""

    def __init__(self, tensor: Tensor, sources: Sources) -> None:
        self.tensor = tensor
        self.sources: Sources | None = sources  # None: it is not known whether the weights are the same


_all: "weakref.WeakValueDictionary[_Key, Shared]" = weakref.WeakValueDictionary()


class Part:
    """What makes one tensor: its graph, under names that say nothing, and the places of its weights."""

    def __init__(self, graph: Graph, places: tuple[int, ...]) -> None:
        self.graph, self.places, self.text = graph, places, str(_nameless(graph))

    def key(self, weights: Sequence[Tensor]) -> _Key:
        """Return what tells this tensor from those that are made in other ways, or of other weights."""
        return self.text, tuple(map(id, weights))


def parts_of(once: Graph) -> tuple[Part, ...]:
    """Return what makes each output of a graph by itself."""
    names = [port.name for port in once.inputs]
    graphs = [only_used(replace(once, outputs=(output,))) for output in once.outputs]
    return tuple(Part(one, tuple(names.index(port.name) for port in one.inputs)) for one in graphs)


def _nameless(graph: Graph) -> Graph:
    axes = [axis for port in graph.inputs for axis in port.axes]
    axes += [axis.name for axis in graph.axes]
    known = {name: f"a{at}" for at, name in enumerate(dict.fromkeys(axes))}
    named = rename_axes(graph, known)
    inputs = tuple(replace(port, name=f"x{at}") for at, port in enumerate(named.inputs))
    outputs = tuple(replace(one, port=replace(one.port, name="y")) for one in named.outputs)
    order = tuple(sorted(named.axes, key=lambda axis: int(axis.name[1:])))
    return replace(named, name="part", axes=order, inputs=inputs, outputs=outputs)


def shared(part: Part, weights: Sequence[Tensor]) -> Shared | None:
    """Return the tensor that somebody made of these weights, if they have not changed since."""
    found = _all.get(part.key(weights))
    fresh = found is not None and found.sources is not None and found.sources.same(weights)
    return found if fresh else None


def share(part: Part, weights: Sequence[Tensor], make: Callable[[], Tensor]) -> Shared:
    """Make a tensor, so that others find it."""
    sources = Sources(weights)  # made first: what is written from here on is seen when it is looked for
    made = _all[part.key(weights)] = Shared(make(), sources)
    return made


def let_go(weights: Sequence[Tensor]) -> None:
    """Keep no alias of some weights; nothing that is made of them is shared until it is known to be right."""
    ids = set(map(id, weights))
    for (_, sources), one in list(_all.items()):
        if not ids.isdisjoint(sources):
            one.sources = None
