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

#if defined(__AVX512F__) && defined(__BMI2__)
#define MASKED_EDGES
// Which lanes are read of neighbours, or of every other number: no other lane touches memory.
struct Chosen {
    uint32_t bits;
    Chosen() = default;
    INLINE inline Chosen(index_t stride, index_t begin, index_t end) {
        const uint32_t mask = ((1u << end) - 1) & ~((1u << begin) - 1);
        bits = stride == 1 ? mask : __builtin_ia32_pdep_si(mask, 0x55555555u);
    }
    bool has(int number) const { return bits >> number & 1; }
};
INLINE inline Vec load_chosen(const float* from, index_t stride, const Chosen& chosen) {
    if (stride == 1) return load_masked(from, chosen.bits);
    const Vec low = load_masked(from, chosen.bits), high = load_masked(from + lanes, chosen.bits >> 16);
    return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
#elif defined(__AVX__) && !defined(__AVX512F__)
#define MASKED_EDGES
struct Chosen {
    Int low, high;
    Chosen() = default;
    INLINE inline Chosen(index_t stride, index_t begin, index_t end) {
        const Int number = lane_numbers();
        const auto between = [&](Int lane) INLINE { return (lane >= int32_t(begin)) & (lane < int32_t(end)); };
        const Int even = (number & 1) - 1;
        low = stride == 1 ? between(number) : even & between(number / 2);
        high = even & between((number + lanes) / 2);
    }
    bool has(int number) const { return number < lanes ? low[number] : high[number - lanes]; }
};
INLINE inline Vec load_chosen(const float* from, index_t stride, const Chosen& chosen) {
    const Vec low = __builtin_ia32_maskloadps256((const Vec*)from, chosen.low);
    if (stride == 1) return low;
    const Vec high = __builtin_ia32_maskloadps256((const Vec*)(from + lanes), chosen.high);
    return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
}
#endif

#ifdef MASKED_EDGES
// The same in another format, lane by lane.
template <class T>
INLINE inline Vec load_chosen(const T* from, index_t stride, const Chosen& chosen) {
    Vec value{};
    for (int lane = 0; lane < lanes; ++lane)
        if (chosen.has(lane * stride)) value[lane] = read(from[lane * stride]);
    return value;
}
#if defined(__AVX512BW__) && defined(__AVX512VL__)
INLINE inline Vec load_chosen(const bf16* from, index_t stride, const Chosen& chosen) {
    return stride == 1 ? from_bf16(load_masked(from, chosen.bits)) : load_chosen<bf16>(from, stride, chosen);
}
#endif

INLINE inline bool is_masked(index_t stride, index_t step) { return step > 0 && (stride == 1 || stride == 2); }

// The lanes at places first, first + step, ... that are among `size` positions and among the first `count`.
INLINE inline Chosen chosen_inside(index_t stride, index_t count, index_t first, index_t step, index_t size) {
    const index_t begin = first >= 0 ? 0 : (step - 1 - first) / step;
    const index_t end = least(count, least(lanes, (size - first + step - 1) / step));
    return begin < end ? Chosen(stride, begin, end) : Chosen(stride, 0, 0);
}

INLINE inline Vec load_edge(const float* from, index_t stride, index_t count, index_t first, index_t step, index_t size) {
    if (!is_masked(stride, step)) return load_some(from, stride, count, first, step, size);
    return load_chosen(from, stride, chosen_inside(stride, count, first, step, size));
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

// How many vectors of a row are worked on together, up to `most`: few of their lanes lie beyond its end.
constexpr int vectors_along(index_t count, int most) {
    const index_t all = (count + lanes - 1) / lanes;
    int best = 1;
    for (int some = 2; some <= most; ++some)
        if ((all + some - 1) / some * (some + 1) <= (all + best - 1) / best * (best + 1)) best = some;
    return best;
}

// Ask for a row that is read soon, if it is so short that each of its vectors may have an edge.
template <class T>
INLINE inline void prefetch_short(const T* from, index_t numbers) {
    if (numbers > 4 * lanes) return;
    for (index_t at = 0; at < numbers; at += 64 / sizeof(T)) prefetch(from + at);
}

template <class T>
constexpr bool is_float = false;
template <>
constexpr bool is_float<float> = true;

// Some vectors of a row, each at some taps of a window: it is known before which of their lanes lie inside.
// Masks are kept for edges alone, as processors do not fetch ahead of masked loads. Each load is told the
// strides of lanes, so that compilers know them.
template <class T, int VECTORS, int TAPS>
struct Edges {
    index_t count, first, tap, size;
    bool whole[VECTORS];
#ifdef MASKED_EDGES
    Chosen chosen[VECTORS][TAPS];
#endif

    // Look at one block of a row that has `length` positions.
    INLINE inline void look(
        int block, index_t length, index_t start, index_t tap, index_t size, index_t stride, index_t step) {
        const index_t before = block * VECTORS * lanes;
        count = length - before, first = start + before * step, this->tap = tap, this->size = size;
#pragma GCC unroll 8
        for (int vector = 0; vector < VECTORS; ++vector) {
            whole[vector] = left(vector) >= lanes;
            for (int at = 0; at < TAPS; at += most(TAPS - 1, 1))
                for (int lane = 0; lane < lanes; lane += lanes - 1)
                    whole[vector] &= inside(place(vector, at, step) + lane * step, size);
#ifdef MASKED_EDGES
            if (!is_float<T> || !is_masked(stride, step)) continue;
#pragma GCC unroll 8
            for (int at = 0; at < TAPS; ++at)
                chosen[vector][at] = chosen_inside(stride, left(vector), place(vector, at, step), step, size);
#endif
        }
    }

    INLINE inline index_t left(int vector) const { return count - vector * lanes; }
    INLINE inline index_t place(int vector, int at, index_t step) const {
        return first + vector * lanes * step + at * tap;
    }

    INLINE inline Vec load(const T* from, int vector, int at, index_t stride, index_t step) const {
#ifdef MASKED_EDGES
        if constexpr (is_float<T>)
            if (!whole[vector] && is_masked(stride, step)) return load_chosen(from, stride, chosen[vector][at]);
#endif
        return load_window(whole[vector], from, stride, left(vector), place(vector, at, step), step, size);
    }
};

}  // namespace superopt
