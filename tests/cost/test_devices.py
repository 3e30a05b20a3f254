"""The table of devices, and how names lead to it."""

from dataclasses import fields

import pytest

from superopt.cost import DEVICES, Device, device_named, device_of
from superopt.errors import InputError


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_field_makes_sense(device: Device) -> None:
    assert DEVICES[device.name] is device
    for field in fields(Device):
        value = getattr(device, field.name)
        if isinstance(value, (int, float)):
            assert value > 0, field.name
    assert set(device.matrix_flops) == {"f16", "bf16", "tf32", "f8"}
    assert device.matrix_flops["f16"] == device.matrix_flops["bf16"] <= device.matrix_flops["f8"]
    assert device.vector_flops <= device.matrix_flops["tf32"] < device.matrix_flops["f16"]
    assert device.memory_gbs < device.l2_gbs < device.shared_gbs
    assert device.shared_bytes <= device.shared_per_core
    assert device.exp_per_s < device.vector_flops / 4


@pytest.mark.parametrize(
    ("name", "cores", "memory_gbs", "tflops"),
    [("H200", 132, 4800, 989.5), ("H100", 132, 3350, 989.5), ("A100", 108, 2039, 312), ("L4", 58, 300, 121),
     ("RTX 4090", 128, 1008, 165.2), ("MI300X", 304, 5300, 1307)],
)  # fmt: skip
def test_data_sheets(name: str, cores: int, memory_gbs: float, tflops: float) -> None:
    device = DEVICES[name]
    assert (device.cores, device.memory_gbs, device.matrix_flops["f16"] / 1e12) == (cores, memory_gbs, tflops)


@pytest.mark.parametrize(
    ("target", "name"),
    [("cuda:80", "A100"), ("cuda:90", "H100"), ("cuda:89", "RTX 4090"), ("hip:gfx942", "MI300X"),
     ("h200", "H200"), ("rtx 4090", "RTX 4090"), (" L4 ", "L4")],
)  # fmt: skip
def test_targets(target: str, name: str) -> None:
    assert device_of(target).name == name


@pytest.mark.parametrize("target", ["cuda:12", "4090", "", "h300"])
def test_unknown_targets_name_the_known_ones(target: str) -> None:
    with pytest.raises(InputError, match=r"is not known; give one of H200, .*RTX 4090.*cuda:90.*cpu"):
        device_of(target)


@pytest.mark.parametrize(
    ("driver", "capability", "name"),
    [
        ("NVIDIA H200", (9, 0), "H200"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "H100"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), "A100"),
        ("NVIDIA L4", (8, 9), "L4"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "RTX 4090"),
        ("AMD Instinct MI300X", "gfx942", "MI300X"),
        ("NVIDIA H100 PCIe", (9, 0), "NVIDIA H100 PCIe (as H200)"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), "NVIDIA A100-SXM4-40GB (as A100)"),
        ("NVIDIA L40S", "8.9", "NVIDIA L40S (as RTX 4090)"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), "NVIDIA GeForce RTX 4090 Laptop GPU (as RTX 4090)"),
        ("NVIDIA GeForce RTX 3090", (8, 6), "NVIDIA GeForce RTX 3090 (as A100)"),
        ("Tesla T4", (7, 5), "Tesla T4 (as A100)"),
        ("NVIDIA B200", (10, 0), "NVIDIA B200 (as H200)"),
    ],
)
def test_names_of_drivers(driver: str, capability: tuple[int, int] | str, name: str) -> None:
    assert device_named(driver, capability).name == name


def test_a_generic_device_keeps_its_capability() -> None:
    assert device_named("NVIDIA B200", (10, 0)).capability == "100"
    with pytest.raises(InputError, match="capability 'new'"):
        device_named("NVIDIA X", "new")
