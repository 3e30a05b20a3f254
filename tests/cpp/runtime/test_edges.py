"""Vectors at the edge of an image: places outside are zero, and no memory but what is read is touched."""

import ctypes

import pytest

from superopt.codegen.cpp import CppSource, compile_source

from .test_tails import FLAGS

# A page between two that cannot be read: each vector begins, and once more ends, where that page does.
TEXT = """#include <initializer_list>
#include <sys/mman.h>
#include "runtime.hpp"
using namespace superopt;
extern "C" index_t cases, wrong;
index_t cases = 0, wrong = 0;
extern "C" void all_edges() {
    constexpr index_t length = 4096, numbers = length / 4;
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS;
    char* const pages = (char*)mmap(nullptr, 3 * length, PROT_NONE, kind, -1, 0);
    mprotect(pages + length, length, PROT_READ | PROT_WRITE);
    float* const page = (float*)(pages + length);
    for (index_t at = 0; at < numbers; at++) page[at] = at + 1;
    for (bool at_end : {false, true})
    for (index_t stride : {1, 2, 3})
    for (index_t step : {-2, -1, 1, 2, 3})
    for (index_t size = 1; size <= 40; size++)
    for (index_t first = -60; first <= 45; first++)
    for (index_t count = 1; count <= lanes; count++) {
        index_t begin = numbers, end = 0;
        for (index_t lane = 0; lane < count; lane++) {
            if (first + lane * step < 0 || first + lane * step >= size) continue;
            begin = least(begin, lane);
            end = lane + 1;
        }
        if (begin >= end) begin = 0, end = 1;
        const float* const from = at_end ? page + numbers - 1 - (end - 1) * stride : page - begin * stride;
        const Vec found = load_window(false, from, stride, count, first, step, size);
        for (index_t lane = 0; lane < lanes; lane++) {
            const index_t place = first + lane * step;
            const bool inside = lane < count && place >= 0 && place < size;
            wrong += found[lane] != (inside ? from[lane * stride] : 0.0f);
        }
        cases++;
    }
    munmap(pages, 3 * length);
}

// Rows of which several vectors are read together, block by block, at some taps of a window.
inline void put(float& to, float value) { to = value; }
inline void put(bf16& to, float value) { to.bits = uint16_t(reinterpret_cast<uint32_t&>(value) >> 16); }
template <class T>
void row_edges(index_t stride, index_t step, index_t tap) {
    constexpr int vectors = 2, taps = 3;
    static T memory[1024];
    for (index_t size = 1; size <= 40; size += 3)
    for (index_t first = -9; first <= 3; first++)
    for (index_t row = 1; row <= 5 * lanes; row += 3) {
        // The image lies in the middle; around it are numbers that must not be seen.
        for (T& one : memory) put(one, 77.0f);
        for (index_t at = 0; at < size * stride; at++) put(memory[400 + at], 1.0f + at / stride);
        for (int block = 0; block * vectors * lanes < row; block++) {
            Edges<T, vectors, taps> edges;
            edges.look(block, row, first, tap, size, step * stride, step);
            for (int vector = 0; vector < vectors; vector++)
            for (int at = 0; at < taps; at++) {
                const index_t begin = (block * vectors + vector) * lanes;
                const index_t place = first + begin * step + at * tap;
                const Vec found = edges.load(memory + 400 + place * stride, vector, at, step * stride, step);
                for (index_t lane = 0; lane < lanes; lane++) {
                    const index_t there = place + lane * step;
                    const bool inside = begin + lane < row && there >= 0 && there < size;
                    wrong += found[lane] != (inside ? 1.0f + there : 0.0f);
                }
                cases++;
            }
        }
    }
}
extern "C" void all_rows() {
    for (index_t stride : {1, 2, 3})
    for (index_t step : {1, 2, 3})
    for (index_t tap : {-2, -1, 0, 1, 2, 3}) {
        row_edges<float>(stride, step, tap);
        row_edges<bf16>(stride, step, tap);
    }
}
"""


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
@pytest.mark.parametrize(("kind", "least"), [("all_edges", 500_000), ("all_rows", 100_000)])
def test_edges_are_zero_and_nothing_else_is_read(kind: str, least: int, flags: tuple[str, ...]) -> None:
    library = ctypes.CDLL(str(compile_source(CppSource("edges", TEXT, ()), flags=("-O2", *flags))))
    library[kind]()
    assert ctypes.c_int64.in_dll(library, "cases").value >= least
    assert ctypes.c_int64.in_dll(library, "wrong").value == 0


@pytest.mark.parametrize("flags", [("-mavx512f", "-mno-bmi2"), ("-mno-avx512f", "-mno-bmi2")])
def test_edges_compile_without_instructions_that_scatter_bits(flags: tuple[str, ...]) -> None:
    assert compile_source(CppSource("scatter", TEXT, ()), flags=("-O1", *flags)).exists()
