"""Register sums: one row meets a panel of columns that is made on the way, and each sum stays in a register.

    for (index_t g = 0; g < g_count; ++g)           // a number of the row
        two vectors of columns: load, make floats, multiply, add to registers

So weights of few bits become floats between memory and the product, and are written nowhere.
"""

from superopt.codegen.cpp.nests.nest import NestPrinter
from superopt.codegen.cpp.plan import Nest
from superopt.codegen.cpp.source import Place
from superopt.codegen.cpp.tiles import Tiles
from superopt.codegen.statements import Compute

__all__ = ["print_register_sums"]


def print_register_sums(tiles: Tiles, nest: Nest) -> None:
    """Print a nest of products of one row among the lines of a kernel."""
    _RegisterSumsPrinter(tiles, nest).print()


class _RegisterSumsPrinter(NestPrinter):
    """One nest: some columns at a time, then all that is summed, then the vectors of these columns."""

    def print(self) -> None:
        """Print the nest."""
        tiles, vector = self.tiles, self.vector
        assert vector is not None
        products = self.nest.reductions
        operands, pointers, targets = self._begun(filled=products)
        first = f"{self.name(vector)}_first"
        head = f"for (index_t {first} = 0; {first} < {tiles.count(vector)}; {first} += columns_at_once)"
        with tiles.loops(self.kept), tiles.block(head):
            for one in products:
                tiles.line(f"Vec {self._register(one)}[vectors_at_once]{{}};")
            with tiles.loops(self.reduced[:-1]):
                self._sum(operands, pointers, targets, products)
            self._along_columns([self._added(one, targets) for one in products])

    def _sum(
        self,
        operands: list[int],
        pointers: dict[int, str],
        targets: dict[int, Place],
        products: list[Compute],
    ) -> None:
        """Print the innermost sum, a block of terms at a time, so that little is rounded away."""
        tiles, axis = self.tiles, self.name(self.reduced[-1])
        count, begin = tiles.count(self.reduced[-1]), f"{axis}_first"
        with tiles.block(f"for (index_t {begin} = 0; {begin} < {count}; {begin} += sum_block)"):
            for one in products:
                tiles.line(f"Vec {self._block(one)}[vectors_at_once]{{}};")
            tiles.line(f"const index_t {axis}_last = least({begin} + sum_block, {count});")
            with tiles.block(f"for (index_t {axis} = {begin}; {axis} < {axis}_last; ++{axis})"):
                self._read(operands, pointers, vector=False)
                with tiles.block(self._head(), end=");"):
                    self._read(operands, pointers, vector=True)
                    self._statements(targets)
            for one in products:
                tiles.line(f"add_vectors({self._register(one)}, {self._block(one)});")

    def _block(self, one: Compute) -> str:
        return f"{self.tiles.names.values[one.value]}_block"

    def _head(self) -> str:
        assert self.vector is not None
        name = self.name(self.vector)
        ends = f"{name}_first, {self.tiles.count(self.vector)}"
        return f"along_columns({ends}, [&](index_t {name}, auto {name}_lanes, int turn) INLINE"

    def _along_columns(self, lines: list[str]) -> None:
        with self.tiles.block(self._head(), end=");"):
            for line in lines:
                self.tiles.line(line)

    def _added(self, one: Compute, targets: dict[int, Place]) -> str:
        """Return the line that adds a register to its place."""
        assert self.vector is not None
        place, lanes = targets[one.value], f"{self.name(self.vector)}_lanes"
        at = self._at(self.tiles.pointer(one.value, place), place.strides, self._loops)
        stride = place.strides[self.vector]
        return f"store({at}, {stride}, {lanes}, load({at}, {stride}, {lanes}) + {self._register(one)}[turn]);"

    def _reduce(self, one: Compute, targets: dict[int, Place]) -> None:
        text = self._product(one)
        part = text.code if text.vector else f"splat({text.code})"
        self.tiles.line(f"{self._block(one)}[turn] += {part};")
