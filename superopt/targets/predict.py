"""Predict: the cost model's word on the kernels of a muGraph, for one device and configuration."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from superopt.codegen.statements import KernelProgram, lower_block
from superopt.ir import Block, Graph, MuGraph, live_graph
from superopt.targets.target import Configs, KernelReport

if TYPE_CHECKING:
    from superopt.cost import Device, TileConfig

__all__ = [
    "Running",
    "Tiles",
    "cuda_device",
    "floor",
    "host",
    "measure_host_again",
    "predicted",
    "predictions",
]

_LIBRARY_SHARE = 0.8  # of the rates that bound it, a library reaches so much

Tiles = Callable[[KernelProgram, Any], "TileConfig"]
"""Returns what the cost model must know of a configuration of a kernel."""

Running = Callable[["Device", Any], "Device"]
"""Returns the device, or the part of it that a configuration uses."""


def predicted(
    mugraph: MuGraph, configs: Configs, device: "Device", tiles: Tiles, running: Running | None = None
) -> tuple[KernelReport, ...]:
    """Return what is predicted of each kernel in its configuration."""
    from superopt.cost import estimate

    name = mugraph.graph.name.replace(".", "_")
    found = []
    for one in estimate(mugraph, device).kernels:
        us: float | None = one.us / (
            1.0 if isinstance(mugraph.kernels[one.number], Block) else _LIBRARY_SHARE
        )
        if configs[one.number] is not None:
            [us] = predictions(mugraph, one.number, [configs[one.number]], device, tiles, running)
        found.append(
            KernelReport(
                f"{name}_{one.number}",
                predicted_us=us,
                bytes=one.bytes_read + one.bytes_written,
                flops=one.flops_matrix + one.flops_vector,
            )
        )
    return tuple(found)


def predictions(
    mugraph: MuGraph,
    number: int,
    configs: Sequence[Any],
    device: "Device",
    tiles: Tiles,
    running: Running | None = None,
) -> list[float | None]:
    """Return the predicted time of one kernel in each of some configurations; None where it does not fit."""
    from superopt.cost import config_us

    assert isinstance(mugraph.kernels[number], Block)
    program = lower_block(mugraph, number)
    times = [
        config_us(program, tiles(program, one), device if running is None else running(device, one))
        for one in configs
    ]
    return [us if us < float("inf") else None for us in times]


def floor(graph: Graph, device: "Device", *, kept: bool = False) -> float:
    """Return the least time that a graph can take on a device; `kept`: its outputs may stay in the cache."""
    from superopt.cost import floor_us

    return floor_us(live_graph(graph), device, kept=kept)


@cache
def host(threads: int) -> "Device":
    """Return the CPU here with so many threads."""
    from superopt.cost import host_device

    return host_device(threads)


def measure_host_again(threads: int) -> None:
    """Measure the rates of the CPU here once more, and keep the better ones."""
    from superopt.cost import host_device

    host_device(threads, renew=True)
    host.cache_clear()


@cache
def cuda_device(name: str, capability: int) -> "Device":
    """Return a device by a name of ours or its driver's, or by its capability."""
    from superopt.cost import device_named, device_of
    from superopt.errors import InputError

    try:
        return device_of(name or f"cuda:{capability}")
    except InputError:
        return device_named(name, divmod(capability, 10))
