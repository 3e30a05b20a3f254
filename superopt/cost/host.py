"""Host: this computer as a device; what no file says is measured once and kept in the cache folder.

The kept file is JSON of one version, replaced as a whole; one that cannot be read is measured anew, and
a folder that cannot be written only costs the measurement again.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, fields
from functools import cache
from math import inf, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from superopt.cache import cache_folder
from superopt.codegen.processor import cpu_flags, cpu_name, vectors
from superopt.cost.device import Device
from superopt.errors import InputError
from superopt.files import replace_text

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FILE_NAME", "host_device"]

_VERSION = 2

FILE_NAME = f"host-{_VERSION}.json"
"""The file of rates: one for each version, so that two installed versions leave each other alone."""

_LAUNCH_US = 5.0  # microseconds of a call from Python into a parallel region
_ROUNDS = 3  # each rate is measured so often, with the others between, so that a busy moment spoils none
_SECONDS = 0.02  # seconds of one measurement
_SIDE = 256  # rows and columns of the matrices whose product is timed
_HALF_SIDE = 512  # rows and columns in bf16, where the operands take longer to prepare
_EXP_FLOPS = 32  # operations in whose time a vectorized exponential is done, of some twenty instructions
_SHARED_BYTES = 32 << 10  # bytes of a first-level cache whose size no file tells
_L2_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Rates:
    """What is measured: 10^9 bytes per second from memory and the cache, operations per second."""

    memory_gbs: float
    l2_gbs: float
    vector_flops: float
    bf16_flops: float


def host_device(threads: int | None = None, *, renew: bool = False) -> Device:
    """Return this computer as a device that runs so many threads; as many as it has cores by default.

    `renew` measures again, for when the kept rates are of a busy moment; the better ones are kept.
    """
    cores = _cores()
    if threads is not None and threads < 1:
        raise InputError(f"threads is {threads}; give a number from 1 up")
    try:
        folder = cache_folder()
    except OSError:
        folder = None
    if renew:
        _host_device.cache_clear()
    return _host_device(min(threads or cores, cores), folder, renew)


@cache
def _host_device(threads: int, folder: Path | None, renew: bool) -> Device:
    widest = vectors()
    caches = _caches()
    first = caches.get(1, _SHARED_BYTES)
    last = caches[max(caches)] if caches else _L2_BYTES
    name = cpu_name()
    key = f"{name}, {widest}, {threads} threads"
    path = folder / FILE_NAME if folder else None
    rates = _read(path, key) if path else None
    if rates is None or renew:
        measured = _measure(threads, last)
        pairs = zip(astuple(measured), astuple(rates or measured), strict=True)
        rates = _Rates(*(max(pair) for pair in pairs))
        if path:
            _write(path, key, rates)
    # Kernels multiply in fp32, but for bf16 where the processor has instructions for it.
    flops = dict.fromkeys(("f16", "bf16", "tf32", "f8"), rates.vector_flops)
    flops["bf16"] = max(rates.bf16_flops, rates.vector_flops)
    return Device(
        name=name,
        kind="cpu",
        capability=widest,
        cores=threads,
        memory_gbs=rates.memory_gbs,
        l2_bytes=last,
        l2_gbs=max(rates.l2_gbs, rates.memory_gbs),
        shared_bytes=first,
        shared_per_core=caches.get(2, first),
        registers_per_core=(32 if widest == "avx512" else 16) * {"avx512": 16, "avx2": 8}.get(widest, 4),
        warps_per_core=1,
        matrix_flops=MappingProxyType(flops),
        vector_flops=rates.vector_flops,
        exp_per_s=rates.vector_flops / _EXP_FLOPS,
        launch_us=_LAUNCH_US,
    )


# -- what files say


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _multiplies_bf16() -> bool:
    """Whether the processor has instructions that multiply in bf16; without them, a product takes long."""
    return not cpu_flags().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})


def _caches() -> dict[int, int]:
    """Return the bytes of each level of data cache that the first core sees."""
    found: dict[int, int] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, size, kind = (
                (folder / name).read_text(encoding="ascii").strip() for name in ("level", "size", "type")
            )
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match and level.isdigit() and kind != "Instruction":
            found[int(level)] = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    return {level: size for level, size in found.items() if size > 0}


# -- what is measured


def _measure(threads: int, cache_bytes: int) -> _Rates:
    """Return the best rates of about half a second.

    Arithmetic is timed on one thread, in pieces that a busy machine rarely interrupts, and counted once
    for each; memory and the last cache are shared, so they are timed on all threads, too.
    """
    import torch

    before = torch.get_num_threads()
    plain: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the caller's defaults are
    a, b, c = (torch.zeros(_SIDE, _SIDE, **plain) for _ in range(3))
    halves = [torch.zeros(_HALF_SIDE, _HALF_SIDE, dtype=torch.bfloat16, device="cpu") for _ in range(3)]
    # Memory that was never written reads as one page of zeros, which a cache holds.
    large = torch.ones(2, min(max(cache_bytes, 32 << 20), 128 << 20) // 4, **plain)
    small = torch.ones(2, min(max(cache_bytes // 8, 64 << 10), 4 << 20) // 4, **plain)
    product_s, half_product_s, memory, cached = inf, inf, 0.0, 0.0
    try:
        with torch.inference_mode():
            for _ in range(_ROUNDS):
                torch.set_num_threads(1)
                product_s = min(product_s, _least_s(lambda: torch.mm(a, b, out=c)))
                if _multiplies_bf16():
                    time_s = _least_s(lambda: torch.mm(halves[0], halves[1], out=halves[2]))
                    half_product_s = min(half_product_s, time_s)
                for count in dict.fromkeys((1, threads)):
                    torch.set_num_threads(count)
                    memory = max(memory, _bytes_per_s(large))
                    cached = max(cached, _bytes_per_s(small))
    finally:
        torch.set_num_threads(before)
    vector_flops = threads * 2 * _SIDE**3 / product_s
    return _Rates(
        memory_gbs=memory / 1e9,
        l2_gbs=cached / 1e9,
        vector_flops=vector_flops,
        bf16_flops=max(threads * 2 * _HALF_SIDE**3 / half_product_s, vector_flops),
    )


def _bytes_per_s(pair: "Tensor") -> float:
    """Return the better rate of copying one row of floats to another and of reading it."""
    source, target = pair
    size: int = 4 * source.numel()
    return max(2 * size / _least_s(lambda: target.copy_(source)), size / _least_s(lambda: source.sum()))


def _least_s(work: Callable[[], object]) -> float:
    """Return the shortest time of a call within a while; the first one is not timed."""
    work()
    least = float("inf")
    deadline = time.perf_counter() + _SECONDS
    while True:
        start = time.perf_counter()
        work()
        ended = time.perf_counter()
        least = min(least, ended - start)
        if ended > deadline:
            return max(least, 1e-9)


# -- what is kept


def _read(path: Path, key: str) -> _Rates | None:
    """Return the rates kept under a key; None where there are none that can be used."""
    hosts = _hosts(path)
    found = hosts.get(key)
    if not isinstance(found, dict):
        return None
    numbers = [found.get(field.name) for field in fields(_Rates)]
    rates = [float(one) for one in numbers if isinstance(one, (int, float)) and isfinite(one) and one > 0]
    return _Rates(*rates) if len(rates) == len(numbers) else None


def _hosts(path: Path) -> dict[str, object]:
    """Return everything kept in a file of this version."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or found.get("version") != _VERSION:
        return {}
    hosts = found.get("hosts")
    return hosts if isinstance(hosts, dict) else {}


def _write(path: Path, key: str, rates: _Rates) -> None:
    """Keep rates beside those of other keys, where the folder can be written."""
    text = json.dumps({"version": _VERSION, "hosts": {**_hosts(path), key: asdict(rates)}}, indent=1)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text + "\n")
