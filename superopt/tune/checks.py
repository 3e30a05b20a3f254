"""Checks: one guarded run of a kernel, before anything is measured.

What a kernel computes is compared elsewhere; this finds the faults that make a time worthless: outputs
that are missing, of a wrong shape, or not finite. On CUDA an access outside a tensor poisons the context
of the whole process: run a kernel there for the first time in a process of its own (`tune.probe`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from superopt.errors import first_line, kind_and_line
from superopt.tune.errors import DeviceLostError, KernelFaultError

__all__ = ["run_guarded"]


def run_guarded(
    kernel: Callable[..., Mapping[str, Tensor]],
    inputs: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    expected_finite: Callable[[], Mapping[str, Tensor]] | None = None,
) -> Mapping[str, Tensor]:
    """Return the outputs of a kernel by name, or raise KernelFaultError saying what is wrong with them.

    `expected_finite` computes the outputs in a way that is trusted; it is called where an output is not
    finite, and where its output is not finite either, the kernel's may be so. DeviceLostError says that
    the device reported a fault that no later call can get past.
    """
    on_cuda = any(isinstance(one, torch.Tensor) and one.is_cuda for one in inputs.values())
    try:
        outputs = kernel(**inputs)
        if on_cuda:
            torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        raise KernelFaultError(f"it needs more memory than there is: {first_line(error)}") from error
    except Exception as error:  # a kernel may raise anything
        if on_cuda and _is_poisoned():
            raise DeviceLostError(f"the device is lost to this process: {first_line(error)}") from error
        raise KernelFaultError(kind_and_line(error)) from error
    trusted: Mapping[str, Tensor] | None = None
    for name, shape in shapes.items():
        if name not in outputs:
            raise KernelFaultError(f"there is no output {name!r}, only {', '.join(outputs) or 'none'}")
        found = outputs[name]
        if tuple(found.shape) != tuple(shape):
            raise KernelFaultError(f"{name!r} has shape {tuple(found.shape)}, expected {tuple(shape)}")
        wrong = ~torch.isfinite(found)
        if not wrong.any():
            continue
        if expected_finite is not None:
            trusted = expected_finite() if trusted is None else trusted
            wrong &= torch.isfinite(trusted[name]).to(wrong.device)
        if count := int(wrong.sum()):
            raise KernelFaultError(
                f"{name!r} has {count} of {wrong.numel()} elements that are NaN or infinite"
            )
    return outputs


def _is_poisoned() -> bool:
    """Whether the device fails at work that is none."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False
