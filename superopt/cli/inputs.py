"""The text form of inputs, `"f16[16,4096] f16[4096] 0.5"`: parsed without torch, made on the meta device."""

import difflib
import re
from dataclasses import dataclass
from typing import Any

from superopt.dtypes import DTYPES, MOST_BYTES, dtype_named, is_too_large
from superopt.errors import InputError

__all__ = ["TensorInput", "make_inputs", "parse_dtype", "parse_inputs"]

_TOKEN = re.compile(r"\s*,?\s*([^\s\[\],]+)?\s*(\[[^\[\]]*\])?")
_SCALARS = {"True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class TensorInput:
    """One tensor argument: its dtype and its shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


Scalar = bool | int | float | None


def parse_inputs(text: str) -> tuple[TensorInput | Scalar, ...]:
    """Return the arguments that a text names, or raise InputError at the first mistake."""
    if text.count("[") != text.count("]"):
        raise InputError(
            f"--inputs {text!r}: a bracket is not closed; write dtype[sizes], as in f16[16,4096]"
        )
    found: list[TensorInput | Scalar] = []
    position = 0
    end = len(text.rstrip(" \t\n,"))
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.end() == position or match[1] is None:
            raise InputError(
                f"--inputs {text!r}: cannot read {text[position:].strip()!r};"
                " write dtype[sizes] or a number, separated by spaces"
            )
        found.append(_parse_item(match[1], match[2]))
        position = match.end()
    return tuple(found)


def parse_dtype(name: str) -> str:
    """Return the dtype that a name or one of its aliases means, as float32 does f32, or raise InputError."""
    if known := dtype_named(name.lower().removeprefix("torch.")):
        return known
    guesses = difflib.get_close_matches(name.lower(), DTYPES, 1)
    hint = f", did you mean {guesses[0]}?" if guesses else ""
    raise InputError(f"unknown dtype {name!r}{hint} (known: {', '.join(DTYPES)})")


def make_inputs(items: tuple[TensorInput | Scalar, ...]) -> tuple[Any, ...]:
    """Return tensors without data for the tensor inputs, and the scalars as they are."""
    import torch

    from superopt.trace.run import TORCH_DTYPES

    made: list[Any] = []
    for item in items:
        if isinstance(item, TensorInput):
            if item.dtype not in TORCH_DTYPES:
                raise InputError(f"{item}: tensors of {item.dtype} cannot be traced yet")
            try:
                made.append(torch.empty(item.shape, dtype=TORCH_DTYPES[item.dtype], device="meta"))
            except RuntimeError as error:
                raise InputError(f"{item}: {error}") from error
        else:
            made.append(item)
    return tuple(made)


def _parse_item(head: str, sizes: str | None) -> TensorInput | Scalar:
    if sizes is None:
        return _parse_scalar(head)
    dtype = parse_dtype(head)
    body = sizes[1:-1].strip().removesuffix(",")
    shape = tuple(_parse_size(size.strip(), f"{head}{sizes}") for size in body.split(",")) if body else ()
    item = TensorInput(dtype, shape)
    if is_too_large(dtype, shape):
        raise InputError(f"{item}: larger than any tensor can be ({MOST_BYTES:,} bytes)")
    return item


def _parse_scalar(text: str) -> Scalar:
    if text in _SCALARS:
        return _SCALARS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    parse_dtype(text)
    raise InputError(f"{text} has no sizes; write {text}[16,4096], or {text}[] for a single number")


def _parse_size(text: str, item: str) -> int:
    if re.fullmatch(r"-\d+", text):
        raise InputError(f"{item}: size {text} is negative")
    if not re.fullmatch(r"[0-9]+(_[0-9]+)*", text):
        problem = "a size is missing" if not text else f"{text!r} is not a size"
        raise InputError(f"{item}: {problem}; sizes are whole numbers, as in f16[16,4096]")
    if len(text) > 20:
        raise InputError(f"{item}: size {text} is larger than any tensor can be")
    return int(text)
