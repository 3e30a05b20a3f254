"""CPU: what a kernel takes on a processor, from the loops that its C++ has.

`layout` has the tiles and the strides of a kernel, `traffic` says from which cache each operand of each loop
comes, `contraction` says how long a product of matrices takes, and `kernel` adds up the loops of a kernel.
`library` has the times of PyTorch's calls, and `rates` the measured numbers that all of them use.
"""

from superopt.codegen.cpp.config import default_config
from superopt.codegen.cpp.emit import lower_kernel
from superopt.cost.cpu.kernel import KernelTime, kernel_time
from superopt.cost.cpu.library import library_us
from superopt.cost.device import Device
from superopt.ir import Block, MuGraph

__all__ = ["KernelTime", "default_us", "kernel_time"]


def default_us(mugraph: MuGraph, number: int, device: Device) -> float:
    """Return the time of one kernel of a muGraph in its default configuration."""
    if not isinstance(mugraph.kernels[number], Block):
        return library_us(mugraph, number, device)
    program = lower_kernel(mugraph, number)
    config = default_config(program, mugraph.graph.sizes, cores=device.cores, vectors=device.capability)
    return kernel_time(program, config, device).us
