"""The runtime's contraction by itself, in all its ways: many rows and few, long sums and short, any strides.

`python contractions.py` runs them under the sanitizers and prints `clean` at the end.
"""

import ctypes
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from superopt.codegen.cpp import CppSource, compile_source

DTYPES = {"float": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FORMATS = (("float", "float"), ("float", "bf16"), ("bf16", "bf16"), ("f16", "f16"), ("bf16", "float"))
PAIRS = (("float", "float"), ("float", "bf16"), ("bf16", "bf16"), ("bf16", "float"))
"""The formats of the operands of `contract`, and of `contract_pairs`."""

SHAPES = (
    *itertools.product((1, 5, 16, 17, 33), (1, 47, 100), (1, 60, 257)),
    *itertools.product((31, 64, 70), (48, 97, 256), (256, 600, 1100)),
    (136, 97, 600),
    (300, 50, 1030),
    (257, 200, 300),
    (97, 130, 517),
    (1031, 70, 20),
    (700, 20, 64),
    (160, 50, 2051),
    (1, 9, 4500),
    (7, 64, 1030),
    (40, 32, 600),
    (0, 5, 5),
    (20, 0, 300),
    (20, 30, 0),
)
"""Rows, columns and what is summed: around each size at which the runtime goes another way."""


PACKED = (0, 1, 2)


@dataclass(frozen=True)
class Case:
    """One contraction."""

    shape: tuple[int, int, int]
    formats: tuple[str, str]
    a_turned: bool
    b_turned: bool
    packed: int  # whether what is packed of A (1) or of B (2) is kept, and met twice
    pairs: bool = False  # whether it is `contract_pairs`
    spread: bool = False  # whether columns of A lie two apart

    @property
    def is_empty(self) -> bool:
        """Whether there is no row, no column, or nothing to sum."""
        return 0 in self.shape


def cases(shapes: Sequence[tuple[int, int, int]] = SHAPES, *, pairs: bool = False) -> Iterator[Case]:
    """Yield each shape in every layout, the formats in turns; of empty ones all formats."""
    every = PAIRS if pairs else FORMATS
    formats = itertools.cycle(every)
    for shape in shapes:
        for a_turned, b_turned, packed in itertools.product((False, True), (False, True), PACKED):
            if pairs and packed:
                continue
            for one in every if 0 in shape else [next(formats)]:
                case = Case(shape, one, a_turned, b_turned, packed, pairs)
                yield case
                if case.is_empty:
                    yield replace(case, spread=True)


def library(
    flags: Sequence[str] = (),
    *,
    formats: Sequence[tuple[str, str]] = FORMATS,
    pairs: Sequence[tuple[str, str]] = PAIRS,
) -> ctypes.CDLL:
    """Return `contract` and `contract_pairs` for some formats each."""
    lines = ['#include "runtime.hpp"', "using namespace superopt;"]
    for a, b in formats:
        given = f"Matrix<{a}>{{a, n[3], n[4]}}, Matrix<{b}>{{b, n[5], n[6]}}, c, n[7]"
        lines.append(
            f'extern "C" void {a}_{b}(const index_t* n, const {a}* a, const {b}* b, float* c, index_t packed)'
            " {"
            " Scratch scratch; const index_t room = Panels::room_of(n[packed == 2], n[2]);"
            " Panels panels{packed ? scratch.floats(room) : nullptr, room, packed == 2};"
            f" contract(n[0], n[1], n[2], {given}, packed ? &panels : nullptr);"
            f" if (packed) contract(n[0], n[1], n[2], {given}, &panels); }}"
        )
    for a, b in pairs:
        lines.append(
            f'extern "C" void pairs_{a}_{b}(const index_t* n, const {a}* a, const {b}* b, float* c, index_t)'
            f" {{ contract_pairs(n[0], n[1], n[2], Matrix<{a}>{{a, n[3], n[4]}},"
            f" Matrix<{b}>{{b, n[5], n[6]}}, c, n[7]); }}"
        )
    lines += ["#if defined(HAS_PAIRS)", 'extern "C" void rounds_to_bf16() {}', "#endif"]
    path = compile_source(CppSource("contractions", "\n".join(lines) + "\n", ()), flags=flags)
    return ctypes.CDLL(str(path))


def rounds(loaded: ctypes.CDLL) -> bool:
    """Return whether `contract_pairs` rounds operands to bf16."""
    return hasattr(loaded, "rounds_to_bf16")


def run(loaded: ctypes.CDLL, case: Case, a: Tensor, b: Tensor, made: Tensor) -> None:
    """Add the product of two matrices to a third one, whose rows are its first columns."""
    numbers = torch.tensor([*case.shape, *a.stride(), *b.stride(), made.stride(0)])
    pointers = [ctypes.c_void_p(one.data_ptr()) for one in (numbers, a, b, made)]
    name = "_".join((*(("pairs",) if case.pairs else ()), *case.formats))
    loaded[name](*pointers, ctypes.c_int64(case.packed))


def error(loaded: ctypes.CDLL, case: Case) -> float:
    """Return the largest error of a contraction in units of rounding; infinity if it writes elsewhere."""
    m, n, k = case.shape
    torch.manual_seed(m * 1009 + n * 31 + k)
    a, b = (
        torch.randn(shape).to(DTYPES[one]) for shape, one in zip(((m, k), (k, n)), case.formats, strict=True)
    )
    a, b = laid(a, case.a_turned, 2 if case.spread else 1), laid(b, case.b_turned)
    before = torch.randn(m, n + 3)
    made = before.clone()
    run(loaded, case, a, b, made)
    if case.pairs and rounds(loaded):
        a, b = a.bfloat16(), b.bfloat16()
    if not torch.equal(made[:, n:], before[:, n:]):
        return float("inf")
    times = 2 if case.packed else 1
    exact = before[:, :n].double() + times * (a.double() @ b.double())
    most = before[:, :n].double().abs() + times * (a.double().abs() @ b.double().abs())
    return float(((made[:, :n] - exact).abs() / most.clamp_min(1e-30)).max()) * 2**24 if m * n else 0.0


def mean_error(loaded: ctypes.CDLL, case: Case) -> float:
    """Return the mean error of a product, in units of rounding of its mean size."""
    m, n, k = case.shape
    torch.manual_seed(k)
    a, b = laid(torch.randn(m, k), case.a_turned), laid(torch.randn(k, n), case.b_turned)
    made = torch.zeros(m, n)
    run(loaded, case, a, b, made)
    exact = a.double() @ b.double()
    return float((made - exact).square().mean().sqrt() / exact.square().mean().sqrt()) * 2**24


def laid(tensor: Tensor, turned: bool, apart: int = 1) -> Tensor:
    """Return a matrix whose rows lie along memory, or its columns where it is turned."""
    rows, columns = tensor.shape
    strides = (apart, apart * rows) if turned else (apart * columns, apart)
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from sanitized import FLAGS

    found = library(FLAGS)
    for at, one in enumerate(itertools.chain(cases(), cases(pairs=True))):
        if at % 7 and not one.is_empty:  # all formats and layouts come up
            continue
        assert error(found, one) < 2 * one.shape[2] + 8, one
    print("clean")
