"""The dtypes of tensors, each with all that is true of it; to add one, add one record to `DTYPES`."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

__all__ = [
    "DTYPES",
    "EXACT",
    "FLOATS",
    "FP8",
    "HALVES",
    "INTEGERS",
    "MOST_BYTES",
    "Dtype",
    "dtype_named",
    "dtype_text",
    "is_too_large",
    "tensor_text",
    "torch_dtypes",
]


@dataclass(frozen=True, slots=True)
class Dtype:
    """One dtype: its bytes, what its numbers are, and its name in every language that has it."""

    name: str
    bytes: int  # bytes of one element
    kind: Literal["float", "narrow", "integer", "mask"]  # a narrow one is a float without arithmetic
    torch: str
    triton: str = ""  # the type of a pointer to it
    cpp: str = ""
    others: tuple[str, ...] = ()  # names that a user may write, too


_RECORDS = (
    Dtype("f64", 8, "float", "float64", others=("double", "fp64")),
    Dtype("f32", 4, "float", "float32", "fp32", "float", ("float", "fp32")),
    Dtype("f16", 2, "float", "float16", "fp16", "f16", ("half", "fp16")),
    Dtype("bf16", 2, "float", "bfloat16", "bf16", "bf16"),
    Dtype("f8e4m3", 1, "narrow", "float8_e4m3fn", "fp8e4nv", "f8e4m3"),
    Dtype("f8e5m2", 1, "narrow", "float8_e5m2", "fp8e5", "f8e5m2"),
    Dtype("i64", 8, "integer", "int64", "i64", "int64_t", ("long",)),
    Dtype("i32", 4, "integer", "int32", "i32", "int32_t", ("int",)),
    Dtype("i16", 2, "integer", "int16", "i16", "int16_t"),
    Dtype("i8", 1, "integer", "int8", "i8", "int8_t"),
    Dtype("u8", 1, "integer", "uint8", "u8", "uint8_t"),
    Dtype("bool", 1, "mask", "bool", "i1", "boolean"),
)

DTYPES = {dtype.name: dtype for dtype in _RECORDS}
"""Every dtype by name."""

FLOATS = frozenset(name for name, dtype in DTYPES.items() if dtype.kind == "float")
FP8 = frozenset(name for name, dtype in DTYPES.items() if dtype.kind == "narrow")
HALVES = frozenset(name for name in FLOATS if DTYPES[name].bytes == 2)
INTEGERS = frozenset(name for name, dtype in DTYPES.items() if dtype.kind == "integer")
EXACT = frozenset(name for name in INTEGERS if DTYPES[name].bytes <= 2)
"""The integers that fp32 holds exactly."""

MOST_BYTES = 2**63 - 1
"""The most bytes that any tensor can take."""


def is_too_large(dtype: str, shape: Iterable[int]) -> bool:
    """Whether no tensor of a dtype can have a shape; an empty tensor counts as if it had elements."""
    return prod(max(size, 1) for size in shape) * DTYPES[dtype].bytes > MOST_BYTES


def dtype_named(name: str) -> str | None:
    """Return the dtype that a user calls by one of its names."""
    return next((one.name for one in _RECORDS if name in (one.name, one.torch, *one.others)), None)


def dtype_text(dtype: "torch.dtype") -> str:
    """Return the name of a torch dtype as it is printed: PyTorch's where superopt has none."""
    name = str(dtype).removeprefix("torch.")
    return dtype_named(name) or name


def tensor_text(tensor: "torch.Tensor") -> str:
    """Return a tensor's dtype and sizes as they are printed: `f32[16, 4096]`."""
    return f"{dtype_text(tensor.dtype)}{list(tensor.shape)}"


@cache
def torch_dtypes() -> "dict[str, torch.dtype]":
    """Return the torch dtype of each dtype."""
    import torch

    return {name: getattr(torch, dtype.torch) for name, dtype in DTYPES.items()}
