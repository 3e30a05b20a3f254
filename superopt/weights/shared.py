"""Shared: tensors that several kernels make of the same weights in the same way, made and kept once.

So the prefill and the decoding of one model, compiled apart, share one copy of each matrix in panels.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from superopt.ir import Graph, only_used, rename_axes
from superopt.weights.sources import Sources

__all__ = ["Maker", "Shared", "all_of", "find_shared", "let_go", "make_shared", "makers_of"]

T = TypeVar("T")

_Key = tuple[str, tuple[int, ...]]


class Shared:
    """A tensor made of weights, and the weights as they were; it lives as long as somebody reads it."""

    def __init__(self, tensor: Tensor, sources: Sources) -> None:
        self.tensor = tensor
        self.sources: Sources | None = sources  # None: it is not known whether the weights are the same


_all: "weakref.WeakValueDictionary[_Key, Shared]" = weakref.WeakValueDictionary()


def all_of(things: Iterable[T]) -> list[T]:
    """Return what weak references lead to, also where another thread adds some meanwhile."""
    while True:
        with suppress(RuntimeError):  # it added one
            return list(things)


class Maker:
    """The graph that makes one tensor, whose names do not count, and the places of its weights."""

    def __init__(self, graph: Graph, places: tuple[int, ...]) -> None:
        self.graph, self.places, self.text = graph, places, str(_nameless(graph))

    def key(self, weights: Sequence[Tensor]) -> _Key:
        """Return a key that no tensor has which is made in another way, or of other weights."""
        return self.text, tuple(map(id, weights))


def makers_of(once: Graph) -> tuple[Maker, ...]:
    """Return a maker for each output of a graph."""
    names = [port.name for port in once.inputs]
    graphs = [only_used(replace(once, outputs=(output,))) for output in once.outputs]
    return tuple(Maker(one, tuple(names.index(port.name) for port in one.inputs)) for one in graphs)


def _nameless(graph: Graph) -> Graph:
    axes = [axis for port in graph.inputs for axis in port.axes]
    axes += [axis.name for axis in graph.axes]
    known = {name: f"a{at}" for at, name in enumerate(dict.fromkeys(axes))}
    named = rename_axes(graph, known)
    inputs = tuple(replace(port, name=f"x{at}") for at, port in enumerate(named.inputs))
    outputs = tuple(replace(one, port=replace(one.port, name="y")) for one in named.outputs)
    order = tuple(sorted(named.axes, key=lambda axis: int(axis.name[1:])))
    return replace(named, name="part", axes=order, inputs=inputs, outputs=outputs)


def find_shared(maker: Maker, weights: Sequence[Tensor]) -> Shared | None:
    """Return the tensor that was made of these weights, if there is one and they have not changed since."""
    found = _all.get(maker.key(weights))
    fresh = found is not None and found.sources is not None and found.sources.same(weights)
    return found if fresh else None


def make_shared(maker: Maker, weights: Sequence[Tensor], make: Callable[[], Tensor]) -> Shared:
    """Make a tensor, so that others find it."""
    sources = Sources(weights)  # made first: what is written from here on is seen when it is looked for
    made = _all[maker.key(weights)] = Shared(make(), sources)
    return made


def let_go(weights: Sequence[Tensor]) -> None:
    """Keep no alias of some weights; nothing that was made of them is found until it is checked again."""
    ids = set(map(id, weights))
    for key in all_of(_all):
        if not ids.isdisjoint(key[1]) and (one := _all.get(key)) is not None:
            one.sources = None
