"""What goes wrong on the way to a running kernel, as errors that a caller can act on."""

from superopt.errors import SuperoptError

__all__ = ["CodegenError", "CompileError", "NoCompilerError", "UnsupportedError"]


class CodegenError(SuperoptError):
    """Base of all errors of code generators; a caller may run the program with PyTorch instead."""


class UnsupportedError(CodegenError):
    """There is no code for this kernel: names the tensor or the step, and the reason."""


class NoCompilerError(CodegenError):
    """There is no C++ compiler: names the compilers that were looked for."""


class CompileError(CodegenError):
    """The compiler failed or took too long: carries the line that says most."""
