"""Pick: the target that a name stands for."""

from superopt.cost import DEVICES
from superopt.errors import InputError
from superopt.targets.target import Target

__all__ = ["pick_target"]

_VALID = "auto, cpu, cuda (the device here), or a capability as in cuda:80 and cuda:90"


def pick_target(name: str) -> Target:
    """Return the target of a name, or raise InputError with all that are valid."""
    from superopt.targets.cpu import CpuTarget  # which import torch: a result is read and shown without it
    from superopt.targets.cuda import CudaTarget, capability_here

    if name == "cpu":
        return CpuTarget()
    if name in ("auto", "cuda"):
        capability = capability_here()
        if capability is not None:
            return CudaTarget(capability)
        if name == "auto":
            return CpuTarget()
        raise InputError(f"there is no CUDA device with Triton here; valid are {_VALID}")
    named = ", ".join(one for one in DEVICES if DEVICES[one].kind == "cuda")
    unknown = InputError(f"device {name!r} is not known; valid are {_VALID}, and the names {named}")
    if not isinstance(name, str):
        raise unknown
    device = {one.lower(): DEVICES[one] for one in DEVICES}.get(name.lower())
    if device is not None and device.kind == "cuda":
        return CudaTarget(int(device.capability), device.name)
    kind, _, number = name.partition(":")
    if kind == "cuda" and number.isascii() and number.isdigit() and 70 <= int(number) <= 129:
        return CudaTarget(int(number))
    raise unknown
