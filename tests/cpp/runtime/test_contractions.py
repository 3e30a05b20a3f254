"""The runtime's contraction agrees with float64 in all its ways, on whatever vectors there are."""

import ctypes
import itertools
import platform
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from ..test_sanitizers import clean
from .contractions import FORMATS, SHAPES, Case, cases, error, library, mean_error

FLAGS = {"native": (), "256 bits": ("-mno-avx512f",), "128 bits": ("-mno-avx",)}


@cache
def loaded(vectors: str) -> ctypes.CDLL:
    return library(FLAGS[vectors], pairs=())


# To compile one takes long.
ALL = [one if one == "native" else pytest.param(one, marks=pytest.mark.slow) for one in FLAGS]


@pytest.mark.parametrize("vectors", ALL)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contraction(shape: tuple[int, int, int], vectors: str) -> None:
    for case in cases([shape]):
        assert error(loaded(vectors), case) < 2 * shape[2] ** 0.5 + 8, case


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instructions of x86")
def test_rows_in_groups() -> None:
    """Many rows as processors with AVX2 multiply them; on one with AVX-512, other quick tests do not."""
    few_registers = library(FLAGS["256 bits"], formats=FORMATS[:1], pairs=())
    for shape in ((96, 65, 40), (97, 130, 517), (128, 80, 1100), (1031, 70, 20)):
        for case in cases([shape]):
            floats = replace(case, formats=FORMATS[0])
            assert error(few_registers, floats) < 2 * shape[2] ** 0.5 + 8, floats


@pytest.mark.parametrize("vectors", ALL)
def test_long_sums_keep_their_digits(vectors: str) -> None:
    """Sums of 512 terms in one register are off by nine units of rounding, blocks of 128 by three."""
    for turned in itertools.product((False, True), repeat=2):
        assert 0 < mean_error(loaded(vectors), Case((40, 70, 4096), FORMATS[0], *turned, packed=0)) < 5, (
            turned
        )


@pytest.mark.slow
def test_contractions_under_the_sanitizers() -> None:
    clean(str(Path(__file__).with_name("contractions.py")))
