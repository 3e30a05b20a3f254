"""Floors: ratios that every change must hold, to baselines in the same process, checked in under 40 s.

    superopt bench run floors

Measured: what `optimize` makes of two programs, the search, and the engine, on one thread, since several
threads wait for one another when other programs run. Against: eager PyTorch, and a yardstick. No absolute
time counts, so a slow machine passes like a fast one. The floors are far below what a quiet machine
shows: noise does not fall below them, the loss of most of a gain does.
"""

from typing import Any

from superopt.bench.functions.declared import case

__all__: list[str] = []


def _rows() -> tuple[Any, ...]:
    import torch

    return torch.randn(8, 1024), torch.rand(1024) + 0.5, torch.randn(1024, 1024) / 32


@case(inputs=_rows, against="eager", floor=0.8)
def rmsnorm_linear(x: Any, g: Any, w: Any) -> Any:
    """One kernel that reads the weights once, by rows that it never writes."""
    return (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * g) @ w


def _heads() -> tuple[Any, ...]:
    import torch

    return torch.randn(2, 4, 1, 128), torch.randn(2, 1024, 128), torch.randn(2, 1024, 128)


@case(inputs=_heads, against="eager", floor=3)
def attention(q: Any, k: Any, v: Any) -> Any:
    """Four heads on each head of keys, one new token: a cache that is read once."""
    scores = q @ k.unsqueeze(1).transpose(-1, -2) / 128**0.5
    return scores.softmax(-1) @ v.unsqueeze(1)


def yardstick() -> int:
    """Do some of what the search does, in a way that no change of ours touches."""
    import numpy as np

    keys = np.random.default_rng(0).integers(0, 1 << 62, 100_000)
    known = {(at * 7919 % 10007, at & 255): at for at in range(50_000)}
    return len(np.unique(keys)) + len(sorted(known))


@case(inputs=tuple, against=yardstick, optimize=False, floor=0.2)
def search_for_rmsnorm_linear() -> Any:
    """Tracing, the e-graph, every equivalent of it, and their proofs."""
    from superopt.driver import search
    from superopt.workloads import WORKLOADS

    workload = WORKLOADS["rmsnorm-linear"]
    return search(workload.function, *workload.inputs(), name="rmsnorm-linear")


@case(inputs=tuple, against=yardstick, optimize=False, floor=0.3)
def explore_programs() -> Any:
    """The engine's own work: candidates expanded, keyed and told apart."""
    from superopt.bench.programs import Programs
    from superopt.frontier.engine import explore

    return explore(Programs(variables=2, nodes=4), workers=1)
