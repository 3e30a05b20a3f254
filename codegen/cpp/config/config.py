"""CppConfig: what the tuner may choose about a C++ kernel: how long tiles are, how programs spread."""

from dataclasses import dataclass

__all__ = ["FEW", "GROUPED", "CppConfig"]

FEW = 16
"""Positions up to which an axis whose programs share what they read is one tile; `few` in the runtime."""

GROUPED = 96
"""Rows from which on they are copied in groups where registers are few; `worth_groups` in the runtime."""


@dataclass(frozen=True, slots=True)
class CppConfig:
    """The tile length of each axis on the grid or looped over, and how OpenMP shares out the grid.

    The axes in `whole` are not looped over, but lie whole inside a tile. `order` is that of the loops
    over the grid, outermost first, where it is not the program's; `threads` is how many run at most,
    0 being all. Convolutions with three taps take fewer products where they are `filtered`.
    """

    tiles: tuple[tuple[str, int], ...]
    schedule: str = "static"
    whole: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    threads: int = 0
    filtered: bool = False

    def tile(self, axis: str) -> int:
        """Return the tile length of an axis."""
        return dict(self.tiles)[axis]

    @property
    def rounds_operands(self) -> bool:
        """Whether operands are rounded to fp16 that may not fit: they never are."""
        return False

    @property
    def rounding(self) -> tuple[bool]:
        """How products are rounded, as far as that is not decided by the processor and the program."""
        return (self.filtered,)
