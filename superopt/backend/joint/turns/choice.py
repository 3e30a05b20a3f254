"""Choice: how much of an axis a turn takes, how its products lie, and who makes them, by the clock."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from superopt.backend.joint.turns.tiles import Tiles
from superopt.backend.joint.turns.tiling import largest_bytes
from superopt.backend.options import Memory
from superopt.errors import SuperoptError, first_line

__all__ = ["LEAST_SPEED", "chosen"]

log = logging.getLogger("superopt")

LEAST_SPEED = {"fast": 1.15, "balanced": 1 / 1.05}
"""The speed beside Inductor's from which on turns are taken.

The race times the part alone: a whole step took 7% more time where turns had won by 10%.
"""

_SLACK = {"fast": 1.02, "balanced": 1.05}  # the most time of products, over the fastest, for less memory

_TURN_BYTES = 12 << 20  # that turns share, at least
_PARTS = 3  # of the largest value, of which turns share one, where less memory is asked for
_MORE = (1, 2, 4)  # times as many
_WHOLE = 8  # positions of which a turn takes a multiple, as vectors have lanes
_WORTH_OWN = 1e8  # operations of a product that is worth a kernel of ours


def chosen(ways: Sequence[Tiles], given: Mapping[str, Tensor], memory: Memory) -> Tiles:
    """Return the tiles whose products take the least time, or little more of it and less memory."""
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
    return min((one for one in taken if one[0] <= most), key=lambda one: (one[1], one[0]))[2]


def _rows(tiles: Tiles, memory: Memory) -> Sequence[int]:
    """Return the numbers of positions to try, few first."""
    size = tiles.goal.sizes[tiles.axis]
    # Turns without a product share nothing; then it is the largest value that is not to be whole.
    one = tiles.kernel.shared_bytes(1) or max(largest_bytes(tiles.goal) // size, 1)
    least = _TURN_BYTES if memory == "fast" else min(_TURN_BYTES, largest_bytes(tiles.goal) // _PARTS)
    most = [least * more for more in _MORE] if isinstance(memory, str) else [memory]
    found = {min(max(limit // one, 1), size) for limit in most}
    return sorted({rows // _WHOLE * _WHOLE if rows >= _WHOLE else rows for rows in found})


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
