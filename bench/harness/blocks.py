"""Times in blocks: contenders are called in turns, and each block has its inputs elsewhere in memory.

A block has several rounds, in each of which every contender is called once, in an order drawn anew: what
runs after a long program finds less of its own in the caches. Each call gets the next copy of the inputs, so
that no contender reads what the one before it has just read. The time of a contender in a block is the lower
quartile of its calls: other programs only ever make a call longer, so the faster calls say more. Comparisons
take whole blocks, never single calls, since calls that follow one another are disturbed alike.
"""

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["BLOCKS", "in_blocks", "quartiles", "timed_in_blocks"]

BLOCKS = 24
_LEAST_BLOCKS = 5
_LEAST_ROUNDS = 2
_COPIES = 3
_QUARTER = 0.25

Times = dict[str, list[list[float]]]  # by contender: microseconds, by block


def timed_in_blocks(
    contenders: Mapping[str, Callable[..., Any]],
    inputs: Callable[[], tuple[Any, ...]],
    *,
    seconds: float,
    synchronize: Callable[[], None],
    seed: int = 0,
) -> Times:
    """Return the times of every contender, taken in turns for about so many seconds in all.

    `inputs` returns fresh copies of the same arguments.
    """
    times: Times = {name: [] for name in contenders}
    places = random.Random(seed)
    for contender in contenders.values():  # a first call may compile, allocate, or start threads
        contender(*inputs())
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        for done in range(BLOCKS):
            if done >= _LEAST_BLOCKS and time.perf_counter() - start >= seconds:
                break
            copies, gaps = _placed(inputs, places)
            end = start + (done + 1) * seconds / BLOCKS
            block = _block(contenders, copies, end, synchronize, places)
            del copies, gaps
            for name, found in block.items():
                times[name].append(found)
    finally:
        if was_enabled:
            gc.enable()
    return times


def _placed(
    inputs: Callable[[], tuple[Any, ...]], places: random.Random
) -> tuple[list[tuple[Any, ...]], list[bytearray]]:
    """Return copies of the inputs, and the arrays of random length that keep them apart in memory."""
    copies, gaps = [], []
    for _ in range(_COPIES):
        gaps.append(bytearray(places.randrange(1, 1 << places.randrange(5, 17))))
        copies.append(inputs())
    return copies, gaps


def _block(
    contenders: Mapping[str, Callable[..., Any]],
    copies: Sequence[tuple[Any, ...]],
    deadline: float,
    synchronize: Callable[[], None],
    draw: random.Random,
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in contenders}
    order, rounds, number = list(contenders.items()), 0, 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < deadline:
        draw.shuffle(order)
        rounds += 1
        for name, contender in order:
            arguments = copies[number % len(copies)]
            number += 1
            start = time.perf_counter_ns()
            contender(*arguments)
            synchronize()
            found[name].append((time.perf_counter_ns() - start) / 1e3)
    return found


def in_blocks(times: Mapping[str, Sequence[float]]) -> Times:
    """Return the times of one long race, cut into blocks that follow one another."""
    return {name: _cut(list(found)) for name, found in times.items()}


def _cut(times: list[float]) -> list[list[float]]:
    count = max(min(BLOCKS, len(times) // _LEAST_ROUNDS), min(len(times), 1))
    ends = [round(len(times) * (at + 1) / count) for at in range(count)]
    return [times[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def quartiles(times: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    """Return the time of each contender in each block: the lower quartile of its calls."""
    return {name: [round(_quartile(block), 3) for block in blocks] for name, blocks in times.items()}


def _quartile(block: Sequence[float]) -> float:
    ordered = sorted(block)
    return ordered[int(_QUARTER * (len(ordered) - 1))]
