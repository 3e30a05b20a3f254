"""Stand-in: what PyTorch races with where the original is not known."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx, ops
from torch.fx.experimental.proxy_tensor import make_fx

from superopt.ir import Graph, Region
from superopt.trace.run import TORCH_DTYPES, run_graph
from superopt.trace.traced import Traced

__all__ = ["stand_in"]

_NARROW = ("f8e4m3", "f8e5m2")  # dtypes in which PyTorch computes nothing


def stand_in(traced: Traced, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a program as the operators of PyTorch, in the dtypes of its tensors, for inputs like these.

    It takes about the time that the original takes, but is not the original: casts inside it and fused
    operators, as of attention, are unknown. What it returns is for nobody to use, since an exponential may
    overflow where the original subtracts a maximum first.
    """

    def run(*given: Any) -> Any:
        return traced.run(*given, run_region=_run_region)

    return _without_views(make_fx(run)(*inputs))  # without what evaluating a graph step by step costs


def _without_views(module: fx.GraphModule) -> fx.GraphModule:
    """Return a program without the views of tensors as they are, each of which costs a call."""
    views = (ops.aten.view.default, ops.aten.permute.default, ops.aten.expand.default)
    for node in module.graph.nodes:
        if node.target not in views:
            continue
        seen, viewed = (one.meta.get("tensor_meta") for one in (node, node.args[0]))
        if seen and viewed and (seen.shape, seen.stride) == (viewed.shape, viewed.stride):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.recompile()
    return module


def _run_region(region: Region, known: dict[str, Tensor]) -> dict[str, Tensor]:
    made = run_graph(region.graph, known, _dtype_of(region.graph), finite=True)
    dtypes = {output.port.name: TORCH_DTYPES[output.port.dtype] for output in region.graph.outputs}
    return {name: tensor.to(dtypes[name]) for name, tensor in made.items()}


def _dtype_of(graph: Graph) -> torch.dtype:
    """Return the dtype that PyTorch computes in, given the inputs of a graph: the widest one."""

    for ports in (graph.inputs, [output.port for output in graph.outputs]):
        dtypes = [TORCH_DTYPES[port.dtype] for port in ports if port.dtype not in _NARROW]
        if floating := [one for one in dtypes if one.is_floating_point]:
            return reduce(torch.promote_types, floating)
    return torch.float32
