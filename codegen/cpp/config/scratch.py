"""Scratch: the scratch memory that a program of a kernel's grid takes."""

from collections.abc import Mapping
from math import prod

from superopt.codegen.cpp.config.config import CppConfig
from superopt.codegen.cpp.plan import make_plan
from superopt.codegen.lowering import unloop_short_axes
from superopt.codegen.statements import KernelProgram
from superopt.ir import value_axes

__all__ = ["CACHED_SCRATCH", "MOST_SCRATCH", "Scratch"]

MOST_SCRATCH = 10 * 32768
"""Floats of scratch memory that a program may take."""

CACHED_SCRATCH = 32768
"""Floats of scratch memory that stay in the second-level cache."""


class Scratch:
    """The scratch memory that a program of the grid takes, in some configuration of a kernel."""

    def __init__(self, program: KernelProgram, sizes: Mapping[str, int]) -> None:
        self._program = program
        self._sizes = sizes
        self._axes = value_axes(program.graph)
        self._kept: dict[object, set[int]] = {}  # values with tiles there, however long these are

    def floats(self, config: CppConfig) -> int:
        """Return how many floats there are."""
        grid = self._program.grid
        single = frozenset(axis for axis, tile in config.tiles if tile == 1 and axis in grid)
        key = config.whole, single
        if key not in self._kept:
            plan = make_plan(unloop_short_axes(self._program, config.whole), single)
            self._kept[key] = plan.kept.difference(tensor.value for tensor in self._program.loads)
        tiles = {axis: tile for axis, tile in config.tiles if axis not in config.whole}
        lengths = {**self._sizes, **tiles}
        return sum(
            prod(max(1, lengths[axis]) for axis in self._axes[value] - single) for value in self._kept[key]
        )
