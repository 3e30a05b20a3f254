"""Safetensors: tensors in a file by name, as a header in JSON and their numbers after it."""

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from superopt.errors import InputError
from superopt.files import replacing
from superopt.weights.memory import array_of

__all__ = ["FORMATS", "TensorFile", "bytes_of", "read_tensors", "tensors_as_bytes", "write_tensors"]

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
_TOLD = "__metadata__"


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the numbers of a tensor in order, where they lie if they lie in order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return array_of(flat).data if flat.numel() else memoryview(b"")


def tensors_as_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a file of tensors."""
    return b"".join(_pieces(tensors, {}))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], told: Mapping[str, str]) -> None:
    """Write a file of tensors, and texts by name that say more of it."""
    try:
        with replacing(path) as file:
            for piece in _pieces(tensors, told):
                file.write(piece)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def _pieces(tensors: Mapping[str, Tensor], told: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    names = {getattr(torch, dtype): name for name, dtype in FORMATS.items()}
    header: dict[str, Any] = {_TOLD: dict(told)} if told else {}
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in names:
            raise InputError(f"{name!r} is of {tensor.dtype}, which cannot be written as safetensors here")
        place = [at, at + tensor.nbytes]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNED)
    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in tensors.values():
        yield bytes_of(tensor)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file, or raise InputError."""
    file = TensorFile(path)
    return {name: file.tensor(name) for name in file.names}


class TensorFile:
    """A file of tensors, each of which is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file cannot be mapped
            self._data = b""
        except OSError as error:
            raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
        self._start = 8 + int.from_bytes(self._data[:8], "little")
        try:
            header = json.loads(self._data[8 : self._start]) if self._start <= len(self._data) else None
            assert isinstance(header, dict)
            told = header.pop(_TOLD, {})
            assert isinstance(told, dict)
            for entry in header.values():
                self._place(entry)
        except (AssertionError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._error() from error
        self.told: Mapping[str, str] = told
        self._entries: dict[str, Any] = header

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(self._entries)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor of its own memory, or raise InputError."""
        begin, end, dtype, shape = self._place(self._entries[name])
        part = bytearray(self._data[begin:end])
        try:
            flat = torch.frombuffer(part, dtype=dtype) if part else torch.empty(0, dtype=dtype)
            return flat.view(shape)
        except (ValueError, TypeError, RuntimeError) as error:
            raise self._error() from error

    def _place(self, entry: Mapping[str, Any]) -> tuple[int, int, torch.dtype, list[int]]:
        """Return where the numbers of a tensor begin and end, and what they are."""
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= len(self._data) - self._start:
            raise ValueError("beyond the end")
        dtype: torch.dtype = getattr(torch, FORMATS[entry["dtype"]])
        return self._start + begin, self._start + end, dtype, entry["shape"]

    def _error(self) -> InputError:
        return InputError(f"{str(self.path)!r} is not a safetensors file, or was cut short")
