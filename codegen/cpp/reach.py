"""Reach: where a loop starts and stops, when a mask keeps everything beyond from what it adds up."""

from typing import TYPE_CHECKING

from superopt.codegen.causal import Reach
from superopt.codegen.cpp.source import times

if TYPE_CHECKING:
    from superopt.codegen.cpp.emit import Emitter

__all__ = ["reach_end", "reach_start"]


def reach_start(emitter: "Emitter", reach: Reach, tile: str) -> str:
    """Return the start of the first tile with a position where the mask may hold."""
    return f"most(0, {_extreme(emitter, reach, 0)}) / {tile} * {tile}"


def reach_end(emitter: "Emitter", reach: Reach, end: str) -> str:
    """Return the end of what the mask lets through, at most a given one."""
    return f"least({end}, {_extreme(emitter, reach, 1)})"


def _extreme(emitter: "Emitter", reach: Reach, offset: int) -> str:
    """Return the largest position in reach from anywhere here, or the smallest, and an offset."""
    terms: list[str] = []
    for term, factor in reach.form:
        if not term:
            offset += factor
            continue
        # Positions and extents are not negative: a product grows with each of them.
        last = (factor > 0) == reach.upper
        texts = [
            (emitter.size(axis), 0) if kind == "size" else _position(emitter, axis, last=last)
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


def _position(emitter: "Emitter", axis: str, *, last: bool) -> tuple[str, int]:
    """Return the first or the last position of an axis here, as text and what to add."""
    base = emitter.base(axis)
    if axis in emitter.single:
        assert base is not None, "a program has one position of such an axis"
        return base, 0
    if not last:
        return base or "0", 0
    return (f"{base} + {emitter.count(axis)}" if base else emitter.end(axis)), -1
