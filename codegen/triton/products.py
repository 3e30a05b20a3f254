"""Products: contractions of tiles as matrix products, their operands laid out, rounded and scaled."""

from collections.abc import Sequence
from dataclasses import replace

from superopt.codegen.statements import Compute
from superopt.codegen.triton.expression import as_float, atom
from superopt.codegen.triton.plan import Lanes, Product
from superopt.codegen.triton.text import Lines
from superopt.codegen.triton.tiles import Held, Tiles, transposed
from superopt.dtypes import DTYPES, FLOATS
from superopt.precision import is_wide, product_dtype

__all__ = ["TYPES", "Products"]

TYPES = {name: f"tl.{DTYPES[name].torch}" for name in FLOATS if DTYPES[name].triton}


class Products(Tiles):
    """The tiles of a kernel, and how they are multiplied."""

    def multiply(self, lines: Lines, compute: Compute, product: Product, axes: tuple[str, ...]) -> None:
        """Print a matrix product of tiles, whose result has these axes."""
        name, comment = self.variables[compute.value], self.comment(compute.step)
        dtype = product_dtype(self.graph, compute.step, self.plan.dtypes)
        hidden = self.hidden_of_product(product.lhs, product.rhs, product.inner)
        arguments, scales = [], []
        for at, value in enumerate((product.lhs, product.rhs)):
            if self._is_scaled(value, product_dtype=dtype):
                held, scale = self.scaled[value, product.inner]
                scales.append(self.spread(scale.text, scale.axes, axes))
            else:
                held = self._without(self.read(value), hidden[at])
            groups = (product.rows, product.inner) if at == 0 else (product.inner, product.columns)
            arguments.append(self._laid_out(self._rounded(held, dtype), (product.batch, *groups)))
        options = [f'input_precision="{self.config.precision}"'] if dtype == "f32" else []
        made = (*product.batch, *product.rows, *product.columns)
        several = any(len(group) > 1 for group in (product.batch, product.rows, product.columns))
        if made == axes and not several and not scales:
            into = [name] if compute.accumulates else []
            lines.call(f"{name} = ", "tl.dot", [*arguments, *into, *options], "", comment)
            return
        text = f"tl.dot({', '.join([*arguments, *options])})"
        if several:
            text = f"tl.reshape({text}, {self.shape(made)})"
        text = " * ".join([transposed(text, made, axes), *scales])
        if compute.accumulates:
            lines.add(f"{name} += {text}", comment)
        else:
            lines.assign(name, text, comment)

    def hidden_of_product(self, a: int, b: int, reduced: Sequence[str]) -> tuple[list[str], list[str]]:
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

    def scale(self, lines: Lines, value: int) -> None:
        """Print a complete tile a second time with scaled rows, for the products that read scaled rows."""
        done: set[tuple[str, ...]] = set()
        for made, product in self.plan.products.items():
            if value not in (product.lhs, product.rhs) or product.inner in done:
                continue
            step = self.graph.step_at(made)
            if self._is_scaled(value, product_dtype=product_dtype(self.graph, step, self.plan.dtypes)):
                done.add(product.inner)
                self.scaled[value, product.inner] = self._scaled(lines, value, product.inner)

    def _is_scaled(self, value: int, *, product_dtype: str) -> bool:
        scales = product_dtype == "f16" and not self.config.half_products
        return scales and is_wide(self.graph, value, self.plan.dtypes)

    def _scaled(self, lines: Lines, value: int, inner: tuple[str, ...]) -> tuple[Held, Held]:
        """Print the powers of two that divide rows, and the rows in fp16; return these, and the powers."""
        # Lanes beyond the end must not count for the size of a row.
        hidden = [axis for axis in inner if self.masked(axis) and self.lanes(value, axis) != Lanes.ZERO]
        held = self._without(self.read(value), hidden)
        number = as_float(held.expression)
        largest = f"tl.abs({number.text})"
        for axis in reversed(held.axes):
            if axis in inner:
                largest = f"tl.max({largest}, axis={held.axes.index(axis)})"
        name, half = (self.unique.take(f"{self.variables[value]}_{what}") for what in ("scale", "half"))
        self.helpers.add("fp16_scale")
        lines.add(f"{name} = fp16_scale({largest})")
        axes = tuple(axis for axis in held.axes if axis not in inner)
        inverse = self.spread(f"1.0 / {name}", axes, held.axes)
        lines.add(f"{half} = ({number.inside(4)} * {inverse}).to(tl.float16)")
        return replace(held, expression=atom(half), dtype="f16"), Held(atom(name), axes)

    def _without(self, held: Held, hidden: Sequence[str]) -> Held:
        """Return a tile with zeros in the lanes beyond the end of some axes."""
        if not hidden:
            return held
        mask = " & ".join(self.spread(self.mask[axis], (axis,), held.axes) for axis in hidden)
        text = f"tl.where({mask}, {as_float(held.expression).text}, 0.0)"
        return replace(held, expression=atom(text))

    def _rounded(self, held: Held, dtype: str) -> Held:
        """Return a tile in a dtype."""
        text = held.expression
        if held.dtype == dtype and text.kind == "float":
            return held
        return replace(held, expression=atom(f"{text.inside(6)}.to({TYPES[dtype]})"))

    def _laid_out(self, held: Held, groups: tuple[tuple[str, ...], ...]) -> str:
        """Return the text of a tile with its axes in groups, each of which becomes one dimension."""
        wanted = tuple(axis for group in groups for axis in group)
        found = transposed(held.text, held.axes, wanted)
        if any(len(group) > 1 for group in groups):
            sizes = [" * ".join(self.block[axis] for axis in group) for group in groups if group]
            found = f"tl.reshape({found}, ({', '.join(sizes)}))"
        return found
