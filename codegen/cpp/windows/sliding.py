"""Sliding: nests that sum over the short axes of windows vector by vector, each sum in a register."""

from collections.abc import Collection
from contextlib import nullcontext

from superopt.codegen.cpp.plan import Nest
from superopt.codegen.cpp.source import Place
from superopt.codegen.cpp.tiles import Tiles, reads_window
from superopt.codegen.cpp.windows.rows import RowsPrinter
from superopt.codegen.cpp.windows.sums import TURNS, UNROLLED, SumsPrinter
from superopt.codegen.statements import Compute, traced_strides

__all__ = ["print_sliding"]


def print_sliding(tiles: Tiles, nest: Nest) -> None:
    """Print a nest over windows, and the steps that follow its sums, among the lines of a kernel."""
    rows = RowsPrinter(tiles, nest)
    printer = rows if rows.applies() else _SlidingPrinter(tiles, nest)
    printer.print()


class _SlidingPrinter(SumsPrinter):
    """One nest that slides vector by vector."""

    def print(self) -> None:
        """Print the nest."""
        tiles, targets = self.tiles, self._targets()
        inner, outer = self._inner_and_outer()
        before = dict(tiles.places)
        for value in inner:
            if self._is_turned(value):
                tiles.places[value] = self._turned(value)
        pointers = {value: tiles.pointer(value, tiles.place(value)) for value in dict.fromkeys(inner + outer)}
        self._point_to_stores()
        assert self.vector is not None
        turns = f"[{TURNS}]" if self.takes_turns else ""
        name, count = self.name(self.vector), tiles.count(self.vector)
        with tiles.loops(self.kept) if self.kept else tiles.block(""):
            head = f"along({count}, [&](index_t {name}, auto {name}_lanes, int) INLINE"
            with tiles.block(head, end=");"):
                for one in self.nest.reductions:
                    tiles.line(f"Vec {self._register(one)}{turns}{{}};")
                    if one.step.op == "max":
                        tiles.line(f"start({self._register(one)}, -infinity);")
                whole = " && ".join(self._note_whole(inner))
                head = f"either({whole}, [&](auto all_whole) INLINE" if whole else ""
                with tiles.block(head, end=");") if whole else nullcontext(), tiles.loops(self.reduced[:-1]):
                    tiles.line(f"#pragma GCC unroll {UNROLLED}")
                    with tiles.loops(self.reduced[-1:]):
                        self._read(inner, pointers, vector=False)
                        self._read(inner, pointers, vector=True)
                        self._statements({})
                self._end_sums(targets)
                self._read(outer, pointers, vector=False)
                self._read(outer, pointers, vector=True)
                self._statements(targets, self.nest.rest)
        tiles.places = before | {value: one for value, one in tiles.places.items() if value not in before}

    def _is_turned(self, value: int) -> bool:
        """Whether vectors run across the memory of weights that all positions of the outer loops read."""
        tensor = next((one for one in self.tiles.program.loads if one.value == value), None)
        if tensor is None or self.vector not in tensor.axes or not set(self.reduced) & set(tensor.axes):
            return False
        across = traced_strides(tensor, self.graph.sizes).get(self.vector, 1) != 1
        return across and not set(self.kept) & set(tensor.axes)

    def _turned(self, value: int) -> Place:
        """Copy weights so that vectors run along memory, and return where they lie then."""
        tiles, vector, place = self.tiles, self.vector, self.tiles.place(value)
        assert vector is not None
        axes = [axis for axis in self.reduced if axis in place.strides]
        strides = {vector: "1"}
        length = tiles.extent(vector)
        for axis in reversed(axes):
            strides[axis] = length
            length = f"{length} * {tiles.extent(axis)}"
        name = f"{tiles.names.values[value]}_turned"
        tiles.allocate(name, length)
        pointer = tiles.pointer(value, place)
        with tiles.loops(axes):
            lane = self.name(vector)
            head = f"along({tiles.count(vector)}, [&](index_t {lane}, auto {lane}_lanes, int) INLINE"
            with tiles.block(head, end=");"):
                here = [*axes, vector]
                at, to = self._at(pointer, place.strides, here), self._at(name, strides, here)
                read = f"load({at}, {place.strides[vector]}, {lane}_lanes)"
                tiles.line(f"store({to}, 1, {lane}_lanes, {read});")
        return Place(name, "float", strides, frozenset(), count=length)

    def _note_whole(self, operands: list[int]) -> list[str]:
        """Declare of each window a flag that says whether all that a vector reads lies inside, at all taps.

        Return the flags; where all of them hold, `all_whole` does.
        """
        flags = []
        for value in operands:
            place = self.tiles.place(value)
            if self.vector in place.strides and reads_window(self.graph, value):
                assert self.vector is not None
                flag = f"{self.tiles.names.values[value]}_whole"
                inside = all_inside(self.tiles, place, self.vector, self.reduced)
                self.tiles.line(f"const bool {flag} = {inside};")
                self.whole[value] = f"(all_whole || {flag})"
                flags.append(flag)
        return flags

    def _term_register(self, one: Compute) -> str:
        turn = f"[{self.name(self.reduced[-1])} % {TURNS}]" if self.takes_turns else ""
        return f"{self._register(one)}{turn}"

    def _joined(self, one: Compute) -> str:
        register = self._register(one)
        if not self.takes_turns:
            return register
        first, *parts = (f"{register}[{turn}]" for turn in range(TURNS))
        whole = f"{register}_all"
        self.tiles.line(f"Vec {whole} = {first};")
        for part in parts:
            self._add(whole, part, one)
        return whole


def all_inside(tiles: Tiles, place: Place, vector: str, taps: Collection[str]) -> str:
    """Return whether a whole vector is read inside the tensor at all positions of some axes."""
    name = tiles.names.axes[vector]
    found = [f"{name}_lanes >= lanes"]
    for guard in place.guards:
        for last in (False, True):
            ends = {
                axis: str(tiles.graph.sizes[axis] - 1 if (factor > 0) == last else 0)
                for axis, factor in guard.factors.items()
                if axis in taps
            }
            if vector in guard.factors and (guard.factors[vector] > 0) == last:
                ends[vector] = f"({name} + lanes - 1)"
            found.append(f"inside({tiles.position(guard, ends)}, {guard.size})")
    return " && ".join(dict.fromkeys(found))
