// In place: products that read their operands in bf16 where these lie in memory, without a copy.

namespace superopt {

#if defined(HAS_PAIRS)
// Panels that many rows read must stay in the second cache: the most pairs, and the most columns, of one.
constexpr index_t pair_panels = 1 << 17, pair_breadth = 128;

// As many columns as make whole vectors.
inline index_t padded(index_t columns) { return (columns + lanes - 1) / lanes * lanes; }

// In each four lanes, the pairs that the first, or the last, four numbers of two vectors make.
template <bool LAST>
INLINE inline Bits interleaved(Bits first, Bits second) {
    Bits pairs;
#if defined(PAIRS_EMULATED)
    for (int lane = 0; lane < lanes; ++lane) {
        const int from = lane / 4 * 4 + 2 * LAST + lane % 4 / 2, shift = lane % 2 * 16;
        pairs[lane] = (first[from] >> shift & 0xffff) | second[from] >> shift << 16;
    }
#elif defined(__AVX512BF16__)
    if constexpr (LAST)
        asm("vpunpckhwd %2, %1, %0" : "=v"(pairs) : "v"(first), "v"(second));
    else
        asm("vpunpcklwd %2, %1, %0" : "=v"(pairs) : "v"(first), "v"(second));
#else
    if constexpr (LAST)
        asm("zip2 %0.8h, %1.8h, %2.8h" : "=w"(pairs) : "w"(first), "w"(second));
    else
        asm("zip1 %0.8h, %1.8h, %2.8h" : "=w"(pairs) : "w"(first), "w"(second));
#endif
    return pairs;
}

// The sums of what was interleaved, in the order of the columns: four of the one, then four of the other.
INLINE inline void in_turns(Vec& first, Vec& second) {
    if constexpr (lanes == 4) return;
#if defined(__AVX512BF16__) && !defined(PAIRS_EMULATED)
    Int number = lane_numbers();
    Int low = number % 4 + number / 8 * 4 + (number & 4) * (lanes / 4), high = low + lanes / 2;
    asm("vpermi2ps %2, %1, %0" : "+v"(low) : "v"(first), "v"(second));
    asm("vpermi2ps %2, %1, %0" : "+v"(high) : "v"(first), "v"(second));
    first = reinterpret_cast<Vec&>(low), second = reinterpret_cast<Vec&>(high);
#else
    const Vec sums[2] = {first, second};
    for (int lane = 0; lane < lanes; ++lane) {
        first[lane] = sums[lane / 4 % 2][lane / 8 * 4 + lane % 4];
        second[lane] = sums[lane / 4 % 2][lanes / 2 + lane / 8 * 4 + lane % 4];
    }
#endif
}

// Rows in bf16: where they lie, or where they have another format or order, in a copy.
template <class T>
Matrix<bf16> rows_in_bf16(index_t rows, index_t columns, Matrix<T> from, Scratch& scratch) {
    if constexpr (__is_same(T, bf16))
        if (from.column == 1 && columns % 2 == 0) return from;
    const index_t row = (columns + 31) / 32 * 32 + 32;  // whole vectors, and no power of two
    bf16* const to = scratch_halves(scratch, rows * row / 2);
    pack_halves(rows, columns, from, to, row);
    return {to, row, 1};
}

// Columns of B that lie beside one another in memory; pairs are made of two rows on the way.
struct Lines {
    static constexpr int step = 2;
    const bf16* data;
    index_t row;

    template <int VECTORS>
    INLINE void read(index_t pair, Bits (&values)[VECTORS]) const {
        const bf16* const first = data + 2 * pair * row;
        const bf16* const second = first + row;
        for (int v = 0; v < VECTORS; v += 2) {
            const index_t at = v * lanes;
            __builtin_prefetch(first + pair_width + at, 0, 2);  // the columns that are read next
            __builtin_prefetch(second + pair_width + at, 0, 2);
            const Bits one = pairs_at(first + at), other = pairs_at(second + at);
            values[v] = interleaved<false>(one, other);
            values[v + 1] = interleaved<true>(one, other);
        }
    }
    template <int VECTORS>
    INLINE void in_order(Vec (&sums)[VECTORS]) const {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v += 2) in_turns(sums[v], sums[v + 1]);
    }
};

template <class A, class B>
void pairs_packed(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                  index_t c_row);

// Many rows, and few columns, which are copied instead of the rows. So many rows meet them at a time that no sum waits
// for its last product.
template <int VECTORS, class A, class B>
void pairs_narrow(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                  index_t c_row) {
    constexpr int width = VECTORS * lanes, tall = registers == 16 ? 6 : lanes == 4 ? 9 : 12;
    if constexpr (VECTORS > 1)
        if (n_count <= width - lanes) return pairs_narrow<VECTORS - 1>(m_count, n_count, k_count, a, b, c, c_row);
    constexpr index_t deep = 2 * pair_depth;
    Scratch scratch;
    uint32_t* const panel = reinterpret_cast<uint32_t*>(scratch.floats((pairs_of(least(deep, k_count)) + 1) * width));
    Ahead none{reinterpret_cast<const char*>(c), 0, 0};
    for (index_t k = 0; k < k_count; k += deep) {
        const index_t depth = least(deep, k_count - k);
        Scratch inner;
        const Matrix<bf16> rows = rows_in_bf16(m_count, depth, a.at(0, k), inner);
        pack_pairs<width>(depth, n_count, b.at(k, 0), panel);
        pairs_rows<tall, VECTORS>(m_count, n_count, pairs_of(depth), rows, Panel<width>{panel}, c, c_row, none);
    }
}
constexpr int narrow = 2;  // vectors of columns that are few

// Rows of B lie along its columns.
template <class A>
void pairs_straight(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<bf16> b, float* c,
                    index_t c_row) {
    const index_t paired = k_count / 2 * 2, whole = n_count / (2 * lanes) * (2 * lanes);
    Ahead none{reinterpret_cast<const char*>(c), 0, 0};
    for (index_t k = 0; k < paired; k += deeper) {
        const index_t depth = least(deeper, paired - k);
        Scratch scratch;
        const Matrix<bf16> rows = rows_in_bf16(m_count, depth, a.at(0, k), scratch);
        for (index_t n = 0; n < whole; n += pair_width)
            for (index_t i = 0; i < depth; i += 2 * pair_depth) {
                const Lines lines{b.at(k + i, n).data, b.row};
                pairs_rows(m_count, least(pair_width, whole - n), least(2 * pair_depth, depth - i) / 2, rows.at(0, i),
                           lines, c + n, c_row, none);
            }
    }
    if (paired < k_count) pairs_packed(m_count, whole, 1, a.at(0, paired), b.at(paired, 0), c, c_row);
    if (whole < n_count) pairs_narrow<narrow>(m_count, n_count - whole, k_count, a, b.at(0, whole), c + whole, c_row);
}

// Rows of A from which on it takes less time to make panels of B, which all of them meet, than to read B where it
// lies, or to make panels of A.
constexpr index_t pair_many = 256;

// Whether rows of B are so far apart in memory that few of them fit in the second cache together.
inline bool is_far_apart(index_t m_count, Matrix<bf16> b) { return m_count > pair_many && b.row % 4096 == 0; }

// Panels of B meet the rows of A where these lie. While some columns are met, the next ones are fetched: where B lies
// along the sum, the hardware does not guess them.
template <class A, class B>
void pairs_paneled(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                   index_t c_row) {
    const bool along_sum = b.row == 1 && b.column != 1;
    const index_t breadth = least(along_sum ? pair_breadth / 2 : pair_breadth, n_count);
    const index_t deep = pair_panels / breadth * 2;
    Scratch scratch;
    uint32_t* const panels = reinterpret_cast<uint32_t*>(scratch.floats(panels_room(least(deep, k_count), breadth)));
    for (index_t k = 0; k < k_count; k += deep) {
        const index_t depth = least(deep, k_count - k), pairs = pairs_of(depth);
        Scratch inner;
        const Matrix<bf16> rows = rows_in_bf16(m_count, depth, a.at(0, k), inner);
        for (index_t n = 0; n < n_count; n += breadth) {
            const index_t width = least(breadth, n_count - n);
            pack_pairs(depth, width, b.at(k, n), panels);
            Ahead ahead = Ahead::of(b.at(k, n + width), along_sum ? breadth : 0);
            for (index_t m = 0; m < m_count; m += pair_rows)
                for (index_t j = 0; j < width; j += pair_width)
                    pairs_rows(least(pair_rows, m_count - m), least(pair_width, width - j), pairs, rows.at(m, 0),
                               Panel<>{panels + j * (pairs + 1)}, c + m * c_row + n + j, c_row, ahead);
        }
    }
}

// Whether both operands lie along a sum that is long beside the rows of A. Else it takes longer to turn C around than
// to make panels of B, and so it does where rows of A, as lanes of vectors, leave many of these empty.
template <class A, class B>
inline bool is_turned_in_place(index_t m_count, index_t k_count, Matrix<A> a, Matrix<B> b) {
    const bool along_sum = a.column == 1 && b.row == 1 && b.column != 1;
    return along_sum && k_count >= 2 * m_count && padded(m_count) - m_count < lanes / 2;
}

// Both operands lie along the sum: C is computed turned around, so that rows of A become panels, and those columns
// of B that lie in memory in bf16 are met there, and not copied.
template <class A, class B>
void pairs_turned(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                  index_t c_row) {
    constexpr index_t some = 16 * pair_rows;
    // It is better to have few columns in a panel than a sum in parts.
    const bool is_long = k_count > pair_panels / pair_breadth * 2;
    const index_t breadth = least(is_long ? pair_breadth / 2 : pair_breadth, m_count);
    const index_t deep = pair_panels / breadth * 2;
    const index_t row = 2 * pairs_of(least(deep, k_count)) + 64;
    Scratch scratch;
    uint32_t* const panels = reinterpret_cast<uint32_t*>(scratch.floats(panels_room(least(deep, k_count), breadth)));
    float* const turned = scratch.floats(some * padded(breadth));
    bf16* const copied = scratch_halves(scratch, pair_rows * row / 2);
    const auto along_sum = [&](index_t k, index_t n, index_t height, index_t depth) {
        if constexpr (__is_same(B, bf16))
            if (depth % 2 == 0) return b.at(k, n).turned();
        pack_halves(height, depth, b.at(k, n).turned(), copied, row);
        return Matrix<bf16>{copied, row, 1};
    };
    for (index_t m = 0; m < m_count; m += breadth)
        for (index_t k = 0; k < k_count; k += deep) {
            const index_t depth = least(deep, k_count - k), pairs = pairs_of(depth);
            const index_t width = least(breadth, m_count - m), wide = padded(width);
            pack_pairs(depth, width, a.at(m, k).turned(), panels);
            for (index_t n = 0; n < n_count; n += some) {
                const index_t height = least(some, n_count - n);
                for (index_t i = 0; i < height; i += pair_rows) {
                    const index_t rows = least(pair_rows, height - i);
                    const Matrix<bf16> met = along_sum(k, n + i, rows, depth);
                    Ahead ahead = Ahead::of(b.at(k, n + i + rows), Ahead::together);
                    for (index_t j = 0; j < wide; j += pair_width)
                        pairs_rows(rows, least(pair_width, wide - j), pairs, met, Panel<>{panels + j * (pairs + 1)},
                                   turned + i * wide + j, wide, ahead, true);
                }
                add_turned(height, width, turned, wide, c + m * c_row + n, c_row);
            }
        }
}

#endif

}  // namespace superopt
