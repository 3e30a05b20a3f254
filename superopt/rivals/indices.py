"""Indices: tensors of a graph that are made of positions alone, as masks and distances between tokens are.

They read no memory, so that a region makes them anew wherever it needs them. Integers must stay so small that
a kernel's float32 holds them; numbers that were rounded are not compared, since kernels may round otherwise.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import torch
from torch import fx

from superopt.rivals.aten import VIEWS, operator_name, tensors_in, value_of

__all__ = ["MADE", "indices_of"]

MADE = frozenset({"full", "ones", "zeros", "scalar_tensor", "arange", "full_like", "ones_like", "zeros_like"})
"""Operators that make a tensor of numbers, unless they read one."""

_INTEGERS = (torch.bool, torch.int32, torch.int64)  # the others wrap around, or have no sign
_EXACT = 1 << 24  # float32 holds all integers up to this
_SYMBOL = 1 << 20  # what a symbolic size counts as: a product of two is taken for too large
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_LOGIC = frozenset(
    f"{kind}_{name}" for kind in ("logical", "bitwise") for name in ("and", "or", "not", "xor")
)
_CHOICES = frozenset({"where", "masked_fill"})
_LIKE = frozenset({"full_like", "ones_like", "zeros_like"})


def _most(*bounds: float) -> float:
    return max(bounds)


_ARITHMETIC: Mapping[str, tuple[Callable[..., float], int | None]] = {
    "add": (lambda a, b: a + b, 2),
    "sub": (lambda a, b: a + b, 2),
    "rsub": (lambda a, b: a + b, 2),
    "mul": (lambda a, b: a * b, 2),
    "neg": (_most, 1),
    "abs": (_most, 1),
    "maximum": (_most, 2),
    "minimum": (_most, 2),
    "clamp": (_most, None),
    "clamp_min": (_most, 2),
    "clamp_max": (_most, 2),
}
"""The largest absolute value that arithmetic makes of integers, by those of so many operands."""


def indices_of(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that are made of positions and constants, by operators that are exact in kernels."""
    bounds: dict[fx.Node, float] = {}  # the largest absolute value; infinite where numbers are no integers
    for node in graph.nodes:
        bound = _bound(node, bounds)
        if bound is not None:
            bounds[node] = bound
    return set(bounds)


def _bound(node: fx.Node, bounds: Mapping[fx.Node, float]) -> float | None:
    """Return the largest absolute value of a node made of positions, or None of any other node."""
    name = operator_name(node)
    made = value_of(node)
    if name is None or not isinstance(made, torch.Tensor):
        return None
    read = [one for one in node.all_input_nodes if tensors_in(value_of(one))]
    if name == "arange":
        return _last(node, made)
    if not read or name in _LIKE:
        filled = {"full": 1, "full_like": 1, "scalar_tensor": 0}.get(name)
        number = 1.0 if filled is None else _number(node.args[filled])
        return _held(made, number) if name in MADE and all(one in bounds for one in read) else None
    if not all(one in bounds for one in read) or node.kwargs.get("rounding_mode") is not None:
        return None
    return _combined(name, made, node, read, bounds)


def _combined(
    name: str, made: torch.Tensor, node: fx.Node, read: list[fx.Node], bounds: Mapping[fx.Node, float]
) -> float | None:
    """Return the bound of what an operator makes of tensors made of positions."""
    whole = [bounds[one] for one in read]
    if name in VIEWS or name == "clone":
        return max(whole)
    if name == "_to_copy":
        narrow = not made.dtype.is_floating_point and value_of(read[0]).dtype.is_floating_point
        return None if narrow else _held(made, max(whole))
    if name in _CHOICES:
        return _held(made, max(whole + [_number(one) for one in node.args if not _tensor(one)]))
    integers = all(not value_of(one).dtype.is_floating_point for one in read)
    numbers = [one for one in node.args if one is not None and not _tensor(one)]
    numbers += [one for key, one in node.kwargs.items() if key in ("min", "max") and one is not None]
    if name in _COMPARISONS:
        whole += [_number(one) if _is_whole(one) else inf for one in numbers]
        return 1.0 if integers and max(whole) <= _EXACT else None
    if name in _LOGIC:
        return 1.0 if not numbers and all(value_of(one).dtype == torch.bool for one in read) else None
    operands = [bounds[one] for one in node.args if _tensor(one)] + list(map(_number, numbers))  # type: ignore[index]
    rule, count = _ARITHMETIC.get(name, (None, 0))
    if rule is None or not integers or made.dtype == torch.bool or node.kwargs.get("alpha", 1) != 1:
        return None
    return _held(made, rule(*operands)) if count in (None, len(operands)) else None


def _held(made: torch.Tensor, bound: float) -> float | None:
    """Return a bound that integers keep, infinity for other numbers, None where an integer is too large."""
    if made.dtype.is_floating_point or made.dtype.is_complex:
        return None if made.dtype.is_complex else inf
    return bound if made.dtype in _INTEGERS and bound <= _EXACT else None


def _last(node: fx.Node, made: torch.Tensor) -> float | None:
    """Return the largest absolute value of a range of integers."""
    if made.dtype.is_floating_point:
        return None
    if node.target is torch.ops.prims.iota.default:
        start, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
        return _held(made, _number(start) + _number(step) * _number(node.args[0]))
    return _held(made, max(map(_number, node.args)))


def _tensor(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and bool(tensors_in(value_of(argument)))


def _is_whole(argument: Any) -> bool:
    """Whether a number is a whole one, which a rounding does not change."""
    return isinstance(argument, fx.Node | int) or (isinstance(argument, float) and argument.is_integer())


def _number(argument: Any) -> float:
    """Return the absolute value of a number, and of a symbol what it counts as; infinity of all else."""
    if isinstance(argument, fx.Node):
        return _SYMBOL if isinstance(value_of(argument), torch.SymInt) else inf
    return abs(argument) if isinstance(argument, int | float) else inf
