"""Safetensors: tensors in a file by name, as a header in JSON and their numbers after it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from superopt.errors import InputError

__all__ = ["FORMATS", "read_tensors", "tensors_as_bytes"]

FORMATS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""The dtypes of torch by their names in the format."""

_ALIGNED = 8  # bytes: the numbers of any dtype may be read where they lie


def tensors_as_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a file of tensors."""
    names = {getattr(torch, dtype): name for name, dtype in FORMATS.items()}
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in names:
            raise InputError(f"{name!r} is of {tensor.dtype}, which safetensors do not have here")
        part = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        place = [at, at + len(part)]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        parts.append(part)
        at += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file, or raise InputError."""
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:start]) if start <= len(data) else None
        assert isinstance(header, dict)
        entries = {name: one for name, one in header.items() if name != "__metadata__"}
        return {name: _tensor(data, start, one) for name, one in entries.items()}
    except (AssertionError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{str(path)!r} holds no safetensors, or is cut short") from error


def _tensor(data: bytearray, start: int, entry: Mapping[str, Any]) -> Tensor:
    dtype = getattr(torch, FORMATS[entry["dtype"]])
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data) - start:
        raise ValueError("beyond the end")
    part = bytes(data[start + begin : start + end])
    flat = torch.frombuffer(bytearray(part), dtype=dtype) if part else torch.empty(0, dtype=dtype)
    return flat.view(entry["shape"])
