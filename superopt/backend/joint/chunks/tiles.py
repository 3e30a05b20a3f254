"""Tiles: a region's results in chunks along an axis, as what a plan holds and calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from superopt.backend.joint.chunks.integers import holds_integers
from superopt.backend.joint.chunks.joined import joined
from superopt.backend.joint.chunks.run import TiledKernel
from superopt.backend.joint.chunks.tiling import UNDEFINED, tiled, with_undefined
from superopt.errors import InputError
from superopt.ir import Graph
from superopt.trace.run import TORCH_DTYPES, in_own_memory

__all__ = ["Tiles"]


@dataclass(slots=True)
class Tiles:
    """The axis along which a program is computed in chunks, how much each takes, and what is too large else.

    Axes of the program that always occur together are one axis of the goal, of which the chunks are.
    """

    program: Graph
    axis: str
    rows: int
    limit_bytes: int
    last: bool = False  # whether the axis comes last in what products make
    own: tuple[str, ...] = ()  # the products that kernels of ours make
    dtype: str = "f32"  # in which matrices are multiplied
    _kernel: TiledKernel | None = field(default=None, init=False, repr=False)

    @classmethod
    def read(cls, program: Graph, data: Any) -> "Tiles":
        """Return the tiles of some data, or raise InputError."""
        found = data if isinstance(data, dict) else {}
        parts: list[Any] = [found.get(name) for name in ("axis", "rows", "limit_bytes", "last", "own")]
        sound = [type(one) for one in parts] == [str, int, int, bool, list] and parts[0] in joined(
            program
        ).goal.sizes
        dtype, own = found.get("dtype", "f32"), found.get("own")
        if (
            not sound
            or dtype not in ("f32", "bf16")
            or min(parts[1:3]) < 1
            or any(type(one) is not str for one in parts[4])
        ):
            raise InputError("the tiles of a plan are damaged")
        axis, rows, limit_bytes, last, own = parts
        return cls(program, axis, rows, limit_bytes, last, tuple(own), dtype)

    def to_json(self) -> dict[str, Any]:
        """Return them as plain data."""
        sizes = {"rows": self.rows, "limit_bytes": self.limit_bytes}
        return {"axis": self.axis, **sizes, "last": self.last, "own": list(self.own), "dtype": self.dtype}

    def __call__(self, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the results by name, each contiguous and in memory of its own."""
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            made = self.kernel(self.entering(known))
        if UNDEFINED in made and float(made.pop(UNDEFINED)):
            raise IndexError("an index or a label is out of range")
        return in_own_memory(joined(self.program).leave(made), known)

    @property
    def goal(self) -> Graph:
        """The program with joined axes, as the chunks compute it."""
        return joined(self.program).goal

    def entering(self, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what enters the program as it enters the goal."""
        return joined(self.program).enter(known)

    def prove(self, program: Graph) -> None:
        """Raise InputError unless a program can be computed so: what chunks do follows from its algebra."""
        self._kernel = self._made(joined(program).goal)

    @property
    def kernel(self) -> TiledKernel:
        """What computes the chunks."""
        if self._kernel is None:
            self._kernel = self._made(self.goal)
        return self._kernel

    def _made(self, goal: Graph) -> TiledKernel:
        tiling = tiled(with_undefined(goal), self.axis, self.limit_bytes)
        if tiling is None or not holds_integers(goal):
            raise InputError(f"{goal.name}: it cannot be computed in chunks along {self.axis}")
        return TiledKernel(tiling, self.rows, last=self.last, own=self.own, dtype=TORCH_DTYPES[self.dtype])
