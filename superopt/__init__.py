"""superopt: finds, proves and measures the fastest program equivalent to a PyTorch function."""

from typing import TYPE_CHECKING, Any

from superopt._version import __version__

if TYPE_CHECKING:
    from superopt.backend import explain
    from superopt.driver import Search, SearchOptions, search
    from superopt.errors import (
        CheckpointError,
        GraphError,
        InputError,
        SuperoptError,
        TraceError,
    )
    from superopt.ir import Graph
    from superopt.live.optimized import Optimized
    from superopt.live.saved import load
    from superopt.optimizer import optimize
    from superopt.options import OptimizeOptions
    from superopt.verify.equivalent import equivalent
    from superopt.verify.verdict import Verdict

__all__ = [
    "CheckpointError",
    "Graph",
    "GraphError",
    "InputError",
    "OptimizeOptions",
    "Optimized",
    "Search",
    "SearchOptions",
    "SuperoptError",
    "TraceError",
    "Verdict",
    "__version__",
    "equivalent",
    "explain",
    "load",
    "optimize",
    "search",
]

_HOME = {
    "CheckpointError": "superopt.errors",
    "Graph": "superopt.ir",
    "GraphError": "superopt.errors",
    "InputError": "superopt.errors",
    "OptimizeOptions": "superopt.options",
    "Optimized": "superopt.live.optimized",
    "Search": "superopt.driver",
    "SearchOptions": "superopt.driver",
    "SuperoptError": "superopt.errors",
    "TraceError": "superopt.errors",
    "Verdict": "superopt.verify.verdict",
    "equivalent": "superopt.verify.equivalent",
    "explain": "superopt.backend",
    "load": "superopt.live.saved",
    "optimize": "superopt.optimizer",
    "search": "superopt.driver",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562), so that `import superopt` costs nothing."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'superopt' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
