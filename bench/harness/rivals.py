"""Rivals: what a kernel is raced against, each made and called once before any of them is timed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from superopt.bench.harness.records import failed
from superopt.tune.measure import bytes_of

__all__ = ["compiled", "copies_like", "ready"]

Run = Callable[..., Any]

_COPIES, _MOST_COPIES = 3, 256


def copies_like(
    inputs: Sequence[Any], device: str, *, seed: int, least_bytes: int = 0
) -> list[tuple[Any, ...]]:
    """Return copies of random inputs on a device, of the shapes, strides and dtypes of the given ones.

    They are together as large as is asked for, unless that took too many of them.
    """
    import torch

    from superopt.verify.floats.compare import typical

    like = tuple(
        torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=device) for one in inputs
    )
    size = max(bytes_of(like), 1)
    count = max(_COPIES, min(-(-least_bytes // size), _MOST_COPIES))
    return [typical(like, seed=seed + at) for at in range(count)]


def ready(
    wanted: Mapping[str, Callable[[], Run]],
    inputs: Callable[[], tuple[Any, ...]],
    *,
    synchronize: Callable[[], None] = lambda: None,
    needed: str = "",
) -> tuple[dict[str, Run], dict[str, str]]:
    """Return the rivals that run, each made and called once, and why the others do not.

    An error of the rival that is `needed` is raised.
    """
    found: dict[str, Run] = {}
    absent: dict[str, str] = {}
    for name, make in wanted.items():
        try:
            run = make()
            run(*inputs())
            synchronize()
            found[name] = run
        except Exception as error:  # whatever stops a rival must not stop the race
            if name == needed:
                raise
            absent[name] = str(failed({}, error)["error"])
    return found, absent


def compiled(function: Run, peer: str) -> Run:
    """Return what torch.compile makes of a function for these very shapes, in the mode that is named."""
    import torch
    import torch._inductor.config

    torch._inductor.config.autotune_local_cache = False  # each process picks by its own times
    mode = peer.removeprefix("torch.compile").strip() or None
    return torch.compile(function, mode=mode, dynamic=False)
