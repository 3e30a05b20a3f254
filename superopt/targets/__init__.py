"""Targets: what kernels are made for, a CPU or a CUDA device, behind one class."""

from superopt.codegen.configjson import config_json
from superopt.targets.pick import pick_target
from superopt.targets.target import Configs, Kernel, KernelReport, OrderedKernel, Target

__all__ = [
    "Configs",
    "Kernel",
    "KernelReport",
    "OrderedKernel",
    "Target",
    "config_json",
    "pick_target",
]
