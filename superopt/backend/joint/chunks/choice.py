"""Choice: how much of an axis a chunk takes, how its products lie, and who makes them, by the clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, log2
from typing import Any

from torch import Tensor

from superopt.backend.joint.chunks.run import seconds_together
from superopt.backend.joint.chunks.tiles import Tiles
from superopt.backend.joint.chunks.tiling import largest_bytes
from superopt.backend.joint.limits import limits
from superopt.backend.options import Memory
from superopt.ir import Graph

__all__ = ["Chunks", "chosen", "least_speed"]

_LEAST_SPEED = {"fast": 1.15, "balanced": 1 / 1.045}
"""The speed beside Inductor's from which on chunks are taken: of the part, and with "balanced" of the step.

The race times the part alone: a whole step took 7% more time where chunks had won by 10%. With "balanced"
what is kept may take time, too.
"""

_SLACK = 1.5
"""Chunks may take this many times as long as the fastest to hold less memory: the whole may be slower yet."""

_ACROSS = 1.12
"""The time of products is multiplied by this where Inductor's code then reduces tiles across memory.

Of a loss 4096 x 512 x 32000, what lies between the products took 0.65 s across memory and 0.29 s along it;
the products took 3.3 to 3.6 s.
"""

_LEAST_SHARE = 0.3  # a part is taken to have at least this share of a step's operations

_SIZES = (1, 2, 4)  # chunks are tried that take this many times `chunk_bytes`
_SHARES = (1 / 4, 1 / 3, 1 / 2)  # or, where the largest value is small, these shares of it
_LARGE = 8  # a value of more than this many times `chunk_bytes` is not small
_OF_BYTES = (1, 1 / 2, 1 / 4)  # the shares that chunks may take of the bytes that the user allows
_CLOSE = 1.1  # orders of memory that take this many times as long are tried at fewer positions, too
_WHOLE = 8  # a chunk takes a multiple of so many positions, as vectors have lanes
_OVER = 0.1  # a chunk may be larger by this share if one chunk less is needed then
_MOST, _MOST_FAST = 3, 2  # ways to take chunks that are raced; with "fast"
_WORTH_OWN = 1e6  # a stage of so many operations is worth a kernel of ours


@dataclass(frozen=True, slots=True)
class Chunks:
    """A way to compute a part in chunks: the memory that they share, and its speed beside Inductor's code."""

    tiles: Tiles
    bytes: int
    speed: float

    @classmethod
    def read(cls, goal: Graph, data: Any) -> "Chunks":
        """Return the chunks of some data of ours, or raise InputError."""
        return cls(Tiles.read(goal, data["tiles"]), int(data["bytes"]), float(data["speed"]))

    def to_json(self) -> dict[str, Any]:
        """Return them as plain data."""
        return {"tiles": self.tiles.to_json(), "bytes": self.bytes, "speed": self.speed}


def least_speed(memory: Memory, share: float) -> float:
    """Return the speed from which on chunks are taken of a part with such a share of a step's operations."""
    if limits().any_speed:
        return 0.0
    least = _LEAST_SPEED.get(str(memory), _LEAST_SPEED["fast"])
    if memory != "balanced":
        return least
    of_part = max(share, _LEAST_SHARE)
    return least * of_part / (least * of_part + 1 - least)


def chosen(ways: Sequence[Tiles], given: Mapping[str, Tensor], memory: Memory) -> list[Tiles]:
    """Return tiles whose products take the least time or little more, the fastest last.

    With "fast" those before take less memory. Of a number of bytes all take as much as is told or less, so
    that they need only be fast.
    """
    taken = list[tuple[float, int, Tiles]]()
    for tiles in ways:
        whole = tiles.goal.sizes[tiles.axis]
        entering = tiles.entering(given)
        orders = list[bool]()
        for rows in sorted(_rows(tiles, memory), reverse=True):
            timed = _timed(
                [replace(tiles, rows=rows, last=last) for last in orders or (False, True)], entering
            )
            least = min(seconds for seconds, _ in timed)
            orders = [made.last for seconds, made in timed if seconds <= _CLOSE * least]
            taken += [
                (seconds * whole / rows, made.kernel.shared_bytes(rows), made) for seconds, made in timed
            ]
    slack = inf if limits().any_speed else _SLACK
    most = min(one[0] for one in taken) * slack
    if isinstance(memory, int) and not limits().any_speed:
        best = dict[tuple[int, bool], Tiles]()
        for seconds_of_all, _, made in sorted(taken, key=lambda one: one[0]):
            if seconds_of_all <= most:
                best.setdefault((made.rows, made.last), made)
        return list(reversed(best.values()))[-_MOST:]
    if memory == "fast":
        return _faster_with_more(taken, most)[-_MOST_FAST:]
    if limits().any_speed:
        return _faster_with_more(taken, most)[:_MOST]
    # Stages alone do not tell well which chunks are fast: the best of about each size is raced.
    fastest = dict[int, tuple[float, Tiles]]()
    for seconds_of_all, size, made in sorted(taken, key=lambda one: one[0]):
        if seconds_of_all <= most:
            fastest.setdefault(round(3 * log2(max(size, 1))), (seconds_of_all, made))
    smallest = [fastest[size] for size in sorted(fastest)][:_MOST]
    return [made for _, made in sorted(smallest, key=lambda one: -one[0])]


def _faster_with_more(taken: Iterable[tuple[float, int, Tiles]], most: float) -> list[Tiles]:
    """Return tiles, each faster than those before, which take less memory."""
    found = list[Tiles]()
    least_bytes: float = inf
    # Where no race decides, neither does the clock here: larger chunks are taken for faster ones.
    order = (lambda one: (0.0, -one[1])) if limits().any_speed else (lambda one: (one[0], one[1]))
    for seconds_of_all, size, made in sorted(taken, key=order):
        if seconds_of_all <= most and size < least_bytes:
            least_bytes = size
            found.insert(0, made)
    return found


def _rows(tiles: Tiles, memory: Memory) -> set[int]:
    """Return the numbers of positions to try; chunks are of nearly equal sizes."""
    size = tiles.goal.sizes[tiles.axis]
    # Chunks without a product share nothing; then it is the largest value that is not to be whole.
    one = tiles.kernel.shared_bytes(1) or max(largest_bytes(tiles.goal) // size, 1)
    if isinstance(memory, int):
        shares = _OF_BYTES[:1] if limits().any_speed else _OF_BYTES
        return {_even(size, share * memory / one, 0.0) for share in shares}
    least, largest = limits().chunk_bytes, largest_bytes(tiles.goal)
    if limits().any_speed:  # without a choice that depends on the clock
        return {_even(size, least / one, _OVER)}
    small = largest < _LARGE * least
    shared = [largest * share for share in _SHARES] if small else [least * more for more in _SIZES]
    return {_even(size, most / one, _OVER) for most in shared}


def _even(size: int, most: float, over: float) -> int:
    """Return the positions of each chunk where it is to take so many at most, or a little more."""
    most = max(most, 1.0)
    chunks = max(ceil(size / most - over), 1)
    while True:
        rows = ceil(size / chunks)
        whole = min(ceil(rows / _WHOLE) * _WHOLE, size)
        if whole <= most * (1 + over):
            return whole
        if rows < _WHOLE:
            return min(rows, int(most))
        chunks += 1


def _timed(several: Sequence[Tiles], given: Mapping[str, Tensor]) -> list[tuple[float, Tiles]]:
    """Return the seconds of a chunk, and tiles with kernels of ours wherever they are faster, of several."""
    names = [_worth_own(one) for one in several]
    ours = [replace(one, own=own) for one, own in zip(several, names, strict=True) if own]
    taken = seconds_together([one.kernel for one in (*several, *ours)], given)
    by_ours = iter(taken[len(several) :])
    return [
        _with_fastest(one, own, seconds, next(by_ours) if own else {})
        for one, own, seconds in zip(several, names, taken, strict=False)
    ]


def _worth_own(tiles: Tiles) -> tuple[str, ...]:
    """Return the stages that kernels of ours are tried for."""
    if limits().any_speed:  # without a choice that depends on the clock
        return ()
    return tuple(name for name, count in tiles.kernel.flops().items() if count >= _WORTH_OWN)


def _with_fastest(
    tiles: Tiles, tried: Sequence[str], seconds: Mapping[str, float], ours: Mapping[str, float]
) -> tuple[float, Tiles]:
    """Return the seconds of a chunk, and tiles that take kernels of ours, of those tried, where faster."""
    # Where nothing between products is timed, a kernel of ours is taken to be the faster one.
    own = tuple(name for name in tried if name in ours and ours[name] < seconds.get(name, inf))
    across = _ACROSS if tiles.last and tiles.kernel.reduces and not own else 1.0
    taken = {**seconds, **{name: ours[name] for name in own}}
    return across * sum(taken.values()), replace(tiles, own=own)
