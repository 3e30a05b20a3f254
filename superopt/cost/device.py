"""Device: what one machine can do at most, as plain numbers, so that costs need no machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Device"]


@dataclass(frozen=True, slots=True)
class Device:
    """What one device can do at most."""

    name: str
    kind: Literal["cuda", "hip", "cpu"]
    capability: str  # "90", "gfx942", "avx2"
    cores: int  # multiprocessors, compute units or processor cores
    memory_gbs: float  # 10^9 bytes per second from its main memory
    l2_bytes: int  # bytes of the last cache that all cores share
    l2_gbs: float
    shared_bytes: int  # the most that one program may have
    shared_per_core: int
    registers_per_core: int  # registers of 32 bits
    warps_per_core: int  # resident at most
    matrix_flops: Mapping[str, float]  # per second by dtype, dense, sums in fp32
    vector_flops: float  # per second in fp32, a multiply-add being two
    exp_per_s: float  # exponentials and reciprocals of the special function units
    launch_us: float  # the time from one kernel's end to the start of the next

    @property
    def timed(self) -> bool:
        """Whether estimates for it are times; else they are bounds, which the best of tiles may not reach."""
        return self.kind == "cpu"

    @property
    def lanes_per_warp(self) -> int:
        """Threads that run in step."""
        return 64 if self.kind == "hip" else 32

    @property
    def shared_gbs(self) -> float:
        """10^9 bytes per second between all cores and their shared memories.

        A core moves 128 bytes and takes 16 exponentials per clock, on all of these devices.
        """
        return self.exp_per_s * 8 / 1e9
