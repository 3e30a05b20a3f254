"""Loop bounds: where a loop starts and ends if a mask bounds it."""

from superopt.codegen.cpp.source import times
from superopt.codegen.cpp.tiles import Tiles
from superopt.codegen.statements import Reach

__all__ = ["reach_end", "reach_start"]


def reach_start(tiles: Tiles, reach: Reach, tile: str) -> str:
    """Return the start of the first tile with a position where the mask may hold."""
    return f"most(0, {_extreme(tiles, reach, 0)}) / {tile} * {tile}"


def reach_end(tiles: Tiles, reach: Reach, end: str) -> str:
    """Return the end of the positions that the mask lets through, at most a given end."""
    return f"least({end}, {_extreme(tiles, reach, 1)})"


def _extreme(tiles: Tiles, reach: Reach, offset: int) -> str:
    """Return the largest position in reach from anywhere here, or the smallest, and an offset."""
    terms: list[str] = []
    for term, factor in reach.form:
        if not term:
            offset += factor
            continue
        # Positions and extents are not negative: a product grows with each of them.
        last = (factor > 0) == reach.upper
        texts = [
            (tiles.size(axis), 0) if kind == "size" else _position(tiles, axis, last=last)
            for kind, axis in term
        ]
        (text, before), *more = texts
        if not more and abs(factor) == 1:
            offset += factor * before
            text = f"({text})" if factor < 0 and " " in text else text
        else:
            text = str(abs(factor))
            for one, before in texts:
                text = times(text, f"({one} - {-before})" if before else one)
        terms.append(f"-{text}" if factor < 0 else text)
    terms += [str(offset)] if offset else []
    terms.sort(key=lambda text: text.startswith("-"))
    return " + ".join(terms).replace("+ -", "- ") or "0"


def _position(tiles: Tiles, axis: str, *, last: bool) -> tuple[str, int]:
    """Return the first or the last position of an axis in this tile, as text and a number to add."""
    base = tiles.base(axis)
    if axis in tiles.single:
        assert base is not None, "a program has one position of such an axis"
        return base, 0
    if not last:
        return base or "0", 0
    return (f"{base} + {tiles.count(axis)}" if base else tiles.end(axis)), -1
