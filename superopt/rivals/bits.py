"""Bits: nodes of a graph that take stored bytes apart, as numbers of few bits that share a byte are read.

Like positions they are made anew wherever a region reads them. Arithmetic counts only while no number of it
can leave its dtype.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from superopt.rivals.aten import VIEWS, operator_name, value_of

__all__ = ["bits_of"]

_BYTES = (torch.int8, torch.uint8)
_MASKS = frozenset((1 << count) - 1 for count in range(1, 8))
_AND = frozenset({"bitwise_and", "__and__"})
_SHIFTS = frozenset({"bitwise_right_shift", "__rshift__"})
_MOVES = VIEWS | {"clone", "_to_copy"}

_Span = tuple[int, int]


def bits_of(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that are made of bits of stored bytes."""
    spans: dict[fx.Node, _Span] = {}  # the least and the largest number
    for node in graph.nodes:
        if (span := _span(node, spans)) is not None:
            kind = torch.iinfo(value_of(node).dtype)
            if kind.min <= span[0] and span[1] <= kind.max:
                spans[node] = span
    return set(spans)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _BYTES


def _span(node: fx.Node, spans: Mapping[fx.Node, _Span]) -> _Span | None:
    name = operator_name(node)
    if name is None or not _is_bytes(value_of(node)):
        return None
    if name in _AND | _SHIFTS:
        return _of_bits(name, node, spans)
    read = list(node.all_input_nodes)
    if not read or not all(one in spans for one in read):
        return None
    if name in _MOVES:
        return spans[read[0]]
    if name in ("cat", "stack"):  # sums of parts, each of which is 0 where another one is
        parts = [spans[one] for one in node.args[0]]  # type: ignore[union-attr, index]
        return sum(min(low, 0) for low, _ in parts), sum(max(high, 0) for _, high in parts)
    if name not in ("add", "sub", "mul") or node.kwargs.get("alpha", 1) != 1 or len(node.args) != 2:
        return None
    (a, b), (c, d) = (_operand(one, spans) for one in node.args)
    if name == "mul":
        ends = [a * c, a * d, b * c, b * d]
        return min(ends), max(ends)
    return (a + c, b + d) if name == "add" else (a - d, b - c)


def _of_bits(name: str, node: fx.Node, spans: Mapping[fx.Node, _Span]) -> _Span | None:
    """Return what some bits of bytes are, where a number says which."""
    x, number = node.args[:2]
    if not isinstance(x, fx.Node) or not isinstance(number, int) or not _is_bytes(value_of(x)):
        return None
    kind = torch.iinfo(value_of(x).dtype)
    low, high = spans.get(x, (kind.min, kind.max))
    if name in _AND:
        return (0, number) if number in _MASKS else None
    return (low >> number, high >> number) if 0 <= number < 8 else None


def _operand(one: Any, spans: Mapping[fx.Node, _Span]) -> _Span:
    if isinstance(one, fx.Node):
        return spans[one]
    return (one, one) if isinstance(one, int) else (-(1 << 30), 1 << 30)
