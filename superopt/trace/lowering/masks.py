"""Arithmetic on tensors that may be minus infinity where a mask is 0.

A Sym with a mask m and a value v means `where(m, v, -inf)`. Pushing the mask through sums and
positive scales until it meets an exp turns every way to write a masked softmax into the one
form `m * exp(v)`; where it meets anything else it is made explicit.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

import torch

from superopt.ops import OPS
from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym

__all__ = ["add", "between", "choose", "exp", "picked", "pointwise", "scale", "seen", "sub"]


def pointwise(b: Builder, op: str, *syms: Sym) -> Sym:
    """Return an elementwise operator on broadcast tensors without masks."""
    settled = [b.settle(sym) for sym in syms]
    joined, dims = b.broadcast(*settled)
    return Sym(b.apply(op, *(sym.value for sym in joined)), dims, syms[0].dtype)


def add(b: Builder, x: Sym, y: Sym) -> Sym:
    """Return x + y; it is minus infinity where either is."""
    if x.mask is None and y.mask is None:
        return pointwise(b, "add", x, y)
    if "infinity" in (b.nodes[x.value].op, b.nodes[y.value].op):
        return pointwise(b, "add", x, y)
    joined, dims = b.broadcast(x, y)
    masks = [sym.mask for sym in joined if sym.mask is not None]
    mask = masks[0] if len(masks) == 1 else b.apply("and", *masks)
    return Sym(b.apply("add", *(sym.value for sym in joined)), dims, x.dtype, mask)


def sub(b: Builder, x: Sym, y: Sym) -> Sym:
    """Return x - y; a mask of x stays one."""
    if x.mask is None or b.nodes[y.value].op == "infinity":
        return pointwise(b, "sub", x, y)
    joined, dims = b.broadcast(x, b.settle(y))
    return Sym(b.apply("sub", *(sym.value for sym in joined)), dims, x.dtype, joined[0].mask)


def scale(b: Builder, op: str, x: Sym, y: Sym) -> Sym:
    """Return x * y or x / y; a mask stays one under a factor that is surely positive."""
    if op == "mul" and x.mask is None and y.mask is not None:
        x, y = y, x
    if x.mask is None or y.mask is not None or not _positive(b, y.value):
        return pointwise(b, op, x, y)
    joined, dims = b.broadcast(x, y)
    return Sym(b.apply(op, *(sym.value for sym in joined)), dims, x.dtype, joined[0].mask)


def exp(b: Builder, x: Sym) -> Sym:
    """Return e to the x: the mask becomes a factor."""
    value = b.apply("exp", x.value)
    if x.mask is not None:
        value = b.apply("mul", x.mask, value)
    return replace(x, value=value, mask=None)


def seen(b: Builder, x: Sym) -> Sym | None:
    """Return which numbers are not minus infinity, None for all; products of matrices count as finite."""
    found, known = x.mask, dict[int, bool]()
    for term in _terms(b, x.value):
        if not _finite(b, term, known):
            low = b.scalar(-inf, x.dtype)
            above = b.apply("gt", term, b.settle(low).value)
            found = above if found is None else b.apply("and", above, found)
    return None if found is None else replace(x, value=found, mask=None, dtype=torch.bool)


def _terms(b: Builder, value: int) -> Iterator[int]:
    """Yield the values of which a value is the sum."""
    left, met = [value], set[int]()
    while left:
        one = left.pop()
        if one in met:
            continue
        met.add(one)
        if b.nodes[one].op == "add":
            left += reversed(b.nodes[one].inputs)
        else:
            yield one


def _finite(b: Builder, value: int, known: dict[int, bool]) -> bool:
    """Return whether a value is finite as it is made of numbers, conditions and products of matrices."""
    if value not in known:
        node = b.nodes[value]
        if node.mask or node.op in ("const", "size", "index", "contract"):
            known[value] = True
        elif node.op == "div":
            known[value] = bool(b.constant(node.inputs[1])) and _finite(b, node.inputs[0], known)
        else:
            moves = node.op in ("rename", "select", "sum", "max")
            stays = moves or (node.op in OPS and OPS[node.op].finite)
            known[value] = stays and all(_finite(b, part, known) for part in node.inputs)
    return known[value]


def choose(b: Builder, condition: Sym, x: Sym, y: Sym) -> Sym:
    """Return x where the condition is 1 and y elsewhere; minus infinity becomes a mask, 0 a product."""
    (condition, x, y), dims = b.broadcast(b.settle(condition), x, y)
    c = condition.value
    if not b.nodes[c].mask:  # parts of truth values that were cut out or joined: nothing tells that they are
        c = b.apply("ne", c, b.const(0))
    if x.mask is None and y.mask is None:
        return Sym(_select(b, c, x.value, y.value), dims, x.dtype)
    one, zero = b.const(1), b.const(0)
    mx = one if x.mask is None else x.mask
    my = one if y.mask is None else y.mask
    if mx == zero:
        value = y.value
    elif my == zero:
        value = x.value
    else:
        value = _select(b, c, x.value, y.value)
    off = b.apply("not", c)
    if my == zero:
        mask = b.apply("and", c, mx)
    elif mx == zero:
        mask = b.apply("and", off, my)
    else:
        mask = b.apply("or", b.apply("and", c, mx), b.apply("and", off, my))
    return Sym(value, dims, x.dtype, None if mask == one else mask)


def _select(b: Builder, c: int, x: int, y: int) -> int:
    if b.constant(y) == 0 and b.nodes[x].op != "infinity":
        return b.apply("mul", c, x)
    if b.constant(x) == 0 and b.nodes[y].op != "infinity":
        return b.apply("mul", b.apply("not", c), y)
    return b.apply("where", c, x, y)


def _positive(b: Builder, value: int) -> bool:
    """Return whether a value is surely greater than 0."""
    node = b.nodes[value]
    if node.value is not None:
        return node.value > 0
    rules: dict[str, Callable[..., bool]] = {
        "size": lambda: True,
        "sqrt": lambda x: x,
        "rsqrt": lambda x: x,
        "reciprocal": lambda x: x,
        "mul": lambda x, y: x and y,
        "div": lambda x, y: x and y,
        "add": lambda x, y: x and y,
    }
    return node.op in rules and rules[node.op](*(_positive(b, i) for i in node.inputs))


def picked(b: Builder, value: int, old: Dim, hot: int, *, several: bool = False) -> int:
    """Return a value where a one-hot mask over `old` says so; a value may lack some axes of `old`.

    A mask may say so of `several` places, whose values are added.
    """
    covers = b.covers(value)
    axes = b.axes.leaves(old)
    lacked = [axis for axis in axes if axis not in covers]
    if lacked:
        hot = b.contract(hot, b.const(1), lacked)
    found = b.contract(value, hot, [axis for axis in axes if axis in covers])
    if not several and found > value:  # of one place alone, it is the value itself
        b.picks[found] = value
    return found


def between(b: Builder, dim: Dim, first: int, last: int) -> int:
    """Return a mask of the places of a dimension from one to another, both included."""
    index = b.index(dim)
    return b.apply("and", b.apply("ge", index, b.const(first)), b.apply("le", index, b.const(last)))
