"""Reductions: sums, maxima and contractions of tiles, as matrix products where they have that shape."""

from collections.abc import Sequence
from math import prod

from superopt.codegen.statements import Compute
from superopt.codegen.triton.expression import Expression, apply, as_float, atom
from superopt.codegen.triton.padding import Lanes, after_operator
from superopt.codegen.triton.plan import Product
from superopt.codegen.triton.text import Lines
from superopt.codegen.triton.tiles import Held, Tiles, transposed
from superopt.dtypes import DTYPES, FLOATS
from superopt.ir import Step, selects
from superopt.precision import is_wide, product_dtype

__all__ = ["TYPES", "Reductions"]

TYPES = {name: f"tl.{DTYPES[name].torch}" for name in FLOATS if DTYPES[name].triton}


class Reductions(Tiles):
    """The tiles of a kernel, and how they are reduced."""

    def reduce(self, lines: Lines, compute: Compute) -> None:
        """Print a reduction: within the tile, or into an accumulator."""
        step, value = compute.step, compute.value
        name, comment = self.variables[value], self.comment(step)
        axes = self.plan.tile_axes(self.axes[value])
        lanes = {axis: self._reduced_lanes(step, axis) for axis in axes if self.masked(axis)}
        if value in self.plan.products:
            self._dot(lines, compute, self.plan.products[value], axes)
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
        """Return the axes of an accumulator: where it is small, lanes add up on their own until the end."""
        step = self.graph.step_of(value)
        assert step is not None
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
        step = self.graph.step_of(value)
        assert step is not None
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
        """Return what a reduction adds up, or takes the maximum of, before it does."""
        axes = self._factor_axes(step)
        if step.op == "contract":
            a, b = step.inputs
            hidden = self._hidden_of_product(a, b, step.axes)
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
        """Return a reduction of what it adds up over the axes within the tile, the innermost first."""
        axes, text = self._factor_axes(step), factor.text
        function = "tl.max" if step.op == "max" else "tl.sum"
        for axis in reversed(axes):
            if axis in step.axes:
                text = f"{function}({text}, axis={axes.index(axis)})"
        return text

    def _hidden_of_product(self, a: int, b: int, reduced: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the axes along which each factor needs zeros beyond the end, and does not have them."""
        hidden: tuple[list[str], list[str]] = ([], [])
        for axis in reduced:
            if axis not in self.plan.roles or not self.masked(axis):
                continue
            lanes = [self.lanes(i, axis) for i in (a, b)]
            for at, one in enumerate(lanes):
                if one == Lanes.ANY:
                    hidden[at].append(axis)
                    lanes[at] = Lanes.ZERO
            if Lanes.ZERO not in lanes:
                hidden[0 if lanes[0] is not None else 1].append(axis)
        return hidden

    def _dot(self, lines: Lines, compute: Compute, product: Product, axes: tuple[str, ...]) -> None:
        name, comment = self.variables[compute.value], self.comment(compute.step)
        dtype, precision = self._dot_dtype(compute.step)
        hidden = self._hidden_of_product(product.lhs, product.rhs, product.inner)
        lhs_axes = (product.batch, product.rows, product.inner)
        rhs_axes = (product.batch, product.inner, product.columns)
        arguments = [
            self._dot_operand(product.lhs, lhs_axes, hidden[0], dtype),
            self._dot_operand(product.rhs, rhs_axes, hidden[1], dtype),
        ]
        options = [f'input_precision="{precision}"'] if dtype == "f32" else []
        groups = (product.rows, product.columns)
        made = (*product.batch, *product.rows, *product.columns)
        several = any(len(group) > 1 for group in (product.batch, *groups))
        if made == axes and not several:
            into = [name] if compute.accumulates else []
            lines.call(f"{name} = ", "tl.dot", [*arguments, *into, *options], "", comment)
            return
        text = f"tl.dot({', '.join([*arguments, *options])})"
        if several:
            text = f"tl.reshape({text}, {self.shape(made)})"
        text = transposed(text, made, axes)
        if compute.accumulates:
            lines.add(f"{name} += {text}", comment)
        else:
            lines.assign(name, text, comment)

    def _dot_dtype(self, step: Step) -> tuple[str, str]:
        """Return the dtype of a matrix product's operands, and how they are multiplied where that is fp32.

        Where fp16 lacks the range it is tf32, which is as exact.
        """
        dtype = product_dtype(self.graph, step, self.plan.dtypes)
        wide = any(is_wide(self.graph, i, self.plan.dtypes) for i in step.inputs)
        if dtype == "f16" and wide and not self.config.half_products:
            return "f32", "tf32"
        return dtype, self.config.precision

    def _dot_operand(
        self, value: int, groups: tuple[tuple[str, ...], ...], hidden: Sequence[str], dtype: str
    ) -> str:
        held = self.read(value)
        text = held.expression
        if hidden:
            mask = " & ".join(self.spread(self.mask[axis], (axis,), held.axes) for axis in hidden)
            text = atom(f"tl.where({mask}, {as_float(text).text}, 0.0)")
        if held.dtype != dtype or text.kind != "float":
            text = atom(f"{text.inside(6)}.to({TYPES[dtype]})")
        wanted = tuple(axis for group in groups for axis in group)
        found = transposed(text.text, held.axes, wanted)
        if any(len(group) > 1 for group in groups):
            sizes = [" * ".join(self.block[axis] for axis in group) for group in groups if group]
            found = f"tl.reshape({found}, ({', '.join(sizes)}))"
        return found
