"""Plans: a region's kernels as one text, which holds all that it takes to run them anywhere.

The text travels in the graph that Inductor compiles and caches. It is data: kernels are written anew
from muGraphs and configurations. Where they cannot be, the goal itself is computed by torch.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from superopt.errors import InputError
from superopt.ir import Graph, extents, print_graph, print_mugraph, release_shifts
from superopt.plans.plan import RegionPlan
from superopt.plans.proof import proven
from superopt.plans.record import candidate_from_json, checked_graph, member
from superopt.plans.shelf import parts_of
from superopt.plans.sizes import resized
from superopt.targets import Kernel, OrderedKernel, config_json, pick_target
from superopt.trace.run import TORCH_DTYPES, run_graph

__all__ = ["Runner", "plan_text"]

log = logging.getLogger("superopt")

VERSION = 1


def plan_text(goal: Graph, parts: Sequence[RegionPlan], target: str) -> str:
    """Return the plan of a region, each of whose parts has a chosen candidate, as canonical JSON."""
    chosen = [(part.goal.name, part.chosen) for part in parts if part.chosen is not None]
    data = {
        "version": VERSION,
        "target": target,
        "goal": print_graph(goal),
        "parts": [
            {
                "name": name,
                "graph": print_graph(one.graph),
                "mugraph": print_mugraph(one.mugraph),
                "configs": [None if config is None else config_json(config) for config in one.configs],
            }
            for name, one in chosen
        ],
    }
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


class Runner:
    """A plan that runs: tensors in the order of the goal's inputs, results in that of its outputs."""

    def __init__(self, text: str) -> None:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise InputError("a plan of another version; clear the caches of torch.compile")
        self.goal = checked_graph(member(data, "goal", str, "a plan"))
        self.inputs = tuple(port.name for port in self.goal.inputs)
        self.outputs = tuple(output.port.name for output in self.goal.outputs)
        self._target = member(data, "target", str, "a plan")
        self._parts = member(data, "parts", list, "a plan")
        self._kernels: list[tuple[Kernel, tuple[str, ...]]] | None = None
        self._only: OrderedKernel | None = None  # where one kernel takes and makes all, in order
        self._failed = False

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Compute a region by its kernels, or by torch where they fail."""
        if not self._failed:
            try:
                if self._only is not None:
                    return list(self._only.in_order(tensors))
                return self.by_kernels(dict(zip(self.inputs, tensors, strict=True)))
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler or a driver raises, the goal has a meaning
                self._failed = True
                log.warning("%s: computed by torch from now on: %s", self.goal.name, _line(error))
        return self.by_torch(dict(zip(self.inputs, tensors, strict=True)))

    def by_kernels(self, known: dict[str, Tensor]) -> list[Tensor]:
        """Compute a region by its kernels."""
        if self._kernels is None:
            self._kernels = self.make()
            kernel, _ = self._kernels[0]
            if len(self._kernels) == 1 and isinstance(kernel, OrderedKernel) and kernel.inputs == self.inputs:
                self._only = kernel if kernel.outputs == self.outputs else None
        for kernel, names in self._kernels:
            known.update(kernel(**{name: known[name] for name in names}))
        return [known[name] for name in self.outputs]

    def by_torch(self, known: dict[str, Tensor]) -> list[Tensor]:
        """Compute a region as its graph says, in float32."""
        goal = self._resized(known)
        with torch.no_grad():
            made = run_graph(goal, {name: known[name] for name in self.inputs}, torch.float32)
        dtypes = {output.port.name: TORCH_DTYPES[output.port.dtype] for output in goal.outputs}
        return [made[name].to(dtypes[name], copy=True).contiguous() for name in self.outputs]

    def make(self) -> list[tuple[Kernel, tuple[str, ...]]]:
        """Return the kernels with the names of what they read."""
        target = pick_target(self._target)
        made = []
        for data in self._parts:
            part = candidate_from_json(data, target)
            names = tuple(port.name for port in part.mugraph.graph.inputs)
            made.append((target.make(part.mugraph, part.configs), names))
        return made

    def prove(self) -> None:
        """Raise InputError unless the kernels compute the goal, by its algebra."""
        target = pick_target(self._target)
        parts = {str(data.get("name")): candidate_from_json(data, target) for data in self._parts}
        goals = parts_of(release_shifts(self.goal), parts)
        if goals is None or {one.name for one in goals} != set(parts):
            raise InputError(f"{self.goal.name}: the parts of a plan are not those of its goal")
        for one in goals:
            if proven(one, parts[one.name].mugraph, seed=0) is None:
                raise InputError(f"{one.name}: a plan computes something else")

    def shapes(self, tensors: Sequence[Tensor]) -> list[tuple[Any, torch.dtype]]:
        """Return shape and dtype of each result, for inputs whose sizes may be symbols."""
        sizes = extents(self.goal, [tensor.shape for tensor in tensors])
        found = []
        for output in self.goal.outputs:
            shape = []
            for dim in output.port.dims:
                size: Any = 1
                for axis in dim:
                    size = size * sizes[axis]
                shape.append(size)
            found.append((shape, TORCH_DTYPES[output.port.dtype]))
        return found

    def _resized(self, known: dict[str, Tensor]) -> Graph:
        return resized(self.goal, extents(self.goal, [known[name].shape for name in self.inputs]))


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
