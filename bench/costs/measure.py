"""Measure: many ways to run a program, compiled and timed in turns, as plain data.

Some of the ways are those that the schedules rank first, the others are drawn from all that were tried, so
that a way which the cost model wrongly drops is among them. Texts of muGraphs and configurations are kept
with the times: another cost model can be judged by them without measuring again.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from superopt.bench.costs.programs import Program
from superopt.bench.harness.turns import clock_for, in_turns
from superopt.codegen.configjson import config_json
from superopt.codegen.cpp.emit import lower_kernel
from superopt.cost import Device
from superopt.cost.cpu import default_us, kernel_time
from superopt.errors import SuperoptError
from superopt.funnel.race import copies_for
from superopt.ir import Graph, MuGraph, parse_mugraph
from superopt.targets import Configs, Kernel, Target

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Way", "compiled", "kept_device", "kept_way", "plain_device", "predicted_us", "timed", "ways_of"]

_GRAPHS = 6  # graphs of a program that are scheduled
_SHOWN = 30.0  # times the best estimate: what is estimated to take longer is not drawn
_LOW = 0.1  # the share of calls that took less time than what is said to be the time
_LEAST_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Way:
    """A program as kernels in configurations, and two times: a low one of every other call, and of the rest.

    Where the two differ, the machine was busy.
    """

    name: str
    mugraph: MuGraph
    configs: Configs
    us: tuple[float, ...] = ()

    def kept(self) -> dict[str, Any]:
        """Return it as plain data."""
        plain = [None if one is None else config_json(one) for one in self.configs]
        return {"name": self.name, "mugraph": str(self.mugraph), "configs": plain, "us": list(self.us)}


def kept_way(data: Mapping[str, Any], target: Target) -> Way:
    """Return the way that plain data describe."""
    configs = tuple(None if one is None else target.config_from_json(one) for one in data["configs"])
    return Way(data["name"], parse_mugraph(data["mugraph"]), configs, tuple(data["us"]))


def plain_device(device: Device) -> dict[str, Any]:
    """Return a device as plain data, to be kept with the times that were taken on it."""
    plain = {one.name: getattr(device, one.name) for one in fields(Device)}
    return plain | {"matrix_flops": dict(device.matrix_flops)}


def kept_device(data: Mapping[str, Any]) -> Device:
    """Return the device that plain data describe."""
    return Device(**{**data, "matrix_flops": MappingProxyType(dict(data["matrix_flops"]))})


def predicted_us(way: Way, device: Device) -> float:
    """Return the time that the cost model predicts on a processor."""
    return sum(
        default_us(way.mugraph, number, device)
        if config is None
        else kernel_time(lower_kernel(way.mugraph, number), config, device).us
        for number, config in enumerate(way.configs)
    )


def ways_of(
    program: Program, target: Target, *, ranked: int, drawn: int, others: int, seed: int
) -> list[Way]:
    """Return the best ranked ways to run a program, drawn ones, and some of both in other configurations."""
    from superopt.driver import search
    from superopt.schedule import explored, rank
    from superopt.trace import trace

    traced = trace(program.function, *program.inputs(), name="measured").program
    [region] = search(traced).regions
    found, device = region.found[:_GRAPHS], target.cost_device()
    best = rank(found, device, keep=ranked, misfit=target.misfit).kept
    every = explored(found, device, misfit=target.misfit)
    least = min(one.estimate.us for one in every)
    draw = random.Random(f"{seed} {program.name}")
    left = [one for one in every if one.estimate.us <= _SHOWN * least]
    draw.shuffle(left)
    chosen = {one.mugraph.kernels: one for one in (*best, *left)}
    ways = [
        Way(one.name, one.mugraph, target.default_configs(one.mugraph))
        for one in islice(chosen.values(), ranked + drawn)
    ]
    return [*ways, *_in_other_configurations(ways, target, others, draw)]


def _in_other_configurations(
    ways: Sequence[Way], target: Target, count: int, draw: random.Random
) -> Iterable[Way]:
    """Yield ways with another configuration of one kernel."""
    tunable = [way for way in ways if any(one is not None for one in way.configs)]
    for way in draw.choices(tunable, k=count) if tunable else ():
        number = draw.choice([at for at, one in enumerate(way.configs) if one is not None])
        others = [one for one in target.configs(way.mugraph, number) if one != way.configs[number]]
        if others:
            config = draw.choice(others)
            configs = (*way.configs[:number], config, *way.configs[number + 1 :])
            yield Way(f"{way.name}, {config}", way.mugraph, configs)


def compiled(ways: Iterable[Way], target: Target) -> list[Way]:
    """Return the ways that can be compiled, which they are now."""
    found = []
    for way in dict.fromkeys(ways):
        try:
            target.make(way.mugraph, way.configs)
        except SuperoptError:
            continue
        found.append(way)
    return found


def timed(ways: Sequence[Way], target: Target, *, seconds: float, seed: int = 0) -> list[Way]:
    """Return ways with their times, taken in turns on inputs that no cache holds."""
    import torch

    if not ways:
        return []
    first = _inputs(ways[0].mugraph.graph, seed)
    copies = [
        first,
        *(_inputs(ways[0].mugraph.graph, seed) for _ in range(copies_for(tuple(first.values())) - 1)),
    ]
    calls = itertools.cycle(copies)
    runs = {
        str(at): partial(_called, target.make(way.mugraph, way.configs), calls) for at, way in enumerate(ways)
    }
    with torch.no_grad():
        found = in_turns(
            runs,
            clock_for(torch.get_num_threads()),
            seconds=seconds * len(ways),
            least_rounds=_LEAST_ROUNDS,
        )
    return [replace(way, us=_twice(found[str(at)].us)) for at, way in enumerate(ways)]


def _called(kernel: Kernel, calls: "Iterator[dict[str, Tensor]]") -> object:
    return kernel(**next(calls))


def _twice(times: Sequence[float]) -> tuple[float, float]:
    """Return a low time of every other call, and of the calls between them."""
    first, second = (sorted(times[start::2]) for start in (0, 1))
    return first[int(_LOW * len(first))], second[int(_LOW * len(second))]


def _inputs(graph: Graph, seed: int) -> "dict[str, Tensor]":
    """Return random inputs of a graph."""
    import torch

    from superopt.trace.run import TORCH_DTYPES

    random = torch.Generator().manual_seed(seed)
    return {
        port.name: torch.randn(
            [prod(graph.sizes[axis] for axis in dim) for dim in port.dims], generator=random
        ).to(TORCH_DTYPES[port.dtype])
        for port in graph.inputs
    }
