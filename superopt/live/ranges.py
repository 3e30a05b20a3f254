"""Ranges: the sizes that each axis may have without making another program of the function.

The function is traced at sizes further and further away from those it was made for, until it is another
program there: first one axis at a time, then all axes at the ends of their ranges. At each of these sizes it
must be exactly the program that `program_at` makes. So a limit is seen, such as `x[:, :512]` or
`if x.shape[1] < 256`; what differs at a few sizes within a range, and at none that is tried, is not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_map

from superopt.ir import Program
from superopt.live.sizes import axis_sizes, program_at, structure_of
from superopt.trace import trace
from superopt.trace.traced import Traced

__all__ = ["open_axes"]

_FAR = 1 << 20  # the size up to which axes are tried, if not further


def open_axes(
    function: Callable[..., Any], traced: Traced, inputs: tuple[Any, ...], live: str | None = None
) -> dict[str, tuple[int, int]]:
    """Return the axes of inputs that may change, and between which sizes the program stays the same."""
    program = traced.program
    known = axis_sizes(program)
    entering = {axis for port in program.inputs for axis in port.axes}
    groups = list(_groups(program, {axis for axis, size in known.items() if size > 1}))

    @cache
    def same(sizes: frozenset[tuple[int, int]]) -> bool:
        """Whether the program is the same where groups, by number, have these sizes."""
        changed = {axis: size for at, size in sizes for axis in groups[at]}
        return _same_at(function, traced, inputs, changed, live)

    def walked(at: int, sizes: Iterable[int]) -> list[int]:
        found = []
        for size in sizes:
            if not same(frozenset({(at, size)})):
                break
            found.append(size)
        return found

    base = [known[min(group)] for group in groups]
    below = [walked(at, _below(size)) for at, size in enumerate(base)]
    above = [walked(at, _above(size)) for at, size in enumerate(base)]
    steps = max(map(len, (*below, *above)), default=0)
    while steps:
        for least in (0, 2):  # not all axes can be 0 long together
            near = [[one for one in sizes[:steps] if one >= least] for sizes in below]
            lows = [min([size, *sizes]) for size, sizes in zip(base, near, strict=True)]
            highs = [max([size, *sizes[:steps]]) for size, sizes in zip(base, above, strict=True)]
            if all(map(same, _corners(lows, highs))):
                ends = zip(groups, lows, highs, strict=True)
                found = {axis: (low, high) for group, low, high in ends for axis in group & entering}
                return {axis: found[axis] for axis in sorted(found) if found[axis][0] < found[axis][1]}
        steps -= max(steps // 4, 1)  # sizes may have a limit together: nearer ones may be within it
    return {}


def _groups(program: Program, axes: set[str]) -> Iterator[frozenset[str]]:
    """Yield the axes in groups of one size: a step may rename an axis to another one."""
    left = {axis: {axis} for axis in sorted(axes)}
    for region in program.regions:
        for old, new in (pair for step in region.graph.steps for pair in step.mapping):
            if isinstance(new, str) and old in left and new in left and left[old] is not left[new]:
                left[old] |= left[new]
                left.update(dict.fromkeys(left[new], left[old]))
    entering = {axis for port in program.inputs for axis in port.axes}
    yield from dict.fromkeys(frozenset(group) for group in left.values() if group & entering)


def _below(size: int) -> list[int]:
    """Return the sizes below one that are tried, from the nearest: powers of two, as programs look for."""
    powers = (1 << at for at in range(1, size.bit_length()))
    return sorted({one for one in (size - 1, 3, 0, *powers) if one != 1 and one < size}, reverse=True)


def _above(size: int) -> list[int]:
    """Return the sizes above one that are tried, from the nearest."""
    most = max(8 * size, _FAR)
    powers = (1 << at for at in range(size.bit_length(), most.bit_length()))
    return sorted({size + 1, size + 3, *powers})


def _corners(lows: list[int], highs: list[int]) -> Iterator[frozenset[tuple[int, int]]]:
    """Yield all groups at their low ends but one at most, and all at their high ends but one at most."""
    count = len(lows)
    for most, few in ((lows, highs), (highs, lows)):
        for other in range(-1, count):
            yield frozenset((at, few[at] if at == other else most[at]) for at in range(count))


def _same_at(
    function: Callable[..., Any],
    traced: Traced,
    inputs: tuple[Any, ...],
    changed: Mapping[str, int],
    live: str | None,
) -> bool:
    """Return whether the function, traced at other sizes of some axes, is the program at these sizes."""
    program = traced.program
    sizes, ports = {**axis_sizes(program), **changed}, iter(program.inputs)

    def sized(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        shape = [prod(sizes.get(axis, 1) for axis in dim) for dim in next(ports).dims]
        return torch.empty(shape, dtype=value.dtype, device="meta")

    try:
        other = tree_map(sized, inputs)
        found = trace(function, *other, name=program.name, live=live)
        if structure_of(found) != structure_of(traced):
            return False
        there, wanted = program_at(found.program, {}), program_at(program, changed)
        return there == wanted or (_made(there) == _made(wanted) and _is_empty(wanted))
    except Exception:  # a function of the user's may raise anything at sizes it is not made for
        return False


def _made(program: Program) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return name, dtype and shape of each tensor that regions make."""
    outputs = [(region.graph, one.port) for region in program.regions for one in region.graph.outputs]
    return [(port.name, port.dtype, graph.shape(port)) for graph, port in outputs]


def _is_empty(program: Program) -> bool:
    """Whether a program makes tensors without elements only: then how they are made says nothing."""
    return not program.opaque and all(0 in shape for _, _, shape in _made(program))
