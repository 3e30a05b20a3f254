"""Triton: the kernels of a muGraph as Triton source, and what runs and compiles it."""

from superopt.codegen.triton.choices import configs, default_config
from superopt.codegen.triton.config import TritonConfig
from superopt.codegen.triton.emit import emit
from superopt.codegen.triton.run.compile import AheadCompiler, CompileReport
from superopt.codegen.triton.run.launch import TritonMuGraph
from superopt.codegen.triton.source import Argument, TritonSource

__all__ = [
    "AheadCompiler",
    "Argument",
    "CompileReport",
    "TritonConfig",
    "TritonMuGraph",
    "TritonSource",
    "configs",
    "default_config",
    "emit",
]
