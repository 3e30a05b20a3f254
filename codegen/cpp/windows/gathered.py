"""Gathered: contractions of windows, of which the runtime copies parts for its micro-kernel."""

from collections.abc import Sequence

from superopt.codegen.cpp.plan import Contraction
from superopt.codegen.cpp.source import Place, times
from superopt.codegen.cpp.tiles import Tiles

__all__ = ["print_gathered"]


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
        a, b = places[item.a], places[item.b]
        counts = (len(rows), len(columns), len(summed), len(a.guards), len(b.guards))
        tiles.line(f"contract_gathered<{a.type}, {b.type}, {', '.join(map(str, counts))}>(")
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
