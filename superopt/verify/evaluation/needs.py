"""Needs: which elements of each value one element of an output is computed from."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph, Output, Step, mask_values
from superopt.ops import OPS
from superopt.verify.evaluation.tensorless import moved_dims, selected_places
from superopt.verify.evaluation.tiny import Tiny

__all__ = ["MOST_NEEDED", "Needed", "needed_elements"]

Needed: TypeAlias = NDArray[np.bool_]
"""Of shape (elements of an output, *grid of a value)."""

MOST_NEEDED = 1 << 22
"""The most elements of one such array."""


def needed_elements(
    graph: Graph, output: Output, shapes: Sequence[tuple[int, ...]], tiny: Tiny
) -> list[Needed | None] | None:
    """Return for each value which of its elements each element of an output rests on.

    `shapes` has the grid of every value, with one dimension for each axis of the graph. Elements of the
    output are counted as `output_tensor` lays them out. None stands for a value that the output does not
    rest on, or that is known; where the arrays would be too large, there is no answer.
    """
    return _Needs(graph, shapes, tiny).of(output)


class _Needs:
    """One walk from an output back to the inputs."""

    def __init__(self, graph: Graph, shapes: Sequence[tuple[int, ...]], tiny: Tiny) -> None:
        self.graph, self.shapes, self.tiny = graph, shapes, tiny
        self.order = {axis.name: at for at, axis in enumerate(graph.axes)}
        self.masks, self.numbers = mask_values(graph), tiny.known_numbers(graph)
        self.found: list[Needed | None] = [None] * len(shapes)

    def of(self, output: Output) -> list[Needed | None] | None:
        first = self._first(output)
        if first.shape[0] * max(int(np.prod(shape)) for shape in self.shapes) > MOST_NEEDED:
            return None
        self.found[output.value] = first
        inputs = len(self.graph.inputs)
        for at in range(len(self.shapes) - 1, inputs - 1, -1):
            needed = self.found[at]
            if needed is not None and self.numbers[at] is None:
                self._pass_on(self.graph.steps[at - inputs], needed)
        return self.found

    def _first(self, output: Output) -> Needed:
        """Return which element of its value each element of an output is."""
        real, sizes = self.graph.sizes, self.tiny.sizes
        axes = [axis for axis in output.port.axes if real[axis] != 1]
        whole = tuple(sizes[axis] for axis in axes)
        shape = self.shapes[output.value]
        count = int(np.prod(whole))
        needed = np.zeros((count, *shape), dtype=np.bool_)
        places = np.unravel_index(np.arange(count), whole) if whole else ()
        index: list[NDArray[np.intp]] = [np.zeros(count, dtype=np.intp)] * len(shape)
        for axis, place in zip(axes, places, strict=True):
            dim = self.order[axis]
            index[dim] = place if shape[dim] > 1 else index[dim]
        needed[(np.arange(count), *index)] = True
        return needed

    def _pass_on(self, step: Step, needed: Needed) -> None:
        """Note what a step reads for the elements that are needed of it."""
        if step.op == "rename":
            back = np.argsort(moved_dims(2 + len(self.order), step.mapping, self.order))
            self._note(step.inputs[0], needed.transpose(0, *(int(dim) - 1 for dim in back[2:])))
            return
        if step.op == "select":
            places = selected_places(2 + len(self.order), step.mapping, self.order, self.tiny.positions)
            spread = np.zeros((needed.shape[0], *self.shapes[step.inputs[0]]), dtype=np.bool_)
            spread[(slice(None), *places[2:])] = needed
            self._note(step.inputs[0], spread)
            return
        for at, value in enumerate(step.inputs):
            if self.numbers[value] is None:
                self._note(value, self._left(step, at, needed))

    def _left(self, step: Step, at: int, needed: Needed) -> Needed:
        """Return what is needed of an operand where no known mask leaves it out."""
        others = [i for place, i in enumerate(step.inputs) if place != at]
        if step.op in ("mul", "contract") and len(others) == 1:
            kept = self._mask(others[0])
            return needed if kept is None else needed & kept
        if step.op in OPS and OPS[step.op].name == "where" and at > 0:
            kept = self._mask(step.inputs[0])
            if kept is not None:
                return needed & (kept if at == 1 else ~kept)
        return needed

    def _mask(self, value: int) -> NDArray[np.bool_] | None:
        """Return where a known mask is not 0; None for any other value."""
        numbers = self.numbers[value]
        if not self.masks[value] or not isinstance(numbers, np.ndarray):
            return None
        kept: NDArray[np.bool_] = numbers.reshape(1, *numbers.shape[2:]) != 0
        return kept

    def _note(self, value: int, needed: Needed) -> None:
        """Add to what is needed of a value, which has one element along the axes that it lacks."""
        shape = self.shapes[value]
        full = tuple(max(a, b) for a, b in zip(needed.shape[1:], shape, strict=True))
        wide = np.broadcast_to(needed, (needed.shape[0], *full))
        gone = tuple(1 + dim for dim, (a, b) in enumerate(zip(full, shape, strict=True)) if b < a)
        own: Needed = np.asarray(wide.any(axis=gone, keepdims=True)) if gone else wide
        known = self.found[value]
        self.found[value] = own if known is None else known | own
