"""Windows: contractions and nests that read them.

A nest sums over the short axes of windows vector by vector, each sum in a register. Where many rows meet each
window, the runtime copies parts of windows for its micro-kernel.
"""

from collections.abc import Collection, Sequence
from math import prod

from superopt.codegen.cpp.expressions import Text
from superopt.codegen.cpp.nest import NestPrinter
from superopt.codegen.cpp.plan import Contraction, Nest
from superopt.codegen.cpp.source import Place, times
from superopt.codegen.cpp.tiles import Tiles, reads_window
from superopt.codegen.statements import Compute
from superopt.ir import REDUCTIONS

__all__ = ["print_gathered", "print_sliding"]

_TURNS = 4  # registers that take turns in a sum, so that no addition waits for the previous addition
_SEVERAL = 16  # positions of a window from which on they do
_UNROLLED = 8  # positions of the innermost axis of a window, up to which no loop is left


def print_sliding(tiles: Tiles, nest: Nest) -> None:
    """Print a nest over windows, and the steps that follow its sums, among the lines of a kernel."""
    _SlidingPrinter(tiles, nest).print()


class _SlidingPrinter(NestPrinter):
    """One nest that slides: its sums are known before the next vector, and so are steps made of them."""

    in_turns = False

    def print(self) -> None:
        """Print the nest."""
        reductions = [
            one for one in self.nest.statements if isinstance(one, Compute) and one.step.op in REDUCTIONS
        ]
        tiles, targets = self.tiles, self._targets()
        # Neighbouring windows share what they read, so their axes are walked along last.
        self.kept.sort(key=lambda axis: axis in tiles.fixed)
        inner = self._operands()
        summed = [one.value for one in reductions]
        outer = self._operands(self.nest.rest, summed)
        operands = dict.fromkeys([*inner, *outer])
        pointers = {value: tiles.pointer(value, tiles.place(value)) for value in operands}
        self._point_to_stores()
        assert self.vector is not None
        taps = [self.graph.sizes[axis] for axis in self.reduced]
        self.in_turns = prod(taps) >= _SEVERAL and taps[-1] <= _UNROLLED
        turns = f"[{_TURNS}]" if self.in_turns else ""
        name, count = self.name(self.vector), tiles.count(self.vector)
        with tiles.loops(self.kept) if self.kept else tiles.block(""):
            head = f"along({count}, [&](index_t {name}, auto {name}_lanes, int) INLINE"
            with tiles.block(head, end=");"):
                for one in reductions:
                    tiles.line(f"Vec {self._register(one)}{turns}{{}};")
                    if one.step.op == "max":
                        tiles.line(f"start({self._register(one)}, -infinity);")
                self._note_whole(inner)
                with tiles.loops(self.reduced[:-1]):
                    tiles.line(f"#pragma GCC unroll {_UNROLLED}")
                    with tiles.loops(self.reduced[-1:]):
                        self._read(inner, pointers, vector=False)
                        self._read(inner, pointers, vector=True)
                        self._statements({})
                for one in reductions:
                    self.known[one.value] = Text(self._joined(one), vector=True)
                    if one.value in targets:
                        place = targets[one.value]
                        at = self._at(tiles.pointer(one.value, place), place.strides, self._loops)
                        self._store(at, place.strides, "float", self.known[one.value])
                self._read(outer, pointers, vector=False)
                self._read(outer, pointers, vector=True)
                self._statements(targets, self.nest.rest)

    def _note_whole(self, operands: list[int]) -> None:
        """Declare of each window whether all that a vector reads lies inside, at all taps."""
        for value in operands:
            place = self.tiles.place(value)
            if self.vector in place.strides and reads_window(self.graph, value):
                assert self.vector is not None
                self.whole[value] = f"{self.tiles.names.values[value]}_whole"
                inside = all_inside(self.tiles, place, self.vector, self.reduced)
                self.tiles.line(f"const bool {self.whole[value]} = {inside};")

    def _joined(self, one: Compute) -> str:
        """Return a reduction over windows, of which several registers may each have a part."""
        register = self._register(one)
        if not self.in_turns:
            return register
        parts = [f"{register}[{turn}]" for turn in range(_TURNS)]
        whole = f"{register}_all"
        self.tiles.line(f"Vec {whole} = {parts[0]};")
        for part in parts[1:]:
            joined = f"maximum({part}, {whole})" if one.step.op == "max" else f"{whole} + {part}"
            self.tiles.line(f"{whole} = {joined};")
        return whole

    def _reduce(self, one: Compute, targets: dict[int, Place]) -> None:
        text = self._product(one) if one.step.op == "contract" else self._value(one.step.inputs[0])
        part = text.code if text.vector else f"splat({text.code})"
        register = self._register(one)
        register += f"[{self.name(self.reduced[-1])} % {_TURNS}]" if self.in_turns else ""
        largest = one.step.op == "max"
        self.tiles.line(f"{register} = maximum({part}, {register});" if largest else f"{register} += {part};")


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
                ends[vector] = f"{name} + lanes - 1"
            found.append(f"inside({tiles.position(guard, ends)}, {guard.size})")
    return " && ".join(dict.fromkeys(found))


def print_gathered(tiles: Tiles, item: Contraction) -> None:
    """Print a contraction of windows, in loops over the axes that both operands and the result have."""
    assert item.gathered is not None
    rows, columns, summed = (part or ("",) for part in item.gathered)
    one = item.compute
    tiles.line(f"// {tiles.comment(one)}")
    places = {value: tiles.place(value) for value in (item.a, item.b, one.value)}
    pointers = {value: tiles.pointer(value, place) for value, place in places.items()}
    inner = {axis for part in item.gathered for axis in part}

    def at(value: int) -> str:
        strides = places[value].strides
        terms = [times(tiles.names.axes[axis], strides[axis]) for axis in item.around if axis in strides]
        return " + ".join([pointers[value], *terms])

    def operand(value: int, first: Sequence[str], second: Sequence[str]) -> None:
        place = places[value]
        guards = place.guards
        kind = f"Gathered<{place.type}, {len(first)}, {len(second)}, {len(guards)}>"
        here = dict.fromkeys(inner, "0")
        starts = ", ".join(tiles.position(guard, here) for guard in guards)
        sizes = ", ".join(str(guard.size) for guard in guards)
        with tiles.block(kind, end=","):
            tiles.line(f"{at(value)},")
            for part in (first, second):
                tiles.line(f"{_index(tiles, place, part)},")
            tiles.line(f"{{{starts}}}, {{{sizes}}}")

    with tiles.loops(list(item.around)):
        tiles.line("contract_gathered(")
        tiles.depth += 1
        operand(item.a, rows, summed)
        operand(item.b, summed, columns)
        made = places[one.value].strides
        row, column = (", ".join(made.get(axis, "0") for axis in part) for part in (rows, columns))
        tiles.line(f"{at(one.value)}, {{{row}}}, {{{column}}});")
        tiles.depth -= 1


def _index(tiles: Tiles, place: Place, axes: Sequence[str]) -> str:
    """Return several axes of an operand as one index: their extents, strides, and factors of places."""
    counts = ", ".join(tiles.count(axis) if axis else "1" for axis in axes)
    strides = ", ".join(place.strides.get(axis, "0") for axis in axes)
    factors = [", ".join(str(guard.factors.get(axis, 0)) for axis in axes) for guard in place.guards]
    return f"{{{{{counts}}}, {{{strides}}}, {{{', '.join(f'{{{one}}}' for one in factors)}}}}}"
