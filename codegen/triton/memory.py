"""Memory: how tiles are read and written, by addresses, by descriptors, and through windows."""

from math import prod

from superopt.codegen.errors import UnsupportedError
from superopt.codegen.statements import Store, Tensor
from superopt.codegen.triton.descriptors import Descriptor
from superopt.codegen.triton.expression import Kind, as_float, atom
from superopt.codegen.triton.plan import Lanes, reads_elsewhere
from superopt.codegen.triton.products import TYPES
from superopt.codegen.triton.text import WIDTH, Lines
from superopt.codegen.triton.tiles import At, Held, Tiles, transposed
from superopt.dtypes import EXACT, FP8, INTEGERS
from superopt.ir import Step
from superopt.ir.windows.place import Place, ends_of

__all__ = ["Memory"]

FLOATS = FP8.union(TYPES)


class Memory(Tiles):
    """The tiles of a kernel, and how they are read and written."""

    def load_statement(self, lines: Lines, value: int) -> None:
        """Print the load of a tensor where it stands, which may be read at other places alone."""
        tensor = self.loaded[value]
        if self._read_plainly(value):
            self.load(lines, value, tensor, {axis: axis for axis in tensor.axes}, None)

    def _read_plainly(self, value: int) -> bool:
        """Return whether a step reads the value where it stands, not only at other places."""
        steps = self.program.steps()
        return any(value in step.inputs and not reads_elsewhere(step) for step in steps) or any(
            isinstance(one, Store) and one.value == value for one, _ in self.program.flat()
        )

    def load(
        self, lines: Lines, value: int, tensor: Tensor, places: dict[str, str | int], comment: str | None
    ) -> None:
        """Read a tile, each axis of the tensor at an axis of the kernel or at one position."""
        axes = self.turned.get(value) or self.plan.tile_axes(str(place) for place in places.values())
        seen = self.descriptor(tensor, places)
        if seen is None:
            mask = self.mask_text(axes, axes)
            self._read(lines, value, tensor, axes, self.address(tensor, axes, places), mask, comment)
        else:
            kind, dtype, tail = self._form(value, tensor)
            name = self.variables[value]
            self._read_by_descriptor(lines, name, tensor, seen, axes, tail, comment)
            self._hold(value, axes, kind, dtype)

    def window(self, lines: Lines, value: int, step: Step) -> None:
        """Read a tile of a window, with zeros where it lies outside of the tensor."""
        [source] = step.inputs
        tensor = self.loaded[source]
        axes = self.plan.tile_axes(self.axes[value])
        places: dict[str, str | int | At] = {axis: axis for axis in self.memory_axes(tensor)}
        masks = [self.mask_text(axes, axes)]
        lines.add(f"# {self.comment(step)}")
        for place in step.places:
            found, inside = self._place(lines, place)
            places |= found
            masks += [self.seen(inside, axes)] if inside.text else []
        mask = " & ".join(filter(None, masks))
        self._read(lines, value, tensor, axes, self.address(tensor, axes, places), mask, None)

    def _place(self, lines: Lines, place: Place) -> tuple[dict[str, At], At]:
        """Print where a window reads; return that for each axis that is read, and whether it lies inside."""
        dims = self.plan.tile_axes(axis for axis, _ in place.terms)
        text = ""
        for axis, factor in place.terms:
            at = self.spread(self.place[axis], (axis,), dims) if axis in dims else self.position(axis)
            at = at if abs(factor) == 1 else f"{abs(factor)} * {at}"
            text += f" {'-' if factor < 0 else '+'} {at}" if text or factor < 0 else at
        text = f"{text} {'-' if place.offset < 0 else '+'} {abs(place.offset)}" if place.offset else text
        name = self.unique.take(f"{place.axes[0]}_at")
        lines.add(f"{name} = {text.strip() or 0}")
        low, high = ends_of(place, self.graph.sizes)
        extents = [self.extents[axis] for axis in place.axes]
        size = prod(self.graph.sizes[axis] for axis in place.axes)
        tests = [f"{name} >= 0"] if low < 0 else []
        tests += [f"{name} < {' * '.join(extents)}"] if high >= size else []
        inside = self.unique.take(f"{place.axes[0]}_inside") if tests else ""
        if tests:
            test = f"({tests[0]}) & ({tests[1]})" if len(tests) > 1 else tests[0]
            lines.add(f"{inside} = {test}")
        found = {place.axes[-1]: At(name, dims)}
        if len(extents) > 1:  # several axes are one index, the first of them outermost
            for number, axis in enumerate(place.axes):
                behind = " // ".join([name, *reversed(extents[number + 1 :])])
                found[axis] = At(f"{behind}{f' % {extents[number]}' if number else ''}", dims)
        return found, At(inside, dims)

    def _read(
        self,
        lines: Lines,
        value: int,
        tensor: Tensor,
        axes: tuple[str, ...],
        address: str,
        mask: str,
        comment: str | None,
    ) -> None:
        """Read a tile from addresses, with zeros where the mask does not hold."""
        kind, dtype, tail = self._form(value, tensor)
        zero = "0.0" if tensor.dtype in FLOATS else "0"
        other = [f"mask={mask}", f"other={zero}"] if mask else []
        hint = ['eviction_policy="evict_first"'] if tensor.name in self.config.passing else []
        lines.call(f"{self.variables[value]} = ", "tl.load", [address, *other, *hint], tail, comment)
        self._hold(value, axes, kind, dtype)

    def _form(self, value: int, tensor: Tensor) -> tuple[Kind, str, str]:
        """Return as what a tile is held that is read: its kind, its dtype, and what converts it."""
        if tensor.dtype not in FLOATS | INTEGERS | {"bool"}:
            raise UnsupportedError(f"{self.program.name}: no loads of {tensor.name} in {tensor.dtype}")
        if tensor.dtype != "f32" and value in self.raw:
            return "float", tensor.dtype, ""
        if tensor.dtype in INTEGERS - EXACT:
            return "int", "f32", ".to(tl.int64)" if tensor.dtype != "i64" else ""
        if self.plan.masks[value]:
            return "mask", "f32", " != 0"
        return "float", "f32", ".to(tl.float32)" if tensor.dtype != "f32" else ""

    def _hold(self, value: int, axes: tuple[str, ...], kind: Kind, dtype: str) -> None:
        lanes = {axis: Lanes.ZERO for axis in axes if self.masked(axis)}
        self.held[value] = Held(atom(self.variables[value], kind), axes, dtype, lanes)

    def _read_by_descriptor(
        self,
        lines: Lines,
        name: str,
        tensor: Tensor,
        seen: Descriptor,
        axes: tuple[str, ...],
        tail: str,
        comment: str | None,
    ) -> None:
        """Read a tile by a descriptor, without the dimensions along which a program is at one position."""
        read = self.tile_of(seen)

        def shaped(tile: str) -> str:
            text = tile if len(read) == len(seen.axes) else f"tl.reshape({tile}, {self.shape(read)})"
            return transposed(text, read, axes) + tail

        tile = f"{self.named(tensor, seen)}.load({self.corner(seen)})"
        if shaped(tile) != tile and len(f"{name} = {shaped(tile)}") > WIDTH - 8:
            lines.add(f"{name} = {tile}", comment)
            lines.add(f"{name} = {shaped(name)}")
        else:
            lines.add(f"{name} = {shaped(tile)}", comment)

    def store(self, lines: Lines, store: Store) -> None:
        """Print the store of a tile."""
        tensor, held = store.tensor, self.held[store.value]
        places: dict[str, str | int] = {axis: axis for axis in self.memory_axes(tensor)}
        axes = self.plan.tile_axes(str(place) for place in places.values())
        text = self.operand(store.value, axes)
        if tensor.dtype in TYPES:
            value = as_float(text).text if held.expression.kind != "constant" else text.text
            if tensor.dtype != "f32" and held.expression.kind != "constant":
                value = f"{as_float(text).inside(6)}.to({TYPES[tensor.dtype]})"
        elif tensor.dtype in INTEGERS | {"bool"}:
            value = text.text
        else:
            raise UnsupportedError(f"{self.program.name}: no stores of {tensor.name} in {tensor.dtype}")
        seen = self.descriptor(tensor, places)
        if seen is not None and held.axes == axes and not self.program.repeated(store.value):
            wanted = self.tile_of(seen)
            value = transposed(value, axes, wanted)
            if len(wanted) < len(seen.axes):
                value = f"tl.reshape({value}, ({', '.join(self._sides(seen))}))"
            lines.call("", f"{self.named(tensor, seen)}.store", [self.corner(seen), value])
            return
        arguments = [self.address(tensor, axes, places), value]
        repeated = [axis for axis in self.program.repeated(store.value) if self.plan.roles[axis] != "whole"]
        first = [f"({self.pid[axis]} == 0)" for axis in repeated]
        mask = " & ".join([text for text in [self.mask_text(axes, axes), *first] if text])
        lines.call("", "tl.store", [*arguments, *([f"mask={mask}"] if mask else [])])

    def _sides(self, seen: Descriptor) -> list[str]:
        wanted = self.tile_of(seen)
        return [self.block[place] if place in wanted else "1" for place in map(str, seen.places)]
