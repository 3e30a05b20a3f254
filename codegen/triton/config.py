"""TritonConfig: how one kernel is cut into tiles and compiled; what the tuner varies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Role", "TritonConfig", "next_power"]

LATE_REGISTERS = 64  # registers of a thread for an accumulator that is reduced after its loop
LATE_REGISTERS_BESIDE_PRODUCTS = 16  # the same where matrix products take registers as well
Role = Literal["single", "tile", "whole"]


def next_power(size: int) -> int:
    """Return the smallest power of two that is not below a size."""
    return 1 << max(size - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """Positions of each axis that a program holds at once, and the compiler's options.

    An axis on the grid or looped over is a single position where its tile is 1, and is walked in tiles
    otherwise; an axis in `whole`, or neither on the grid nor looped over, lies in one tile that covers it.
    """

    tiles: tuple[tuple[str, int], ...]
    whole: frozenset[str] = frozenset()
    exact: frozenset[str] = frozenset()  # axes whose tile divides their size: they need no masks
    num_warps: int = 4
    num_stages: int = 3
    group: int = 1  # tiles of the slower of two grid axes whose programs run together, to share a cache
    persistent: int = 0  # programs of a processor, each doing tiles in turn; 0 for a program of each tile
    descriptors: bool = False  # tiles come and go by tensor descriptors (TMA) where they can
    wide: bool = False  # offsets of 64 bits, where a tensor may have more than 2^31 elements
    precision: Literal["ieee", "tf32", "tf32x3"] = "ieee"  # how fp32 numbers are multiplied
    # Computed operands of fp16 products are rounded to fp16, which may overflow; else their rows are scaled.
    half_products: bool = False
    early: bool = False  # starts while the kernel before it ends, and waits for that kernel's results
    most_registers: int = 0  # of a thread; 0 for as many as the compiler likes
    passing: frozenset[str] = frozenset()  # tensors that leave the cache before others, being read once only

    def tile(self, axis: str) -> int:
        """Return the positions of an axis in a tile."""
        return dict(self.tiles)[axis]

    def is_late(self, elements: int, *, beside_products: bool) -> bool:
        """Return whether an accumulator of so many elements is reduced after its loop."""
        most = LATE_REGISTERS_BESIDE_PRODUCTS if beside_products else LATE_REGISTERS
        return elements <= most * 32 * self.num_warps

    @property
    def rounds_operands(self) -> bool:
        """Whether operands are rounded to fp16 that may not fit."""
        return self.half_products

    @property
    def rounding(self) -> tuple[str, bool]:
        """What decides how products are rounded: kernels that agree in it err alike."""
        return self.precision, self.half_products

    @property
    def options(self) -> dict[str, int]:
        """The options of Triton's compiler and of the launch."""
        found: dict[str, int] = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        if self.most_registers:
            found["maxnreg"] = self.most_registers
        if self.early:
            found["launch_pdl"] = True
        return found

    @property
    def blocks(self) -> Mapping[str, int]:
        """The tile of each axis."""
        return dict(self.tiles)
