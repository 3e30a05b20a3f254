"""Modes: the global settings of PyTorch that change what a call does."""

from collections.abc import Callable

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from superopt.targets.tf32 import is_tf32

__all__ = ["Modes"]

_WANTED = "gradients are wanted (they are not under torch.no_grad())"
_ASKED = "a tensor requires gradients, and the function does something else for such tensors"


class Modes:
    """The global settings of PyTorch that change what a call does, read as fast as possible."""

    def __init__(self, *, tf32: bool = False) -> None:
        self._tf32 = tf32  # whether kernels multiply in tf32
        self.threads: Callable[[], int] = torch.get_num_threads
        self.gradients: Callable[[], bool] = torch.is_grad_enabled  # whether requires_grad counts
        self.autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
        self.compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
        self.why_gradients = _WANTED
        self._forward = forward_ad
        self._dispatch: Callable[[], int] = torch._C._len_torch_dispatch_stack
        self._functions: Callable[[], int] = torch._C._len_torch_function_stack
        self._transform: Callable[[], object] = torch._C._functorch.peek_interpreter_stack
        self._tracing: Callable[[], bool] = torch._C._is_tracing
        self._dtype: Callable[[], object] = torch.get_default_dtype
        self._built = _default_device(), torch.get_default_dtype()

    def look_at_requires_grad(self, *, always: bool) -> None:
        """Say whether tensors that require gradients go to the original even where gradients are off."""
        self.gradients = _always if always else torch.is_grad_enabled
        self.why_gradients = _ASKED if always else _WANTED

    def forbid_kernels(self) -> bool:
        """Whether the original must compute: PyTorch has to see its own operators, or they do something else.

        So it is under a mode of dispatch or of functions, a transform, forward differentiation or tracing,
        with another default device or dtype than when the program was made, and where products of fp32 must
        be exact but kernels multiply in tf32.
        """
        return (
            self._dispatch() > 0
            or self._transform() is not None
            or self._dtype() is not self._built[1]
            or ((self._functions() > 0 or self._built[0] is not None) and _default_device() != self._built[0])
            or self._forward._current_level >= 0
            or self._tracing()
            or (self._tf32 and not is_tf32())
        )

    def unguarded_are_same(self) -> bool:
        """Whether the settings that PyTorch's guards on tensors do not see are as they were.

        A guard sees modes of dispatch, transforms, tracing and autocast: they change the keys by which
        tensors are dispatched.
        """
        return (
            self._dtype() is self._built[1]
            and self._functions() == 0
            and self._built[0] is None
            and self._forward._current_level < 0
            and (not self._tf32 or is_tf32())
        )


def _always() -> bool:
    return True


def _default_device() -> object:
    """Return the default device, None where there is none, or an object that equals no earlier one."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if any(type(mode) is not DeviceContext for mode in stack):
        return object()
    return torch.get_default_device() if stack else None
