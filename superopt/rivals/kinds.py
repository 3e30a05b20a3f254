"""Kinds: which nodes of a functional ATen graph are algebra, and why the others are not."""

import operator
from collections.abc import Collection, Mapping
from typing import Literal

import torch
from torch import Tensor, fx

from superopt.rivals.aten import ATTENTION, VIEWS, is_maximum, operator_name, read_by, tensors_in, value_of
from superopt.rivals.bits import bits_of
from superopt.rivals.indices import MADE, indices_of
from superopt.rivals.strided import views_of
from superopt.trace.lowering.table import INTEGERS, LOWERINGS, REASONS, widens
from superopt.trace.lowering.windows import why_no_phases

__all__ = ["Kind", "kinds_of", "reasons_of"]

Kind = Literal["free", "compute", "outside"]
"""Free: a view, or made of positions, constants and bits, and repeated wherever it is read.
Outside: left to Inductor."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.bool)
_UNKNOWN = "no rule makes algebra of it"


def kinds_of(graph: fx.Graph, device: str) -> dict[fx.Node, Kind]:
    """Return the kind of every node, for kernels on a type of device."""
    made = _made_anew(graph)
    reasons = _reasons(graph, device, made)
    kinds: dict[fx.Node, Kind] = {}
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0] in kinds:
            kinds[node] = kinds[node.args[0]]
        else:
            kinds[node] = "outside" if node in reasons else "free" if _is_free(node, made) else "compute"
    return kinds


def reasons_of(graph: fx.Graph, device: str) -> Mapping[fx.Node, str]:
    """Return why nodes are left to Inductor, for kernels on a type of device; the others are algebra."""
    return _reasons(graph, device, _made_anew(graph))


def _made_anew(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that are repeated wherever they are read: of positions, and of bits of bytes."""
    return indices_of(graph) | bits_of(graph)


def _reasons(graph: fx.Graph, device: str, made: Collection[fx.Node]) -> dict[fx.Node, str]:
    return {node: why for node in graph.nodes if (why := _why_outside(node, device, made)) is not None}


def _is_free(node: fx.Node, made: Collection[fx.Node]) -> bool:
    name = operator_name(node)
    return name in VIEWS or node in made or (name in MADE and not read_by(node))


def _why_outside(node: fx.Node, device: str, made: Collection[fx.Node]) -> str | None:
    name = operator_name(node)
    results, read = tensors_in(value_of(node)), read_by(node)
    if name == "as_strided" and _is_view(node):
        return None if all(_plain(tensor, device) for tensor in (*results, *read)) else _UNKNOWN
    if name is None or name not in LOWERINGS or name in REASONS or not results:
        return REASONS.get(_short(node), _UNKNOWN)
    if (name == ATTENTION or is_maximum(node)) and _item_read(node, 1):
        return "its second result is read"
    if (is_maximum(node) or name == "constant_pad_nd") and device != "cpu":
        return "a sliding window over an axis"
    if name == "convolution" and (why := _why_no_windows(node, device)) is not None:
        return why
    if not all(_plain(tensor, device) for tensor in (*results, *read)):
        return "a tensor on another device, of another layout, or of a size that depends on data"
    if name in VIEWS or node in made or (name in MADE and not read):
        return None
    data = [tensor for one in node.all_input_nodes if one not in made for tensor in tensors_in(value_of(one))]
    told = [one.dtype for one in _results_read(node)]
    if name not in INTEGERS and name not in MADE:
        told += [one.dtype for one in data if not widens(name, one.dtype, told)]
    other = next((dtype for dtype in told if dtype not in _DTYPES), None)
    return None if other is None else f"it is of {str(other).removeprefix('torch.')}"


def _is_view(node: fx.Node) -> bool:
    """Whether a view by explicit strides is a chain of plainer views of something that is computed.

    Of an input nobody knows where in its memory it begins, from one call to the next.
    """
    x, size, stride, *offset = node.args
    root = x
    while isinstance(root, fx.Node) and operator_name(root) in VIEWS:
        root = root.args[0]
    if not isinstance(root, fx.Node) or root.op != "call_function" or not isinstance(x, fx.Node):
        return False
    viewed = value_of(x)
    begins = viewed.storage_offset() == 0 and (offset or [0])[0] in (None, 0)
    return begins and views_of(viewed.shape, viewed.stride(), size, stride) is not None  # type: ignore[arg-type]


def _why_no_windows(node: fx.Node, device: str) -> str | None:
    """Return why a convolution is left to libraries, or None where it is not."""
    if device != "cpu":
        return "a sliding window over an axis"
    weight = value_of(node.args[1])  # type: ignore[arg-type]
    if any(not isinstance(size, int) for size in weight.shape):
        return "a kernel of a size that is not known"
    if node.args[6]:
        if any(not isinstance(size, int) for size in value_of(node).shape[2:]):
            return "a transposed convolution of sizes that are not known"
        return why_no_phases(node.args[3], node.args[5], weight.dim() - 2)  # type: ignore[arg-type]
    return None


def _short(node: fx.Node) -> str:
    """Return the name of an operator of any namespace, without it."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _results_read(node: fx.Node) -> list[Tensor]:
    """Return the tensors of those results that anything reads, as only the values of a maximum may be."""
    value = value_of(node)
    if not isinstance(value, tuple | list) or any(user.target is not operator.getitem for user in node.users):
        return tensors_in(value)
    read = {user.args[1] for user in node.users if user.users}
    return [tensor for at, one in enumerate(value) if at in read for tensor in tensors_in(one)]


def _item_read(node: fx.Node, item: int) -> bool:
    """Whether anything reads an item of what a node makes, as backward passes do of some."""
    return any(user.target is not operator.getitem or user.args[1] == item for user in node.users)


def _plain(tensor: Tensor, device: str) -> bool:
    """Whether a tensor is one that kernels take: strided, of sizes that are known or have a hint."""
    if tensor.layout != torch.strided or tensor.device.type != device:
        return False
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return all(isinstance(one, int) or one.node.hint is not None for one in numbers)
