"""Limits: the sizes that an exported function takes, at which its program is still the user's function.

Kernels compute at other sizes what one program computes there; the user's function may be another program,
as `x / x.shape[1]` is at another width. A result knows which axes may change, and how far; the other axes
keep the size that they were made for.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from superopt.ir import Graph, MuGraph, fixed_axes
from superopt.result.result import OpenAxes

__all__ = ["EXPECT_SIZE", "Limits", "limits_of"]

EXPECT_SIZE = '''\
def _expect_size(axis, size, least, most):
    """Refuse a size of an axis at which the function may be another program."""
    if not least <= size <= most:
        made = least if least == most else f"{least} to {most}"
        raise ValueError(f"axis {axis} is {size} long; this module is made for {made}")
'''


@dataclass(frozen=True, slots=True)
class Limits:
    """Between which sizes axes may change, and which pairs of axes have one size."""

    ranges: OpenAxes
    alike: tuple[tuple[str, str], ...]

    def lengths(self, mugraph: MuGraph) -> dict[str, int]:
        """Return how long each axis may be, at most; a part of one is no longer than the whole."""
        whole = {split.inner: split.axis for split in mugraph.splits}
        named = {axis: (whole.get(axis, axis), size) for axis, size in mugraph.graph.sizes.items()}
        return {axis: max(size, self.ranges.get(name, (0, 0))[1]) for axis, (name, size) in named.items()}

    def lines(
        self, graph: Graph, read: Collection[str], sizes: Mapping[str, str], sized: Collection[str]
    ) -> list[str]:
        """Return the lines of a function that refuse other sizes of the axes that it reads off its inputs.

        `sizes` has the variable of each axis, and `sized` the lines that set these variables.
        """
        found = []
        for axis in graph.axes:
            if axis.name in read and f"{sizes[axis.name]} = {axis.size}" not in sized:
                least, most = self.ranges.get(axis.name, (axis.size, axis.size))
                found.append(f'_expect_size("{axis.name}", {sizes[axis.name]}, {least}, {most})')
        for old, new in self.alike:
            if new in read and old in sizes and f"{sizes[new]} = {sizes[old]}" not in sized:
                a, b = sizes[old], sizes[new]
                said = f"axes {old} and {new} are {{{a}}} and {{{b}}} long; they must agree"
                found += [f"if {a} != {b}:", f'    raise ValueError(f"{said}")']
        return found


def limits_of(open_axes: OpenAxes, graphs: Iterable[Graph]) -> Limits:
    """Return the limits of functions that compute some graphs, where these axes may change.

    An axis that a step renames is as long as before. No axis may be 1 long, as a tensor has no axis there
    when it is traced, and exported functions take nothing that is empty.
    """
    ranges, alike, fixed = dict(open_axes), dict[tuple[str, str], None](), set[str]()
    for graph in graphs:
        fixed |= fixed_axes(graph)
        for old, new in (pair for step in graph.steps if step.op == "rename" for pair in step.mapping):
            if old != new:
                alike[old, str(new)] = None
                if old in ranges:
                    ranges.setdefault(str(new), ranges[old])
    kept = {axis: (max(low, 2), high) for axis, (low, high) in ranges.items() if axis not in fixed}
    return Limits(kept, tuple(alike))
