"""TritonSource: the text of a kernel, and how to call it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from superopt.codegen.statements import KernelProgram, traced_strides
from superopt.codegen.triton.config import TritonConfig

__all__ = ["DESCRIPTORS_FROM", "EARLY_FROM", "Argument", "TritonSource"]

DESCRIPTORS_FROM = 90  # devices have tensor descriptors from compute capability 9.0 on
EARLY_FROM = 90  # and programmatic dependent launches, too
E4M3_FROM = 89


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel and where its value comes from."""

    name: str
    kind: Literal["tensor", "descriptor", "stride", "extent", "block"]
    tensor: str | None = None  # name of the tensor, for `tensor`, `descriptor` and `stride`
    axis: str | None = None
    dtype: str | None = None  # the dtype of the tensor
    innermost: bool = False  # whether it is the innermost stride, which is 1 where the tensor is contiguous
    seen: tuple[tuple[str, int], ...] = ()  # axes of a descriptor's tile, and the positions of each


@dataclass(frozen=True, slots=True)
class TritonSource:
    """A module with one kernel, the kernel's name, and its arguments in order."""

    text: str
    name: str
    arguments: tuple[Argument, ...]
    grid: tuple[tuple[str, int], ...]  # axes that programs are spread over, and the positions of each
    config: TritonConfig

    @property
    def descriptors(self) -> tuple[Argument, ...]:
        """The arguments that are tensor descriptors, which not every device and tensor has."""
        return tuple(one for one in self.arguments if one.kind == "descriptor")

    def refusal(self, capability: int) -> str | None:
        """Return why devices of a compute capability cannot run it; None where they can, for all we know."""
        if self.config.early and capability < EARLY_FROM:
            return f"it starts before the kernel before it ends, for cuda:{EARLY_FROM} and later"
        for one in self.arguments:
            if one.kind == "descriptor" and capability < DESCRIPTORS_FROM:
                return f"{one.name} is a tensor descriptor, for cuda:{DESCRIPTORS_FROM} and later"
            if one.dtype == "f8e4m3" and capability < E4M3_FROM:
                return f"{one.tensor} holds float8_e4m3fn, which Triton reads on cuda:{E4M3_FROM} and later"
        return None

    def numbers(self, program: KernelProgram, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of a call on tensors that lie in memory as they were traced."""
        strides = {one.name: traced_strides(one, sizes) for one in (*program.loads, *program.stores)}
        return {
            one.name: strides[one.tensor or ""][one.axis or ""]
            if one.kind == "stride"
            else sizes[one.axis or ""]
            for one in self.arguments
            if one.kind in ("stride", "extent")
        }

    def programs(self, sizes: Mapping[str, int]) -> int:
        """Return how many programs have something to do at these sizes."""
        return prod(-(-sizes[axis] // tile) for axis, tile in self.grid)

    def launched(self, sizes: Mapping[str, int], processors: int) -> int:
        """Return how many programs are launched: persistent ones do the work of several, in turn."""
        programs = self.programs(sizes)
        return min(programs, processors * self.config.persistent) if self.config.persistent else programs
