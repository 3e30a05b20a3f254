"""Memory: whether a program fits into this machine, asked before anything is allocated.

A system may promise more memory than it has, and ends the process that then uses it.
"""

import contextlib
from math import prod
from pathlib import Path

from superopt.dtypes import DTYPES, FLOATS
from superopt.errors import InputError
from superopt.ir import Graph, Program, tensorless_values, value_axes

__all__ = ["available_bytes", "check_memory", "needed_bytes"]

_COPIES = 2  # the inputs exist at least twice, so that no call finds its inputs in the cache
_GB = 1e9
_GROUP = Path("/sys/fs/cgroup")
# Of a container: its limit, what it uses, and the name in its statistics of the files among that which nobody
# has read for long. The system lets go of these first.
_IN_GROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def check_memory(program: Program) -> None:
    """Refuse a program whose tensors do not fit into the memory of this machine."""
    needed, free = needed_bytes(program), available_bytes()
    if free is not None and needed > free:
        raise InputError(
            f"{program.name}: it needs at least {needed / _GB:,.1f} GB of memory, and"
            f" {free / _GB:,.1f} GB are free here; give smaller sizes"
        )


def needed_bytes(program: Program) -> int:
    """Return what racing a program takes at least: copies of its inputs, and its largest tensor."""
    graphs = [region.graph for region in program.regions]
    ports = {port.name: (graph, port) for graph in graphs for port in graph.inputs}
    inputs = {port.name for port in program.inputs}
    given = sum(
        prod(graph.shape(port)) * DTYPES[port.dtype].bytes
        for name, (graph, port) in ports.items()
        if name in inputs
    )
    return _COPIES * given + max(map(_largest, graphs), default=0)


def available_bytes() -> int | None:
    """Return how much memory this process may still take, as far as the system tells."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for names in _IN_GROUPS:
        with contextlib.suppress(OSError, ValueError):
            found.append(_left_in_group(*names))
    with contextlib.suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(most - pages * resource.getpagesize())
    return min(found) if found else None


def _left_in_group(limit: str, used: str, files: str) -> int:
    """Return the bytes that a container has left; OSError or ValueError where there is none, or no limit."""
    most, now = (int((_GROUP / name).read_text()) for name in (limit, used))
    lines = (_GROUP / used).with_name("memory.stat").read_text().splitlines()
    known = dict(line.split(maxsplit=1) for line in lines)
    return most - now + int(known.get(files, 0))


def _largest(graph: Graph) -> int:
    """Return the bytes of the largest tensor that PyTorch makes on the way."""
    axes, sizes, closed = value_axes(graph), graph.sizes, tensorless_values(graph)
    dtype = next((port.dtype for port in graph.inputs if port.dtype in FLOATS), "f32")
    volumes = [
        prod(sizes[axis] for axis in axes[value])
        for value, step in enumerate(graph.steps, len(graph.inputs))
        if not closed[value] and step.op not in ("rename", "select", "window", "less", "equal")
    ]
    return max(volumes, default=0) * DTYPES[dtype].bytes
