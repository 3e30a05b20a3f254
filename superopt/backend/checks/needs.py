"""Needs: what a call of a graph of Dynamo's takes in eager PyTorch, as its sizes tell before it runs."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx

from superopt.cost.device import Device
from superopt.rivals.aten import hint_of, tensors_in

__all__ = ["held_bytes", "least_seconds"]


def held_bytes(graph: fx.Graph) -> int:
    """Return the most bytes that the values of a graph take at once, without its inputs.

    What an operator takes for itself while it runs is not known.
    """
    place = {node: at for at, node in enumerate(graph.nodes)}
    sizes, begins, ends = dict[int, int](), dict[int, int](), dict[int, int]()  # by the memory
    for node, at in place.items():
        last = max((place[user] for user in node.users), default=at)
        for one in tensors_in(node.meta.get("example_value")):
            storage = one.untyped_storage()
            memory = storage._cdata
            size = 0 if node.op == "placeholder" else hint_of(storage.nbytes())
            sizes.setdefault(memory, size)
            begins.setdefault(memory, at)
            ends[memory] = max(ends.get(memory, at), last)
    changes = [0] * (len(place) + 1)
    for memory, size in sizes.items():
        changes[begins[memory]] += size
        changes[ends[memory] + 1] -= size
    return max(accumulate(changes))


def least_seconds(module: fx.GraphModule, inputs: Sequence[Any], device: Device) -> float:
    """Return the least time of a call: of its arithmetic, counted without any data, or of writing values."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    mode = FakeTensorMode()
    given = [mode.from_tensor(one) if isinstance(one, Tensor) else one for one in inputs]
    with torch.no_grad(), mode, FlopCounterMode(display=False) as counted:
        module(*given)
    rate, operations = max([device.vector_flops, *device.matrix_flops.values()]), counted.get_total_flops()
    return max(float(operations / rate), held_bytes(module.graph) / (device.memory_gbs * 1e9))
