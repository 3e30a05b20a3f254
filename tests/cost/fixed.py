"""A processor that is the same on each machine, for tests of what the cost model decides."""

from superopt.cost import Device

__all__ = ["FIXED"]

FIXED = Device(
    name="fixed",
    kind="cpu",
    capability="avx2",
    cores=2,
    memory_gbs=20.0,
    l2_bytes=1 << 25,
    l2_gbs=60.0,
    shared_bytes=1 << 15,
    shared_per_core=1 << 15,
    registers_per_core=0,
    warps_per_core=1,
    matrix_flops=dict.fromkeys(("f16", "bf16", "tf32"), 1e11),
    vector_flops=1e11,
    exp_per_s=3e9,
    launch_us=5.0,
)
