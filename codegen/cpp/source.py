"""Source: the text of a kernel and its arguments, and what emission says of where a value lies."""

from dataclasses import dataclass

from superopt.codegen.cpp.sums import SumLimit
from superopt.dtypes import DTYPES, FLOATS

__all__ = ["CPP_CONTRACTED", "CPP_FLOATS", "CPP_TYPES", "Argument", "CppSource", "Guard", "Place", "times"]

CPP_TYPES = {name: dtype.cpp for name, dtype in DTYPES.items() if dtype.cpp}
"""The C++ type of the elements of each dtype that kernels read."""

CPP_FLOATS = FLOATS.intersection(CPP_TYPES)
"""The dtypes that kernels write, and that the micro-kernel of contractions reads."""

CPP_CONTRACTED = CPP_FLOATS | {"i8"}
"""The dtypes whose contractions are compiled once, for all kernels."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One field of what a kernel is called with: a pointer, the size of an axis, a stride, or threads."""

    kind: str  # "load", "store", "size", "stride" or "threads"
    position: int = -1  # the place of the tensor among the loads or the stores
    axis: str = ""
    stored: bool = False  # whether a stride is that of a stored tensor


@dataclass(frozen=True, slots=True)
class CppSource:
    """The text of one kernel, and what its arguments are, in order; each takes eight bytes."""

    name: str
    code: str
    arguments: tuple[Argument, ...]
    unit_strides: tuple[Argument, ...] = ()  # strides that are 1 where vectors run along memory
    sums: tuple[SumLimit, ...] = ()  # those whose lengths decide how the kernel is printed


@dataclass(frozen=True, slots=True)
class Guard:
    """A place of a window that may lie outside the tensor: factors of axes, an offset, and the extent."""

    factors: dict[str, int]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies: a pointer, the stride of each axis, and the axes along which it is whole."""

    pointer: str
    type: str
    strides: dict[str, str]
    whole: frozenset[str]
    offset: tuple[str, ...] = ()
    count: str = "0"  # floats of a tile of scratch memory
    guards: tuple[Guard, ...] = ()


def times(a: str, b: str) -> str:
    """Return a product, leaving out ones."""
    if a == "0" or b == "0":
        return "0"
    if b == "1":
        return a
    return b if a == "1" else f"{a} * {b}"
