"""Choice: how much of an axis a turn takes, how its products lie, and who makes them, by the clock."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from torch import Tensor

from superopt.backend.joint.turns.tiles import Tiles
from superopt.backend.joint.turns.tiling import largest_bytes
from superopt.backend.options import Memory
from superopt.errors import SuperoptError, first_line

__all__ = ["LEAST_SPEED", "chosen", "least_speed"]

log = logging.getLogger("superopt")

LEAST_SPEED = {"fast": 1.15, "balanced": 1 / 1.035}
"""The speed beside Inductor's from which on turns are taken: of the part, and with "balanced" of the step.

The race times the part alone: a whole step took 7% more time where turns had won by 10%. With "balanced"
what is kept may take time, too.
"""

_SLACK = {"fast": 1.02, "balanced": 1.10}  # the most time of products, over the fastest, for less memory
_LEAST_SHARE = 0.3  # of a step's operations that a part is taken to have at least

_TURN_BYTES = 12 << 20  # that turns share, at least
_PARTS = 3  # of the largest value, of which turns share one, where less memory is asked for
_MORE = (1, 2, 4)  # times as many
_WHOLE = 8  # positions of which a turn takes a multiple, as vectors have lanes
_OVER = 0.1  # of a turn that may be more, where that spares a turn
_MOST = 2  # ways to take turns that are raced
_WORTH_OWN = 1e8  # operations of a product that is worth a kernel of ours


def least_speed(memory: Memory, share: float) -> float:
    """Return the speed from which on turns are taken of a part with such a share of a step's operations."""
    least = LEAST_SPEED.get(str(memory), LEAST_SPEED["fast"])
    if memory != "balanced":
        return least
    of_part = max(share, _LEAST_SHARE)
    return least * of_part / (least * of_part + 1 - least)


def chosen(ways: Sequence[Tiles], given: Mapping[str, Tensor], memory: Memory) -> list[Tiles]:
    """Return tiles whose products take the least time or little more, those of the least memory first."""
    taken = list[tuple[float, int, Tiles]]()
    for tiles in ways:
        whole = tiles.goal.sizes[tiles.axis]
        for rows in _rows(tiles, memory):
            for last in (False, True):
                made = replace(tiles, rows=rows, last=last)
                seconds: Mapping[str, float] = made.kernel.product_seconds(given)
                if not last and tiles.dtype == "f32":
                    made, seconds = _with_own(made, seconds, given)
                taken.append((sum(seconds.values()) * whole / rows, made.kernel.shared_bytes(rows), made))
    most = min(one[0] for one in taken) * _SLACK.get(str(memory), 1.0)
    found = dict[int, Tiles]()
    for seconds_of_all, size, made in sorted(taken, key=lambda one: (one[1], one[0])):
        if seconds_of_all <= most:
            found.setdefault(size, made)
    return list(found.values())[: _MOST if memory == "balanced" else 1]


def _rows(tiles: Tiles, memory: Memory) -> Sequence[int]:
    """Return the numbers of positions to try, few first; turns are of nearly equal sizes."""
    size = tiles.goal.sizes[tiles.axis]
    # Turns without a product share nothing; then it is the largest value that is not to be whole.
    one = tiles.kernel.shared_bytes(1) or max(largest_bytes(tiles.goal) // size, 1)
    if isinstance(memory, int):
        return [_even(size, memory / one, 0.0)]
    least = _TURN_BYTES if memory == "fast" else min(_TURN_BYTES, largest_bytes(tiles.goal) // _PARTS)
    return sorted({_even(size, least * more / one, _OVER) for more in _MORE})


def _even(size: int, most: float, over: float) -> int:
    """Return the positions of each turn where it is to take so many at most, or a little more."""
    most = max(most, 1.0)
    turns = max(ceil(size / most - over), 1)
    while True:
        rows = ceil(size / turns)
        whole = min(ceil(rows / _WHOLE) * _WHOLE, size)
        if whole <= most * (1 + over):
            return whole
        if rows < _WHOLE:
            return min(rows, int(most))
        turns += 1


def _with_own(
    tiles: Tiles, seconds: Mapping[str, float], given: Mapping[str, Tensor]
) -> tuple[Tiles, Mapping[str, float]]:
    """Return tiles with kernels of ours for the products in which they are faster."""
    names = tuple(name for name, flops in tiles.kernel.product_flops().items() if flops >= _WORTH_OWN)
    if not names:
        return tiles, seconds
    try:
        ours = replace(tiles, own=names).kernel.product_seconds(given)
    except SuperoptError as error:  # there may be no compiler
        log.info("the products of turns are left to PyTorch's library: %s", first_line(error))
        return tiles, seconds
    faster = tuple(name for name in names if ours[name] < seconds[name])
    return replace(tiles, own=faster), {**seconds, **{name: ours[name] for name in faster}}
