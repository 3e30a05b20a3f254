"""Lowering: the passes that change a kernel program before it is printed, in the order in which they run."""

from collections.abc import Container

from superopt.codegen.lowering.bound_masked_loops import bound_masked_loops
from superopt.codegen.lowering.convert_exp_to_exp2 import convert_exp_to_exp2
from superopt.codegen.lowering.convert_sqrt_to_rsqrt import convert_sqrt_to_rsqrt
from superopt.codegen.lowering.drop_needless_masks import drop_needless_masks
from superopt.codegen.lowering.unloop_short_axes import unloop_short_axes
from superopt.codegen.statements import KernelProgram

__all__ = ["lower_for_cpp", "lower_for_triton", "unloop_short_axes"]

_FOR_TRITON = (convert_sqrt_to_rsqrt, convert_exp_to_exp2, bound_masked_loops, drop_needless_masks)


def lower_for_triton(program: KernelProgram) -> KernelProgram:
    """Return the program that is printed as Triton."""
    for lower in _FOR_TRITON:
        program = lower(program)
    return program


def lower_for_cpp(program: KernelProgram, short: Container[str] = ()) -> KernelProgram:
    """Return the program that is printed as C++, with some short axes whole inside a tile."""
    return bound_masked_loops(unloop_short_axes(convert_sqrt_to_rsqrt(program, shared=True), short))
