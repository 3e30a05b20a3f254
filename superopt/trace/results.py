"""Results: how the tensors that a function returns lie in memory, as they do where PyTorch runs it.

A result that is a view of an input, or of a tensor that the function holds, is that view. Every other one has
a place of its own for each element, without gaps, and its dimensions follow one another as in PyTorch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from superopt.trace.capture.tape import Call, Ref, Tape, is_view, map_leaves, refs, results_of

__all__ = ["View", "in_order", "laid_out", "orders_of", "outside_views"]


@dataclass(frozen=True, slots=True)
class View:
    """A view of a tensor that the function does not make."""

    source: str
    calls: tuple[tuple[Call, int], ...]  # one of the call before, and which of its results is meant

    def of(self, known: Mapping[str, Tensor]) -> Tensor:
        """Return the view, of tensors by name."""
        tensor = known[self.source]
        for call, place in self.calls:
            tensor = _called(call, place, tensor)
        return tensor

    def __str__(self) -> str:
        """Return what tells it from other views."""
        return f"{self.source} {[(call.target, call.args[1:], call.kwargs, at) for call, at in self.calls]}"


def _called(call: Call, place: int, tensor: Tensor) -> Tensor:
    """Return a result of a call that reads one tensor."""
    args, kwargs = map_leaves(
        lambda leaf: tensor if isinstance(leaf, Ref) else leaf, (call.args, call.kwargs)
    )
    found: Tensor = results_of(call.function, call.function(*args, **kwargs), ())[place]
    return found


def outside_views(tape: Tape) -> dict[int, View]:
    """Return the results that are views of inputs and constants, though not these themselves, by position.

    There are none where the function makes nothing else.
    """
    views = {source.index: View(source.name, ()) for source in (*tape.inputs, *tape.constants)}
    for call in tape.calls:
        read = list(refs((call.args, call.kwargs)))
        if len(read) == 1 and read[0] in views and is_view(call.function) and not call.mutated:
            before = views[read[0]]
            for place, index in enumerate(call.outputs):
                if index is not None:
                    views[index] = View(before.source, (*before.calls, (call, place)))
    results = set(refs(tape.result))
    if results <= views.keys():
        return {}
    return {index: views[index] for index in results & views.keys() if views[index].calls}


def orders_of(tape: Tape) -> dict[int, tuple[int, ...]]:
    """Return the dimensions of results in their order in memory, where that is not their own order."""
    metas = {index: tape.metas[index] for index in refs(tape.result)}
    orders = {index: _order(meta.shape, meta.strides) for index, meta in metas.items()}
    return {index: order for index, order in orders.items() if order != tuple(range(len(order)))}


def _order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions of a tensor, that of the longest steps in memory first."""
    found = list(range(len(shape)))
    wide = [dim for dim in found if shape[dim] > 1]
    if 0 in (strides[dim] for dim in wide):  # elements share places, which they never do here
        return tuple(found)
    for dim, next_inside in zip(wide, sorted(wide, key=lambda dim: -strides[dim]), strict=True):
        found[dim] = next_inside
    return tuple(found)


def in_order(tensor: Tensor, order: tuple[int, ...] | None) -> Tensor:
    """Return a tensor as it lies in memory, unless its dimensions follow one another in another order."""
    own = _order(tensor.shape, tensor.stride())
    return tensor if own == (order or tuple(range(tensor.ndim))) else laid_out(tensor, order)


def laid_out(tensor: Tensor, order: tuple[int, ...] | None) -> Tensor:
    """Return a tensor whose dimensions follow one another in this order in memory, each element apart."""
    if order is None:
        return tensor.contiguous()
    turned = tensor.permute(order)
    if turned.is_contiguous():
        return tensor
    return turned.contiguous().permute(sorted(order, key=order.__getitem__))
