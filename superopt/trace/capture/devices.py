"""Devices: what a traced function is told of the device of its tensors, which have no data.

The function is told where the program will run. A device that it hands back to PyTorch, to make or move a
tensor, still means "where the inputs are", so that a program belongs to no device.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["META", "Devices", "asked_by_library"]

META = torch.device("meta")
_LIBRARY = str(Path(torch.__file__).parent)
_KINDS = {
    getattr(Tensor, f"is_{kind}"): kind
    for kind in ("cpu", "cuda", "meta", "xpu", "mps", "xla", "mtia")
    if hasattr(Tensor, f"is_{kind}")
}


class Devices:
    """The devices of the inputs of one run; `live` is the type of the device that is to run the program."""

    def __init__(self, live: str | None) -> None:
        self._live = live
        self._default = META if live is None else torch.device("cpu" if live == "cpu" else f"{live}:0")
        self._of_input: dict[int, torch.device] = {}  # by the ids of the tensors that stand for inputs
        self._told: dict[torch.device, torch.device] = {}  # the one object for each device
        self._ids: set[int] = set()

    def enter(self, twin: Tensor, tensor: Tensor) -> None:
        """Note the device of an input, for which another tensor stands."""
        device = tensor.device
        if device == META or self._live not in (None, device.type):  # the program will run elsewhere
            return
        self._of_input[id(twin)] = device
        if self._default.type in ("cpu", "meta"):  # programs for a GPU may take numbers on the CPU
            self._default = device

    def answer(self, function: Any, args: tuple[Any, ...]) -> Any:
        """Return what a user's code is told that reads a device, or NotImplemented for any other call."""
        is_attribute = getattr(function, "__name__", "") == "__get__"
        read = getattr(function, "__self__", None) if is_attribute else function
        if read is not Tensor.device and read is not Tensor.get_device and read not in _KINDS:
            return NotImplemented
        if not isinstance(args[0], Tensor) or args[0].device != META or asked_by_library():
            return NotImplemented
        device = self._of_input.get(id(args[0]), self._default)
        if read is Tensor.get_device:
            return -1 if device.index is None else device.index
        if read in _KINDS:
            return device.type == _KINDS[read]
        told = self._told.setdefault(device, device)
        self._ids.add(id(told))
        return told

    def for_run(self, arguments: Any) -> Any:
        """Return arguments, in order or by name, in which a device that was told is that of the run."""
        if not self._ids:
            return arguments
        if isinstance(arguments, dict):
            return {key: META if id(one) in self._ids else one for key, one in arguments.items()}
        return tuple(META if id(one) in self._ids else one for one in arguments)


def asked_by_library() -> bool:
    """Whether PyTorch's own code reads, which may choose another path for tensors with data."""
    frame = sys._getframe(3)  # above this function, the one that calls it and the mode that calls that
    return frame.f_code.co_filename.startswith(_LIBRARY)
