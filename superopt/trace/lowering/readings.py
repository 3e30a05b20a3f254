"""Readings: tensors that are read at known places along their dimensions, as paddings and rolls do.

The places along a dimension are few straight lines, and each line is a window of the tensor. A reading of a
reading is one reading of the first tensor, and so are pieces of one tensor side by side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from superopt.ops import OPS
from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Reading, Sym, UnsupportedError
from superopt.trace.lowering.masks import choose
from superopt.trace.lowering.table import lower
from superopt.trace.run import TorchScalars

__all__ = ["joined", "lower_borders", "read_dim", "side_by_side"]

_OUTSIDE = -1  # a place at which there is no element: the reading is 0 there
_MOST_LINES = 8  # a reading along more lines than this is data movement, not algebra


Places = Callable[[int, int, int], list[int]]
"""What names the places that are read of a dimension of a size, padded at its two ends."""

Read = Callable[[Builder, Sym, int, Sequence[int]], Sym]
"""What reads a dimension of a tensor at places, one after the other."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Places that rise evenly: at index i of the reading it reads the place step * i + offset."""

    begin: int  # the first index of the reading
    step: int
    offset: int
    empty: bool = False  # nothing is read, all are 0


def read_dim(b: Builder, x: Sym, at: int, places: Sequence[int]) -> Sym:
    """Return a tensor whose dimension is read at these places, one after the other; it is 0 at place -1."""
    _check_runs(b)
    found = _reading_of(b, x)
    before = found.places[at]
    if before is not None:
        places = _composed(before, places)
    return _made(b, _with_places(found, at, places))


def _with_places(reading: Reading, at: int, places: Sequence[int]) -> Reading:
    """Return a reading with other places along a dimension."""
    return replace(reading, places=(*reading.places[:at], _regular(places), *reading.places[at + 1 :]))


def _composed(before: Sequence[int], places: Sequence[int]) -> Sequence[int]:
    """Return the places that are read of the first tensor, where a reading of it is read at places."""
    if isinstance(before, range) and isinstance(places, range):
        first, step = before[places[0]] if places else 0, before.step * places.step
        return range(first, first + step * len(places), step)
    return [place if place == _OUTSIDE else before[place] for place in places]


def _regular(places: Sequence[int]) -> Sequence[int]:
    """Return places that rise evenly as a range: an axis of any length is read as fast."""
    if isinstance(places, range) or not places:
        return places or range(0)
    first, last = places[0], places[-1]
    step = places[1] - first if len(places) > 1 else 1
    if step and first >= 0 <= last and list(places) == [*range(first, first + step * len(places), step)]:
        return range(first, first + step * len(places), step)
    return tuple(places)


def joined(b: Builder, parts: Sequence[Sym], at: int) -> Sym | None:
    """Return tensors side by side where all are readings of one tensor, at least one of them by lines."""
    found = [
        None if b.constant(one.value) == 0 and one.mask is None else _reading_of(b, one) for one in parts
    ]
    known = [one for one in found if one is not None]
    if not known or not any(one.value in b.readings for one in parts):
        return None
    first = known[0]
    size = b.shape(first.source)[at]
    places: list[int] = []
    for part, one in zip(parts, found, strict=True):
        if one is None:
            places += [_OUTSIDE] * b.shape(part)[at]
            continue
        beside = (*one.places[:at], first.places[at], *one.places[at + 1 :])
        if one.source != first.source or beside != first.places:
            return None
        places += range(size) if one.places[at] is None else one.places[at] or ()
    return _made(b, _with_places(first, at, places))


def side_by_side(b: Builder, parts: Sequence[Sym], at: int) -> Sym:
    """Return tensors side by side along a dimension: each is a window, chosen at its own indices."""
    _check_runs(b)
    if len(parts) > _MOST_LINES:
        raise UnsupportedError(f"a cat of {len(parts)} tensors of unequal lengths")
    whole, begin = sum(b.shape(part)[at] for part in parts), 0
    made = b.axes.dim(whole)
    found: Sym | None = None
    for part in parts:
        size = b.shape(part)[at]
        own = _read_along(b, b.settle(part), at, made, [_Line(0, 1, -begin)])
        found = own if found is None else choose(b, _from(b, made, begin, len(own.dims) - at), own, found)
        begin += size
    assert found is not None
    return found


def _check_runs(b: Builder) -> None:
    """Refuse readings of a program that is only proven: its rules pick elements by masks."""
    if b.for_proof:
        raise UnsupportedError("moves elements along a dimension")


def _reading_of(b: Builder, x: Sym) -> Reading:
    """Return a tensor as the reading that it is known to be, or as all of itself."""
    known = b.readings.get(x.value)
    if known is not None and x.mask is None and b.dims(known[0]) == b.dims(x):
        return known[1]
    return Reading(replace(x, dims=b.dims(x)), (None,) * len(x.dims))


def _made(b: Builder, reading: Reading) -> Sym:
    found = b.settle(reading.source)
    for at, places in enumerate(reading.places):
        if places is not None and places != range(b.shape(found)[at]):
            found = _along(b, found, at, places)
    if found is not reading.source and b.constant(found.value) is None:
        b.readings[found.value] = found, reading
    return found


def _along(b: Builder, x: Sym, at: int, places: Sequence[int]) -> Sym:
    """Return a tensor read at places along one dimension."""
    dim, size, made = b.dims(x)[at], b.shape(x)[at], b.axes.dim(len(places))
    here = replace(x, dims=(*x.dims[:at], made, *x.dims[at + 1 :]))
    if not places or all(place == _OUTSIDE for place in places):
        return replace(here, value=b.const(0))
    reads = bool(b.covers(x.value) & set(dim))
    if not reads or b.nodes[x.value].tensorless:
        if reads and len(dim) > 1:
            raise UnsupportedError("reads indices along a dimension of several axes")
        if reads:
            place = b.table(made, places)
            here = b.map(here, partial(b.substitute, places={dim[0]: place}))
        if _OUTSIDE not in places:
            return here
        inside = b.apply("ge", b.table(made, places), b.const(0))
        return choose(
            b, Sym(inside, (made, *[()] * (len(x.dims) - at - 1)), torch.bool), here, b.scalar(0, x.dtype)
        )
    lines = _lines(places, size)
    if len(lines) > _MOST_LINES:
        raise UnsupportedError(f"reads a dimension of {size} along {len(lines)} lines")
    return _read_along(b, x, at, made, lines)


def _read_along(b: Builder, x: Sym, at: int, made: Dim, lines: Sequence[_Line]) -> Sym:
    """Return a tensor read along lines, each of which is chosen from its first index on."""
    dim, size = b.dims(x)[at], b.shape(x)[at]
    found: Sym | None = None
    for line in lines:
        if line.empty or (not line.step and not 0 <= line.offset < size):
            value = b.const(0)
        elif not b.covers(x.value) & set(dim):
            value = x.value
        elif line.step:
            value = b.window(x.value, dim, ((made, line.step),), line.offset)
        else:
            value = b.select(x.value, b.axes.position(dim, line.offset))
        own = Sym(value, (*x.dims[:at], made, *x.dims[at + 1 :]), x.dtype)
        found = own if found is None else choose(b, _from(b, made, line.begin, len(x.dims) - at), own, found)
    assert found is not None
    return found


def _from(b: Builder, made: Dim, begin: int, before_end: int) -> Sym:
    """Return the mask of the indices from one on, of a dimension so many dimensions before the end."""
    later = b.apply("ge", b.index(made), b.const(begin))
    return Sym(later, (made, *[()] * (before_end - 1)), torch.bool)


def _lines(places: Sequence[int], size: int) -> list[_Line]:
    """Return places as straight lines, which are outside the dimension where nothing is read."""
    if isinstance(places, range):
        return [_Line(0, places.step if len(places) > 1 else 0, places.start)]
    found: list[_Line] = []
    at = 0
    while at < len(places):
        line, end = _line_from(places, at, size)
        found.append(line)
        at = end
    return found


def _line_from(places: Sequence[int], at: int, size: int) -> tuple[_Line, int]:
    """Return the line that begins at an index, and the index after its last."""
    inside = next((i for i in range(at, len(places)) if places[i] != _OUTSIDE), len(places))
    ends = []
    for step in _steps(places, inside):
        line = _Line(at, step, places[inside] - step * inside)
        end = at
        while end < len(places) and _reads(line, end, size) == places[end]:
            end += 1
        ends.append((end, line))
    end, line = max(ends, key=lambda one: one[0], default=(at, _Line(at, 0, 0)))
    if end <= inside:
        return _Line(at, 0, 0, empty=True), inside
    if end - at == 2 and end < len(places) and abs(line.step) != 1:
        end = at + 1  # the second one more likely belongs to the next line
    return (line if end - at > 1 else _Line(at, 0, places[at])), end


def _steps(places: Sequence[int], inside: int) -> list[int]:
    """Return the steps that a line through the first place inside may have."""
    if inside == len(places):
        return []
    after = places[inside + 1] if inside + 1 < len(places) else _OUTSIDE
    return [1, -1, *([] if after == _OUTSIDE else [after - places[inside]])]


def _reads(line: _Line, index: int, size: int) -> int:
    place = line.step * index + line.offset
    return place if 0 <= place < size else _OUTSIDE


def wrapped(size: int, before: int, after: int) -> list[int]:
    """Return the places that a circular padding reads along a dimension."""
    first, end = max(-before, 0), size - max(-after, 0)
    places = range(-max(before, 0), end - first + max(after, 0))
    return [first + place % (end - first) for place in places]


def reflected(size: int, before: int, after: int) -> list[int]:
    """Return the places that a reflecting padding reads along a dimension."""
    places = map(abs, range(-before, size + after))
    return [2 * (size - 1) - place if place >= size else place for place in places]


def replicated(size: int, before: int, after: int) -> list[int]:
    """Return the places that a padding by the first and the last element reads along a dimension."""
    return [min(max(place, 0), size - 1) for place in range(-before, size + after)]


def lower_borders(read: Read, *, for_proof: bool = False) -> None:
    """Register the paddings by a tensor's own elements, with how dimensions are read."""

    def padded(b: Builder, x: Sym, pad: Sequence[int], places: Places) -> Sym:
        for number, ends in enumerate(zip(pad[::2], pad[1::2], strict=True)):
            at = len(x.dims) - 1 - number
            x = read(b, x, at, places(b.shape(x)[at], *ends))
        return x

    def circular(b: Builder, x: Sym, pad: Sequence[int], mode: str, value: float | None = None) -> Sym:
        if mode != "circular":
            raise UnsupportedError(f"a padding of the kind {mode}")
        return padded(b, x, pad, wrapped)

    for kind, places in (("reflection", reflected), ("replication", replicated)):
        names = (f"{kind}_pad{rank}d" for rank in (1, 2, 3))
        lower(*names, for_proof=for_proof)(partial(padded, places=places))
    lower("pad", for_proof=for_proof)(circular)


lower_borders(read_dim)


@lower("flip")
def _flip(b: Builder, x: Sym, dims: Sequence[int]) -> Sym:
    for dim in dims:
        at = dim % len(x.dims)
        x = read_dim(b, x, at, range(b.shape(x)[at])[::-1])
    return x


@lower("roll")
def _roll(b: Builder, x: Sym, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Sym:
    listed = (shifts,) if isinstance(shifts, int) else shifts
    turned = (dims,) if isinstance(dims, int) else dims
    if not turned:
        raise UnsupportedError("rotates all dimensions as one")
    for shift, dim in zip(listed, turned, strict=True):
        at, size = dim % len(x.dims), b.shape(x)[dim]
        x = read_dim(b, x, at, [(place - shift) % size for place in range(size)])
    return x


@lower("index", "_unsafe_index")
def _index(b: Builder, x: Sym, indices: Sequence[Sym | None]) -> Sym:
    """Return the elements at places that are known, along dimensions side by side."""
    given = [at for at, index in enumerate(indices) if index is not None]
    known = [index for index in indices if index is not None]
    if any(not b.nodes[index.value].tensorless or index.dtype == torch.bool for index in known):
        raise UnsupportedError("gathers by the data of an index tensor")
    if given != list(range(given[0], given[-1] + 1)):
        raise UnsupportedError("index tensors for dimensions that are not side by side")
    x = b.settle(x)
    if len(known) == 1 and len(known[0].dims) == 1:
        places, size = _numbers(b, known[0]).tolist(), b.shape(x)[given[0]]
        return read_dim(b, x, given[0], [int(place) % size if size else 0 for place in places])
    found, dims = b.broadcast(*known)
    # An index along an axis that the tensor has already would read a diagonal; it gets an axis of its own.
    taken = b.covers(x.value) | {axis for dim in b.dims(x) for axis in dim}
    made = {dim: b.axes.dim(b.axes.extent(dim)) if taken & set(dim) else dim for dim in dims}
    value, seen = x.value, set[int]()
    for at, index in zip(given, found, strict=True):
        own = tuple(dim for dim in dims if b.covers(index.value) & set(dim))
        if seen & {axis for dim in own for axis in dim}:
            raise UnsupportedError("index tensors that share a dimension")
        seen |= {axis for dim in own for axis in dim}
        steps, offset = _affine(b, replace(index, dims=own), b.shape(x)[at])
        terms = [(made[dim], step) for dim, step in zip(own, steps, strict=True)]
        value = b.window(value, b.dims(x)[at], terms, offset)
    kept = (*x.dims[: given[0]], *(made[dim] for dim in dims), *x.dims[given[-1] + 1 :])
    b.axes.meet(axis for dim in kept for axis in dim)
    return replace(x, value=value, dims=kept)


def _affine(b: Builder, index: Sym, size: int) -> tuple[list[int], int]:
    """Return the factor of each dimension of an index tensor, and the number at its first place."""
    numbers = _numbers(b, index)
    if not numbers.numel():
        raise UnsupportedError("an index tensor without elements")
    first = numbers.reshape(-1)[0]
    line, steps = first.clone(), list[int]()
    for at in range(numbers.dim()):
        step = numbers.select(at, 1).reshape(-1)[0] - first
        shape = [-1 if other == at else 1 for other in range(numbers.dim())]
        line = line + step * torch.arange(numbers.shape[at], dtype=torch.float64).reshape(shape)
        steps.append(int(step))
    if not torch.equal(line, numbers) or numbers.min() < 0 or numbers.max() >= size or not all(steps):
        raise UnsupportedError("an index tensor whose numbers do not rise evenly")
    return steps, int(first)


def _numbers(b: Builder, index: Sym) -> torch.Tensor:
    """Return the numbers of a tensor that is made of positions alone, of the shape that it has."""
    order = [axis for dim in b.dims(index) for axis in dim]
    scalars = TorchScalars(torch.float64, torch.device("cpu"))

    def of(value: int) -> torch.Tensor:
        node = b.nodes[value]
        if node.value is not None:
            return scalars.const(node.value)
        if node.op == "size":
            return torch.tensor(float(b.axes.extent(node.axes)), dtype=torch.float64)
        if node.op == "index":
            place = torch.zeros((), dtype=torch.float64)
            for axis, inner in b.axes.grid(node.axes):
                shape = [-1 if one == axis else 1 for one in order]
                own = torch.arange(b.axes.sizes[axis], dtype=torch.float64).reshape(shape)
                place = place + own * b.axes.extent(inner)
            return place
        if node.op not in OPS:
            raise UnsupportedError("an index tensor that is no function of positions")
        made: torch.Tensor = OPS[node.op].scalar(scalars, *map(of, node.inputs))
        return made

    with torch.utils._python_dispatch._disable_current_modes():
        return (
            of(index.value)
            .expand([b.axes.sizes[axis] for axis in order])
            .reshape(b.shape(index))
            .contiguous()
        )
