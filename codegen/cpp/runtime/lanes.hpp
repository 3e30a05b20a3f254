// Loops of vectors, and reductions over the lanes of a vector.

namespace superopt {

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
    return lane_numbers() < int32_t(count) ? value : splat(neutral);
}

struct AllLanes {
    constexpr operator index_t() const { return lanes; }
};

// Ask for memory that is read soon; where there is none, nothing happens.
INLINE inline void prefetch(const void* at) { __builtin_prefetch(at, 0, 3); }

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

template <bool HOLDS>
struct Known {
    constexpr operator bool() const { return HOLDS; }
};

// Run what is told whether something holds; it is compiled for both cases.
template <class Body>
INLINE inline void either(bool holds, Body body) {
    if (holds)
        body(Known<true>{});
    else
        body(Known<false>{});
}

}  // namespace superopt
