"""Triton: the kernels of a muGraph as Triton source, and what runs and compiles it."""

from superopt.codegen.triton.choices import configs, default_config
from superopt.codegen.triton.config import TritonConfig, UnsupportedKernel
from superopt.codegen.triton.emit import Argument, TritonSource, emit
from superopt.codegen.triton.launch import TritonMuGraph

__all__ = [
    "Argument",
    "TritonConfig",
    "TritonMuGraph",
    "TritonSource",
    "UnsupportedKernel",
    "configs",
    "default_config",
    "emit",
]
