// Squares: many rows of bf16 meet columns in ARM's matrix instructions, each of which adds four products to each of
// the sums of two rows and two columns.

namespace superopt {

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(SQUARES_EMULATED)
#define HAS_SQUARES

constexpr index_t square_step = 4;               // elements of a sum that one instruction adds up
constexpr int square_side = 4;                   // squares of sums stay in registers, so many by so many
constexpr index_t square_items = 2 * square_side;  // rows, or columns, of a panel
constexpr index_t square_line = square_step * square_items;

// Both operands hold four elements of one row or column, then four of the next.
INLINE inline Vec add_squares(Vec sum, Bits a, Bits b) {
    static_assert(lanes == 4);
#if defined(SQUARES_EMULATED)
    for (int lane = 0; lane < lanes; ++lane)
        for (int pair = 0; pair < 2; ++pair) {
            const uint32_t one = a[lane / 2 * 2 + pair], other = b[lane % 2 * 2 + pair];
            sum[lane] += from_bits(one << 16) * from_bits(other << 16);
            sum[lane] += from_bits(one & 0xffff0000) * from_bits(other & 0xffff0000);
        }
#else
    asm("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
#endif
    return sum;
}

inline index_t squares_room(index_t items, index_t depth) {  // counted in pairs
    return (items + square_items - 1) / square_items * square_items * ((depth + square_step - 1) / square_step * 2);
}

// A copy in bf16 of rows, each of which lies along the sum, as panels of `square_items` rows: the first four elements
// of each, then the next four. What is beyond the sum is 0; rows that do not exist are left as they are.
template <class T>
void pack_squares(index_t rows, index_t depth, Matrix<T> from, bf16* to) {
    const index_t steps = (depth + square_step - 1) / square_step;
    const auto at = [&](index_t i, index_t k) {
        return to + (i / square_items * steps + k / square_step) * square_line + i % square_items * square_step;
    };
    if (from.row == 1 && from.column != 1) {  // read along memory
        for (index_t k = 0; k < depth; k += square_step)
            for (index_t i = 0; i < rows; i += lanes) {
                const Matrix<T> block = from.at(i, k).turned();
                const Bits first = pairs_across(block, depth - k, rows - i);
                const Bits second = pairs_across(block.at(2, 0), depth - k - 2, rows - i);
                const Bits both[2] = {{first[0], second[0], first[1], second[1]},
                                      {first[2], second[2], first[3], second[3]}};
                memcpy(at(i, k), both, sizeof both);
            }
        return;
    }
    for (index_t i = 0; i < rows; ++i)
        for (index_t k = 0; k < depth; k += square_step) {
            const Shorts four = halves(from.at(i, k).data, from.column, depth - k);
            memcpy(at(i, k), &four, sizeof four);
        }
}

// Up to 2 * ROWS rows meet a panel of columns.
template <int ROWS>
void squares_block(index_t steps, const bf16* a, const bf16* b, index_t rows, index_t columns, float* c,
                   index_t c_row) {
    Vec sums[ROWS][square_side] = {};
    for (index_t step = 0; step < steps; ++step, a += square_line, b += square_line) {
        Bits values[square_side];
        for (int v = 0; v < square_side; ++v) values[v] = held(pairs_at(b + 2 * v * square_step));
        for (int m = 0; m < ROWS; ++m) {
            const Bits factor = pairs_at(a + 2 * m * square_step);
            for (int v = 0; v < square_side; ++v) sums[m][v] = add_squares(sums[m][v], factor, values[v]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < 2 * ROWS; ++m) {
        if (m >= rows) return;
#pragma GCC unroll 16
        for (int v = 0; v < square_side; v += 2) {
            const Vec left = sums[m / 2][v], right = sums[m / 2][v + 1];
            const int first = m % 2 * 2;
            const Vec row{left[first], left[first + 1], right[first], right[first + 1]};
            float* const to = c + m * c_row + 2 * v;
            store(to, 1, columns - 2 * v, load(to, 1, columns - 2 * v) + row);
        }
    }
}

template <int ROWS>
inline void squares_some(index_t steps, const bf16* a, const bf16* b, index_t rows, index_t columns, float* c,
                         index_t c_row) {
    if constexpr (ROWS > 1)
        if (rows <= 2 * ROWS - 2) return squares_some<ROWS - 1>(steps, a, b, rows, columns, c, c_row);
    squares_block<ROWS>(steps, a, b, rows, columns, c, c_row);
}

// Panels of A meet panels of B.
template <class A, class B>
void contract_squares(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                      index_t c_row) {
    Scratch scratch;
    bf16* const rows = scratch_halves(scratch, squares_room(m_count, least(pair_depth, k_count)));
    bf16* const panels = scratch_halves(scratch, squares_room(least(broad, n_count), least(pair_depth, k_count)));
    for (index_t k = 0; k < k_count; k += pair_depth) {
        const index_t depth = least(pair_depth, k_count - k), steps = (depth + square_step - 1) / square_step;
        pack_squares(m_count, depth, a.at(0, k), rows);
        for (index_t n = 0; n < n_count; n += broad) {
            const index_t breadth = least(broad, n_count - n);
            pack_squares(breadth, depth, b.at(k, n).turned(), panels);
            for (index_t j = 0; j < breadth; j += square_items)
                for (index_t i = 0; i < m_count; i += square_items)
                    squares_some<square_side>(steps, rows + i * steps * square_step, panels + j * steps * square_step,
                                              least(square_items, m_count - i), least(square_items, breadth - j),
                                              c + i * c_row + n + j, c_row);
        }
    }
}
#endif

}  // namespace superopt
