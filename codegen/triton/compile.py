"""Compile: a kernel ahead of time, for a device that need not be here, and what it takes there."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from superopt.codegen.triton.errors import CompileError
from superopt.codegen.triton.source import TritonSource
from superopt.errors import InputError

__all__ = ["CompileReport", "compile_ahead"]

_TYPES = {
    "f32": "*fp32",
    "f16": "*fp16",
    "bf16": "*bf16",
    "f8e4m3": "*fp8e4nv",
    "f8e5m2": "*fp8e5",
    "i64": "*i64",
    "i32": "*i32",
    "i16": "*i16",
    "i8": "*i8",
    "u8": "*u8",
    "bool": "*i1",
}


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What the compiler made of a kernel."""

    shared_bytes: int
    registers: int  # of a thread
    spill_bytes: int  # of a thread; 0 where everything fits
    ptx_bytes: int
    seconds: float


def compile_ahead(
    source: TritonSource, *, target: str = "cuda:90", aligned: bool = True, limit_seconds: float = 120.0
) -> CompileReport:
    """Return the report of compiling a kernel in a process of its own, or raise CompileError.

    Tensors are taken as contiguous along their innermost axis; `aligned` states that all other strides
    are multiples of 16, as they are for most sizes.
    """
    vendor, _, capability = target.partition(":")
    if vendor != "cuda" or not capability.isdigit():
        raise InputError(f"target {target!r} is not known; give cuda:80, cuda:90 or another capability")
    command = [sys.executable, "-P", str(Path(__file__).with_name("ahead.py"))]
    with TemporaryDirectory(prefix="superopt-") as folder:
        environment = {**os.environ, "TRITON_CACHE_DIR": folder, "TRITON_DEFAULT_FP_FUSION": "1"}
        environment.pop("TRITON_INTERPRET", None)
        try:
            done = subprocess.run(
                command,
                input=json.dumps({**_request(source, aligned), "capability": int(capability)}),
                capture_output=True,
                text=True,
                timeout=limit_seconds,
                env=environment,
            )
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{source.name}: not compiled within {limit_seconds:g} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise CompileError(f"{source.name}: for {target}, exit code {done.returncode}: {lines[-1].strip()}")
    return CompileReport(**json.loads(done.stdout.splitlines()[-1]))


def _request(source: TritonSource, aligned: bool) -> dict[str, Any]:
    """Return what the compiling process needs to know."""
    signature: dict[str, str] = {}
    constants: dict[str, int] = {}
    divisible: list[int] = []
    for at, one in enumerate(source.arguments):
        if one.kind == "tensor":
            signature[one.name] = _TYPES[one.dtype or ""]
            divisible.append(at)
        elif one.kind == "block" or one.innermost:
            signature[one.name] = "constexpr"
            constants[one.name] = 1 if one.innermost else source.config.tile(one.axis or "")
        else:
            signature[one.name] = "i32"
            exact = one.axis in source.config.exact and source.config.tile(one.axis) % 16 == 0
            if (one.kind == "stride" and aligned) or (one.kind == "extent" and exact):
                divisible.append(at)
    options = {"num_warps": source.config.num_warps, "num_stages": source.config.num_stages}
    return {
        "text": source.text,
        "name": source.name,
        "signature": signature,
        "constants": constants,
        "divisible": divisible,
        "options": options,
    }
