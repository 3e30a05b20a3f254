"""Captured: a graph's module and its inputs, made of the files of its folder. To load it runs its code."""

import inspect
import re
import types
from collections.abc import Callable
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from superopt.bench.graphs.folder import MODEL, TensorMeta, read_tensors
from superopt.errors import InputError

__all__ = ["captured", "module_of"]

_DEVICE = re.compile(r"""(["'])cuda(:\d+)?\1(, index=\d+)?""")
_MOST_MEAN, _MOST_STD = 2.0, 1.0  # of numbers drawn as they were seen; larger ones overflow in deep models
_VARIANCES = "running_var"  # what the variances of batch norms are called
_VARIANCE = (0.5, 1.5)  # of what is never negative


def captured(graph: Path, device: str, seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the module of a graph, and inputs for it, on a device."""
    module = module_of(graph, device)
    told = {meta.name: meta for meta in read_tensors(graph)}
    generator = torch.Generator().manual_seed(seed)
    values: list[Any] = []
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if name not in told:
            raise InputError(f"no file says what the input {name} is")
        value = _drawn(told[name], generator)
        is_number = "SymInt" in str(parameter.annotation)
        values.append(int(value) if is_number else value.to(device))
    return module, tuple(values)


def module_of(graph: Path, device: str) -> Any:
    """Return the module of a graph, which takes its weights as inputs."""
    path = graph / MODEL
    code = _DEVICE.sub(f'"{device}"', path.read_text(encoding="utf-8"))
    space = types.ModuleType("captured_graph")
    exec(compile(code, str(path), "exec"), space.__dict__)
    return space.GraphModule()


def _drawn(meta: TensorMeta, generator: torch.Generator) -> Tensor:
    """Return a tensor like the one that was seen, with numbers that a deep model does not blow up."""
    dtype = getattr(torch, meta.dtype.removeprefix("torch."))
    if meta.data is not None:
        return torch.tensor(meta.data, dtype=dtype).reshape(meta.shape)
    if not dtype.is_floating_point:
        low = int(meta.min_val or 0)
        high = int(meta.max_val if meta.max_val is not None else low + (dtype == torch.bool))
        return torch.randint(low, high + 1, meta.shape, generator=generator).to(dtype)
    if _VARIANCES in meta.name or (meta.min_val is not None and meta.min_val >= 0):
        least, most = _VARIANCE
        return (least + (most - least) * torch.rand(meta.shape, generator=generator)).to(dtype)
    mean, std = (_bounded(value, most) for value, most in ((meta.mean, _MOST_MEAN), (meta.std, _MOST_STD)))
    if (
        "parameters" in meta.name and len(meta.shape) > 1
    ):  # sums over the rest keep the size of what they read
        mean, std = 0.0, max(prod(meta.shape[1:]), 1) ** -0.5
    return (mean + std * torch.randn(meta.shape, generator=generator)).to(dtype)


def _bounded(value: float | None, most: float) -> float:
    return max(-most, min(value, most)) if value is not None and isfinite(value) else 0.0
