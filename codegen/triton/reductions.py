"""Reductions: sums, maxima and contractions of tiles, within a tile or over the turns of a loop."""

from math import prod

from superopt.codegen.statements import Compute
from superopt.codegen.triton.expression import Expression, apply, as_float, atom
from superopt.codegen.triton.padding import Lanes, after_operator
from superopt.codegen.triton.products import Products
from superopt.codegen.triton.text import Lines
from superopt.codegen.triton.tiles import Held
from superopt.ir import Step, selects

__all__ = ["Reductions"]


class Reductions(Products):
    """The tiles of a kernel, and how they are multiplied and reduced."""

    def reduce(self, lines: Lines, compute: Compute) -> None:
        """Print a reduction: within the tile, or into an accumulator."""
        step, value = compute.step, compute.value
        name, comment = self.variables[value], self.comment(step)
        axes = self.plan.tile_axes(self.axes[value])
        lanes = {axis: self._reduced_lanes(step, axis) for axis in axes if self.masked(axis)}
        if value in self.plan.products:
            self.multiply(lines, compute, self.plan.products[value], axes)
        elif not compute.accumulates:
            lines.assign(name, self._folded(step, self._factor(step)), comment)
        else:
            late = value in self.late
            text = self._factor(step).text if late else self._folded(step, self._factor(step))
            axes = self.held[value].axes
            if step.op == "max":
                lines.assign(name, f"tl.maximum({name}, {text})", comment)
            else:
                lines.add(f"{name} += {text}", comment)
        self.held[value] = Held(atom(name), axes, "f32", lanes)

    def accumulator_axes(self, value: int) -> tuple[str, ...]:
        """Return the axes of an accumulator; a small one keeps its lanes apart until the loop ends."""
        step = self.graph.step_at(value)
        axes = self.plan.tile_axes(self.axes[value])
        wide = self._factor_axes(step)
        if value in self.plan.products or wide == axes or value in self.watched:
            return axes
        size = prod(self.config.tile(axis) for axis in wide)
        if not self.config.is_late(size, beside_products=bool(self.plan.products)):
            return axes
        self.late.add(value)
        return wide

    def finish(self, lines: Lines, value: int) -> None:
        """Add the lanes of an accumulator up, after its loop."""
        step = self.graph.step_at(value)
        name, held = self.variables[value], self.held[value]
        lines.add(f"{name} = {self._folded(step, held.expression)}")
        axes = self.plan.tile_axes(self.axes[value])
        self.held[value] = Held(atom(name), axes, "f32", held.lanes)

    def _reduced_lanes(self, step: Step, axis: str) -> Lanes:
        if step.op == "contract":
            return after_operator("mul", [self.lanes(i, axis) for i in step.inputs])
        if step.op == "max":
            return Lanes.ANY  # minus infinity where a loop takes no turn
        return self.lanes(step.inputs[0], axis) or Lanes.ANY

    def _factor_axes(self, step: Step) -> tuple[str, ...]:
        return self.plan.tile_axes(frozenset[str]().union(*(self.axes[i] for i in step.inputs)))

    def _factor(self, step: Step) -> Expression:
        """Return the values that a reduction adds up, or takes the maximum of."""
        axes = self._factor_axes(step)
        if step.op == "contract":
            a, b = step.inputs
            hidden = self.hidden_of_product(a, b, step.axes)
            factors = [self.zeroed(i, axes, hidden[at]) for at, i in enumerate((a, b))]
            if not selects(self.graph, step):
                factors = [as_float(one) for one in factors]
            return apply("mul", self.selecting(step, factors))
        value = step.inputs[0]
        reduced = [axis for axis in axes if axis in step.axes and self.masked(axis)]
        if step.op == "max":
            return as_float(self.zeroed(value, axes, reduced, 'float("-inf")'))
        return as_float(
            self.zeroed(value, axes, [axis for axis in reduced if self.lanes(value, axis) != Lanes.ZERO])
        )

    def _folded(self, step: Step, factor: Expression) -> str:
        """Return the reduction of these values over the axes within the tile, the innermost first."""
        axes, text = self._factor_axes(step), factor.text
        function = "tl.max" if step.op == "max" else "tl.sum"
        for axis in reversed(axes):
            if axis in step.axes:
                text = f"{function}({text}, axis={axes.index(axis)})"
        return text
