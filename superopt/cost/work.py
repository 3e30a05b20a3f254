"""Work: what single steps ask of a device, counted from the operators' own definitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import inf, prod
from typing import Any

import numpy as np

from superopt.dtypes import DTYPES
from superopt.ir import REDUCTIONS, Graph, Step, made_from, tensorless_values, value_axes
from superopt.ops import OPS

__all__ = [
    "Mask",
    "ScalarWork",
    "exp_axes",
    "fastest_dtype",
    "find_masks",
    "kept_share",
    "scalar_work",
    "tensor_bytes",
    "work_axes",
]

_SAMPLES = 4096  # cells of positions at which a mask is looked at
_KNOWN = frozenset(
    {"add", "and", "eq", "ge", "gt", "le", "lt", "mul", "ne", "neg", "not", "or", "sub", "where"}
)
_STRUCTURAL = frozenset({"const", "infinity", "size", "index"})


@dataclass(frozen=True, slots=True)
class ScalarWork:
    """What one application of an operator takes."""

    flops: int
    exps: int  # operations of the special function units: exponentials, reciprocals, square roots


class _Counter:
    """An arithmetic that counts; constants are free, since compilers fold them."""

    def __init__(self) -> None:
        self.flops = 0
        self.exps = 0

    def const(self, value: Fraction) -> None:
        pass

    def infinity(self) -> None:
        pass

    def add(self, a: None, b: None) -> None:
        self.flops += 1

    mul = maximum = less = equal = add

    def neg(self, a: None) -> None:
        pass  # a modifier of the next instruction

    def inv(self, a: None) -> None:
        self.exps += 1

    exp = sqrt = inv

    def where(self, mask: None, a: None, b: None) -> None:
        self.flops += 1

    def function(self, name: str, *args: None) -> None:
        self.exps += 1
        self.flops += OPS[name].flops // 2


@cache
def scalar_work(op: str) -> ScalarWork:
    """Return what one application of an operator takes; a reduction adds once."""
    if op in OPS:
        counter = _Counter()
        OPS[op].scalar(counter, *[None] * OPS[op].arity)
        return ScalarWork(counter.flops, counter.exps)
    return ScalarWork({"sum": 1, "max": 1, "contract": 2}.get(op, 0), 0)


def work_axes(
    graph: Graph, axes: tuple[frozenset[str], ...], value: int, step: Step, loaded: frozenset[int]
) -> frozenset[str]:
    """Return the axes along which a step does its work; reading a tensor at other places is no work."""
    if (step.mapping or step.places) and step.inputs[0] in loaded:
        return axes[value]
    return axes[value].union(step.axes if step.op in REDUCTIONS else (), *(axes[i] for i in step.inputs))


def exp_axes(axes: tuple[frozenset[str], ...], step: Step, work: frozenset[str]) -> frozenset[str]:
    """Return the axes along which special functions are taken: a divisor's reciprocal is shared."""
    return axes[step.inputs[1]] if step.op == "div" else work


def fastest_dtype(graph: Graph, step: Step) -> str:
    """Return the fastest rate of the matrix units that any kernel may multiply a contraction at."""
    operands = {graph.inputs[i].dtype for i in step.inputs if i < len(graph.inputs)}
    if all(i < len(graph.inputs) for i in step.inputs) and all(one.startswith("f8") for one in operands):
        return "f8"
    dtypes = {port.dtype for port in graph.inputs}
    for half in ("f16", "bf16"):
        if half in dtypes and not operands & {"f32", "f64"}:
            return half
    return "tf32"


def tensor_bytes(axes: frozenset[str] | tuple[str, ...], dtype: str, sizes: Mapping[str, int]) -> int:
    """Return the bytes of a tensor with these axes."""
    return prod(sizes[axis] for axis in axes) * DTYPES[dtype].bytes


# -- masks


@dataclass(frozen=True, slots=True)
class Mask:
    """A comparison of indices along several axes, and the share of positions that it keeps."""

    axes: frozenset[str]
    share: float
    least: float  # a lower bound of that share: for a mask that keeps an interval, the part surely inside


def find_masks(graph: Graph, sizes: Mapping[str, int]) -> tuple[Mask, ...]:
    """Return the masks of indices along two axes or more, as causal attention has one.

    Positions that a mask does not keep need not be computed: for a causal mask about half of the work.
    """
    if not any(step.op == "index" for step in graph.steps):
        return ()
    axes = value_axes(graph)
    tensorless = tensorless_values(graph)
    found = []
    for value, step in graph.numbered:
        if tensorless[value] and len(axes[value]) > 1 and step.op in OPS and OPS[step.op].mask:
            found.append(Mask(axes[value], *_shares(graph, value, sorted(axes[value]), sizes)))
    return tuple(found)


def kept_share(masks: tuple[Mask, ...], work: frozenset[str]) -> float:
    """Return which share of the work along these axes the strictest mask leaves."""
    return min((mask.share for mask in masks if mask.axes <= work), default=1.0)


class _Arrays:
    """Arithmetic on arrays, as much of it as masks of indices need."""

    def const(self, value: Fraction) -> Any:
        return float(value)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def neg(self, a: Any) -> Any:
        return -a

    def less(self, a: Any, b: Any) -> Any:
        return (a < b) * 1.0

    def equal(self, a: Any, b: Any) -> Any:
        return (a == b) * 1.0

    def where(self, mask: Any, a: Any, b: Any) -> Any:
        return np.where(mask != 0, a, b)


def _shares(graph: Graph, value: int, names: list[str], sizes: Mapping[str, int]) -> tuple[float, float]:
    """Return which share of positions a mask keeps, by the corners of evenly spread cells."""
    needed = made_from([value], lambda i: graph.step_at(i).inputs)
    steps = {i: graph.step_at(i) for i in sorted(needed)}
    if any(step.op not in _KNOWN | _STRUCTURAL for step in steps.values()) or not all(
        sizes[axis] for axis in names
    ):
        return 1.0, 0.0
    each = max(round(_SAMPLES ** (1 / len(names))), 1) + 1
    places = np.ix_(*(np.linspace(0, sizes[axis] - 1, min(sizes[axis], each)).round() for axis in names))
    at = dict(zip(names, places, strict=True))
    known: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for i, step in steps.items():
            known[i] = _evaluated(step, [known[j] for j in step.inputs], at, sizes)
    shape = tuple(len(place.ravel()) for place in places)
    share = least = np.broadcast_to(known[value] != 0, shape) * 1.0
    for dim, length in enumerate(shape):
        if length > 1:
            ends = [slice(None)] * len(shape)
            starts = list(ends)
            starts[dim], ends[dim] = slice(0, -1), slice(1, None)
            share = (share[tuple(starts)] + share[tuple(ends)]) / 2
            least = least[tuple(starts)] * least[tuple(ends)]
    return float(share.mean()), float(least.mean())


def _evaluated(step: Step, operands: list[Any], at: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    if step.value is not None:
        return float(step.value)
    if step.op == "infinity":
        return inf
    if step.op == "size":
        return float(sizes[step.axes[0]])
    if step.op == "index":
        return at[step.axes[0]]
    return OPS[step.op].scalar(_Arrays(), *operands)
