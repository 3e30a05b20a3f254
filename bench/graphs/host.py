"""Host: ways to run a graph that cost less than Inductor's code of it, for results alone.

Inductor takes minutes for a large model on few cores. To know whether regions mean what their operators
mean, the operators that are in no region are run one by one as ATen has them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx

from superopt.backend import entry, graphpass, region_race
from superopt.backend.decision import Decision
from superopt.backend.region import Region, draft_of
from superopt.backend.region_plan import RegionPlan, kept_plan
from superopt.rivals.inductor import PASS, table_for
from superopt.targets import Target

__all__ = ["running"]


@contextmanager
def running(way: str) -> Iterator[None]:
    """Let the backend compute regions in one of the ways, and all else by ATen or by Inductor."""
    if way == "backend":
        yield
        return
    with mock.patch.object(entry, "with_inductor", _by_aten):
        if way == "algebra":
            with mock.patch.object(graphpass, "decisions_of", _as_algebra):
                yield
        else:
            with mock.patch.multiple(region_race, WIN=0.0, _NO_ROOM=0.0, _TOO_SHORT_US=0.0):
                yield


def _by_aten(module: fx.GraphModule, inputs: Sequence[Any], patches: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a graph as Inductor's passes leave it, to be run operator by operator."""
    from torch._functorch import aot_autograd
    from torch._inductor import compile_fx
    from torch._inductor.fx_passes import post_grad
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    boxed: Any = aot_autograd
    passes: Any = post_grad
    host: Any = compile_fx

    def run(graph: fx.GraphModule, example: Sequence[Any], **unused: Any) -> Callable[..., Any]:
        passes.view_to_reshape(graph)
        with torch.no_grad():
            FakeTensorProp(graph, mode=torch._guards.detect_fake_mode(example)).propagate_dont_convert_inputs(
                *example
            )
        patches[PASS](graph.graph)
        graph.recompile()
        made: Callable[..., Any] = boxed.make_boxed_func(graph.forward)
        return made

    table = table_for(module, patches)
    compiled: Callable[..., Any] = host.compile_fx(module, inputs, inner_compile=run, decompositions=table)
    return compiled


class _Algebra(RegionPlan):
    """A region that torch computes as its graph says."""

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Compute the region."""
        return self.by_torch(dict(zip(self.inputs, tensors, strict=True)))


def _as_algebra(regions: Iterable[Region], target: Target, *unused: Any) -> dict[str, Decision]:
    """Return the decision to compute every region as its algebra says."""
    found = {}
    for region in regions:
        plan = kept_plan(_Algebra(region.goal, target.name, {}))
        found[region.key.digest] = replace(
            draft_of(region), taken=True, why="computed as its algebra says", plan=plan
        )
    return found
