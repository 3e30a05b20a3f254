"""Images: which tensors of a graph Inductor lays out with channels last, as regions then read them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from superopt.rivals.aten import operator_name, value_of

__all__ = ["CHANNELS_LAST", "channels_last", "channels_last_strides"]

CHANNELS_LAST = (0, 2, 3, 1)
"""The dimensions of an image from the slowest to the fastest."""

# These views have no meaning for tensors that are not contiguous.
_CONTIGUOUS = frozenset({"view", "_unsafe_view", "reshape", "as_strided"})


def channels_last(graph: fx.Graph) -> frozenset[fx.Node]:
    """Return the nodes whose images Inductor lays out with channels last.

    On a CPU it does so with all that convolutions read and make, also through other operators, unless the
    images are inputs or results of the graph, which lie as eager PyTorch has them.
    """
    convolutions = [node for node in graph.nodes if _is_convolution(node)]
    if not convolutions or not _are_laid_out(convolutions):
        return frozenset()
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in convolutions or any(user in found for user in node.users):
            found.add(node)
    for node in graph.nodes:  # what comes after lies as what it reads
        if node in found:
            found.update(node.users)
    return frozenset(filter(_is_between, found)) | frozenset(filter(_is_between, convolutions))


def channels_last_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return the strides of an image with channels last."""
    _, channels, height, width = shape
    return channels * height * width, 1, width * channels, channels


def _is_convolution(node: fx.Node) -> bool:
    return operator_name(node) == "convolution"


def _are_laid_out(convolutions: Sequence[fx.Node]) -> bool:
    read = [value_of(one) for node in convolutions for one in node.all_input_nodes]
    on_cpu = all(isinstance(one, Tensor) and one.device.type == "cpu" for one in read)
    return (
        on_cpu
        and bool(torch._inductor.config.layout_optimization)
        and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and bool(torch.backends.mkldnn.enabled)
    )


def _is_between(node: fx.Node) -> bool:
    """Whether a node makes an image that only other operators read, whatever its layout."""
    value = value_of(node)
    return (
        node.op == "call_function"
        and isinstance(value, Tensor)
        and value.dim() == 4
        and value.is_floating_point()
        and not any(user.op == "output" or operator_name(user) in _CONTIGUOUS for user in node.users)
    )
