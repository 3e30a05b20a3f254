"""Rates: how long a core takes for single operations.

Operations on vectors are counted in vector multiply-adds at the core's peak. The peak is measured on each
machine, as the rates of memory and of the last cache are (`superopt.cost.host`). What stands around vectors
(calls, starts of loops, single numbers) is counted in cycles, since it takes as long with narrow vectors as
with wide ones. The counts were measured on an AMD EPYC with vectors of 512 bits, and predictions compared
with times there and on one with vectors of 256 bits. They hold roughly for other cores with vectors.
"""

from dataclasses import dataclass
from functools import cache

from superopt.cost.device import Device
from superopt.ops import OPS

__all__ = ["Core", "core_of", "operation"]

# Vector multiply-adds.
LOAD = 1.0  # a vector from the first cache
STORE = 2.5
ADD = 0.5  # an addition, a maximum or a comparison, which have units of their own
DIVIDE = 6.5
ROOT = 18.0
EXP = 13.0
LOG = 24.0
CALL = 250.0  # a function of the C library for each lane of a vector
CONVERT = 1.5  # a vector in half precision, read or written

# Cycles.
GATHER = 24.0  # a vector whose numbers lie apart
ALTERNATE = 4.0  # a vector of every other number
ROW = 12.0  # the start of an innermost loop
REST = 12.0  # a last vector that is not full
EDGES, EDGE = 2, 4.0  # vectors of a row that windows reach out of, and what each tap of theirs takes more
PIECES = 6.0  # the store of such a vector by a core without masks for its lanes
SUM_LANES = 25.0  # the sum of the lanes of a vector
MAX_LANE = 5.5  # each lane of a maximum, taken one after the other
TURN = 20.0  # a turn of a loop over tiles
PROGRAM = 150.0  # a program of the grid
SCALAR = 4.0  # an operation on one number, which waits for the one before
CALLED = 60.0  # the call of a contraction, with the choice of how it is done
_CYCLE_S = 0.3e-9  # seconds: cores with vectors run at 3 to 4 GHz while they compute


@dataclass(frozen=True, slots=True)
class Core:
    """One core of a processor, while all that a kernel may use are busy."""

    lanes: int  # numbers of a vector in fp32
    registers: int  # vector registers
    masked: bool  # some lanes of a vector are stored by one instruction
    fma_s: float  # seconds of a vector multiply-add
    cycle: float  # vector multiply-adds in the time of a cycle
    half_fma_s: float  # likewise in bf16, for as many products as a vector in fp32 has
    caches: tuple[int, int, int]  # bytes of its own first and second cache, and of its part of the last one
    second_s: float  # seconds for a byte from the second cache
    last_s: float  # for a byte from the last one, while all cores read
    memory_s: float  # for a byte from memory, while all cores read


_MEMORY_SHARE = 0.9  # the share of the best rate of memory that the loops of a kernel reach
_SECOND_BYTES = 32.0  # bytes from the second cache in the time of a multiply-add


def core_of(device: Device) -> Core:
    """Return a core of a device."""
    lanes = {"avx512": 16, "avx2": 8}.get(device.capability, 4)
    fma_s = 2 * lanes * device.cores / device.vector_flops
    half_fma_s = 2 * lanes * device.cores / device.matrix_flops["bf16"]
    return Core(
        lanes=lanes,
        registers=32 if device.capability == "avx512" else 16,
        masked=device.capability == "avx512",
        fma_s=fma_s,
        cycle=_CYCLE_S / fma_s,
        half_fma_s=half_fma_s,
        caches=(device.shared_bytes, device.shared_per_core, device.l2_bytes // device.cores),
        second_s=fma_s / _SECOND_BYTES,
        last_s=device.cores / (device.l2_gbs * 1e9),
        memory_s=device.cores / (device.memory_gbs * _MEMORY_SHARE * 1e9),
    )


class _Counter:
    """An arithmetic that adds up the time of vector operations; constants are free."""

    def __init__(self) -> None:
        self.time = 0.0

    def const(self, value: object) -> None:
        pass

    def infinity(self) -> None:
        pass

    def add(self, a: None, b: None) -> None:
        self.time += ADD

    less = equal = mul = add

    def maximum(self, a: None, b: None) -> None:
        self.time += 3 * ADD  # NaN wins

    def neg(self, a: None) -> None:
        self.time += ADD / 2

    def inv(self, a: None) -> None:
        self.time += DIVIDE

    def exp(self, a: None) -> None:
        self.time += EXP

    def sqrt(self, a: None) -> None:
        self.time += ROOT

    def where(self, mask: None, a: None, b: None) -> None:
        self.time += 2 * ADD

    def function(self, name: str, *args: None) -> None:
        self.time += {"log": LOG, "tanh": 2 * EXP, "erf": 2 * EXP, "floor": 2 * ADD}.get(name, CALL)


@cache
def operation(op: str) -> float:
    """Return the time of an operator on one vector; a reduction adds once."""
    if op in OPS:
        counter = _Counter()
        OPS[op].scalar(counter, *[None] * OPS[op].arity)
        return counter.time
    return {"sum": ADD, "max": 3 * ADD, "contract": 2 * ADD}.get(op, 0.0)
