"""Smoke: what a GPU does at most, measured before any race: copies, reads, products, and an empty graph."""

from statistics import median
from typing import Any

import torch

from superopt.bench.harness.records import Record
from superopt.bench.harness.results import machine
from superopt.tune.gpu import Device, copy_gbs, times_on_cuda

__all__ = ["smoke"]

_SECONDS = 1.0
_READ_BYTES = 1 << 30
_PRODUCTS = ((2048, 4096, 4096), (8192, 8192, 8192))  # rows, columns, and what is summed up


def smoke(*, place: str = "cuda", device: Device | None = None, size: int = _READ_BYTES) -> Record:
    """Return the device and its driver, and what it reaches in a second or two each."""
    found: Record = {"machine": machine(), "copy_gbs": copy_gbs(size=size, place=place, device=device)}
    read = torch.ones(size // 4, device=place)
    found["read_gbs"] = 4 * read.numel() / _median_us("read", torch.sum, (read,), device) / 1e3
    for shape in _PRODUCTS:
        m, n, k = shape if size == _READ_BYTES else (64, 64, 64)
        inputs = torch.randn(m, k, device=place).half(), torch.randn(k, n, device=place).half()
        us = _median_us("product", torch.mm, inputs, device)
        found[f"f16_{'x'.join(map(str, shape))}_tflops"] = 2 * m * n * k / us / 1e6
    # One number is added to: what is measured is the start of a graph, and its events.
    small = torch.zeros(1, device=place)
    found["graph_us"] = _median_us("graph", torch.Tensor.add_, (small, 1.0), device, graph="always")
    return found


def _median_us(
    name: str, call: Any, given: tuple[Any, ...], device: Device | None, *, graph: Any = "never"
) -> float:
    taken = times_on_cuda({name: call}, [given], seconds=_SECONDS, graph=graph, device=device)
    return float(median(taken[name].us))
