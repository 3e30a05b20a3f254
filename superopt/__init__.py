"""superopt: finds, proves and measures the fastest program equivalent to a PyTorch function."""

from typing import TYPE_CHECKING, Any

from superopt._version import __version__

if TYPE_CHECKING:
    from superopt.backend import explain as explain
    from superopt.driver import Search as Search
    from superopt.driver import SearchOptions as SearchOptions
    from superopt.driver import search as search
    from superopt.errors import CheckpointError as CheckpointError
    from superopt.errors import GraphError as GraphError
    from superopt.errors import InputError as InputError
    from superopt.errors import SuperoptError as SuperoptError
    from superopt.errors import TraceError as TraceError
    from superopt.ir import Graph as Graph
    from superopt.live.optimized import Optimized as Optimized
    from superopt.live.saved import load as load
    from superopt.optimizer import optimize as optimize
    from superopt.options import OptimizeOptions as OptimizeOptions
    from superopt.verify.equivalent import equivalent as equivalent
    from superopt.verify.verdict import Verdict as Verdict
    from superopt.weights.saved import save_prepared as save_prepared
    from superopt.weights.stored import load_prepared as load_prepared
    from superopt.weights.writes import weights_changed as weights_changed

_NAMES = {
    "superopt.backend": "explain",
    "superopt.driver": "Search SearchOptions search",
    "superopt.errors": "CheckpointError GraphError InputError SuperoptError TraceError",
    "superopt.ir": "Graph",
    "superopt.live.optimized": "Optimized",
    "superopt.live.saved": "load",
    "superopt.optimizer": "optimize",
    "superopt.options": "OptimizeOptions",
    "superopt.verify.equivalent": "equivalent",
    "superopt.verify.verdict": "Verdict",
    "superopt.weights.saved": "save_prepared",
    "superopt.weights.stored": "load_prepared",
    "superopt.weights.writes": "weights_changed",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_HOME]


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
