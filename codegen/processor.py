"""Processor: what the system says of the one that this program runs on."""

import platform
import re
from functools import cache
from pathlib import Path

__all__ = ["cpu_flags", "cpu_name", "vectors"]


@cache
def cpu_name() -> str:
    """Return the name of the processor."""
    return _cpuinfo("model name") or platform.processor() or platform.machine() or "cpu"


def vectors() -> str:
    """Return the widest vector instructions: avx512, avx2, neon, or none that is known."""
    flags = cpu_flags()
    if "avx512f" in flags:
        return "avx512"
    if "avx2" in flags:
        return "avx2"
    if "asimd" in flags or platform.machine().lower() in ("arm64", "aarch64"):
        return "neon"
    return "scalar"


@cache
def cpu_flags() -> frozenset[str]:
    """Return what Linux names of the processor's instructions."""
    return frozenset((_cpuinfo("flags") or _cpuinfo("Features")).split())


def _cpuinfo(field: str) -> str:
    """Return the first line of a name in what Linux says of the processor, or nothing."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(rf"^{field}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
