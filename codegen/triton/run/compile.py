"""Compile: a kernel ahead of time, for a device that need not be here, and what it takes there."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from superopt.codegen.children import Children, LateError, LostError, Server
from superopt.codegen.errors import CompileError
from superopt.codegen.triton.source import TritonSource
from superopt.dtypes import DTYPES
from superopt.errors import InputError

__all__ = ["AheadCompiler", "CompileReport"]


_DIVISOR = 16  # Triton compiles another kernel for a number that this divides
_WIDE_FROM = 2**31


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What the compiler made of a kernel."""

    shared_bytes: int
    registers: int  # registers of a thread
    spill_bytes: int  # bytes of a thread that do not fit its registers; 0 where all do
    seconds: float
    tensor_copies: int = 0  # instructions that copy a tile by a tensor descriptor
    ptx: str = field(default="", repr=False)  # the PTX text, where it was asked for
    sass: str = field(default="", repr=False)


class AheadCompiler:
    """A compiling process that is kept for the next kernel; one that hangs or dies is replaced."""

    def __init__(self, children: Children) -> None:
        command = [sys.executable, "-P", str(Path(__file__).with_name("ahead.py"))]
        self._folder = TemporaryDirectory(prefix="superopt-")
        environment = {**os.environ, "TRITON_CACHE_DIR": self._folder.name, "TRITON_DEFAULT_FP_FUSION": "1"}
        environment.pop("TRITON_INTERPRET", None)
        self._server = Server(command, children, environment=environment)

    @property
    def starts(self) -> int:
        """How many processes were started."""
        return self._server.starts

    def compile(
        self,
        source: TritonSource,
        *,
        target: str = "cuda:90",
        aligned: bool = True,
        numbers: Mapping[str, int] | None = None,
        texts: bool = False,
        limit_seconds: float = 120.0,
    ) -> CompileReport:
        """Return the report of compiling a kernel, or raise CompileError.

        Tensors are taken as contiguous along their innermost axis; `aligned` states that all other
        strides are multiples of 16, as they are for most sizes. With the `numbers` of a call, it is compiled
        as at that call. The report has `texts` if wanted.
        """
        capability = _capability(target)
        reason = source.refusal(capability)
        if reason is not None:
            raise CompileError(f"{source.name}: not for {target}: {reason}")
        request = {**_request(source, aligned, numbers), "capability": capability, "texts": texts}
        try:
            answer = self._server.ask(request, limit_seconds=limit_seconds)
        except LateError as error:
            raise CompileError(f"{source.name}: not compiled within {limit_seconds:g} s") from error
        except LostError as error:
            raise CompileError(f"{source.name}: for {target}, the compiler stopped: {error}") from error
        if "report" not in answer:
            raise CompileError(f"{source.name}: for {target}: {answer.get('error', 'no report')}")
        return CompileReport(**answer["report"])

    def close(self) -> None:
        """End the process."""
        self._server.close()
        self._folder.cleanup()


def _capability(target: str) -> int:
    vendor, _, capability = target.partition(":")
    if vendor != "cuda" or not capability.isdigit():
        raise InputError(f"target {target!r} is not known; give cuda:80, cuda:90 or another capability")
    return int(capability)


def _request(source: TritonSource, aligned: bool, numbers: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return what the compiling process needs to know.

    Of a number at a call Triton knows whether it is 1, and whether it is a multiple of 16.
    """
    signature: dict[str, str] = {}
    constants: dict[str, int] = {}
    divisible: list[int] = []
    for at, one in enumerate(source.arguments):
        if one.kind == "tensor":
            signature[one.name] = f"*{DTYPES[one.dtype or ''].triton}"
            divisible.append(at)
        elif one.kind == "descriptor":
            sides = ", ".join(str(side) for _, side in one.seen)
            signature[one.name] = f"tensordesc<{DTYPES[one.dtype or ''].triton}[{sides}]>"
        elif one.kind == "block":
            signature[one.name] = "constexpr"
            constants[one.name] = source.config.tile(one.axis or "")
        elif numbers is not None:
            number = numbers[one.name]
            signature[one.name] = "constexpr" if number == 1 else "i32" if number < _WIDE_FROM else "i64"
            if number == 1:
                constants[one.name] = 1
            elif number % _DIVISOR == 0:
                divisible.append(at)
        elif one.innermost:
            signature[one.name] = "constexpr"
            constants[one.name] = 1
        else:
            signature[one.name] = "i32"
            exact = one.axis in source.config.exact and source.config.tile(one.axis) % 16 == 0
            if (one.kind == "stride" and aligned) or (one.kind == "extent" and exact):
                divisible.append(at)
    return {
        "text": source.text,
        "name": source.name,
        "signature": signature,
        "constants": constants,
        "divisible": divisible,
        "options": source.config.options,
    }
