"""Vectors and panels at the edge of an image: places outside are zero, and nothing else is read."""

import ctypes

import pytest

from superopt.codegen.cpp import CppSource, compile_source

from .test_tails import FLAGS

BEGIN = """#include <initializer_list>
#include <sys/mman.h>
#include "runtime.hpp"
using namespace superopt;
extern "C" index_t cases, wrong;
index_t cases = 0, wrong = 0;
inline void put(float& to, float value) { to = value; }
inline void put(bf16& to, float value) { to.bits = uint16_t(reinterpret_cast<uint32_t&>(value) >> 16); }
"""

# A page between two that cannot be read: each vector begins, and once more ends, where that page does.
TEXT = (
    BEGIN
    + """extern "C" void all_edges() {
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
)


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


# An image lies at the beginning, and once more at the end, of memory between two pages that cannot be read.
PANELS = (
    BEGIN
    + """
constexpr index_t page = 4096, filters = 7, taps = 3;

template <class T>
void compare(char* memory, index_t bytes, bool at_end, index_t channels, index_t high, index_t wide,
             index_t stride, index_t dilation, index_t padding) {
    const index_t numbers = channels * high * wide, reach = dilation * (taps - 1) + 1;
    const index_t rows = (high + 2 * padding - reach) / stride + 1;
    const index_t columns = (wide + 2 * padding - reach) / stride + 1;
    if (high + 2 * padding < reach || wide + 2 * padding < reach) return;
    T* const image = at_end ? (T*)(memory + bytes) - numbers : (T*)memory;
    for (index_t at = 0; at < numbers; at++) put(image[at], float(at * 7 % 11) - 5);
    static float weights[filters * 16 * taps * taps], found[filters * 64 * 64];
    for (index_t at = 0; at < filters * channels * taps * taps; at++) weights[at] = float(at * 5 % 9) - 4;
    fill(found, filters * rows * columns, 0.0f);
    const index_t all = channels * taps * taps;
    contract_gathered(
        Gathered<float, 1, 3, 0>{
            weights, {{filters}, {all}, {{0}}}, {{channels, taps, taps}, {9, 3, 1}, {{0, 0, 0}}}, {}, {}},
        Gathered<T, 3, 2, 2>{
            image - padding * wide - padding,
            {{channels, taps, taps},
             {high * wide, dilation * wide, dilation},
             {{0, dilation, 0}, {0, 0, dilation}}},
            {{rows, columns}, {stride * wide, stride}, {{stride, 0}, {0, stride}}},
            {-padding, -padding}, {high, wide}},
        found, {rows * columns}, {columns, 1});
    for (index_t f = 0; f < filters; f++)
    for (index_t i = 0; i < rows; i++)
    for (index_t j = 0; j < columns; j++) {
        float sum = 0;
        for (index_t c = 0; c < channels; c++)
        for (index_t s = 0; s < taps; s++)
        for (index_t t = 0; t < taps; t++) {
            const index_t y = i * stride + s * dilation - padding, x = j * stride + t * dilation - padding;
            if (y < 0 || y >= high || x < 0 || x >= wide) continue;
            const float weight = weights[((f * channels + c) * taps + s) * taps + t];
            sum += weight * read(image[(c * high + y) * wide + x]);
        }
        wrong += found[(f * rows + i) * columns + j] != sum;  // small whole numbers: no sum is rounded
    }
    cases++;
}

template <class T>
void all() {
    constexpr index_t bytes = 16 * page;
    char* const pages = (char*)mmap(nullptr, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + page, bytes, PROT_READ | PROT_WRITE);
    for (bool at_end : {false, true})
    for (index_t channels : {1, 9, 16})  // panels are only worth it where many rows share what they read
    for (index_t high : {1, 4})
    for (index_t wide = 1; wide <= 40; wide += 1 + wide / 12)
    for (index_t stride : {1, 2, 3})
    for (index_t dilation : {1, 2})
    for (index_t padding : {0, 1, 9})
        compare<T>(pages + page, bytes, at_end, channels, high, wide, stride, dilation, padding);
    munmap(pages, bytes + 2 * page);
}
extern "C" void floats() { all<float>(); }
extern "C" void halves() { all<bf16>(); }
"""
)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(one, id=name, marks=pytest.mark.slow if name != "native" else ())
        for name, one in FLAGS.items()
    ],
)
@pytest.mark.parametrize("kind", ["floats", "halves"])
def test_panels_hold_what_windows_read(kind: str, flags: tuple[str, ...]) -> None:
    library = ctypes.CDLL(str(compile_source(CppSource("panels", PANELS, ()), flags=("-O2", *flags))))
    library[kind]()
    assert ctypes.c_int64.in_dll(library, "cases").value >= 1000
    assert ctypes.c_int64.in_dll(library, "wrong").value == 0
