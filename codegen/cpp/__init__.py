"""C++ kernels: block graphs as C++17 with OpenMP and vector types, compiled by the system's compiler."""

from superopt.codegen.cpp.compile import (
    compile_shared,
    compile_source,
    find_compiler,
)
from superopt.codegen.cpp.config import CppConfig, configs, default_config
from superopt.codegen.cpp.emit import emit, lower_kernel
from superopt.codegen.cpp.launch import CppMuGraph, has_unit_strides
from superopt.codegen.cpp.source import Argument, CppSource

__all__ = [
    "Argument",
    "CppConfig",
    "CppMuGraph",
    "CppSource",
    "compile_shared",
    "compile_source",
    "configs",
    "default_config",
    "emit",
    "find_compiler",
    "has_unit_strides",
    "lower_kernel",
]
