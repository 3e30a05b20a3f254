"""Rows: sums over windows of several vectors of a row at once, which share weights and what edges are."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from superopt.codegen.cpp.expressions import Text
from superopt.codegen.cpp.nest import NestPrinter
from superopt.codegen.cpp.plan import Nest
from superopt.codegen.cpp.source import Guard, Place, times
from superopt.codegen.cpp.tiles import Tiles, inside, reads_window
from superopt.codegen.statements import Compute

__all__ = ["LONGEST", "SEVERAL", "TURNS", "UNROLLED", "RowsPrinter"]

TURNS = 4
"""Registers that take turns in a sum, so that no addition waits for the previous addition."""

SEVERAL = 16
"""Positions of a window from which on they do."""

UNROLLED = 8
"""Positions of the innermost axis of a window, up to which no loop is left."""

LONGEST = 8192
"""Positions of a row, times those of the innermost axis, up to which all that edges are is kept."""

_MOST = 8  # vectors of a row that are summed together: half of the registers of a processor that has few


class RowsPrinter(NestPrinter):
    """One nest that slides along rows: vectors of one row are summed together, each in a register."""

    def __init__(self, tiles: Tiles, nest: Nest) -> None:
        super().__init__(tiles, nest)
        self.there: dict[int, str] = {}  # windows -> what says whether there is anything to read here

    def applies(self) -> bool:
        """Whether all that vectors run along are windows, whose edges depend on the innermost taps alone."""
        if self.vector not in self.tiles.fixed or not self.reduced:
            return False
        taps, sizes = self.graph.sizes[self.reduced[-1]], self.graph.sizes
        if taps > UNROLLED or taps * self.tiles.tiled.get(self.vector, sizes[self.vector]) > LONGEST:
            return False
        return bool(self._windows()) and all(
            reads_window(self.graph, value) and self._has_plain_edges(self.tiles.place(value))
            for value in self._vectors()
        )

    def print(self) -> None:
        """Print the nest."""
        tiles, targets = self.tiles, self._targets()
        assert self.vector is not None
        # Neighbouring windows share what they read, so their axes are walked along last.
        self.kept.sort(key=lambda axis: axis in tiles.fixed)
        inner = self._operands()
        outer = self._operands(self.nest.rest, [one.value for one in self.nest.reductions])
        pointers = {value: tiles.pointer(value, tiles.place(value)) for value in dict.fromkeys(inner + outer)}
        self._point_to_stores()
        with tiles.block(""):  # another nest may run along the same axis
            self._print_rows(inner, outer, pointers, targets)

    def _print_rows(
        self, inner: list[int], outer: list[int], pointers: dict[int, str], targets: dict[int, Place]
    ) -> None:
        """Print the loops over rows, and what they share."""
        tiles, reductions = self.tiles, self.nest.reductions
        assert self.vector is not None
        name, count = self.name(self.vector), tiles.count(self.vector)
        extent, most = tiles.extent(self.vector), max(_MOST // len(reductions), 1)
        tiles.line(f"constexpr int {name}_vectors = vectors_along({extent}, {most});")
        tiles.line(f"constexpr index_t {name}_block = {name}_vectors * lanes;")
        turns = f"{name}_vectors < {TURNS} ? {TURNS} / {name}_vectors : 1" if self._takes_turns() else "1"
        tiles.line(f"constexpr int {name}_turns = {turns};")
        for value in self._windows():
            self._declare_edges(value)
        with tiles.loops(self.kept), tiles.block(f"for (int block = 0; block < {self._blocks}; ++block)"):
            tiles.line(f"const index_t {name}_first = block * {name}_block;")
            tiles.line(f"if ({name}_first >= {count}) break;")
            for value in self._windows():
                self._point_to_row(value, pointers[value])
            for one in reductions:
                self._start_sums(one)
            with tiles.loops(self.reduced[:-1]):
                self._look_around()
                self._fetch_ahead()
                tiles.line(f"#pragma GCC unroll {UNROLLED}")
                with tiles.loops(self.reduced[-1:]):
                    self._read(inner, pointers, vector=False)
                    with self._each_vector():
                        self._read(inner, pointers, vector=True)
                        self._statements({})
            self._read(outer, pointers, vector=False)
            with self._each_vector():
                tiles.line(f"const index_t {name}_lanes = least(lanes, {count} - {name});")
                tiles.line(f"if ({name}_lanes <= 0) break;")
                for one in reductions:
                    self._join(one)
                    if one.value in targets:
                        place = targets[one.value]
                        at = self._at(tiles.pointer(one.value, place), place.strides, self._loops)
                        self._store(at, place.strides, "float", self.known[one.value])
                self._read(outer, pointers, vector=True)
                self._statements(targets, self.nest.rest)

    @property
    def _blocks(self) -> str:
        """The number of blocks of vectors in a row."""
        assert self.vector is not None
        extent, block = self.tiles.extent(self.vector), f"{self.name(self.vector)}_block"
        return f"({extent} + {block} - 1) / {block}"

    @contextmanager
    def _each_vector(self) -> Iterator[None]:
        """Open a loop over the vectors that are worked on together."""
        assert self.vector is not None
        name = self.name(self.vector)
        self.tiles.line(f"#pragma GCC unroll {_MOST}")
        with self.tiles.block(f"for (int turn = 0; turn < {name}_vectors; ++turn)"):
            self.tiles.line(f"const index_t {name} = {name}_first + turn * lanes;")
            yield

    def _vectors(self) -> list[int]:
        """Return the values that are read vector by vector at each tap."""
        return [value for value in self._operands() if self.vector in self.tiles.place(value).strides]

    def _windows(self) -> list[int]:
        return [value for value in self._vectors() if reads_window(self.graph, value)]

    def _along(self, place: Place) -> list[Guard]:
        return [guard for guard in place.guards if self.vector in guard.factors]

    def _has_plain_edges(self, place: Place) -> bool:
        assert self.vector is not None
        return len(self._along(place)) <= 1 and all(
            guard.factors[self.vector] > 0 and not set(guard.factors) & {*self.kept, *self.reduced[:-1]}
            for guard in self._along(place)
        )

    def _declare_edges(self, value: int) -> None:
        """Declare which lanes lie inside, of each vector of a row and at each of the innermost taps."""
        tiles, place, vector, last = self.tiles, self.tiles.place(value), self.vector, self.reduced[-1]
        assert vector is not None
        first, tap, size = "0", 0, "no_end"
        for guard in self._along(place):
            first = tiles.position(guard, {vector: "0", last: "0"})
            tap, size = guard.factors.get(last, 0), str(guard.size)
        name, taps = tiles.names.values[value], self.graph.sizes[last]
        told = f"{tiles.count(vector)}, {first}, {tap}, {size}, {self._steps(place)}"
        kind = f"Edges<{place.type}, {self.name(vector)}_vectors, {taps}>"
        tiles.line(f"{kind} {name}_edges[{self._blocks}];")
        with tiles.block(f"for (int block = 0; block < {self._blocks}; ++block)"):
            tiles.line(f"{name}_edges[block].look(block, {told});")

    def _point_to_row(self, value: int, pointer: str) -> None:
        """Declare where the first of the vectors lies, at the first taps."""
        assert self.vector is not None
        place, name = self.tiles.place(value), self.tiles.names.values[value]
        first = times(f"{self.name(self.vector)}_first", place.strides[self.vector])
        at = f"{self._at(pointer, place.strides, self.kept)} + {first}"
        self.tiles.line(f"const {place.type}* const {name}_row = {at};")

    def _window(self, value: int, at: str, place: Place, *, vector: bool) -> str:
        if not vector:
            return super()._window(value, at, place, vector=False)
        name, step = self.tiles.names.values[value], times("turn * lanes", place.strides[self.vector or ""])
        here = f"{self._at(f'{name}_row', place.strides, self.reduced)} + {step}"
        tap, steps = self.name(self.reduced[-1]), self._steps(place)
        code = f"{name}_edges[block].load({here}, turn, {tap}, {steps})"
        there = self.there.get(value, inside(self.tiles, self._beside(place)))
        return f"{there} ? {code} : Vec{{}}" if there else code

    def _steps(self, place: Place) -> str:
        """Return how far lanes lie apart in memory, and in the tensor that a window shows."""
        assert self.vector is not None
        factors = [guard.factors[self.vector] for guard in self._along(place)]
        return f"{place.strides[self.vector]}, {factors[0] if factors else 1}"

    def _beside(self, place: Place) -> list[Guard]:
        """Return the guards of a window that are the same for all of a vector."""
        return [guard for guard in place.guards if self.vector not in guard.factors]

    def _look_around(self) -> None:
        """Print whether there is anything to read at the innermost taps; pass over them where that adds 0."""
        last, windows = self.reduced[-1], self._windows()
        for value in windows:
            guards = self._beside(self.tiles.place(value))
            if not guards or any(last in guard.factors for guard in guards):
                continue
            there = inside(self.tiles, guards)
            if len(windows) == 1 and len(self.reduced) > 1 and self._adds(value):
                self.tiles.line(f"if (!({there})) continue;")
                self.there[value] = ""
            else:
                self.there[value] = f"{self.tiles.names.values[value]}_there"
                self.tiles.line(f"const bool {self.there[value]} = {there};")

    def _fetch_ahead(self) -> None:
        """Fetch what the next row reads, where rows are so short that all vectors have edges, and masks."""
        assert self.vector is not None
        for value in self._windows():
            place, name = self.tiles.place(value), self.tiles.names.values[value]
            step = place.strides.get(self.kept[-1]) if self.kept else None
            if step is not None:
                here = f"{self._at(f'{name}_row', place.strides, self.reduced[:-1])} + {step}"
                block, lined = f"{self.name(self.vector)}_block", place.strides[self.vector]
                self.tiles.line(f"prefetch_short({here}, {times(block, lined)});")

    def _adds(self, value: int) -> bool:
        """Whether all that is made of a value at a tap is sums of products with it."""
        return all(
            isinstance(one, Compute) and one.step.op in ("sum", "contract") and value in one.step.inputs
            for one in self.nest.statements
        )

    def _takes_turns(self) -> bool:
        return prod(self.graph.sizes[axis] for axis in self.reduced) >= SEVERAL

    def _start_sums(self, one: Compute) -> None:
        """Declare the registers of a reduction."""
        assert self.vector is not None
        name, register = self.name(self.vector), self._register(one)
        self.tiles.line(f"Vec {register}[{name}_vectors][{name}_turns]{{}};")
        if one.step.op == "max":
            self.tiles.line(f"for (auto& one : {register}) start(one, -infinity);")

    def _reduce(self, one: Compute, targets: dict[int, Place]) -> None:
        assert self.vector is not None
        text = self._product(one) if one.step.op == "contract" else self._value(one.step.inputs[0])
        part = text.code if text.vector else f"splat({text.code})"
        turn = f"{self.name(self.reduced[-1])} % {self.name(self.vector)}_turns"
        self._add(f"{self._register(one)}[turn][{turn}]", part, one)

    def _join(self, one: Compute) -> None:
        """Declare a reduction of one vector, of which several registers may each have a part."""
        assert self.vector is not None
        register, whole = self._register(one), f"{self._register(one)}_all"
        self.tiles.line(f"Vec {whole} = {register}[turn][0];")
        with self.tiles.block(f"for (int part = 1; part < {self.name(self.vector)}_turns; ++part)"):
            self._add(whole, f"{register}[turn][part]", one)
        self.known[one.value] = Text(whole, vector=True)

    def _add(self, register: str, part: str, one: Compute) -> None:
        largest = one.step.op == "max"
        self.tiles.line(f"{register} = maximum({part}, {register});" if largest else f"{register} += {part};")
