"""What goes wrong on the way to a running C++ kernel, as errors that a caller can act on."""

from superopt.errors import SuperoptError

__all__ = ["CompileError", "CppError", "NoCompilerError", "UnsupportedError"]


class CppError(SuperoptError):
    """Base of all errors of the C++ target; a caller may run the program with PyTorch instead."""


class UnsupportedError(CppError):
    """There is no C++ for this kernel: names the tensor or the step, and what is known."""


class NoCompilerError(CppError):
    """There is no C++ compiler: names those that were looked for."""


class CompileError(CppError):
    """The compiler failed or took too long: carries its first error line."""
