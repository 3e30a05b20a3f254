"""Observe: one run of a region in float64 that tells how its comparisons came out, and what came of it.

Forward, each comparison notes how its sides compare, and where rounding leaves that in doubt, since equal
programs may differ there. Backward, each value notes at which elements a change of it would reach an output
that is judged: a mask that hides what is hidden anyhow has not been tested.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import torch
from torch import Tensor

from superopt.ir import Graph, Port, Step
from superopt.trace.run import Evaluation, Value
from superopt.verify.floats.comparison import COMPARED
from superopt.verify.floats.rounding import Rounding

__all__ = ["Forced", "Known", "Observation", "Seen"]

_MARGIN = 4.0  # a comparison is in doubt within this many times the error that rounding is thought to make


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor of the program: its numbers, their errors, and what they are multiples of.

    No error says that every dtype holds it exactly; no grain, that it is a multiple of nothing short.
    """

    tensor: Tensor
    error: Tensor | None = None
    grain: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """How a comparison came out at each element: -1 less, 0 equal, 1 greater, 2 where a side is NaN."""

    outcome: Tensor
    doubt: Tensor | None = None  # where rounding may change the outcome
    visible: Tensor | None = None  # where the other outcome would give another result; None for everywhere
    gap: tuple[float, float] = (-1.0, 1.0)  # least and largest difference of the two sides


Forced: TypeAlias = Mapping[int, tuple[Tensor, bool]]
"""Outcomes put in the place of comparisons, by value: at which elements, and which."""


class Observation:
    """One region, forward and backward.

    `visible` is the share of a tensor's largest number below which a difference is not seen in results;
    where only NaN and infinity are looked for, as `overflowing` says, no finite one is.
    `marked` names the inputs that depend on a comparison before this region. Errors are followed where
    `wary`, up to comparisons that jump, and where these come later, up to the outputs.
    """

    def __init__(
        self,
        graph: Graph,
        compared: frozenset[int],
        *,
        unit: float,
        visible: float,
        overflowing: bool,
        marked: frozenset[str],
        wary: bool,
        wary_later: bool,
        forced: Forced | None = None,
    ) -> None:
        self.graph = graph
        self.compared = compared
        self.unit = unit
        self.visible = visible
        self.overflowing = overflowing
        self.wary = _ancestors(graph, compared, later=wary_later) if wary else frozenset[int]()
        self.forced = forced or {}
        self.seen: dict[int, Seen] = {}
        self.reach: dict[int, Tensor] = {}
        self.axes: dict[int, tuple[str, ...]] = {}
        self.shapes: dict[int, torch.Size] = {}
        self.zeros: dict[int, Tensor] = {}  # the places where the other outcome would make a value 0
        self.notes: dict[int, tuple[Step, list[Tensor | None]]] = {}
        self.marked = {value for value, port in enumerate(graph.inputs) if port.name in marked} | compared
        for value, step in graph.numbered:
            if any(i in self.marked for i in step.inputs):
                self.marked.add(value)

    @property
    def marked_outputs(self) -> frozenset[str]:
        """The outputs that depend on a comparison."""
        return frozenset(one.port.name for one in self.graph.outputs if one.value in self.marked)

    # -- forward

    def forward(self, known: Mapping[str, Known]) -> dict[str, Known]:
        """Return the outputs by name."""
        graph = self.graph
        device = next((known[port.name].tensor.device for port in graph.inputs), torch.device("cpu"))
        run = self.run = Evaluation(graph, torch.float64, device, finite=False)
        self.rounding = Rounding(run, self.unit)
        for value, port in enumerate(graph.inputs):
            given = known[port.name]
            entered = run.values[value] = run.enter(port, given.tensor)
            self.rounding.enter(value, entered, given.error, given.grain)
            self._placed(value, entered)
            if value in self.compared:
                self.seen[value] = Seen(torch.where(entered.tensor != 0, 1, -1).to(torch.int8))
        fused = run.products()
        for value, step in graph.numbered:
            if value not in fused:
                product = fused.get(step.inputs[0]) if step.op == "sum" else None
                self._step(value, Step("contract", product.inputs, step.axes) if product else step)
                for i in step.inputs:
                    run.drop(i, fused)
        return {output.port.name: self._left(output.port, output.value) for output in graph.outputs}

    def _step(self, value: int, step: Step) -> None:
        made = self.run.step(step, {})
        if value in self.forced:
            where, outcome = self.forced[value]
            made = Value(torch.where(where, float(outcome), made.tensor), made.axes, made.mask)
        self.run.values[value] = made
        self._placed(value, made)
        if value in self.compared:
            self.seen[value] = self._compared(step, made)
        if value in self.marked:
            self._turned(value, step, made)
        if any(i in self.marked for i in step.inputs):
            self.notes[value] = step, self._partials(step, made)
        if value in self.wary:
            self.rounding.follow(value, step, made)

    def _placed(self, value: int, made: Value) -> None:
        self.axes[value], self.shapes[value] = made.axes, made.tensor.shape

    def _left(self, port: Port, value: int) -> Known:
        made = self.run.values[value]
        tensor, error = self.run.leave(port, made), self.rounding.errors.get(value)
        left = None if error is None else self.run.leave(port, Value(error, made.axes))
        tensor = tensor != 0 if port.dtype == "bool" else tensor
        return Known(tensor, left, self.rounding.grains.get(value))

    def _compared(self, step: Step, made: Value) -> Seen:
        operands = self._operands(step, made.axes)
        a, b = operands if len(operands) == 2 else (operands[0], torch.zeros_like(operands[0]))
        gap = torch.where(a == b, 0.0, a - b)  # two equal infinities have no gap either
        outcome = torch.where(gap.isnan(), 2.0, gap.sign()).to(torch.int8)
        doubt = visible = None
        if step.op not in COMPARED:
            visible = self._shows(gap, a, b) | (torch.minimum(a, b) == 0) & (gap != 0)
        elif (error := self.rounding.of(step, made.axes)) is not None:
            doubt = (~(gap.abs() > _MARGIN * error) & (error != 0) & ~gap.isnan()).expand(made.tensor.shape)
        known = gap[~gap.isnan()]
        ends = (float(known.min()), float(known.max())) if known.numel() else (inf, -inf)
        return Seen(outcome.expand(made.tensor.shape), doubt, visible, ends)

    def _operands(self, step: Step, axes: tuple[str, ...]) -> list[Tensor]:
        return [self.run.spread(self.run.values[i], axes) for i in step.inputs]

    def _is_visible(self, difference: Tensor, *beside: Tensor) -> Tensor:
        """Return where a difference is no rounding beside the largest numbers of some tensors."""
        largest = max((_largest(one) for one in beside), default=0.0)
        return difference.abs() > self.visible * largest

    def _shows(self, gap: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return where it shows which of two numbers is taken."""
        visible = self._is_visible(gap, a, b)
        return visible & ~gap.isfinite() if self.overflowing else visible

    def _partials(self, step: Step, made: Value) -> list[Tensor | None]:
        """Return where a change of each operand changes the value, on its axes; None for everywhere."""
        match step.op:
            case "contract":  # the share of each factor, on the factor's own axes
                return [self._share(step.inputs[1], step.axes), self._share(step.inputs[0], step.axes)]
            case "max":
                x = self.run.values[step.inputs[0]]
                largest = x.tensor.amax([x.axes.index(axis) for axis in step.axes], keepdim=True)
                return [(x.tensor == largest) | x.tensor.isinf()]
        if step.op not in ("mul", "div", "and", "or", "where", "guard", "maximum", "minimum", "relu"):
            return [None] * len(step.inputs)
        operands = self._operands(step, made.axes)
        a, b = operands[0], operands[-1]
        match step.op:
            case "mul":
                return [self._is_visible(b, b), self._is_visible(a, a)]
            case "div":
                zero = self._zero_if_turned(step.inputs[1], made.axes)  # and dividing by it no number
                return [None, self._is_visible(a, a) if zero is None else self._is_visible(a, a) | zero]
            case "and":
                return [b != 0, a != 0]
            case "or":
                return [b == 0, a == 0]
            case "where":
                gap = torch.where(operands[1] == b, 0.0, operands[1] - b)
                return [self._shows(gap, operands[1], b), a != 0, a == 0]
            case "guard":
                return [self._is_visible(b, b), a != 0]
            case "maximum":
                return [a >= b, b >= a]
            case "minimum":
                return [a <= b, b <= a]
        return [a >= 0]

    def _turned(self, value: int, step: Step, made: Value) -> None:
        """Note where a value would be 0 had the comparison that makes it come out otherwise."""
        if step.op == "maximum":
            self.zeros[value] = torch.minimum(*self._operands(step, made.axes)) == 0
        elif step.op == "where":
            chosen, x, y = self._operands(step, made.axes)
            self.zeros[value] = torch.where(chosen != 0, y, x) == 0
        elif step.op in ("sqrt", "rename") and step.inputs[0] in self.zeros:
            self.zeros[value] = self.zeros[step.inputs[0]]

    def _zero_if_turned(self, value: int, axes: tuple[str, ...]) -> Tensor | None:
        """Return where a value would be 0 had the comparison that makes it come out otherwise."""
        if value not in self.zeros:
            return None
        zero = self.zeros[value].expand(self.shapes[value])
        return self.run.spread(Value(zero, self.axes[value]), axes)

    def _share(self, value: int, axes: tuple[str, ...]) -> Tensor:
        """Return where the numbers of a factor are no rounding beside others that are summed with them."""
        made = self.run.values[value]
        dims = [made.axes.index(axis) for axis in axes if axis in made.axes]
        size = torch.where(made.tensor.isfinite(), made.tensor.abs(), 0.0)
        largest = size.amax(dims, keepdim=True) if dims and size.numel() else size
        return (size > self.visible * largest) & (size > 0)

    # -- backward

    def backward(self, reached: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return where changes of the inputs reach what is judged, given where changes of the outputs do."""
        sizes = self.graph.sizes
        for output in self.graph.outputs:
            port = output.port
            if port.name in reached and output.value in self.marked:
                there = reached[port.name].reshape([sizes[axis] for axis in port.axes])
                self._reaches(output.value, there, port.axes)
        first = len(self.graph.inputs)
        for value in range(first + len(self.graph.steps) - 1, first - 1, -1):
            if value in self.reach and value in self.notes:
                self._back(value, *self.notes.pop(value))
        return {
            port.name: self.reach[value].reshape(self.graph.shape(port))
            for value, port in enumerate(self.graph.inputs)
            if value in self.reach
        }

    def _back(self, value: int, step: Step, partials: list[Tensor | None]) -> None:
        reach, axes = self.reach[value], self.axes[value]
        for at, (operand, partial) in enumerate(zip(step.inputs, partials, strict=True)):
            if operand not in self.marked:
                continue
            match step.op:
                case "contract":
                    assert partial is not None
                    self._back_contract(operand, step.inputs[1 - at], reach, axes, partial)
                case "sum" | "max":
                    names = self.axes[operand]
                    shape = [
                        1 if axis in step.axes else self.shapes[operand][i] for i, axis in enumerate(names)
                    ]
                    there = reach.reshape(shape).expand(self.shapes[operand])
                    self._reaches(operand, there if partial is None else there & partial, names)
                case "rename":
                    self._reaches(operand, reach, self.axes[operand])
                case "select":
                    there = torch.zeros(self.shapes[operand], dtype=torch.bool, device=reach.device)
                    chosen = {axis: int(at) for axis, at in step.mapping}
                    there[tuple(chosen.get(axis, slice(None)) for axis in self.axes[operand])] = reach
                    self._reaches(operand, there, self.axes[operand])
                case "window":
                    self._reaches(operand, self._read_through(step, operand, reach), self.axes[operand])
                case _:
                    self._reaches(operand, reach if partial is None else reach & partial, axes)

    def _read_through(self, step: Step, operand: int, reach: Tensor) -> Tensor:
        """Return which elements some windows read, given on the axes of the windows."""
        shape = self.shapes[operand]
        count = shape.numel()
        numbers = torch.arange(1, count + 1, dtype=torch.float64, device=reach.device).reshape(shape)
        seen = self.run.window(step, Value(numbers, self.axes[operand])).tensor  # 0 outside
        there = torch.zeros(count + 1, dtype=torch.bool, device=reach.device)
        there[seen[reach.expand(seen.shape)].long()] = True
        return there[1:].reshape(shape)

    def _back_contract(
        self, operand: int, other: int, reach: Tensor, axes: tuple[str, ...], share: Tensor
    ) -> None:
        """Pass on where a factor reaches: an element of it, where some product of it is no rounding."""
        names, others = self.axes[operand], self.axes[other]
        letters = {axis: i for i, axis in enumerate(dict.fromkeys((*axes, *names, *others)))}
        kept = [axis for axis in names if axis in axes or axis in others]
        found = torch.einsum(
            reach.float(),
            [letters[axis] for axis in axes],
            share.float(),
            [letters[axis] for axis in others],
            [letters[axis] for axis in kept],
        )
        self._reaches(operand, found > 0, tuple(kept))

    def _reaches(self, value: int, where: Tensor, axes: tuple[str, ...]) -> None:
        """Note where a value reaches what is judged, given on other axes than its own, in another order."""
        own = self.axes[value]
        extra = [axes.index(axis) for axis in axes if axis not in own]
        where = where.any(extra) if extra else where
        left = [axis for axis in axes if axis in own]
        where = where.permute([left.index(axis) for axis in own if axis in left])
        shape = [size if axis in left else 1 for axis, size in zip(own, self.shapes[value], strict=True)]
        where = where.reshape(shape).expand(self.shapes[value])
        self.reach[value] = where if value not in self.reach else self.reach[value] | where


def _ancestors(graph: Graph, compared: frozenset[int], *, later: bool) -> frozenset[int]:
    """Return the values before comparisons, and where others come later all before what leaves."""
    first = len(graph.inputs)
    found = {output.value for output in graph.outputs} if later else set()
    for value in range(first + len(graph.steps) - 1, first - 1, -1):
        step = graph.step_at(value)
        if value in found or (value in compared and step.op in COMPARED):
            found |= set(step.inputs)
    return frozenset(found)


def _largest(tensor: Tensor) -> float:
    if not tensor.numel():
        return 0.0
    return float(torch.where(tensor.isfinite(), tensor.abs(), 0.0).amax())
