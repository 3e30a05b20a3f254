// What every emitted kernel builds on: one vector type, conversions, functions, contractions.
//
// Everything is written with the portable vectors of GCC and Clang, so that one source serves SSE,
// AVX2, AVX-512 and NEON. Arithmetic is fp32; fp16, bf16, fp8 and the integers are formats of memory.
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

// Lane numbers from a first one on.
inline Vec count_from(index_t first) {
    Vec numbers;
    for (int lane = 0; lane < lanes; ++lane) numbers[lane] = float(first + lane);
    return numbers;
}

// -- formats of memory

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
struct f8e4m3 {
    uint8_t bits;
};
struct f8e5m2 {
    uint8_t bits;
};

inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

template <class T>
inline float read(T value) {
    return float(value);
}

inline float read(bf16 value) { return from_bits(uint32_t(value.bits) << 16); }

inline float read(f16 value) {
    const uint32_t sign = uint32_t(value.bits & 0x8000) << 16;
    const uint32_t rest = uint32_t(value.bits & 0x7fff) << 13;
    // 2^112 moves the exponent's bias from 15 to 127, denormals included.
    const float scaled = from_bits(rest) * from_bits(0x77800000);
    const uint32_t special = rest >= 0x0f800000 ? to_bits(scaled) | 0x7f800000 : to_bits(scaled);
    return from_bits(special | sign);
}

inline float read(f8e5m2 value) { return read(f16{uint16_t(value.bits << 8)}); }

inline float read(f8e4m3 value) {
    const uint32_t sign = uint32_t(value.bits & 0x80) << 24;
    const uint32_t rest = uint32_t(value.bits & 0x7f) << 20;
    // 2^120 moves the exponent's bias from 7 to 127; there is no infinity, and one NaN.
    const float scaled = from_bits(rest) * from_bits(0x7b800000);
    return from_bits((rest == 0x07f00000 ? 0x7fc00000 : to_bits(scaled)) | sign);
}

template <class T>
inline T write(float value) {
    return T(value);
}

template <>
inline bf16 write<bf16>(float value) {
    const uint32_t bits = to_bits(value);
    if (value != value) return {uint16_t((bits >> 16) | 0x40)};
    return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};  // to nearest, ties to even
}

template <>
inline f16 write<f16>(float value) {
    const uint32_t sign = (to_bits(value) >> 16) & 0x8000;
    const uint32_t size = to_bits(value) & 0x7fffffff;
    if (size > 0x7f800000) return {uint16_t(sign | 0x7e00)};
    if (size >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // rounds to infinity
    if (size < 0x38800000)  // denormal: adding 0.5 lets the hardware round at the right bit
        return {uint16_t(sign | (to_bits(from_bits(size) + 0.5f) - 0x3f000000))};
    const uint32_t rounded = size + 0xc8000fff + ((size >> 13) & 1);
    return {uint16_t(sign | (rounded >> 13))};
}

inline Vec load(const float* from) {
    Vec value;
    memcpy(&value, from, sizeof value);
    return value;
}

inline Vec load(const bf16* from) {
    Shorts shorts;
    memcpy(&shorts, from, sizeof shorts);
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__clang__)
    const Bits wide = (Bits)__builtin_ia32_pmovzxwd256((short __attribute__((vector_size(16))))shorts);
#else
    const Bits wide = __builtin_convertvector(shorts, Bits);
#endif
    return floats(wide << 16);
}

inline Bits load_bytes(const void* from) {
    Bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Bits);
}

inline Vec load(const f8e5m2* from) {
    const Bits wide = load_bytes(from);
    const Bits rest = (wide & 0x7f) << 21;
    const Bits scaled = bits(floats(rest) * from_bits(0x77800000));
    const Bits special = rest >= 0x0f800000 ? scaled | 0x7f800000 : scaled;
    return floats(special | (wide & 0x80) << 24);
}

inline Vec load(const f8e4m3* from) {
    const Bits wide = load_bytes(from);
    const Bits rest = (wide & 0x7f) << 20;
    const Bits scaled = bits(floats(rest) * from_bits(0x7b800000));
    const Bits special = rest == 0x07f00000 ? Bits{} + 0x7fc00000 : scaled;
    return floats(special | (wide & 0x80) << 24);
}

template <class T>
inline Vec load(const T* from) {
    Vec value;
    for (int lane = 0; lane < lanes; ++lane) value[lane] = read(from[lane]);
    return value;
}

#if defined(__F16C__)
// The one conversion that the portable vectors do not reach, eight at a time.
inline Vec load(const f16* from) {
    typedef short Eight __attribute__((vector_size(16)));
    Vec value;
    for (int lane = 0; lane < lanes; lane += 8) {
        Eight halves;
        memcpy(&halves, from + lane, sizeof halves);
        const auto part = __builtin_ia32_vcvtph2ps256(halves);
        memcpy(reinterpret_cast<float*>(&value) + lane, &part, sizeof part);
    }
    return value;
}
#endif

// The first `count` elements, `stride` apart; the other lanes are 0.
template <class T>
__attribute__((noinline)) Vec load_apart(const T* from, index_t stride, index_t count) {
    Vec value{};
    for (int lane = 0; lane < lanes; ++lane)
        if (lane < count) value[lane] = read(from[lane * stride]);
    return value;
}

template <class T>
inline Vec load(const T* from, index_t stride, index_t count) {
    return count >= lanes && stride == 1 ? load(from) : load_apart(from, stride, count);
}

inline void store(float* to, Vec value) { memcpy(to, &value, sizeof value); }

inline void store(bf16* to, Vec value) {
    const Bits from = bits(value);
    const Bits rounded = (from + 0x7fff + ((from >> 16) & 1)) >> 16;
    const Bits nan = (from >> 16) | 0x40;
    const Shorts shorts = __builtin_convertvector((Bits)(value == value ? rounded : nan), Shorts);
    memcpy(to, &shorts, sizeof shorts);
}

template <class T>
inline void store(T* to, Vec value) {
    for (int lane = 0; lane < lanes; ++lane) to[lane] = write<T>(value[lane]);
}

#if defined(__F16C__)
inline void store(f16* to, Vec value) {
    for (int lane = 0; lane < lanes; lane += 8) {
        float __attribute__((vector_size(32))) part;
        memcpy(&part, reinterpret_cast<const float*>(&value) + lane, sizeof part);
        const auto halves = __builtin_ia32_vcvtps2ph256(part, 0);  // to nearest, ties to even
        memcpy(to + lane, &halves, sizeof halves);
    }
}
#endif

template <class T>
__attribute__((noinline)) void store_apart(T* to, index_t stride, index_t count, Vec value) {
    for (int lane = 0; lane < lanes; ++lane)
        if (lane < count) to[lane * stride] = write<T>(value[lane]);
}

template <class T>
inline void store(T* to, index_t stride, index_t count, Vec value) {
    if (count >= lanes && stride == 1) return store(to, value);
    store_apart(to, stride, count, value);
}

// -- arithmetic; a mask is a vector of zeros and ones

inline Vec truth(Int condition) { return condition ? splat(1.0f) : Vec{}; }
inline Vec where(Vec mask, Vec a, Vec b) { return mask != 0.0f ? a : b; }
inline Vec keep(Vec mask, Vec a) { return mask != 0.0f ? a : Vec{}; }  // 0 even where a is infinite

inline Vec maximum(Vec a, Vec b) {  // NaN wins
#if defined(__AVX__) && !defined(__AVX512F__)
    const Vec larger = __builtin_ia32_maxps256(a, b);  // b where either is NaN
#else
    const Vec larger = a > b ? a : b;
#endif
    return a == a ? larger : a;
}
inline Vec minimum(Vec a, Vec b) {
    const Vec smaller = a < b ? a : b;
    return a == a ? smaller : a;
}
inline Vec absolute(Vec a) { return floats(bits(a) & 0x7fffffff); }
inline Vec copy_sign(Vec size, Vec sign) {
    return floats((bits(size) & 0x7fffffff) | (bits(sign) & 0x80000000));
}

template <float (*FUNCTION)(float)>
inline Vec each(Vec x) {
    Vec result;
    for (int lane = 0; lane < lanes; ++lane) result[lane] = FUNCTION(x[lane]);
    return result;
}

inline Vec sqrt(Vec x) { return each<sqrtf>(x); }
inline Vec sin(Vec x) { return each<sinf>(x); }
inline Vec cos(Vec x) { return each<cosf>(x); }
inline Vec pow(Vec x, Vec y) {
    Vec result;
    for (int lane = 0; lane < lanes; ++lane) result[lane] = powf(x[lane], y[lane]);
    return result;
}

// The number nearest to x within limits; NaN stays.
inline Vec clamped(Vec x, float low, float high) {
#if defined(__AVX__) && !defined(__AVX512F__)
    return __builtin_ia32_maxps256(splat(low), __builtin_ia32_minps256(splat(high), x));
#else
    x = x > high ? splat(high) : x;
    return x < low ? splat(low) : x;
#endif
}

// Within 2 ulp everywhere, denormal results included.
inline Vec exp(Vec x) {
    x = clamped(x, -105.0f, 89.0f);
    // exp(x) = 4^whole exp(rest): 2^whole can be held, and one product with it rounds to a denormal.
    const Vec shifted = x * 0.721347520f + 12583039.0f;  // 1.5 * 2^23 + 127: a whole number, as an exponent
    const Vec whole = shifted - 12583039.0f;
    const Vec rest = (x - whole * 1.38671875f) - whole * -4.24388880e-4f;  // 2 log 2 in two parts
    Vec power = rest * 1.96118024e-4f + 1.41043041e-3f;
    power = power * rest + 8.33609887e-3f;
    power = power * rest + 4.16612774e-2f;
    power = power * rest + 1.66666150e-1f;
    power = power * rest + 5.00000358e-1f;
    power = power * (rest * rest) + rest + 1.0f;
    const Vec root = floats(bits(shifted) << 23);
    return power * root * root;
}

// Within 3 ulp.
inline Vec tanh(Vec x) {
    const Vec size = absolute(x);
    const Vec square = x * x;
    Vec small = square * -5.70498872745e-3f + 2.06390887954e-2f;
    small = small * square - 5.37397155531e-2f;
    small = small * square + 1.33314422036e-1f;
    small = small * square - 3.33332819422e-1f;
    small = small * square * x + x;
    const Vec large = copy_sign(1.0f - 2.0f / (1.0f + exp(2.0f * size)), x);
    return size < 0.625f ? small : large;
}

// Within 3 ulp (the coefficients are N. Juffa's).
inline Vec erf(Vec x) {
    const Vec size = absolute(x);
    const Vec square = x * x;
    const Vec reach = size > 4.0f ? splat(4.0f) : size;  // 1 from there on
    const Vec reach2 = reach * reach;
    Vec large = reach * -1.72853470e-5f + 3.83197126e-4f;
    large = large * reach2 + (reach * -3.88396438e-3f + 2.42546219e-2f);
    large = large * reach - 1.06777877e-1f;
    large = large * reach - 6.34846687e-1f;
    large = large * reach - 1.28717512e-1f;
    large = large * reach - reach;
    large = copy_sign(1.0f - exp(large), x);
    Vec small = square * -5.96761703e-4f + 4.99119423e-3f;
    small = small * square - 2.67681349e-2f;
    small = small * square + 1.12819925e-1f;
    small = small * square - 3.76125336e-1f;
    small = small * square + 1.28379166e-1f;
    small = small * x + x;
    return size > 0.927734375f ? large : small;
}

// Within 2 ulp.
inline Vec log(Vec x) {
    const Int tiny = x < 1.17549435e-38f;
    const Vec normal = tiny ? x * 8388608.0f : x;  // 2^23
    const Bits raw = bits(normal);
    Int exponent = (Int)(raw >> 23) - 126 - (tiny ? Int{} + 23 : Int{});
    Vec mantissa = floats((raw & 0x007fffff) | 0x3f000000);  // in [0.5, 1)
    const Int low = mantissa < 0.707106781f;
    exponent += low;
    mantissa = (low ? mantissa + mantissa : mantissa) - 1.0f;
    const Vec square = mantissa * mantissa;
    Vec value = mantissa * 7.0376836292e-2f - 1.1514610310e-1f;
    value = value * mantissa + 1.1676998740e-1f;
    value = value * mantissa - 1.2420140846e-1f;
    value = value * mantissa + 1.4249322787e-1f;
    value = value * mantissa - 1.6668057665e-1f;
    value = value * mantissa + 2.0000714765e-1f;
    value = value * mantissa - 2.4999993993e-1f;
    value = value * mantissa + 3.3333331174e-1f;
    const Vec scale = __builtin_convertvector(exponent, Vec);
    value = value * mantissa * square + scale * -2.12194440e-4f - 0.5f * square;
    Vec result = mantissa + value + scale * 0.693359375f;
    result = x == infinity ? x : result;
    result = x == 0.0f ? splat(-infinity) : result;
    return x >= 0.0f ? result : splat(__builtin_nanf(""));
}

// Within 3 ulp.
inline Vec log2(Vec x) { return each<log2f>(x); }
inline Vec log1p(Vec x) { return each<log1pf>(x); }

// The same on one number, where a step has no axis to run along.
inline float truth(bool condition) { return condition ? 1.0f : 0.0f; }
inline float where(float mask, float a, float b) { return mask != 0.0f ? a : b; }
inline float keep(float mask, float a) { return mask != 0.0f ? a : 0.0f; }
inline float maximum(float a, float b) { return a > b || a != a ? a : b; }
inline float minimum(float a, float b) { return a < b || a != a ? a : b; }
inline float absolute(float a) { return fabsf(a); }
inline float sqrt(float x) { return sqrtf(x); }
inline float sin(float x) { return sinf(x); }
inline float cos(float x) { return cosf(x); }
inline float pow(float x, float y) { return powf(x, y); }
inline float exp(float x) { return exp(splat(x))[0]; }
inline float tanh(float x) { return tanh(splat(x))[0]; }
inline float erf(float x) { return erf(splat(x))[0]; }
inline float log(float x) { return log(splat(x))[0]; }
inline float log2(float x) { return log2f(x); }
inline float log1p(float x) { return log1pf(x); }

// -- reductions over lanes

#if defined(__AVX512F__)
typedef float Half __attribute__((vector_size(32)));
typedef float Quarter __attribute__((vector_size(16)));
inline Quarter fold(Vec v) {
    const Half half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
}
#elif defined(__AVX__)
typedef float Quarter __attribute__((vector_size(16)));
inline Quarter fold(Vec v) {
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
#else
typedef Vec Quarter;
inline Quarter fold(Vec v) { return v; }
#endif

inline float sum(Vec v) {
    const Quarter four = fold(v);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

inline float largest(Vec v) {
    float result = v[0];
    for (int lane = 1; lane < lanes; ++lane) result = maximum(result, v[lane]);
    return result;
}

// The same of registers that took turns.
template <int TURNS>
inline float sum(const Vec (&v)[TURNS]) {
    Vec whole = v[0];
    for (int turn = 1; turn < TURNS; ++turn) whole += v[turn];
    return sum(whole);
}

template <int TURNS>
inline float largest(const Vec (&v)[TURNS]) {
    Vec whole = v[0];
    for (int turn = 1; turn < TURNS; ++turn) whole = maximum(whole, v[turn]);
    return largest(whole);
}

inline void start(Vec& v, float neutral) { v = splat(neutral); }

template <int TURNS>
inline void start(Vec (&v)[TURNS], float neutral) {
    for (Vec& one : v) one = splat(neutral);
}

// The first `count` lanes of a value, a neutral element in the others.
inline Vec first_lanes(Vec value, index_t count, float neutral) {
    if (count >= lanes) return value;
    for (int lane = 0; lane < lanes; ++lane)
        if (lane >= count) value[lane] = neutral;
    return value;
}

// -- strides

// Most tensors lie in memory as vectors run. What reads and writes others is compiled when it is called for.
#ifdef LINED_ONLY
#define STRIDED(call) __builtin_trap()
#else
#define STRIDED(call) call
#endif

// -- loops of vectors

struct AllLanes {
    constexpr operator index_t() const { return lanes; }
};

// Walk along `count` positions, vector by vector; the last vector may have fewer lanes.
template <int TURNS = 1, class Body>
INLINE inline void along(index_t count, Body body) {
    index_t at = 0;
    if constexpr (TURNS > 1)
        for (; at + TURNS * lanes <= count; at += TURNS * lanes) {
#pragma GCC unroll 8
            for (int turn = 0; turn < TURNS; ++turn) body(at + turn * lanes, AllLanes{}, turn);
        }
    for (; at + lanes <= count; at += lanes) body(at, AllLanes{}, 0);
    if (at < count) body(at, count - at, 0);
}

// -- tiles

// Memory for the tiles of one program: taken piece by piece, given back all at once, kept by the thread.
class Scratch {
public:
    Scratch() : mark_(pool().used) {}
    ~Scratch() { pool().used = mark_; }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    float* floats(index_t count) {
        Pool& own = pool();
        if (own.used == own.length) {
            own.length = 2 * own.length + 8;
            own.pieces = static_cast<Piece*>(realloc(own.pieces, sizeof(Piece) * own.length));
            for (size_t i = own.used; i < own.length; ++i) own.pieces[i] = {nullptr, -1};
        }
        Piece& piece = own.pieces[own.used++];
        if (piece.count < count) {
            free(piece.data);
#if defined(__SANITIZE_ADDRESS__)
            piece.count = count;  // exact, so that the sanitizer sees one element too many
            piece.data = static_cast<float*>(malloc(sizeof(float) * size_t(count)));
#else
            piece.count = (count + 15) / 16 * 16;
            piece.data = static_cast<float*>(aligned_alloc(64, sizeof(float) * size_t(piece.count)));
#endif
        }
        return piece.data;
    }

private:
    struct Piece {
        float* data;
        index_t count;
    };
    struct Pool {
        Piece* pieces = nullptr;
        size_t length = 0;
        size_t used = 0;
        ~Pool() {
            for (size_t i = 0; i < length; ++i) free(pieces[i].data);
            free(pieces);
        }
    };
    static Pool& pool() {
        static thread_local Pool own;
        return own;
    }
    size_t mark_;
};

inline void fill(float* to, index_t count, float value) {
    for (index_t i = 0; i < count; ++i) to[i] = value;
}

// What was added up under an old shift; what is still at its start stays there.
inline void rescale(float* to, index_t count, float factor, float start) {
    for (index_t i = 0; i < count; ++i) to[i] = to[i] == start ? start : to[i] * factor;
}

// -- contraction: C[m, n] += sum over k of A[m, k] B[k, n], from any format and strides

// Of what is summed, so much is met at a time, by so many columns of what is packed: that stays in the second cache.
constexpr index_t deep = 256, deeper = 1024, broad = 256;

constexpr index_t few = 16;  // rows of A, for which nothing of B is copied

template <class T>
struct Matrix {
    const T* data;
    index_t row;
    index_t column;
    Matrix at(index_t i, index_t j) const { return {data + i * row + j * column, row, column}; }
    Matrix turned() const { return {data, column, row}; }
};

// The same value in a register: what many products read must not be fetched again for each.
inline Vec held(Vec value) {
#if defined(__x86_64__)
    asm("" : "+x"(value));
#endif
    return value;
}

// ROWS x VECTORS accumulators stay in registers while k runs; a single vector may have fewer lanes.
template <int ROWS, int VECTORS, class A, class B>
inline void contract_block(index_t k_count, Matrix<A> a, Matrix<B> b, index_t count, float* c, index_t c_row) {
    Vec sums[ROWS][VECTORS] = {};

    for (index_t k = 0; k < k_count; ++k) {
        const B* const from = b.data + k * b.row;
        Vec values[VECTORS];
        if constexpr (VECTORS == 1)
            values[0] = held(load(from, 1, count));
        else {
            __builtin_prefetch(from + VECTORS * lanes);
            for (int v = 0; v < VECTORS; ++v) values[v] = held(load(from + v * lanes));
        }
        for (int m = 0; m < ROWS; ++m) {
            const Vec factor = splat(read(a.data[m * a.row + k * a.column]));
            for (int v = 0; v < VECTORS; ++v) sums[m][v] += factor * values[v];
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) {
            float* const to = c + m * c_row + v * lanes;
            if constexpr (VECTORS == 1)
                store(to, 1, count, load(to, 1, count) + sums[m][v]);
            else
                store(to, load(to) + sums[m][v]);
        }
}

template <int ROWS, int VECTORS, class A, class B>
inline void contract_some(index_t rows, index_t k_count, Matrix<A> a, Matrix<B> b, index_t count, float* c,
                          index_t c_row) {
    if (rows == ROWS) return contract_block<ROWS, VECTORS>(k_count, a, b, count, c, c_row);
    if constexpr (ROWS > 1) contract_some<ROWS - 1, VECTORS>(rows, k_count, a, b, count, c, c_row);
}

// Up to VECTORS vectors of columns, all rows, in equal blocks of at most ROWS.
template <int ROWS, int VECTORS, class A, class B>
inline void contract_rows(index_t m_count, index_t k_count, Matrix<A> a, Matrix<B> b, index_t count, float* c,
                          index_t c_row) {
    for (index_t m = 0, blocks = (m_count + ROWS - 1) / ROWS; blocks > 0; --blocks) {
        const index_t rows = (m_count - m + blocks - 1) / blocks;
        contract_some<ROWS, VECTORS>(rows, k_count, a.at(m, 0), b, count, c + m * c_row, c_row);
        m += rows;
    }
}

// Both operands lie along k: ROWS x COLUMNS dot products at a time.
template <int ROWS, int COLUMNS, class A, class B>
inline void dot_block(index_t k_count, Matrix<A> a, Matrix<B> b, float* c, index_t c_row) {
    Vec sums[ROWS][COLUMNS] = {};
    const auto add = [&](index_t k, index_t count) {
        Vec values[COLUMNS];
        for (int n = 0; n < COLUMNS; ++n) values[n] = held(load(b.data + n * b.column + k, 1, count));
        for (int m = 0; m < ROWS; ++m) {
            const Vec factor = load(a.data + m * a.row + k, 1, count);
            for (int n = 0; n < COLUMNS; ++n) sums[m][n] += factor * values[n];
        }
    };
    constexpr index_t line = 64 / sizeof(B), step = ROWS == 1 ? 64 : line;
    index_t k = 0;
    for (; k + step <= k_count; k += step) {
        for (int n = 0; n < COLUMNS; ++n)
            for (index_t at = 0; at < step; at += line) __builtin_prefetch(b.data + (n + COLUMNS) * b.column + k + at);
#pragma GCC unroll 4
        for (index_t at = 0; at < step; at += lanes) add(k + at, lanes);
    }
    for (; k + lanes <= k_count; k += lanes) add(k, lanes);
    if (k < k_count) add(k, k_count - k);
    for (int m = 0; m < ROWS; ++m)
        for (int n = 0; n < COLUMNS; ++n) c[m * c_row + n] += sum(sums[m][n]);
}

template <int ROWS, int COLUMNS, class A, class B>
inline void dot_rows(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                     index_t c_row) {
    index_t m = 0;
    for (; m + ROWS <= m_count; m += ROWS) {
        index_t n = 0;
        for (; n + COLUMNS <= n_count; n += COLUMNS)
            dot_block<ROWS, COLUMNS>(k_count, a.at(m, 0), b.at(0, n), c + m * c_row + n, c_row);
        for (; n < n_count; ++n) dot_block<ROWS, 1>(k_count, a.at(m, 0), b.at(0, n), c + m * c_row + n, c_row);
    }
    if constexpr (ROWS > 1)
        if (m < m_count)
            dot_rows<ROWS / 2, COLUMNS>(m_count - m, n_count, k_count, a.at(m, 0), b, c + m * c_row, c_row);
}

// Rows become columns: halves are exchanged, then halves of halves, down to single lanes.
inline void transpose(Vec (&block)[lanes]) {
#if defined(__clang__)  // it has no shuffle by a computed vector
    for (int row = 0; row < lanes; ++row)
        for (int lane = 0; lane < row; ++lane) {
            const float other = block[row][lane];
            block[row][lane] = block[lane][row];
            block[lane][row] = other;
        }
#else
    Int number;
    for (int lane = 0; lane < lanes; ++lane) number[lane] = lane;
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int row = 0; row < lanes; ++row) {
            if (row & half) continue;
            const Int mine = (number & half) == 0;
            const Vec a = block[row], b = block[row + half];
            block[row] = mine ? a : __builtin_shuffle(b, number - half);
            block[row + half] = mine ? __builtin_shuffle(a, number + half) : b;
        }
#endif
}

// A copy in fp32, row after row.
template <class T>
Matrix<float> packed(index_t rows, index_t columns, Matrix<T> from, Scratch& scratch) {
    float* const to = scratch.floats(rows * columns);
    if (from.row == 1 && from.column != 1) {  // read along memory, and turn square blocks around
        for (index_t i = 0; i < rows; i += lanes)
            for (index_t j = 0; j < columns; j += lanes) {
                const index_t height = least(lanes, rows - i), width = least(lanes, columns - j);
                Vec block[lanes] = {};
                for (index_t v = 0; v < width; ++v) block[v] = load(from.at(i, j + v).data, 1, height);
                transpose(block);
                for (index_t v = 0; v < height; ++v) store(to + (i + v) * columns + j, 1, width, block[v]);
            }
        return {to, columns, 1};
    }
    for (index_t i = 0; i < rows; ++i)
        for (index_t j = 0; j < columns; j += lanes) {
            const index_t count = least(lanes, columns - j);
            store(to + i * columns + j, 1, count, load(from.at(i, j).data, from.column, count));
        }
    return {to, columns, 1};
}

// A copy in fp32 as panels of WIDTH columns, row after row in each, so that what is read together lies together.
// Panels are a row longer than needed: else they would compete for the same lines of the cache.
template <int WIDTH, class T>
void pack_panels(index_t rows, index_t columns, Matrix<T> from, float* to) {
    const auto at = [&](index_t i, index_t j) { return to + (j / WIDTH * (rows + 1) + i) * WIDTH + j % WIDTH; };
    if (from.row == 1 && from.column != 1) {  // few columns at a time: theirs are the lines that are read on
        for (index_t j = 0; j < columns; j += lanes)
            for (index_t i = 0; i < rows; i += lanes) {
                const index_t height = least(lanes, rows - i), width = least(lanes, columns - j);
                Vec block[lanes] = {};
                for (index_t v = 0; v < width; ++v) block[v] = load(from.at(i, j + v).data, 1, height);
                transpose(block);
                for (index_t v = 0; v < height; ++v) store(at(i + v, j), block[v]);
            }
        return;
    }
    for (index_t i = 0; i < rows; ++i) {
        const T* const ahead = from.at(least(i + 8, rows - 1), 0).data;  // rows are too short for the hardware to guess
        along(columns, [&](index_t j, auto count, int) INLINE {
            __builtin_prefetch(ahead + j * from.column);
            store(at(i, j), load(from.at(i, j).data, from.column, count));
        });
    }
}

// C += the transpose of what was computed.
inline void add_turned(index_t rows, index_t columns, const float* from, index_t from_row, float* c, index_t c_row) {
    for (index_t j = 0; j < columns; j += lanes)
        for (index_t i = 0; i < rows; i += lanes) {
            const index_t height = least(lanes, rows - i), width = least(lanes, columns - j);
            Vec block[lanes] = {};
            for (index_t v = 0; v < height; ++v) block[v] = load(from + (i + v) * from_row + j);
            transpose(block);
            for (index_t v = 0; v < width; ++v) {
                float* const to = c + (j + v) * c_row + i;
                store(to, 1, height, load(to, 1, height) + block[v]);
            }
        }
}

// One panel of B, packed, met by all rows; what it has less than WIDTH columns is done vector by vector.
template <int WIDTH>
void contract_panel(index_t m_count, index_t k_count, Matrix<float> a, const float* panel, index_t columns, float* c,
                    index_t c_row) {
    constexpr int tall = registers == 32 ? 12 : 6;
    const Matrix<float> b{panel, WIDTH, 1};
    if (columns == WIDTH) return contract_rows<tall, WIDTH / lanes>(m_count, k_count, a, b, lanes, c, c_row);
    for (index_t n = 0; n < columns; n += lanes)
        contract_rows<tall, 1>(m_count, k_count, a, b.at(0, n), least(lanes, columns - n), c + n, c_row);
}

// Many rows: blocks of B that fit the second cache are packed, and met by all rows.
template <class B>
inline void contract_packed(index_t m_count, index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b, float* c,
                            index_t c_row) {
    constexpr int width = 2 * lanes;
    Scratch scratch;
    float* const panels = scratch.floats((least(deep, k_count) + 1) * ((least(broad, n_count) + width - 1) / width * width));
    for (index_t k = 0; k < k_count; k += deep) {
        const index_t depth = least(deep, k_count - k);
        Scratch inner;
        const Matrix<float> rows = a.column == 1 ? a.at(0, k) : packed(m_count, depth, a.at(0, k), inner);
        for (index_t n = 0; n < n_count; n += broad) {
            const index_t breadth = least(broad, n_count - n);
            pack_panels<width>(depth, breadth, b.at(k, n), panels);
            for (index_t j = 0; j < breadth; j += width)
                contract_panel<width>(m_count, depth, rows, panels + j * (depth + 1), least(width, breadth - j), c + n + j,
                                      c_row);
        }
    }
}

// What was packed of the rows of A, where several contractions meet them and nothing writes there in between.
struct Panels {
    float* data;
    index_t room;
    const float* of = nullptr;
    index_t rows = 0, columns = 0;

    static index_t block(index_t rows, index_t columns) {
        return (least(broad, rows) + 2 * lanes - 1) / (2 * lanes) * (2 * lanes) * (least(deeper, columns) + 1);
    }
    static index_t room_of(index_t rows, index_t columns) {
        return ((rows + broad - 1) / broad) * ((columns + deeper - 1) / deeper) * block(rows, columns);
    }
    // Whether they hold a matrix already; else they are about to.
    bool hold(index_t m_count, index_t k_count, Matrix<float> a) {
        const bool known = of == a.data && rows == m_count && columns == k_count;
        of = a.data, rows = m_count, columns = k_count;
        return known;
    }
};

// Many rows of A, and columns of B that lie along k: C is computed turned around, as rows of A become panels sooner
// than those of B, which are read as they lie, or where they have another format as a copy of a few.
template <class B>
inline void contract_turned(index_t m_count, index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b, float* c,
                            index_t c_row, Panels* kept) {
    constexpr int width = 2 * lanes;
    constexpr index_t some = registers == 32 ? 48 : 24, step = registers == 32 ? 512 : 256;
    constexpr index_t row = step + 16;  // the copied rows do not compete for the same lines of the cache
    Scratch scratch;
    if (kept && kept->room < Panels::room_of(m_count, k_count)) kept = nullptr;
    const bool held = kept && kept->hold(m_count, k_count, a);
    const index_t block = Panels::block(m_count, k_count);
    float* panels = kept ? kept->data : scratch.floats(block);
    float* const turned = scratch.floats(some * broad);
    float* const copied = sizeof(B) == sizeof(float) ? nullptr : scratch.floats(some * row);
    const auto rows_of_b = [&](index_t k, index_t n, index_t height, index_t depth) {
        if constexpr (sizeof(B) == sizeof(float))
            return Matrix<float>{b.at(k, n).data, b.column, 1};
        else {
            for (index_t i = 0; i < height; ++i) {
                const B* const from = b.at(k, n + i).data;
                const B* const ahead = k + step < k_count ? from + step : b.at(0, least(n + some + i, n_count - 1)).data;
                for (index_t j = 0; j < step; j += 64 / sizeof(B)) __builtin_prefetch(ahead + j, 0, 2);
                along(depth, [&](index_t j, auto count, int) INLINE {
                    store(copied + i * row + j, 1, count, load(from + j, 1, count));
                });
            }
            return Matrix<float>{copied, row, 1};
        }
    };
    for (index_t m = 0; m < m_count; m += broad)
        for (index_t k = 0; k < k_count; k += deeper, panels += kept ? block : 0) {
            const index_t breadth = least(broad, m_count - m), depth = least(deeper, k_count - k);
            const index_t padded = (breadth + lanes - 1) / lanes * lanes;
            if (!held) pack_panels<width>(depth, breadth, a.at(m, k).turned(), panels);
            for (index_t n = 0; n < n_count; n += some) {
                const index_t height = least(some, n_count - n);
                fill(turned, height * padded, 0.0f);
                for (index_t i = 0; i < depth; i += step) {
                    const index_t length = least(step, depth - i);
                    const Matrix<float> rows = rows_of_b(k + i, n, height, length);
                    for (index_t j = 0; j < padded; j += width)
                        contract_panel<width>(height, length, rows, panels + j * (depth + 1) + i * width,
                                              least(width, padded - j), turned + j, padded);
                }
                add_turned(height, breadth, turned, padded, c + m * c_row + n, c_row);
            }
        }
}

// Few rows: the rows of B stream past, STREAMS at a time, and C stays in the first cache.
template <int STREAMS, class B>
inline void contract_streams(index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b, float* c) {
    index_t k = 0;
    for (; k + STREAMS <= k_count; k += STREAMS) {
        Vec factors[STREAMS];
        for (int one = 0; one < STREAMS; ++one) factors[one] = splat(*a.at(0, k + one).data);
        const B* const from = b.data + k * b.row;
        along(n_count, [&](index_t n, auto count, int) INLINE {
            Vec value = load(c + n, 1, count);
            for (int one = 0; one < STREAMS; ++one) value += factors[one] * load(from + one * b.row + n, 1, count);
            store(c + n, 1, count, value);
        });
    }
    if constexpr (STREAMS > 1)
        if (k < k_count) contract_streams<1>(n_count, k_count - k, a.at(0, k), b.at(k, 0), c);
}

// Whether what must be copied or turned around is less that way: all of B is more than it seems, being far away.
template <class B>
inline bool is_turned(index_t m_count, index_t n_count, index_t k_count, Matrix<B> b) {
    return b.row == 1 && b.column != 1 && m_count > few && k_count >= deep &&
           2 * n_count * k_count >= m_count * (n_count + k_count);
}

template <class B>
void contract_floats(index_t m_count, index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b, float* c,
                     index_t c_row, Panels* kept) {
    constexpr int wide = registers == 32 ? 2 : 1;
    if (b.column != 1 && b.row == 1 && a.column == 1 && m_count <= few)
        return m_count == 1 ? dot_rows<1, 4>(m_count, n_count, k_count, a, b, c, c_row)
                            : dot_rows<4, 2 * wide>(m_count, n_count, k_count, a, b, c, c_row);
    if (is_turned(m_count, n_count, k_count, b)) return contract_turned(m_count, n_count, k_count, a, b, c, c_row, kept);
    if (b.column != 1 || m_count > few) return contract_packed(m_count, n_count, k_count, a, b, c, c_row);
    if (m_count <= 2) {
        for (index_t m = 0; m < m_count; ++m) contract_streams<4>(n_count, k_count, a.at(m, 0), b, c + m * c_row);
        return;
    }
    constexpr index_t shallow = 64;
    for (index_t k = 0; k < k_count; k += shallow) {
        const index_t depth = least(shallow, k_count - k);
        const Matrix<float> rows = a.at(0, k);
        index_t n = 0;
        for (; n + 2 * wide * lanes <= n_count; n += 2 * wide * lanes)
            contract_rows<6, 2 * wide>(m_count, depth, rows, b.at(k, n), lanes, c + n, c_row);
        for (; n < n_count; n += lanes)
            contract_rows<6, 1>(m_count, depth, rows, b.at(k, n), least(lanes, n_count - n), c + n, c_row);
    }
}

// A in another format is copied first, as much as is met at a time.
template <class A, class B>
inline void contract(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                     index_t c_row, Panels* kept = nullptr) {
    if constexpr (sizeof(A) == sizeof(float))
        contract_floats(m_count, n_count, k_count, a, b, c, c_row, kept);
    else {
        const bool turned = is_turned(m_count, n_count, k_count, b);
        const index_t most_m = turned ? broad : m_count, most_k = turned ? deeper : m_count <= few ? k_count : deep;
        for (index_t m = 0; m < m_count; m += most_m)
            for (index_t k = 0; k < k_count; k += most_k) {
                Scratch scratch;
                const index_t height = least(most_m, m_count - m), depth = least(most_k, k_count - k);
                const Matrix<float> rows = packed(height, depth, a.at(m, k), scratch);
                contract_floats(height, n_count, depth, rows, b.at(k, 0), c + m * c_row, c_row, nullptr);
            }
    }
}

// Most of what a compiler does for a kernel is contraction, the same in all: where so told, kernels leave
// it to what was compiled before.
#define CONTRACTION(B) \
    void contract_floats<B>(index_t, index_t, index_t, Matrix<float>, Matrix<B>, float*, index_t, Panels*)
#define PACKING(A) Matrix<float> packed<A>(index_t, index_t, Matrix<A>, Scratch&)
#define PANEL_PACKING void pack_panels<2 * lanes, float>(index_t, index_t, Matrix<float>, float*)
#define PANELS void contract_panel<2 * lanes>(index_t, index_t, Matrix<float>, const float*, index_t, float*, index_t)
#ifdef CONTRACTIONS_APART
extern template CONTRACTION(float);
extern template CONTRACTION(bf16);
extern template CONTRACTION(f16);
extern template PACKING(float);
extern template PACKING(bf16);
extern template PACKING(f16);
extern template PANEL_PACKING;
extern template PANELS;
#endif

}  // namespace superopt
