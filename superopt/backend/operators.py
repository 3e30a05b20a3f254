"""Operators: a region as the operators of eager PyTorch, which may be faster than Inductor's code."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.deferred.portable import Unportable, data_of, subgraph_from
from superopt.backend.region import Region, trace_algebra
from superopt.errors import InputError
from superopt.ir import Graph
from superopt.rivals.aten import is_window
from superopt.rivals.composites import recompose, reduces
from superopt.trace.run import in_own_memory
from superopt.verify.graphs.equality import equal_graphs

__all__ = ["Operators", "eager_module", "operators_of", "slides"]


@dataclass(slots=True)
class Operators:
    """The calls of PyTorch's operators that compute a region, as data, and as a module once it is called."""

    data: Mapping[str, Any]  # see `portable`
    inputs: tuple[str, ...]  # the names that the goal has for what the module takes
    results: tuple[str, ...]
    device: str
    _module: fx.GraphModule | None = field(default=None, repr=False)

    @classmethod
    def read(cls, data: Any) -> "Operators":
        """Return the operators of some data, which are still to be proven, or raise InputError."""
        names: list[Any] = (
            [data.get(part) for part in ("inputs", "results")] if isinstance(data, dict) else []
        )
        sound = len(names) == 2 and all(
            isinstance(some, list) and all(isinstance(one, str) for one in some) for some in names
        )
        if not sound or not isinstance(data.get("calls"), dict) or data.get("device") not in ("cpu", "cuda"):
            raise InputError("the operators of a plan are damaged")
        return cls(data["calls"], tuple(names[0]), tuple(names[1]), data["device"])

    def to_json(self) -> dict[str, Any]:
        """Return them as plain data."""
        return {
            "calls": dict(self.data),
            "inputs": list(self.inputs),
            "results": list(self.results),
            "device": self.device,
        }

    def __call__(self, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the results by name, each contiguous and in memory of its own."""
        if self._module is None:
            self._module = subgraph_from(self.data, self.device).module
        # A backward pass may be called where autocast is on; what follows expects the dtypes of the region.
        with torch.no_grad(), torch._C._DisableAutocast():
            made = self._module(*[known[name] for name in self.inputs])
        return in_own_memory(dict(zip(self.results, made, strict=True)), known)

    def prove(self, goal: Graph) -> None:
        """Raise InputError unless the operators compute a goal, by its algebra."""
        subgraph = subgraph_from(self.data, self.device)
        traced = trace_algebra(subgraph, subgraph.example())
        names = dict(zip(traced.input_names, self.inputs, strict=True))
        found = traced.program.regions[0].graph
        ports = [names.get(port.name) for port in found.inputs]
        outputs = dict(zip(traced.program.outputs, self.results, strict=True))
        made = [outputs.get(one.port.name) for one in found.outputs]
        known = [port.name for port in goal.inputs], [one.port.name for one in goal.outputs]
        if (ports, made) != known or not equal_graphs(goal, found).equal:
            raise InputError(f"{goal.name}: the operators of a plan compute something else")


def eager_module(region: Region) -> tuple[fx.GraphModule, bool]:
    """Return a region as eager PyTorch computes it, and whether that may be faster than Inductor's code.

    It may where PyTorch has a kernel of its own for what Inductor computes from parts with sums.
    """
    subgraph = region.subgraph
    found = recompose(subgraph.module, subgraph.example())
    return (subgraph.module, False) if found is None else (found, any(map(reduces, found.graph.nodes)))


def slides(region: Region) -> bool:
    """Whether a region has windows, of which Inductor's code may be slower than PyTorch's operators."""
    return any(map(is_window, region.subgraph.piece.nodes))


def operators_of(region: Region, module: fx.GraphModule) -> Operators | None:
    """Return what `eager_module` made of a region as operators, or None where they have no form as data."""
    subgraph = region.subgraph
    places = region.traced.input_names
    if not subgraph.inputs or set(places) != {port.name for port in region.goal.inputs}:
        return None
    try:
        data = data_of(replace(subgraph, module=module))
    except Unportable:
        return None
    return Operators(data, tuple(places), region.names, str(data["inputs"][0]["device"]))
