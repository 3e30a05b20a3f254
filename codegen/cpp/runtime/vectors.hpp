// What every emitted kernel builds on: one vector type, conversions, functions, contractions.
//
// Everything is written with the portable vectors of GCC and Clang, so that one source serves SSE,
// AVX2, AVX-512 and NEON. Arithmetic is fp32; fp16, bf16, fp8 and the integers are formats of memory. Only what
// multiplies pairs of bf16 is written with instructions, where the processor has them.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE __attribute__((always_inline))

namespace superopt {

using index_t = int64_t;

#if defined(__AVX512F__)
constexpr int lanes = 16;
constexpr int registers = 32;
#elif defined(__AVX__)
constexpr int lanes = 8;
constexpr int registers = 16;
#elif defined(__aarch64__)
constexpr int lanes = 4;
constexpr int registers = 32;
#else
constexpr int lanes = 4;
constexpr int registers = 16;
#endif

typedef float Vec __attribute__((vector_size(4 * lanes)));
typedef float Four __attribute__((vector_size(16)));
typedef int32_t Int __attribute__((vector_size(4 * lanes)));
typedef uint32_t Bits __attribute__((vector_size(4 * lanes)));
typedef uint16_t Shorts __attribute__((vector_size(2 * lanes)));
typedef uint8_t Bytes __attribute__((vector_size(lanes)));

constexpr float infinity = __builtin_inff();

inline index_t least(index_t a, index_t b) { return a < b ? a : b; }
inline index_t most(index_t a, index_t b) { return a > b ? a : b; }
inline Vec splat(float value) { return value - Vec{}; }  // x - 0 is x, so that no arithmetic is left
inline Bits bits(Vec value) { return reinterpret_cast<Bits&>(value); }
inline Vec floats(Bits value) { return reinterpret_cast<Vec&>(value); }

inline Int lane_numbers() {
    Int number;
    for (int lane = 0; lane < lanes; ++lane) number[lane] = lane;
    return number;
}

// Lane numbers from a first one on.
inline Vec count_from(index_t first) {
    Vec numbers;
    for (int lane = 0; lane < lanes; ++lane) numbers[lane] = float(first + lane);
    return numbers;
}

}  // namespace superopt
