// Products: the ways of the contraction in bf16, and which one is taken.

namespace superopt {

#if defined(HAS_PAIRS)
// Blocks of B become panels, which all rows meet.
template <class A, class B>
void pairs_packed(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                  index_t c_row) {
    Scratch scratch;
#if defined(HAS_TILES)
    const TilesInUse tiles(m_count > few);
#endif
    // Columns in memory are often a power of two apart: only few of them fit the same lines of the second cache.
    const index_t most_n = b.column == 1 ? broad : 64;
    const index_t room = panels_room(least(pair_depth, k_count), least(most_n, n_count));
    uint32_t* const panels = reinterpret_cast<uint32_t*>(scratch.floats(room));
    bf16* const rows = scratch_halves(scratch, (m_count + 15) / 16 * 16 * pair_row / 2);  // tiles have 16 rows
    for (index_t k = 0; k < k_count; k += pair_depth) {
        const index_t depth = least(pair_depth, k_count - k), pairs = pairs_of(depth);
        pack_halves(m_count, depth, a.at(0, k), rows, pair_row);
        for (index_t n = 0; n < n_count; n += most_n) {
            const index_t breadth = least(most_n, n_count - n);
            pack_pairs(depth, breadth, b.at(k, n), panels);
            const bool last = n + breadth == n_count;
            const Matrix<B> next = last ? b.at(k + depth, 0) : b.at(k, n + breadth);
            Ahead ahead = Ahead::of(next, last && k + depth == k_count ? 0 : b.column == 1 ? pair_depth : most_n);
            for (index_t j = 0; j < breadth; j += pair_width) {
                const uint32_t* const panel = panels + j * (pairs + 1);
                const index_t columns = least(pair_width, breadth - j);
#if defined(HAS_TILES)
                if (tiles) {
                    tiles_panel(m_count, columns, pairs, rows, panel, c + n + j, c_row, ahead);
                    continue;
                }
#endif
                pairs_rows(m_count, columns, pairs, {rows, pair_row, 1}, Panel<>{panel}, c + n + j, c_row, ahead);
            }
        }
    }
}

// Few rows, and columns of B that lie along the sum: nothing of B is copied.
template <class A, class B>
void pairs_few(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c, index_t c_row) {
    // So many dot products at a time that vectors of their sums are full.
    constexpr int tall = 4, wide = registers == 16 ? 2 : 4;
    const index_t row = (m_count == 1 ? k_count + 31 : least(deeper, k_count + 31)) / 32 * 32 + 32;
    Scratch scratch;
    bf16* const rows = scratch_halves(scratch, m_count * row / 2);
    if (m_count == 1) {
        pack_halves(1, k_count, a, rows, row);
        return pairs_dot_columns(n_count, k_count, rows, b, c);
    }
    for (index_t k = 0; k < k_count; k += deeper) {
        const index_t depth = least(deeper, k_count - k);
        pack_halves(m_count, depth, a.at(0, k), rows, row);
        for (index_t n = 0; n < n_count; n += 2 * wide) {
            const index_t breadth = least(2 * wide, n_count - n);
            for (index_t m = 0, blocks = (m_count + tall - 1) / tall; blocks > 0; --blocks) {
                const index_t height = (m_count - m + blocks - 1) / blocks;
                pairs_dot_rows<tall, wide>(height, breadth, depth, rows + m * row, row, b.at(k, n),
                                           c + m * c_row + n, c_row);
                m += height;
            }
        }
    }
}
#endif

#if defined(HAS_PAIRS)
// Whether a sum is so short that turning columns around takes less time than adding up the lanes of dot products.
inline bool is_turned_sooner(index_t m_count, index_t k_count) {
    return lanes == 16 && m_count > 4 && k_count <= 24 * m_count;
}
#endif

// What `contract` computes, with operands in bf16 where the processor multiplies them.
template <class A, class B>
void contract_pairs(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                    index_t c_row) {
#if defined(HAS_PAIRS)
    if (b.row == 1 && b.column != 1 && m_count <= few && !is_turned_sooner(m_count, k_count))
        return pairs_few(m_count, n_count, k_count, a, b, c, c_row);
#if defined(HAS_SQUARES)
    if (m_count > few) return contract_squares(m_count, n_count, k_count, a, b, c, c_row);
#endif
#if !defined(HAS_TILES)
    if (m_count > few && n_count <= narrow * lanes)
        return pairs_narrow<narrow>(m_count, n_count, k_count, a, b, c, c_row);
    if (m_count > pair_many && b.row == 1 && b.column != 1)
        return pairs_paneled(m_count, n_count, k_count, a, b, c, c_row);
    if (m_count > few && is_turned_in_place(m_count, k_count, a, b))
        return pairs_turned(m_count, n_count, k_count, a, b, c, c_row);
    if constexpr (__is_same(B, bf16))
        if (b.column == 1)
            return is_far_apart(m_count, b) ? pairs_paneled(m_count, n_count, k_count, a, b, c, c_row)
                                            : pairs_straight(m_count, n_count, k_count, a, b, c, c_row);
#endif
    pairs_packed(m_count, n_count, k_count, a, b, c, c_row);
#else
    contract(m_count, n_count, k_count, a, b, c, c_row);
#endif
}

#define PAIRS(A, B) \
    void contract_pairs<A, B>(index_t, index_t, index_t, Matrix<A>, Matrix<B>, float*, index_t)
#if defined(CONTRACTIONS_APART) && defined(HAS_PAIRS)
extern template PAIRS(float, bf16);
extern template PAIRS(bf16, bf16);
extern template PAIRS(bf16, float);
extern template PAIRS(float, float);
#endif

}  // namespace superopt
