"""Library: which values a library computes, as products of matrices or as convolutions, and how these lie."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from superopt.dtypes import INTEGERS
from superopt.ir.cut import tensorless_values
from superopt.ir.graph import Graph, Step, kept_by_identity, value_axes
from superopt.ir.masks import selects
from superopt.ir.mugraph.kernels import Call, MuGraph
from superopt.ir.windows.place import Place

__all__ = ["Convolution", "Slid", "called_order", "convolution_of", "is_called", "is_matmul", "shown_to"]

_MOST_SLID = 3  # dimensions of an image
_NO_FLOATS = INTEGERS | {"bool"}


@dataclass(frozen=True, slots=True)
class Slid:
    """A dimension of an image, read at the place stride * made + dilation * tap + begin."""

    axis: str
    made: str  # the axis of the results
    tap: str | None  # None: a single tap
    stride: int = 1
    dilation: int = 1  # below 0: the taps are read backward
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Convolution:
    """A contraction of a window with a kernel, as libraries know it."""

    window: int
    image: int
    kernel: int
    batch: tuple[str, ...]
    groups: tuple[str, ...]
    channels: tuple[str, ...]  # of each group
    filters: tuple[str, ...]  # of each group
    slid: tuple[Slid, ...]
    channels_last: bool  # whether the image lies so when the graph is made

    @property
    def order(self) -> tuple[str, ...]:
        """The axes of the result as it lies in memory."""
        places = tuple(one.made for one in self.slid)
        made = (*self.groups, *self.filters)
        return (*self.batch, *places, *made) if self.channels_last else (*self.batch, *made, *places)


def is_called(graph: Graph, value: int) -> bool:
    """Return whether a library can compute a value."""
    return is_matmul(graph, value) or convolution_of(graph, value) is not None


def is_matmul(graph: Graph, value: int) -> bool:
    """Return whether a value is a contraction with an axis of its own on either side, read from memory.

    A mask selects, which the matrix product of a library does not: its zeros times infinities are NaN. And
    integers it would first copy as floats, in each call. Masks it does not multiply at all.
    """
    step = graph.step_of(value)
    if step is None or not _is_plain_product(graph, step):
        return False
    a, b = (value_axes(graph)[i] for i in step.inputs)
    return bool(a - b and b - a)


def _is_plain_product(graph: Graph, step: Step) -> bool:
    if step.op != "contract" or selects(graph, step):
        return False
    if any(one < len(graph.inputs) and graph.inputs[one].dtype in _NO_FLOATS for one in step.inputs):
        return False
    tensorless = tensorless_values(graph)
    return not any(tensorless[i] for i in step.inputs)


def convolution_of(graph: Graph, value: int) -> Convolution | None:
    """Return how a value is a convolution; None where it is none, or not one that libraries know."""
    return _convolutions(graph).get(value)


@kept_by_identity
def _convolutions(graph: Graph) -> dict[int, Convolution]:
    found = {}
    for value, step in graph.numbered:
        if _is_plain_product(graph, step):
            for window, kernel in (step.inputs, step.inputs[::-1]):
                read = graph.step_of(window)
                if read is not None and read.op == "window" and window != kernel:
                    made = _convolution(graph, step, window, read, kernel)
                    if made is not None:
                        found[value] = made
                        break
    return found


def _convolution(graph: Graph, step: Step, window: int, read: Step, kernel: int) -> Convolution | None:
    axes = value_axes(graph)
    [image] = read.inputs
    if image < len(graph.inputs) and graph.inputs[image].dtype in _NO_FLOATS:
        return None
    summed, weights, seen = {*step.axes}, axes[kernel], axes[window]
    slid = [_slid(place, summed, weights, axes[image]) for place in read.places]
    if not summed <= weights & seen or len(slid) > _MOST_SLID or read.mapping:
        return None
    known = [one for one in slid if one is not None]
    taps, made = {one.tap for one in known}, {one.made for one in known}
    if len(known) < len(slid) or len(made) < len(slid) or len(taps - {None}) < sum(map(_has_tap, known)):
        return None
    order = _order(graph, image)
    channels = [axis for axis in order if axis in summed - taps]
    groups = [axis for axis in order if axis in (seen & weights) - summed - made]
    alone = [axis for axis in order if axis in seen - weights - made]
    filters = [axis for axis in _order(graph, kernel) if axis in weights - seen]
    # What is neither slid over nor a channel is one more dimension of the image, if it lies behind channels.
    depth = max((order.index(axis) for axis in (*channels, *groups)), default=-1)
    after = [axis for axis in alone if order.index(axis) > depth]
    if len(known) + len(after) <= max(2, len(known)):
        known += [Slid(axis, axis, None) for axis in after]
        alone = [axis for axis in alone if axis not in after]
    known.sort(key=lambda one: order.index(one.axis))
    last = _innermost(graph, image) in {*channels, *groups}
    parts = tuple(alone), tuple(groups), tuple(channels), tuple(filters)
    return Convolution(window, image, kernel, *parts, tuple(known), last)


def called_order(mugraph: MuGraph, value: int) -> tuple[str, ...]:
    """Return the axes of a value that a library reads or makes, as it lies in memory.

    It is the order of the graph, but for convolutions, which leave images as they find them.
    """
    graph = mugraph.graph
    calls = [[tile.value for tile in one.body] for one in mugraph.kernels if isinstance(one, Call)]
    found = convolution_of(graph, value)
    if found is not None and any({value, found.window} <= {*body} for body in calls):
        return found.order
    return tuple(axis.name for axis in graph.axes if axis.name in value_axes(graph)[value])


def shown_to(graph: Graph, call: Call, value: int) -> int:
    """Return what a call reads where a step of it reads a value: what a window that it makes itself shows."""
    step = graph.step_of(value)
    inside = step is not None and any(tile.value == value for tile in call.body)
    return step.inputs[0] if step is not None and inside and step.op == "window" else value


def _has_tap(one: Slid) -> bool:
    return one.tap is not None


def _slid(place: Place, summed: Iterable[str], weights: frozenset[str], image: frozenset[str]) -> Slid | None:
    """Return a place as a library knows it: one axis of results, and at most one of taps that are summed."""
    made = [(axis, factor) for axis, factor in place.terms if axis not in weights]
    taps = [(axis, factor) for axis, factor in place.terms if axis in weights]
    plain = len(place.axes) == len(made) == 1 and len(taps) <= 1 and not {*place.named[1:]} & image
    if not plain or made[0][1] < 1 or made[0][0] in summed:
        return None
    if any(axis not in summed or not factor for axis, factor in taps):
        return None
    tap, dilation = taps[0] if taps else (None, 1)
    return Slid(place.axes[0], made[0][0], tap, made[0][1], dilation, place.offset)


def _order(graph: Graph, value: int) -> Sequence[str]:
    """Return the axes of a value in the order in which a library takes them."""
    if value < len(graph.inputs):
        return graph.inputs[value].axes
    return [axis.name for axis in graph.axes if axis.name in value_axes(graph)[value]]


def _innermost(graph: Graph, value: int) -> str | None:
    """Return the axis along which a tensor has its neighbours in memory."""
    order = [axis for axis in _order(graph, value) if graph.sizes[axis] > 1]
    port = graph.inputs[value] if value < len(graph.inputs) else None
    if port is None or port.strides is None:
        return order[-1] if order else None
    dims = [dim for dim, stride in zip(port.dims, port.strides, strict=True) if stride == 1]
    inner = [axis for dim in dims for axis in dim[::-1] if graph.sizes[axis] > 1]
    return inner[0] if inner else None
