"""The runtime's contraction agrees with float64 in all its ways, on whatever vectors there are."""

import ctypes
from functools import cache
from pathlib import Path

import pytest

from ..test_sanitizers import clean
from .contractions import SHAPES, cases, error, library

FLAGS = {"native": (), "256 bits": ("-mno-avx512f",), "128 bits": ("-mno-avx",)}


@cache
def loaded(vectors: str) -> ctypes.CDLL:
    return library(FLAGS[vectors])


@pytest.mark.parametrize("vectors", FLAGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contraction(shape: tuple[int, int, int], vectors: str) -> None:
    for case in cases([shape]):
        assert error(loaded(vectors), case) < 2 * shape[2] ** 0.5 + 8, case


@pytest.mark.slow
def test_contractions_under_the_sanitizers() -> None:
    clean(str(Path(__file__).with_name("contractions.py")))
