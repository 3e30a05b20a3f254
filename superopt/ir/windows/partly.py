"""Partly equal programs: a value computed in another way, right at most positions and put right at others.

    t2 = window[h1 = h + r - 1, w1 = w + s - 1](x)     becomes    t2 = window[(h1 w1) = j + 8*r + s - 9](x)
    t3 = contract[c, r, s](t2, k)                                 t3 = contract[c, r, s](t2, k)
                                                                  t4 = window[j = 8*h + w](t3)

Here the rows of an image, one after the other, are one long row. That is right but at both ends of each row,
where the next row is read in the place of zeros. Where both are equal is worked out exactly (`products`);
what is wrong is covered by boxes, computed again on each of them as the program says, and put in its place.
Whether that is worth it the costs decide; whether the whole is equal is proven like everything else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from superopt.ir.check import check_graph
from superopt.ir.graph import REDUCTIONS, Axis, Graph, Step, StepWriter, live_graph, value_axes
from superopt.ir.split import fresh_name
from superopt.ir.windows.boxes import Box, boxes_of, on_box
from superopt.ir.windows.place import Place, reads_outside
from superopt.ir.windows.products import agreement

__all__ = ["Corrected", "corrected", "partly_equal"]

_LEAST_RIGHT = 0.5  # the share of positions that must be right
_MOST_BOXES = 6
_KEEPING = frozenset({"mul", "contract", "sum", "neg"})  # steps that a mutation reaches through


@dataclass(frozen=True, slots=True)
class Mutant:
    """A graph in which a value is followed by another way to compute it, right at a part of its positions."""

    name: str
    graph: Graph  # the steps of the program, and behind them those of the other way
    value: int
    other: int
    zero: bool  # it is 0 where it is wrong


@dataclass(frozen=True, slots=True)
class Corrected:
    """A whole program with a value computed in another way, and its wrong positions again."""

    name: str
    graph: Graph
    boxes: tuple[Box, ...]  # what is computed again

    def __str__(self) -> str:
        """Say what is computed in another way, and what again."""
        parts = [
            ", ".join(f"{axis} {at.start}:{at.stop}" for axis, at in sorted(box.items()))
            for box in self.boxes
        ]
        return f"{self.name}; again at {' and '.join(parts)}" if parts else self.name


def corrected(graph: Graph) -> Iterator[Corrected]:
    """Yield programs in which a value is computed in a way that is partly right, and corrected."""
    if 0 in graph.sizes.values():
        return  # of no positions, none is right
    for mutant in partly_equal(graph):
        found = _put_right(mutant)
        if found is not None:
            yield found


def partly_equal(graph: Graph) -> Iterator[Mutant]:
    """Yield other ways to compute values of a graph, which may be wrong at some of their positions."""
    graph = live_graph(graph)
    axes = value_axes(graph)
    for window, step in graph.numbered:
        if step.op != "window" or step.inputs[0] >= len(graph.inputs):
            continue
        value = _result_of(graph, window, axes)
        if value is None:
            continue
        for inner in step.places:
            order = graph.inputs[step.inputs[0]].axes
            before = order[: order.index(inner.axes[0])]
            beside = [place for place in step.places if place.axes[0] in before]
            plain = [axis for axis in before if axis in axes[value]]
            outers: list[Place | str] = [*beside, *plain]
            for outer in outers:
                made = _joined(graph, window, value, outer, inner, axes)
                if made is not None:
                    yield made
        made = _inside_only(graph, window, value, axes)
        if made is not None:
            yield made


def _result_of(graph: Graph, window: int, axes: Sequence[frozenset[str]]) -> int | None:
    """Return the value in which the taps of a window are summed, None where more than sums lie between."""
    value = window
    taps: frozenset[str] | None = None
    while True:
        readers = [at for at, step in graph.numbered if value in step.inputs]
        if len(readers) != 1 or any(output.value == value for output in graph.outputs):
            return None
        [reader] = readers
        step = graph.step_at(reader)
        if step.op not in _KEEPING:
            return None
        value = reader
        made = frozenset(axis for place in graph.step_at(window).places for axis, _ in place.terms)
        taps = made - axes[value]
        if step.op in REDUCTIONS and taps and not _sums_taps(graph, value, made):
            return value


def _sums_taps(graph: Graph, value: int, made: frozenset[str]) -> bool:
    """Whether a single reader of a value sums over more axes of a window."""
    readers = [step for step in graph.steps if value in step.inputs]
    return len(readers) == 1 and readers[0].op in _KEEPING and bool(made & {*readers[0].axes})


def _slides(place: Place, axes: frozenset[str], sizes: Mapping[str, int]) -> str | None:
    """Return the axis of a window that stays, where it goes on by one and is as long as what is read."""
    kept = [(axis, factor) for axis, factor in place.terms if axis in axes]
    if len(place.axes) != 1 or len(kept) != 1 or kept[0][1] != 1:
        return None
    return kept[0][0] if sizes[kept[0][0]] == sizes[place.axes[0]] else None


def _joined(
    graph: Graph, window: int, value: int, outer: Place | str, inner: Place, axes: Sequence[frozenset[str]]
) -> Mutant | None:
    """Return two axes of an image as one that windows move along: rows, or images, one after the other."""
    sizes, names = graph.sizes, set(graph.sizes)
    along = _slides(inner, axes[value], sizes)
    across = outer if isinstance(outer, str) else _slides(outer, axes[value], sizes)
    if along is None or across is None:
        return None
    length = sizes[along]
    line = _new_name(f"{across}_{along}", names)
    whole = outer.axes[0] if isinstance(outer, Place) else outer
    terms = [(line, 1)]
    offset = inner.offset
    if isinstance(outer, Place):
        terms += [(axis, length * factor) for axis, factor in outer.terms if axis != across]
        offset += length * outer.offset
    terms += [term for term in inner.terms if term[0] != along]
    place = Place((whole, *inner.axes), tuple(terms), offset)
    others = [one for one in graph.step_at(window).places if one not in (outer, inner)]
    step = replace(graph.step_at(window), places=(*others, place))
    back = Place((line,), ((across, length), (along, 1)))
    longer = replace(graph, axes=(*graph.axes, Axis(line, sizes[across] * length)))
    return _mutant(
        f"{across} and {along} joined", longer, window, step, value, {across, along}, (back,), axes
    )


def _inside_only(graph: Graph, window: int, value: int, axes: Sequence[frozenset[str]]) -> Mutant | None:
    """Return a value where no window reads outside, with 0 around it: the inside needs no checks."""
    sizes, names = graph.sizes, set(graph.sizes)
    moved: dict[str, tuple[str, int]] = {}
    back: list[Place] = []
    more: list[Axis] = []
    for place in graph.step_at(window).places:
        along = _slides(place, axes[value], sizes)
        if along is None or not reads_outside(place, sizes):
            continue
        ends = [factor * (sizes[axis] - 1) for axis, factor in place.terms if axis != along]
        low = max(0, -(place.offset + sum(min(end, 0) for end in ends)))
        high = min(sizes[along], sizes[along] - (place.offset + sum(max(end, 0) for end in ends)))
        if low >= high:
            return None
        inside = _new_name(f"{along}_inside", names)
        more.append(Axis(inside, high - low))
        moved[along] = inside, low
        back.append(Place((inside,), ((along, 1),), -low))
    if not moved:
        return None
    written = _copied(graph)
    part = on_box(written, graph, value, moved)
    if part is None:
        return None
    other = written.add(Step("window", (part,), places=tuple(back)))
    longer = replace(graph, axes=(*graph.axes, *more), steps=tuple(written.steps))
    return Mutant("the inside apart", longer, value, other, zero=True)


def _new_name(wanted: str, names: set[str]) -> str:
    """Return a name that no axis has, and note it."""
    found = fresh_name(wanted, names)
    names.add(found)
    return found


def _copied(graph: Graph) -> StepWriter:
    """Return a writer that has the steps of a graph, which are all different, under their own numbers."""
    written = StepWriter(value_axes(graph)[: len(graph.inputs)])
    for number, step in graph.numbered:
        found = written.add(step)
        assert found == number, "equal steps are one step"
    return written


def _mutant(
    name: str,
    graph: Graph,
    window: int,
    changed: Step,
    value: int,
    gone: set[str],
    back: tuple[Place, ...],
    axes: Sequence[frozenset[str]],
) -> Mutant | None:
    """Return a value computed of a changed window, which lacks some axes until they are read back."""
    written = _copied(graph)

    def again(one: int) -> int | None:
        if one == window:
            return written.add(changed)
        if not gone & axes[one]:
            return one
        step = graph.step_of(one)
        if step is None or step.op not in _KEEPING:
            return None
        operands = [again(i) for i in step.inputs]
        if any(i is None for i in operands):
            return None
        return written.add(step.reading(i for i in operands if i is not None))

    found = again(value)
    if found is None:
        return None
    other = written.add(Step("window", (found,), places=back))
    return Mutant(name, replace(graph, steps=tuple(written.steps)), value, other, zero=False)


def _put_right(mutant: Mutant) -> Corrected | None:
    """Return the program with a mutant's value in its place, and what is wrong of it computed again."""
    graph = mutant.graph
    axes = value_axes(graph)
    leaving = sorted(axes[mutant.value])
    found = agreement(graph, mutant.value, graph, mutant.other, leaving)
    if found is None:
        return None
    moving, right = found
    wrong = boxes_of(moving, ~right)
    if right.mean() < _LEAST_RIGHT or len(wrong) > _MOST_BOXES:
        return None
    written, names, more = _copied(graph), set(graph.sizes), list[Axis]()
    whole = mutant.other
    if wrong and not mutant.zero:
        whole = written.add(Step("mul", (_mask(written, moving, right), whole)))
    for box in wrong:
        part = {axis: at for axis, at in box.items() if len(at) < graph.sizes[axis]}
        moved = {axis: (_new_name(f"{axis}_part", names), at.start) for axis, at in part.items()}
        more += [Axis(moved[axis][0], len(at)) for axis, at in part.items()]
        again = on_box(written, graph, mutant.value, moved)
        if again is None:
            return None
        places = tuple(Place((new,), ((axis, 1),), -low) for axis, (new, low) in moved.items())
        whole = written.add(Step("add", (whole, written.add(Step("window", (again,), places=places)))))
    made = replace(graph, axes=(*graph.axes, *more), steps=tuple(written.steps))
    return Corrected(mutant.name, _with(made, mutant.value, whole), tuple(wrong))


def _mask(written: StepWriter, axes: Sequence[str], right: NDArray[np.bool_]) -> int:
    """Write the mask of what is right, as one of boxes that share nothing."""
    total: int | None = None
    for box in boxes_of(axes, right):
        found: int | None = None
        for axis, size in zip(axes, right.shape, strict=True):
            at = box[axis]
            index = Step("index", axes=(axis,))
            if at.start > 0:
                found = _both(written, found, "ge", index, at.start)
            if at.stop < size:
                found = _both(written, found, "lt", index, at.stop)
        assert found is not None, "something is wrong, so what is right is not all"
        # A sum would be no mask, whose product selects: 0 times an infinity that is wrong would be NaN.
        total = found if total is None else written.add(Step("or", (total, found)))
    assert total is not None, "half of the positions are right"
    return total


def _both(written: StepWriter, found: int | None, op: str, index: Step, number: int) -> int:
    compared = Step(op, (written.add(index), written.add(Step("const", value=Fraction(number)))))
    mask = written.add(compared)
    return mask if found is None else written.add(Step("and", (found, mask)))


def _with(graph: Graph, value: int, other: int) -> Graph:
    """Return a graph in which what reads a value reads another one, which may come later."""
    written = StepWriter(value_axes(graph)[: len(graph.inputs)])
    own, new = (dict[int, int](enumerate(range(len(graph.inputs)))) for _ in range(2))
    for at, step in graph.numbered:
        own[at] = written.add(step.reading(own[i] for i in step.inputs))
    for at, step in graph.numbered:
        new[at] = own[other] if at == value else written.add(step.reading(new[i] for i in step.inputs))
    outputs = tuple(replace(one, value=new[one.value]) for one in graph.outputs)
    return check_graph(live_graph(replace(graph, steps=tuple(written.steps), outputs=outputs)))
