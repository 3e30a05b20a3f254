"""Explain: an estimate in lines that a person can read."""

from superopt.cost.estimates import Estimate, KernelEstimate

__all__ = ["describe"]

_LIMITS = {
    "launch": "the launch",
    "memory": "memory",
    "cache": "the shared cache",
    "matrix": "matrix units",
    "vector": "vector units",
    "exp": "special function units",
}


def describe(estimate: Estimate) -> list[str]:
    """Return what an estimate says: one line in all, and one or two for each kernel."""
    kernels = len(estimate.kernels)
    device = estimate.device
    launches = kernels * device.launch_us
    lines = [
        f"at least {_time(estimate.us)} on {device.name}: {kernels} kernel{'s' if kernels != 1 else ''},"
        f" {_time(launches)} of it launches"
    ]
    for kernel in estimate.kernels:
        share = kernel.us / estimate.us if estimate.us else 0.0
        lines.append(
            f"kernel {kernel.number}: {_time(kernel.us)} ({share:.0%}), limited by {_LIMITS[kernel.limit]};"
            f" {_amounts(kernel)}"
        )
        notes = _notes(kernel, device.cores)
        if notes:
            lines.append(f"  {'; '.join(notes)}")
    return lines


def _amounts(kernel: KernelEstimate) -> str:
    parts = [f"reads {_bytes(kernel.bytes_read)}", f"writes {_bytes(kernel.bytes_written)}"]
    if kernel.flops_matrix:
        parts.append(f"{_count(kernel.flops_matrix, 'flop')} on matrix units")
    if kernel.flops_vector:
        parts.append(f"{_count(kernel.flops_vector, 'flop')} on vector units")
    if kernel.exps:
        parts.append(f"{_count(kernel.exps, 'op')} on special function units")
    return ", ".join(parts)


def _notes(kernel: KernelEstimate, cores: int) -> list[str]:
    notes = []
    if kernel.programs < cores:
        notes.append(
            f"its {kernel.programs} programs keep {kernel.programs / cores:.0%} of {cores} cores busy"
        )
    if kernel.repeats > 1.05:
        notes.append(f"does {kernel.repeats:.1f} times the arithmetic that is needed once")
    if kernel.bytes_again > kernel.bytes_read:
        notes.append(f"reads {_bytes(kernel.bytes_again)} again from the shared cache")
    return notes


def _time(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} us"


def _bytes(number: int) -> str:
    return _count(number, "B")


def _count(number: int, unit: str) -> str:
    for prefix, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {prefix}{unit}"
    return f"{number} {unit}"
