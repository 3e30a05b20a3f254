"""Rows: sums over windows for several vectors of a row at once, which share weights and masks of edges."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from superopt.codegen.cpp.plan import Nest
from superopt.codegen.cpp.source import Guard, Place, times
from superopt.codegen.cpp.tiles import Tiles, inside, reads_window
from superopt.codegen.cpp.windows.sums import TURNS, UNROLLED, SumsPrinter
from superopt.codegen.statements import Compute

__all__ = ["RowsPrinter", "keeps_edges"]

_MOST = 8  # vectors of a row that are summed together: half of the registers of a processor that has few
_MOST_MASKS = (
    8192  # positions of a row, times those of the innermost axis, for which masks are kept on the stack
)


def keeps_edges(taps: int, positions: float) -> bool:
    """Whether the edges of a row are worked out before its sums, for so many taps of the innermost axis."""
    return taps <= UNROLLED and taps * positions <= _MOST_MASKS


class RowsPrinter(SumsPrinter):
    """One nest that slides along rows: several vectors of a row are summed together."""

    def __init__(self, tiles: Tiles, nest: Nest) -> None:
        super().__init__(tiles, nest)
        self.there: dict[int, str] = {}  # windows -> what says whether there is anything to read here

    def applies(self) -> bool:
        """Whether all that vectors run along are windows, whose edges depend on the innermost taps alone."""
        if self.vector is None or self.vector not in self.tiles.fixed or not self.reduced:
            return False
        if self.reduced[-1] not in {*self.tiles.fixed, *self.tiles.walked}:  # it may be longer in later calls
            return False
        sizes, read = self.graph.sizes, self._operands()
        along = [value for value in read if self.vector in self.tiles.place(value).strides]
        return (
            keeps_edges(sizes[self.reduced[-1]], self.tiles.tiled.get(self.vector, sizes[self.vector]))
            and bool(along)
            and along == self.windows
            and all(self._has_plain_edges(self.tiles.place(value)) for value in along)
        )

    @cached_property
    def windows(self) -> list[int]:
        """The windows that are read vector by vector at each tap."""
        runs = (value for value in self._operands() if self.vector in self.tiles.place(value).strides)
        return [value for value in runs if reads_window(self.graph, value)]

    @property
    def row(self) -> str:
        """The name of the axis along which rows run."""
        assert self.vector is not None
        return self.name(self.vector)

    def print(self) -> None:
        """Print the nest."""
        tiles, targets = self.tiles, self._targets()
        inner, outer = self._inner_and_outer()
        pointers = {value: tiles.pointer(value, tiles.place(value)) for value in dict.fromkeys(inner + outer)}
        self._point_to_stores()
        with tiles.block(""):  # another nest may run along the same axis
            self._print_rows(inner, outer, pointers, targets)

    def _print_rows(
        self, inner: list[int], outer: list[int], pointers: dict[int, str], targets: dict[int, Place]
    ) -> None:
        """Print the loops over rows, and what they share."""
        tiles, name, reductions = self.tiles, self.row, self.nest.reductions
        assert self.vector is not None
        count, extent = tiles.count(self.vector), tiles.extent(self.vector)
        tiles.line(
            f"constexpr int {name}_vectors = vectors_along({extent}, {max(_MOST // len(reductions), 1)});"
        )
        tiles.line(f"constexpr index_t {name}_block = {name}_vectors * lanes;")
        turns = f"{name}_vectors < {TURNS} ? {TURNS} / {name}_vectors : 1" if self.takes_turns else "1"
        tiles.line(f"constexpr int {name}_turns = {turns};")
        for value in self.windows:
            self._declare_edges(value)
        with tiles.loops(self.kept), self._each_block():
            tiles.line(f"const index_t {name}_first = block * {name}_block;")
            tiles.line(f"if ({name}_first >= {count}) break;")
            for value in self.windows:
                self._point_to_row(value, pointers[value])
            for one in reductions:
                self._start_sums(one)
            with tiles.loops(self.reduced[:-1]):
                self._pass_over_zeros()
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
                self._end_sums(targets)
                self._read(outer, pointers, vector=True)
                self._statements(targets, self.nest.rest)

    @property
    def _blocks(self) -> str:
        """The number of blocks of vectors in a row."""
        assert self.vector is not None
        return f"({self.tiles.extent(self.vector)} + {self.row}_block - 1) / {self.row}_block"

    @contextmanager
    def _each_block(self) -> Iterator[None]:
        """Open a loop over the blocks of a row."""
        with self.tiles.block(f"for (int block = 0; block < {self._blocks}; ++block)"):
            yield

    @contextmanager
    def _each_vector(self) -> Iterator[None]:
        """Open a loop over the vectors that are worked on together."""
        self.tiles.line(f"#pragma GCC unroll {_MOST}")
        with self.tiles.block(f"for (int turn = 0; turn < {self.row}_vectors; ++turn)"):
            self.tiles.line(f"const index_t {self.row} = {self.row}_first + turn * lanes;")
            yield

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
        name = tiles.names.values[value]
        told = f"{tiles.count(vector)}, {first}, {tap}, {size}, {self._steps(place)}"
        kind = f"Edges<{place.type}, {self.row}_vectors, {self.graph.sizes[last]}>"
        tiles.line(f"{kind} {name}_edges[{self._blocks}];")
        with self._each_block():
            tiles.line(f"{name}_edges[block].look(block, {told});")

    def _point_to_row(self, value: int, pointer: str) -> None:
        """Declare where the first of the vectors lies, at the first taps."""
        place, name = self.tiles.place(value), self.tiles.names.values[value]
        at = f"{self._at(pointer, place.strides, self.kept)} + {self._moved(place, f'{self.row}_first')}"
        self.tiles.line(f"const {place.type}* const {name}_row = {at};")

    def _moved(self, place: Place, positions: str) -> str:
        """Return how far apart in memory so many positions of a row lie."""
        assert self.vector is not None
        return times(positions, place.strides[self.vector])

    def _window(self, value: int, at: str, place: Place, *, vector: bool) -> str:
        if not vector or self.summed:  # edges are known at the taps alone
            return super()._window(value, at, place, vector=vector)
        name, tap = self.tiles.names.values[value], self.name(self.reduced[-1])
        here = (
            f"{self._at(f'{name}_row', place.strides, self.reduced)} + {self._moved(place, 'turn * lanes')}"
        )
        code = f"{name}_edges[block].load({here}, turn, {tap}, {self._steps(place)})"
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

    def _pass_over_zeros(self) -> None:
        """Print whether there is anything to read at the innermost taps; pass over them where that adds 0."""
        last = self.reduced[-1]
        for value in self.windows:
            guards = self._beside(self.tiles.place(value))
            if not guards or any(last in guard.factors for guard in guards):
                continue
            there = inside(self.tiles, guards)
            if len(self.windows) == 1 and len(self.reduced) > 1 and self._adds(value):
                self.tiles.line(f"if (!({there})) continue;")
                self.there[value] = ""
            else:
                self.there[value] = f"{self.tiles.names.values[value]}_there"
                self.tiles.line(f"const bool {self.there[value]} = {there};")

    def _fetch_ahead(self) -> None:
        """Fetch what the next row reads, where rows are so short that all vectors have edges, and masks."""
        for value in self.windows:
            place, name = self.tiles.place(value), self.tiles.names.values[value]
            step = place.strides.get(self.kept[-1]) if self.kept else None
            if step is not None:
                here = f"{self._at(f'{name}_row', place.strides, self.reduced[:-1])} + {step}"
                self.tiles.line(f"prefetch_short({here}, {self._moved(place, f'{self.row}_block')});")

    def _adds(self, value: int) -> bool:
        """Whether all that is made of a value at a tap is sums of products with it."""
        return all(
            isinstance(one, Compute) and one.step.op in ("sum", "contract") and value in one.step.inputs
            for one in self.nest.statements
        )

    def _start_sums(self, one: Compute) -> None:
        """Declare the registers of a reduction."""
        register = self._register(one)
        self.tiles.line(f"Vec {register}[{self.row}_vectors][{self.row}_turns]{{}};")
        if one.step.op == "max":
            self.tiles.line(f"for (auto& one : {register}) start(one, -infinity);")

    def _term_register(self, one: Compute) -> str:
        return f"{self._register(one)}[turn][{self.name(self.reduced[-1])} % {self.row}_turns]"

    def _joined(self, one: Compute) -> str:
        register, whole = self._register(one), f"{self._register(one)}_all"
        self.tiles.line(f"Vec {whole} = {register}[turn][0];")
        with self.tiles.block(f"for (int part = 1; part < {self.row}_turns; ++part)"):
            self._add(whole, f"{register}[turn][part]", one)
        return whole
