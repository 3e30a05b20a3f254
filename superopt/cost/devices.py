"""Devices: what the machines can do at most, as their makers state it.

`device_of("h200")` and `device_of("cuda:90")` look one up; `host_device` measures this computer.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from superopt.cost.device import Device
from superopt.cost.host import host_device
from superopt.errors import InputError

__all__ = ["DEVICES", "device_named", "device_of"]


# Numbers of the vendors' data sheets and architecture white papers, dense, with sums in fp32, at boost
# clock. Two kinds are not in the data sheets: L2 rates are bytes per clock of the white papers where
# given (A100, and H100 and H200 taken alike), else rounded up from published measurements; the time
# between kernels is about what back-to-back launches of a stream need. Special functions are 16 per
# clock and core. f8 on an A100 is f16 after a conversion. The MI300X's shared cache is its Infinity Cache.
_TABLE = (
    Device(
        name="H200", kind="cuda", capability="90", cores=132,
        memory_gbs=4800, l2_bytes=50 << 20, l2_gbs=10_000,
        shared_bytes=227 << 10, shared_per_core=228 << 10, registers_per_core=65536, warps_per_core=64,
        matrix_flops=MappingProxyType({"f16": 989.5e12, "bf16": 989.5e12, "tf32": 494.7e12, "f8": 1979e12}),
        vector_flops=66.9e12, exp_per_s=4.18e12, launch_us=2.0,
    ),
    Device(
        name="H100", kind="cuda", capability="90", cores=132,
        memory_gbs=3350, l2_bytes=50 << 20, l2_gbs=10_000,
        shared_bytes=227 << 10, shared_per_core=228 << 10, registers_per_core=65536, warps_per_core=64,
        matrix_flops=MappingProxyType({"f16": 989.5e12, "bf16": 989.5e12, "tf32": 494.7e12, "f8": 1979e12}),
        vector_flops=66.9e12, exp_per_s=4.18e12, launch_us=2.0,
    ),
    Device(
        name="A100", kind="cuda", capability="80", cores=108,
        memory_gbs=2039, l2_bytes=40 << 20, l2_gbs=7_200,
        shared_bytes=163 << 10, shared_per_core=164 << 10, registers_per_core=65536, warps_per_core=64,
        matrix_flops=MappingProxyType({"f16": 312e12, "bf16": 312e12, "tf32": 156e12, "f8": 312e12}),
        vector_flops=19.5e12, exp_per_s=2.44e12, launch_us=2.5,
    ),
    Device(
        name="L4", kind="cuda", capability="89", cores=58,
        memory_gbs=300, l2_bytes=48 << 20, l2_gbs=2_500,
        shared_bytes=99 << 10, shared_per_core=100 << 10, registers_per_core=65536, warps_per_core=48,
        matrix_flops=MappingProxyType({"f16": 121e12, "bf16": 121e12, "tf32": 60e12, "f8": 242.5e12}),
        vector_flops=30.3e12, exp_per_s=1.89e12, launch_us=2.5,
    ),
    Device(
        name="RTX 4090", kind="cuda", capability="89", cores=128,
        memory_gbs=1008, l2_bytes=72 << 20, l2_gbs=5_500,
        shared_bytes=99 << 10, shared_per_core=100 << 10, registers_per_core=65536, warps_per_core=48,
        matrix_flops=MappingProxyType({"f16": 165.2e12, "bf16": 165.2e12, "tf32": 82.6e12, "f8": 330.3e12}),
        vector_flops=82.6e12, exp_per_s=5.16e12, launch_us=2.0,
    ),
    Device(
        name="MI300X", kind="hip", capability="gfx942", cores=304,
        memory_gbs=5300, l2_bytes=256 << 20, l2_gbs=17_200,
        shared_bytes=64 << 10, shared_per_core=64 << 10, registers_per_core=131072, warps_per_core=32,
        matrix_flops=MappingProxyType({"f16": 1307e12, "bf16": 1307e12, "tf32": 653.7e12, "f8": 2615e12}),
        vector_flops=163.4e12, exp_per_s=10.2e12, launch_us=4.0,
    ),
)  # fmt: skip

DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in _TABLE})
"""The known devices by name."""

_TARGETS = {"cuda:80": "A100", "cuda:89": "RTX 4090", "cuda:90": "H100", "hip:gfx942": "MI300X"}

# What a driver calls the table's own models, not the slower ones that share a part of the name.
_DRIVER_NAMES = (
    (r"\bH200\b", "H200"),
    (r"\bH100 (80GB HBM3|SXM)", "H100"),
    (r"\bA100-SXM4-80GB\b", "A100"),
    (r"\bL4\b", "L4"),
    (r"\bRTX 4090$", "RTX 4090"),
    (r"\bMI300X\b", "MI300X"),
)


def device_of(target: str) -> Device:
    """Return the device that a target ("cuda:90"), a name ("h200") or "cpu" means, or raise InputError."""
    wanted = target.strip().lower()
    if wanted == "cpu":
        return host_device()
    names = {name.lower(): name for name in DEVICES}
    name = names.get(wanted) or _TARGETS.get(wanted)
    if name is None:
        known = ", ".join((*DEVICES, *_TARGETS, "cpu"))
        raise InputError(f"device {target!r} is not known; give one of {known}")
    return DEVICES[name]


def device_named(name: str, capability: tuple[int, int] | str) -> Device:
    """Return the device that a driver calls by this name, or a generic one by its capability.

    `name` is what torch.cuda.get_device_name() says, `capability` what get_device_capability() does, or
    an architecture such as "gfx942". A generic device has each number of the known one with the fastest
    memory among those of its capability, or of the nearest older one.
    """
    for pattern, known in _DRIVER_NAMES:
        if re.search(pattern, name.strip()):
            return DEVICES[known]
    if isinstance(capability, str) and capability.startswith("gfx"):
        found = [device for device in _TABLE if device.kind == "hip"]
    else:
        number = _number(capability)
        cuda = [device for device in _TABLE if device.kind == "cuda"]
        older = [int(device.capability) for device in cuda if int(device.capability) <= number]
        nearest = max(older, default=min(int(device.capability) for device in cuda))
        found = [device for device in cuda if int(device.capability) == nearest]
    base = max(found, key=lambda device: device.memory_gbs)
    text = capability if isinstance(capability, str) else f"{capability[0]}{capability[1]}"
    return replace(base, name=f"{name.strip() or 'GPU'} (as {base.name})", capability=text)


def _number(capability: tuple[int, int] | str) -> int:
    if isinstance(capability, tuple):
        return capability[0] * 10 + capability[1]
    digits = capability.replace(".", "")
    if not digits.isdigit():
        raise InputError(f'capability {capability!r} is not known; give (9, 0), "90" or "gfx942"')
    return int(digits)
