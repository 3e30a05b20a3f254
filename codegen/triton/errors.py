"""What goes wrong on the way to a running Triton kernel, as errors that a caller can act on."""

from superopt.errors import SuperoptError

__all__ = ["CompileError", "TritonError", "UnsupportedError"]


class TritonError(SuperoptError):
    """Base of all errors of the Triton target; a caller may run the program with PyTorch instead."""


class UnsupportedError(TritonError):
    """There is no Triton for this kernel: names the tensor or the step, and the reason."""


class CompileError(TritonError):
    """The compiler failed or took too long: carries the last line it wrote."""
