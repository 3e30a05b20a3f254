"""Reductions: sums, maxima and contractions of tiles, within a tile or over the turns of a loop."""

from math import prod

from superopt.codegen.statements import Compute
from superopt.codegen.triton.expression import Expression, apply, as_float, atom, larger
from superopt.codegen.triton.plan import Lanes
from superopt.codegen.triton.products import Products
from superopt.codegen.triton.text import Lines
from superopt.codegen.triton.tiles import Held
from superopt.ir import Step, selects
from superopt.ir.stabilize import LOWEST

__all__ = ["Reductions"]

_MOVED = frozenset({"mul", "max", "rename", "select"})  # what may be done with a maximum before it is a shift


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
            lines.assign(name, self._folded(value, self._factor(step)), comment)
        else:
            late = value in self.late
            text = self._factor(step).text if late else self._folded(value, self._factor(step))
            axes = self.held[value].axes
            if step.op == "max":
                keeps_nan = not self._only_shifts(value)
                lines.assign(name, larger(name, text, keeps_nan=keeps_nan), comment)
            elif value in self.long:
                self.helpers.add("long_sum")
                kept = f"{name}, {self.lost[value]}"
                lines.assign(kept, f"long_sum({kept}, {text})", comment)
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
        name, held = self.variables[value], self.held[value]
        lines.add(f"{name} = {self._folded(value, held.expression)}")
        axes = self.plan.tile_axes(self.axes[value])
        self.held[value] = Held(atom(name), axes, "f32", held.lanes)

    def _reduced_lanes(self, step: Step, axis: str) -> Lanes:
        if step.op == "contract":
            return self.lanes_after(step, axis)
        if step.op == "max":
            return Lanes.ANY  # minus infinity of numbers where a loop takes no turn
        return self.lanes(step.inputs[0], axis) or Lanes.ANY

    def _factor_axes(self, step: Step) -> tuple[str, ...]:
        return self.plan.tile_axes(frozenset[str]().union(*(self.axes[i] for i in step.inputs)))

    def _factor(self, step: Step) -> Expression:
        """Return the values that a reduction adds up, or takes the maximum of."""
        axes = self._factor_axes(step)
        if step.op == "contract":
            return self._multiplied(step, axes)
        value = step.inputs[0]
        reduced = [axis for axis in axes if axis in step.axes and self.masked(axis)]
        if step.op == "max" and not self.plan.masks[value]:
            return as_float(self.zeroed(value, axes, reduced, 'float("-inf")'))
        return as_float(
            self.zeroed(value, axes, [axis for axis in reduced if self.lanes(value, axis) != Lanes.ZERO])
        )

    def _multiplied(self, step: Step, axes: tuple[str, ...]) -> Expression:
        """Return the products that a contraction adds up."""
        a, b = step.inputs
        # A factor that lacks an axis may be infinite, and then even zeros beyond the end spoil the sum.
        spoiled = tuple(
            axis
            for axis in axes
            if axis in step.axes and self.masked(axis)
            if None in (self.lanes(a, axis), self.lanes(b, axis))
            if self.lanes_after(step, axis) != Lanes.ZERO
        )
        hidden = self.hidden_of_product(a, b, [axis for axis in step.axes if axis not in spoiled])
        factors = [self.zeroed(i, axes, hidden[at]) for at, i in enumerate((a, b))]
        if not selects(self.graph, step):
            factors = [as_float(one) for one in factors]
        product = apply("mul", self.selecting(step, factors))
        if not spoiled:
            return product
        return atom(f"tl.where({self.mask_text(spoiled, axes)}, {as_float(product).text}, 0.0)")

    def _folded(self, value: int, factor: Expression) -> str:
        """Return the reduction of these values over the axes within the tile, the innermost first."""
        step = self.graph.step_at(value)
        axes, text = self._factor_axes(step), factor.text
        for axis in reversed(axes):
            if axis in step.axes:
                text = self._along(step, value, text, axes.index(axis))
        return text

    def _along(self, step: Step, value: int, text: str, dim: int) -> str:
        """Return a reduction along one dimension of a tile."""
        if step.op != "max":
            return f"tl.sum({text}, axis={dim})"
        if self._only_shifts(value):
            return f"tl.max({text}, axis={dim})"
        self.helpers.add("larger")  # `tl.max` passes over NaN
        return f"tl.reduce({text}, {dim}, larger)"

    def _only_shifts(self, value: int) -> bool:
        """Whether a maximum does nothing but shift exponentials, whose own numbers keep NaN."""
        users = [(made, step) for made, step in self.graph.numbered if value in step.inputs]
        if not users or any(output.value == value for output in self.graph.outputs):
            return False
        return all(
            (step.op == "maximum" and any(self.graph.constant(i) == LOWEST for i in step.inputs))
            or (step.op in _MOVED and self._only_shifts(made))
            for made, step in users
        )
