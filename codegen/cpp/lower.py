"""Lower: a kernel of a muGraph as the statements that C++ is emitted from."""

from superopt.codegen.statements import KernelProgram, lower_block
from superopt.ir import MuGraph

__all__ = ["lower_kernel"]


def lower_kernel(mugraph: MuGraph, number: int) -> KernelProgram:
    """Return one block kernel; a value between kernels lies as the operand it is contracted with."""
    return lower_block(mugraph, number, alike=True)
