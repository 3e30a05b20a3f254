"""Request: what a process is asked to do with one graph."""

from dataclasses import dataclass

__all__ = ["WAYS", "Request"]

WAYS = ("algebra", "kernels", "backend")
"""How regions are computed: as their algebra says, by any kernels that are right, or as users have it."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a process is asked to do with one graph."""

    graph: str  # its folder
    device: str = "cpu"
    seed: int = 0
    way: str = "backend"
    budget_s: float = 5.0
    seconds: float = 0.0  # of timing; 0 times nothing
    tune_s: float = 0.0  # of deferred work, after which it is timed again
    threads: int = 1
    memory_bytes: int = 8 << 30
