"""Tiles: a region's results in turns along an axis, as what a plan holds and calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from superopt.backend.joint.run import TiledKernel
from superopt.backend.joint.tiling import UNDEFINED, tiled, with_undefined
from superopt.backend.operators import in_own_memory
from superopt.errors import InputError
from superopt.ir import Graph

__all__ = ["Tiles"]


@dataclass(slots=True)
class Tiles:
    """Along which axis a goal is computed in turns, how much of it at a turn, and what is too large else."""

    goal: Graph
    axis: str
    rows: int
    limit_bytes: int
    last: bool = False  # whether the axis comes last in what products make
    _kernel: TiledKernel | None = field(default=None, repr=False)

    @classmethod
    def read(cls, goal: Graph, data: Any) -> "Tiles":
        """Return the tiles of some data, or raise InputError."""
        found = data if isinstance(data, dict) else {}
        parts: list[Any] = [found.get(name) for name in ("axis", "rows", "limit_bytes", "last")]
        sound = [type(one) for one in parts] == [str, int, int, bool] and parts[0] in goal.sizes
        if not sound or min(parts[1:3]) < 1:
            raise InputError("the tiles of a plan are damaged")
        return cls(goal, *parts)

    def to_json(self) -> dict[str, Any]:
        """Return them as plain data."""
        return {"axis": self.axis, "rows": self.rows, "limit_bytes": self.limit_bytes, "last": self.last}

    def __call__(self, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the results by name, each contiguous and in memory of its own."""
        if self._kernel is None:
            self.prove(self.goal)
        assert self._kernel is not None
        made = self._kernel(known)
        if UNDEFINED in made and float(made.pop(UNDEFINED)):
            raise IndexError("an index or a label is out of range")
        return in_own_memory(made, known)

    def prove(self, goal: Graph) -> None:
        """Raise InputError unless a goal can be computed so: what the turns do follows from its algebra."""
        tiling = tiled(with_undefined(goal), self.axis, self.limit_bytes)
        if tiling is None:
            raise InputError(f"{goal.name}: it cannot be computed in turns along {self.axis}")
        self._kernel = TiledKernel(tiling, self.rows, last=self.last, patches={})
