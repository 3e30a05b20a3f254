// Windows: what is read of a tensor at places that may lie outside it, where it is 0.

namespace superopt {

// Whether a place is one of so many positions.
inline bool inside(index_t place, index_t size) { return uint64_t(place) < uint64_t(size); }

template <class T>
inline float read_inside(const T* from, bool there) {
    return there ? read(*from) : 0.0f;
}

// The lanes that are wanted and lie inside, one by one.
template <class T>
__attribute__((noinline)) Vec load_some(
    const T* from, index_t stride, index_t count, index_t first, index_t step, index_t size) {
    Vec value{};
    for (int lane = 0; lane < lanes; ++lane)
        if (lane < count && inside(first + lane * step, size)) value[lane] = read(from[lane * stride]);
    return value;
}

// The lanes from `begin` to `end` of neighbours, or of every other number: no other lane touches memory.
#if defined(__AVX512F__) && defined(__BMI2__)
#define MASKED_EDGES
INLINE inline Vec load_lanes(const float* from, index_t stride, index_t begin, index_t end) {
    const uint32_t mask = ((1u << end) - 1) & ~((1u << begin) - 1);
    if (stride == 1) return load_masked(from, mask);
    const uint32_t wide = __builtin_ia32_pdep_si(mask, 0x55555555u);
    const Vec low = load_masked(from, wide), high = load_masked(from + lanes, wide >> 16);
    return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
#elif defined(__AVX__) && !defined(__AVX512F__)
#define MASKED_EDGES
INLINE inline Vec load_lanes(const float* from, index_t stride, index_t begin, index_t end) {
    const auto masked = [&](const float* at, Int lane, Int others) INLINE {
        return __builtin_ia32_maskloadps256((const Vec*)at, others & (lane >= int32_t(begin)) & (lane < int32_t(end)));
    };
    const Int number = lane_numbers();
    if (stride == 1) return masked(from, number, number == number);
    const Int even = (number & 1) - 1;
    const Vec low = masked(from, number / 2, even), high = masked(from + lanes, (number + lanes) / 2, even);
    return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
}
#endif

#ifdef MASKED_EDGES
INLINE inline Vec load_edge(const float* from, index_t stride, index_t count, index_t first, index_t step, index_t size) {
    if (step <= 0 || stride > 2 || stride < 1) return load_some(from, stride, count, first, step, size);
    const index_t begin = first >= 0 ? 0 : (step - 1 - first) / step;
    const index_t end = least(count, least(lanes, (size - first + step - 1) / step));
    return begin < end ? load_lanes(from, stride, begin, end) : Vec{};
}
#endif

template <class T>
INLINE inline Vec load_edge(const T* from, index_t stride, index_t count, index_t first, index_t step, index_t size) {
    return load_some(from, stride, count, first, step, size);
}

constexpr index_t no_end = index_t(1) << 60;  // the size where nothing lies outside

// Every other of so many neighbours that all lie in memory.
template <class T>
INLINE inline Vec load_alternate(const T* from) {
    const Vec low = load(from), high = load(from + lanes - 1);
    Vec value;
    for (int lane = 0; lane < lanes; ++lane)
        value[lane] = 2 * lane < lanes ? low[2 * lane] : high[2 * lane - lanes + 1];
    return value;
}

// The elements at places first, first + step, ... that are among `size` positions; the other lanes are 0.
// Where it is known that all of them are, `whole` says so.
template <class T>
INLINE inline Vec load_window(
    bool whole, const T* from, index_t stride, index_t count, index_t first, index_t step, index_t size) {
    if (whole && stride == 1) return load(from);
    if (whole && stride == 2) return load_alternate(from);
    return load_edge(from, stride, count, first, step, size);
}

}  // namespace superopt
