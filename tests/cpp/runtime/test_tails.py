"""The last vector of a row: as many lanes are read and written as there are, and no others."""

import ctypes

import numpy as np
import pytest

from superopt.codegen.cpp import CppSource, compile_source

FLAGS = {"native": (), "256 bits": ("-mno-avx512f",), "128 bits": ("-mno-avx",)}
TEXT = """#include "runtime.hpp"
using namespace superopt;
extern "C" index_t width() { return lanes; }
extern "C" void copy(const float* from, float* to, index_t count) {
    store(to, 1, count, load(from, 1, count));
}
extern "C" void lanes_of(const float* from, float* to, index_t count) { store(to, load(from, 1, count)); }
extern "C" void first(const float* from, float* to, index_t count) {
    store(to, first_lanes(load(from), count, -1.0f));
}
"""


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_no_other_lanes_are_read_or_written(flags: tuple[str, ...]) -> None:
    library = ctypes.CDLL(str(compile_source(CppSource("tails", TEXT, ()), flags=("-O1", *flags))))
    width = library.width()
    given = np.arange(1, 2 * width + 1, dtype=np.float32)

    def made(name: str, count: int) -> list[float]:
        result = np.full(2 * width, 99, np.float32)
        pointers = (ctypes.c_void_p(one.ctypes.data) for one in (given, result))
        library[name](*pointers, ctypes.c_int64(count))
        return result.tolist()

    numbers, untouched = given.tolist(), [99.0] * (2 * width)
    for count in range(-1, width + 3):
        some = min(max(count, 0), width)
        assert made("copy", count) == numbers[:some] + untouched[some:]
        assert made("lanes_of", count)[:width] == numbers[:some] + [0.0] * (width - some)
        assert made("first", count)[:width] == numbers[:some] + [-1.0] * (width - some)
