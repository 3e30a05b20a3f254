// Contraction: C[m, n] += sum over k of A[m, k] B[k, n], from any format and strides.

namespace superopt {

// A block of an operand: positions of the sum, and columns. A block of this size stays in the second cache.
constexpr index_t deep = 256, deeper = 1024, broad = 256;

constexpr index_t few = 16;  // rows of A, for which nothing of B is copied
constexpr index_t panel_columns = 64;  // of B, so few that they are a panel where they lie

// A block of B that is packed: in one go, or a few rows at a time while another block is read.
template <class B>
struct PackedBlock {
    Matrix<B> from;
    index_t depth, breadth;
    float* panels;
    index_t packed = 0;  // rows

    bool is_fetchable() const { return __is_same(B, float) && from.column == 1; }

    // The rows that are packed after the next few, for `panel_rows` to fetch; `others` where there are none.
    Matrix<float> after(index_t few_rows, Matrix<float> others) const {
        if constexpr (__is_same(B, float))
            if (is_fetchable() && packed + few_rows < depth) return from.at(packed + few_rows, 0);
        return others;
    }
    void pack(index_t rows, bool fetched = false) {
        const index_t first = packed;
        if (first == depth) return;
        packed = from.column == 1 ? least(first + rows, depth) : depth;  // columns are read in whole lines
        if (from.column != 1)
            pack_panels<panel_width>(depth, breadth, from, panels);
        else if (fetched)
            pack_rows<panel_width, 0>(depth, first, packed, breadth, from, panels);
        else
            pack_rows<panel_width, 8>(depth, first, packed, breadth, from, panels);
    }
};

// Many rows: blocks of B are packed and all rows are multiplied with each. Where packing would take a good part of the
// time, the next block is fetched and packed meanwhile, a few of its rows after each few rows of products.
template <class B>
inline void contract_packed(index_t m_count, index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b, float* c,
                            index_t c_row) {
    const bool meanwhile = registers == 32 ? m_count > 20 && m_count <= 160 : m_count <= 80;
    const index_t side = meanwhile ? 128 : 256, tall = meanwhile ? 6 : most(m_count, 1);
    const index_t padded = (least(side, n_count) + panel_width - 1) / panel_width * panel_width;
    const index_t size = padded * (least(side, k_count) + 1), groups = (m_count + tall - 1) / tall;
    Scratch scratch;
    float* const panels = scratch.floats(size);
    float* const others = meanwhile ? scratch.floats(size) : panels;
    const auto block_at = [&](index_t k, index_t n, float* to) {
        const index_t depth = most(least(side, k_count - k), 0);
        return PackedBlock<B>{depth > 0 ? b.at(k, n) : b, depth, least(side, n_count - n), to};
    };
    PackedBlock<B> block = block_at(0, 0, panels);
    for (index_t k = 0; k < k_count; k += side) {
        Scratch inner;
        // Rows that lie far apart would compete for the same lines of the second cache.
        const bool stays = a.column == 1 && (m_count <= 2 * few || n_count <= broad);
        const Matrix<float> rows = stays ? a.at(0, k) : packed(m_count, block.depth, a.at(0, k), inner);
        for (index_t n = 0; n < n_count; n += side) {
            block.pack(block.depth);  // what is left of it
            const bool ends = n + side >= n_count;
            PackedBlock<B> next = block_at(ends ? k + side : k, ends ? 0 : n + side, block.panels == panels ? others : panels);
            const index_t pieces = groups * ((block.breadth + panel_width - 1) / panel_width);
            const index_t piece = (next.depth + pieces - 1) / pieces;
            for (index_t j = 0; j < block.breadth; j += panel_width)
                for (index_t m = 0, left = groups; left > 0; --left) {
                    const index_t height = (m_count - m + left - 1) / left;
                    const Matrix<float> own = rows.at(m, 0);
                    panel_rows(height, block.depth, own, meanwhile ? next.after(piece, own) : own,
                               block.panels + j * (block.depth + 1), least(panel_width, block.breadth - j),
                               c + m * c_row + n + j, c_row);
                    if (meanwhile) next.pack(piece, next.is_fetchable() && piece <= tall);
                    m += height;
                }
            block = next;
        }
    }
}

// Whether many rows are copied in groups: with few registers, reading rows that lie apart takes longer than that.
constexpr bool in_groups = registers == 16 && lanes > met_rows;
constexpr index_t group_rows = 1024, group_sum = 512, group_columns = 128;  // of what is copied at a time
constexpr index_t worth_groups = in_groups ? 96 : index_t(1) << 60;  // so many rows are copied

// Many rows, where registers are few: blocks of B are packed that stay in the second cache, and the rows are copied in
// groups, which are read along memory.
template <class B>
inline void contract_grouped(index_t m_count, index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b, float* c,
                             index_t c_row) {
    const index_t longest = least(group_sum, k_count);
    Scratch scratch;
    float* const panels = scratch.floats((least(group_columns, n_count) + panel_width) * (longest + 1));
    float* const rows = scratch.floats(groups_room(least(group_rows, m_count), longest));
    for (index_t top = 0; top < m_count; top += group_rows)
        for (index_t k = 0; k < k_count; k += group_sum) {
            const index_t height = least(group_rows, m_count - top), depth = least(group_sum, k_count - k);
            pack_groups(height, depth, a.at(top, k), rows);
            for (index_t n = 0; n < n_count; n += group_columns) {
                const index_t breadth = least(group_columns, n_count - n);
                pack_panels<panel_width>(depth, breadth, b.at(k, n), panels);
                for (index_t j = 0; j < breadth; j += panel_width)
                    group_panel(height, depth, rows, panels + j * (depth + 1), least(panel_width, breadth - j),
                                c + top * c_row + n + j, c_row);
            }
        }
}

// Rows of A whose panels, of a long sum, leave room in the second cache for the columns of B that meet them.
constexpr index_t tall_panels = 128;

// The packed rows of A, or else columns of B, for several contractions that read them while nothing writes to them.
struct Panels {
    float* data;
    index_t room;
    bool are_columns = false;
    const void* of = nullptr;
    index_t rows = 0, columns = 0;

    static index_t block(index_t rows, index_t columns) {
        return (least(tall_panels, rows) + panel_width - 1) / panel_width * panel_width * (least(deeper, columns) + 1);
    }
    static index_t room_of(index_t rows, index_t columns) {
        return ((rows + tall_panels - 1) / tall_panels) * ((columns + deeper - 1) / deeper) * block(rows, columns);
    }
    // What lies in the memory of the matrix changes.
    void forget() { of = nullptr; }
    // Whether the panels hold a matrix already; else they are noted as holding it, and the caller fills them.
    bool hold(index_t m_count, index_t k_count, const void* data) {
        const bool known = of == data && rows == m_count && columns == k_count;
        of = data, rows = m_count, columns = k_count;
        return known;
    }
};

// Many rows of A, and columns of B that lie along k: the transpose of C is computed, since A is packed into panels
// faster than B. B is read where it lies or, in another format, a few columns at a time from a copy. Rows of A that
// would fill no more than half a vector of a further panel meet B as dot products instead, while B is near.
template <class B>
inline void contract_turned(index_t m_count, index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b, float* c,
                            index_t c_row, Panels* kept) {
    constexpr index_t some = registers == 32 ? 48 : 24, longest = registers == 32 ? 512 : 256;
    constexpr int wide = registers == 32 ? 4 : 2;
    constexpr index_t row = longest + 16;  // the copied rows do not compete for the same lines of the cache
    // Several panels take turns, so that each one's part is short enough for the first cache.
    const index_t step = registers == 32 && m_count > panel_width + lanes / 2 ? 96 : longest;
    Scratch scratch;
    if (kept && kept->room < Panels::room_of(m_count, k_count)) kept = nullptr;
    const bool held = kept && kept->hold(m_count, k_count, a.data);
    const index_t block = Panels::block(m_count, k_count);
    float* panels = kept ? kept->data : scratch.floats(block);
    float* const turned = scratch.floats(some * tall_panels);
    float* const copied = __is_same(B, float) ? nullptr : scratch.floats(some * row);
    const auto rows_of_b = [&](index_t k, index_t n, index_t height, index_t depth, index_t next) {
        if constexpr (__is_same(B, float))
            return Matrix<float>{b.at(k, n).data, b.column, 1};
        else {
            for (index_t i = 0; i < height; ++i) {
                const B* const from = b.at(k, n + i).data;
                const B* const ahead = b.at(next, next > k ? n + i : least(n + some + i, n_count - 1)).data;
                for (index_t j = 0; j < step; j += 64 / sizeof(B)) __builtin_prefetch(ahead + j, 0, 2);
                along(depth, [&](index_t j, auto count, int) INLINE {
                    store(copied + i * row + j, 1, count, load(from + j, 1, count));
                });
            }
            return Matrix<float>{copied, row, 1};
        }
    };
    for (index_t m = 0; m < m_count; m += tall_panels)
        for (index_t k = 0; k < k_count; k += deeper, panels += kept ? block : 0) {
            const index_t breadth = least(tall_panels, m_count - m), depth = least(deeper, k_count - k);
            const index_t rest = breadth % panel_width, apart = a.column == 1 && rest <= lanes / 2 ? rest : 0;
            const index_t whole = breadth - apart, padded = (whole + lanes - 1) / lanes * lanes;
            if (!held) pack_panels<panel_width>(depth, whole, a.at(m, k).turned(), panels);
            for (index_t n = 0; n < n_count; n += some) {
                const index_t height = least(some, n_count - n);
                fill(turned, height * padded, 0.0f);
                for (index_t i = 0; i < (whole ? depth : 0); i += step) {
                    const index_t length = least(step, depth - i);
                    const Matrix<float> rows = rows_of_b(k + i, n, height, length, i + step < depth ? k + i + step : k);
                    const Matrix<float> next = __is_same(B, float) ? rows.at(tallest, 0) : rows;
                    for (index_t j = 0; j < padded; j += panel_width)
                        panel_rows(height, length, rows, next, panels + j * (depth + 1) + i * panel_width,
                                   least(panel_width, padded - j), turned + j, padded);
                }
                add_turned(height, whole, turned, padded, c + m * c_row + n, c_row);
                dot_rows<4, wide>(apart, height, depth, a.at(m + whole, k), b.at(k, n), c + (m + whole) * c_row + n, c_row);
            }
        }
}

// Rows meet columns that are packed once for all rows that come: those of this call, and of later ones. Rows that do not
// lie along the sum are copied as panels too, since turning them would take longer.
template <class B>
inline void contract_columns(index_t m_count, index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b, float* c,
                             index_t c_row, Panels& kept) {
    const bool held = kept.hold(n_count, k_count, b.data);
    const bool grouped = in_groups && n_count > panel_columns && (a.column == 1 || a.row == 1);
    const bool turned = a.column != 1 && !grouped;
    const index_t block = Panels::block(n_count, k_count);
    Scratch scratch;
    float* const copied = turned    ? scratch.floats((m_count + panel_width - 1) / panel_width * panel_width * (k_count + 1))
                          : grouped ? scratch.floats(groups_room(m_count, k_count))
                                    : nullptr;
    if (turned) pack_panels<panel_width>(k_count, m_count, a.turned(), copied);
    for (index_t k = 0; grouped && k < k_count; k += deeper)
        pack_groups(m_count, least(deeper, k_count - k), a.at(0, k), copied + m_count * k);
    const index_t tall = turned ? panel_width : met_rows;
    float* panels = kept.data;
    for (index_t n = 0; n < n_count; n += tall_panels)
        for (index_t k = 0; k < k_count; k += deeper, panels += block) {
            const index_t breadth = least(tall_panels, n_count - n), depth = least(deeper, k_count - k);
            if (!held) pack_panels<panel_width>(depth, breadth, b.at(k, n), panels);
            if (grouped) {
                for (index_t j = 0; j < breadth; j += panel_width)
                    group_panel(m_count, depth, copied + m_count * k, panels + j * (depth + 1),
                                least(panel_width, breadth - j), c + n + j, c_row);
                continue;
            }
            for (index_t m = 0; m < m_count; m += tall)
                for (index_t j = 0; j < breadth; j += panel_width) {
                    const index_t height = least(tall, m_count - m), width = least(panel_width, breadth - j);
                    const float* const panel = panels + j * (depth + 1);
                    float* const to = c + m * c_row + n + j;
                    if (turned) {
                        const Matrix<float> own{copied + m * (k_count + 1) + k * panel_width, panel_width, 1};
                        panel_rows<panel_vectors, true>(height, depth, own, own, panel, width, to, c_row);
                    } else {
                        const Matrix<float> own = a.at(m, k), next = a.at(m + height < m_count ? m + height : m, k);
                        panel_rows(height, depth, own, j == 0 ? next : own, panel, width, to, c_row);
                    }
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
            Vec value = factors[0] * load(from + n, 1, count);
            for (int one = 1; one < STREAMS; ++one) value += factors[one] * load(from + one * b.row + n, 1, count);
            store(c + n, 1, count, load(c + n, 1, count) + value);
        });
    }
    if constexpr (STREAMS > 1)
        if (k < k_count) contract_streams<1>(n_count, k_count - k, a.at(0, k), b.at(k, 0), c);
}

// Whether to compute C transposed: where that copies less. Copies of B count twice, as B comes from far memory.
template <class B>
inline bool is_turned(index_t m_count, index_t n_count, index_t k_count, Matrix<B> b) {
    return b.row == 1 && b.column != 1 && m_count > few && m_count < worth_groups && k_count >= deep &&
           2 * n_count * k_count >= m_count * (n_count + k_count);
}

// Whether all columns of B lie in one piece, as they would in a panel that is packed.
template <class B>
inline bool is_panel(index_t n_count, Matrix<B> b) {
    return b.column == 1 && b.row == n_count && n_count <= panel_columns;
}

// Rows meet columns that lie as a panel: nothing is copied. Few rows have registers for more columns.
template <class B>
inline void contract_in_panel(index_t m_count, index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b,
                              float* c, index_t c_row) {
    constexpr int tall = registers == 32 ? 12 : 6, wide = registers == 32 ? 4 : 2;
    index_t n = 0;
    if (m_count <= tall / 2)
        for (; n + wide * lanes <= n_count; n += wide * lanes)
            contract_rows<tall / 2, wide>(m_count, k_count, a, b.at(0, n), lanes, c + n, c_row);
    for (; n + 2 * lanes <= n_count; n += 2 * lanes)
        contract_rows<tall, 2>(m_count, k_count, a, b.at(0, n), lanes, c + n, c_row);
    for (; n < n_count; n += lanes)
        contract_rows<tall, 1>(m_count, k_count, a, b.at(0, n), least(lanes, n_count - n), c + n, c_row);
}

template <class B>
void contract_floats(index_t m_count, index_t n_count, index_t k_count, Matrix<float> a, Matrix<B> b, float* c,
                     index_t c_row, Panels* kept) {
    constexpr int wide = registers == 32 ? 2 : 1;
    if (m_count <= 0 || n_count <= 0) return;
    if (b.column != 1 && b.row == 1 && a.column == 1 && m_count <= few)
        return dot_rows<4, 2 * wide>(m_count, n_count, k_count, a, b, c, c_row);
    if (is_panel(n_count, b)) return contract_in_panel(m_count, n_count, k_count, a, b, c, c_row);
    if (kept && kept->are_columns) {
        if (m_count > few && kept->room >= Panels::room_of(n_count, k_count))
            return contract_columns(m_count, n_count, k_count, a, b, c, c_row, *kept);
        kept = nullptr;
    }
    if (is_turned(m_count, n_count, k_count, b)) return contract_turned(m_count, n_count, k_count, a, b, c, c_row, kept);
    if (m_count >= worth_groups && n_count > panel_columns && (a.column == 1 || a.row == 1))
        return contract_grouped(m_count, n_count, k_count, a, b, c, c_row);
    if (b.column != 1 || m_count > few) return contract_packed(m_count, n_count, k_count, a, b, c, c_row);
    if (m_count <= 2) {
        Scratch scratch;
        float* const block = scratch.floats(n_count);
        for (index_t m = 0; m < m_count; ++m) {
            Sums sums(c + m * c_row, nullptr, block, n_count, k_count);
            for (index_t k = 0; k < k_count; k += deep, sums.end())
                contract_streams<4>(n_count, least(deep, k_count - k), a.at(m, k), b.at(k, 0), sums.at);
        }
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

// A in another format is copied first, one block at a time.
template <class A, class B>
inline void contract(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                     index_t c_row, Panels* kept = nullptr) {
    if constexpr (__is_same(A, float))
        contract_floats(m_count, n_count, k_count, a, b, c, c_row, kept);
    else {
        const bool turned = is_turned(m_count, n_count, k_count, b);
        Panels* const stay = kept && kept->are_columns ? kept : nullptr;
        const bool whole = m_count <= few || stay;
        const index_t most_m = turned ? broad : m_count, most_k = whole ? k_count : turned ? deeper : deep;
        for (index_t m = 0; m < m_count; m += most_m)
            for (index_t k = 0; k < k_count; k += most_k) {
                Scratch scratch;
                const index_t height = least(most_m, m_count - m), depth = least(most_k, k_count - k);
                const Matrix<float> rows = packed(height, depth, a.at(m, k), scratch);
                contract_floats(height, n_count, depth, rows, b.at(k, 0), c + m * c_row, c_row, stay);
            }
    }
}

// Compiling the contractions takes most of the time to compile a kernel, and they are the same in all kernels.
// With this macro, a kernel calls contractions that were compiled before.
#define CONTRACTION(B) \
    void contract_floats<B>(index_t, index_t, index_t, Matrix<float>, Matrix<B>, float*, index_t, Panels*)
#define PACKING(A) Matrix<float> packed<A>(index_t, index_t, Matrix<A>, Scratch&)
#define PANEL_PACKING void pack_panels<panel_width, float>(index_t, index_t, Matrix<float>, float*)
#define PANEL_ROWS(TURNED)                                                                                             \
    void panel_rows<panel_vectors, TURNED>(index_t, index_t, Matrix<float>, Matrix<float>, const float*, index_t, float*, \
                                           index_t)
#define PANELS void contract_panel<2 * lanes>(index_t, index_t, Matrix<float>, const float*, index_t, float*, index_t)
#ifdef CONTRACTIONS_APART
extern template CONTRACTION(float);
extern template CONTRACTION(bf16);
extern template CONTRACTION(f16);
extern template CONTRACTION(int8_t);
extern template PACKING(float);
extern template PACKING(bf16);
extern template PACKING(f16);
extern template PACKING(int8_t);
extern template PANEL_PACKING;
extern template PANEL_ROWS(false);
extern template PANEL_ROWS(true);
extern template PANELS;
#endif

}  // namespace superopt
