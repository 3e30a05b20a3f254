"""Accumulate: rows of a gradient are added where another gradient of the same weight lies already.

A weight that embeds words and is the last layer, too, has two gradients. PyTorch makes one of zeros for the
rows that were looked up, as large as the weight, and adds both. Here the rows are added to the other one:
nothing of that size is filled, read, or held for it.
"""

from math import inf, prod
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.joint.memory.values import is_view
from superopt.backend.joint.piece import bytes_made
from superopt.rivals.aten import add_call, value_of

__all__ = ["add_rows_in_place", "adds_rows"]

_MASKED = torch.ops.aten._unsafe_masked_index_put_accumulate.default
_PUTS = (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default)
_DTYPES = torch.float32, torch.float64  # in others a sum of many small numbers would be rounded too often

_MOST_ROWS = 4096
"""Of so many rows at most: each is rounded to the digits that the other gradient has in the same place.

PyTorch adds up small rows by themselves, a million of which would be lost here.
"""


def adds_rows(node: fx.Node) -> bool:
    """Whether a node adds to some rows of its first operand."""
    return node.target in _PUTS and len(node.args) > 3 and node.args[3] is True


def add_rows_in_place(graph: fx.Graph) -> int:
    """Let rows be added to the gradient that is added to them afterwards; return to how many.

    Inductor writes them where that gradient lies, as long as nothing else reads it.
    """
    count = 0
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        for other, rows in (node.args, node.args[::-1]):
            if _may_add(other, rows, node):
                _add(graph, node, other, rows)
                count += 1
                break
    if count:
        graph.eliminate_dead_code()
    return count


def _may_add(other: Any, rows: Any, total: fx.Node) -> bool:
    """Whether some rows may be added where another gradient lies, of which nothing else reads either."""
    if not (isinstance(other, fx.Node) and isinstance(rows, fx.Node)) or len(rows.users) != 1:
        return False
    if not (rows.target is _MASKED or adds_rows(rows)) or not _is_zero(rows.args[0]):
        return False
    values = [value_of(one) for one in (other, rows, total)]
    if not all(isinstance(one, Tensor) and one.device.type == "cpu" for one in values):
        return False
    if not all(isinstance(size, int) for one in values for size in (*one.shape, *one.stride())):
        return False
    if values[0].dtype not in _DTYPES or len({(one.dtype, one.shape, one.stride()) for one in values}) != 1:
        return False
    return _count(rows) <= _MOST_ROWS and _is_alone(other)


def _count(rows: fx.Node) -> float:
    """Return how many rows are added, at most."""
    indices: Any = rows.args[2 if rows.target is _MASKED else 1]
    shapes = [value_of(one).shape for one in indices if one is not None]
    known = all(isinstance(size, int) for shape in shapes for size in shape)
    longest = max(map(len, shapes), default=0)
    aligned = ([1] * (longest - len(shape)) + list(shape) for shape in shapes)
    return prod(map(max, zip(*aligned, strict=True))) if known else inf


def _is_zero(node: Any) -> bool:
    full = isinstance(node, fx.Node) and node.target is torch.ops.aten.full.default
    return full and len(node.users) == 1 and node.args[1] == 0


def _is_alone(node: fx.Node) -> bool:
    """Whether the graph makes a value that only one operator reads, as it is or all of it as a view."""
    size = bytes_made(node)
    while is_view(node):
        if len(node.users) != 1 or bytes_made(node) != size:
            return False
        node = node.all_input_nodes[0]
    return bytes_made(node) == size and len(node.users) == 1 and node.op == "call_function"


def _add(graph: fx.Graph, total: fx.Node, other: fx.Node, rows: fx.Node) -> None:
    """Replace a sum by rows that are added to the other summand."""
    target: Any = rows.target
    indices: Any
    value, aten = value_of(other), torch.ops.aten
    mode = torch._guards.detect_fake_mode(value)

    def called(*given: Any, **named: Any) -> fx.Node:
        made = add_call(graph, mode, *given, **named)
        made.meta = {**total.meta, **made.meta}
        return made

    def number(one: int, dtype: torch.dtype) -> fx.Node:
        return called(aten.full.default, [], one, dtype=dtype, device=value.device)

    def within(index: Any, size: int) -> Any:
        """Return an index between the ends of an axis: that of a masked row may be anything."""
        if index is None:
            return None
        least, most = (number(one, value_of(index).dtype) for one in (-size, size - 1))
        return called(aten.maximum.default, called(aten.minimum.default, index, most), least)

    with graph.inserting_before(total):
        if target is _MASKED:
            _, mask, indices, values = rows.args
            indices = [within(one, size) for one, size in zip(indices, value.shape, strict=False)]
            values = called(aten.where.self, mask, values, number(0, value.dtype))
            target = aten._unsafe_index_put.default
        else:
            _, indices, values = rows.args[:3]
        made = graph.call_function(target, (other, indices, values, True))
    made.meta = dict(total.meta)
    total.replace_all_uses_with(made)
    graph.erase_node(total)
