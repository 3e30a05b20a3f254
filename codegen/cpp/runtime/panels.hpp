// Panels: copies in which columns that are read together lie together, and rows that meet them.

namespace superopt {

#if !defined(__clang__)  // Clang has no shuffle by a computed vector
// Lanes of two vectors, counted through both, become two other vectors.
INLINE inline void deal(Vec& a, Vec& b, Int first, Int second) {
    const Vec old = a;
    a = __builtin_shuffle(old, b, first);
    b = __builtin_shuffle(old, b, second);
}
#endif

// Rows become columns: first in squares of four rows and lanes, then these squares change places. No instruction
// but the cheapest shuffles is needed. Loops over registers are unrolled, else the registers would lie in memory.
INLINE inline void transpose(Vec (&block)[lanes]) {
#if defined(__clang__)
    for (int row = 0; row < lanes; ++row)
        for (int lane = 0; lane < row; ++lane) {
            const float other = block[row][lane];
            block[row][lane] = block[lane][row];
            block[lane][row] = other;
        }
#else
    const Int number = lane_numbers(), four = number & ~3, odd = number & 1, late = (number & 2) / 2;
    const Int singles = four + late + odd * lanes, pairs = four + odd + late * lanes, fours = four + number;
#pragma GCC unroll 4
    for (int row = 0; row < lanes; row += 4) {
        deal(block[row], block[row + 1], singles, singles + 2);
        deal(block[row + 2], block[row + 3], singles, singles + 2);
        deal(block[row], block[row + 2], pairs, pairs + 2);
        deal(block[row + 1], block[row + 3], pairs, pairs + 2);
        const Vec second = block[row + 2];
        block[row + 2] = block[row + 1];
        block[row + 1] = second;
    }
#pragma GCC unroll 2
    for (int step = 4; step < lanes; step *= 2)
#pragma GCC unroll 16
        for (int row = 0; row < lanes; ++row)
            if ((row & step) == 0) deal(block[row], block[row + step], fours, fours + 4);
#endif
}

// Store a transposed block: `row(v)` is read for the first `height` rows, and `put(v, value)` gets the first
// `width` columns.
template <class Row, class Put>
INLINE inline void transposed(index_t height, index_t width, Row row, Put put) {
    Vec block[lanes] = {};
    if (height >= lanes && width >= lanes) {
#pragma GCC unroll 16
        for (int v = 0; v < lanes; ++v) block[v] = row(v);
        transpose(block);
#pragma GCC unroll 16
        for (int v = 0; v < lanes; ++v) put(v, block[v]);
        return;
    }
    for (index_t v = 0; v < least(lanes, height); ++v) block[v] = row(v);
    transpose(block);
    for (index_t v = 0; v < least(lanes, width); ++v) put(v, block[v]);
}

// A copy in fp32, row after row.
template <class T>
Matrix<float> packed(index_t rows, index_t columns, Matrix<T> from, Scratch& scratch) {
    float* const to = scratch.floats(rows * columns);
    if (from.row == 1 && from.column != 1) {  // read along memory, and turn square blocks around
        for (index_t i = 0; i < rows; i += lanes)
            for (index_t j = 0; j < columns; j += lanes) {
                const index_t height = least(lanes, rows - i), width = least(lanes, columns - j);
                transposed(
                    width, height, [&](index_t v) INLINE { return load(from.at(i, j + v).data, 1, height); },
                    [&](index_t v, Vec row) INLINE { store(to + (i + v) * columns + j, 1, width, row); });
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

// The place of an element in panels of WIDTH columns, row after row in each, so that what is read together lies together.
// Panels are a row longer than needed: else they would compete for the same lines of the cache.
template <int WIDTH>
INLINE inline index_t panel_place(index_t rows, index_t i, index_t j) {
    return (j / WIDTH * (rows + 1) + i) * WIDTH + j % WIDTH;
}

// Some of the rows that become panels in fp32. Those that come so much LATER are fetched: the hardware does not guess
// rows that are so short.
template <int WIDTH, int LATER, class T>
inline void pack_rows(index_t rows, index_t first, index_t last, index_t columns, Matrix<T> from, float* to) {
    for (index_t i = first; i < last; ++i) {
        const T* const ahead = from.at(least(i + LATER, rows - 1), 0).data;
        along(columns, [&](index_t j, auto count, int) INLINE {
            if constexpr (LATER > 0) __builtin_prefetch(ahead + j * from.column);
            store(to + panel_place<WIDTH>(rows, i, j), load(from.at(i, j).data, from.column, count));
        });
    }
}

// A copy in fp32 as panels.
template <int WIDTH, class T>
void pack_panels(index_t rows, index_t columns, Matrix<T> from, float* to) {
    if (from.row != 1 || from.column == 1) return pack_rows<WIDTH, 8>(rows, 0, rows, columns, from, to);
    // Few columns at a time, so that the cache keeps the lines that are read further.
    for (index_t j = 0; j < columns; j += lanes)
        for (index_t i = 0; i < rows; i += lanes) {
            const index_t height = least(lanes, rows - i), width = least(lanes, columns - j);
            transposed(
                width, height, [&](index_t v) INLINE { return load(from.at(i, j + v).data, 1, height); },
                [&](index_t v, Vec row) INLINE { store(to + panel_place<WIDTH>(rows, i + v, j), row); });
        }
}

// C += the transpose of what was computed.
inline void add_turned(index_t rows, index_t columns, const float* from, index_t from_row, float* c, index_t c_row) {
    for (index_t j = 0; j < columns; j += lanes)
        for (index_t i = 0; i < rows; i += lanes) {
            const index_t height = least(lanes, rows - i), width = least(lanes, columns - j);
            transposed(
                height, width, [&](index_t v) INLINE { return load(from + (i + v) * from_row + j); },
                [&](index_t v, Vec sums) INLINE {
                    float* const to = c + (j + v) * c_row + i;
                    store(to, 1, height, load(to, 1, height) + sums);
                });
        }
}

// A panel is as many vectors wide as the registers allow: each element of A that is read serves so many products.
constexpr int panel_vectors = registers == 32 ? 4 : 2;
constexpr int panel_width = panel_vectors * lanes;

// ROWS x VECTORS sums of rows of A and of a panel stay in registers while k runs. Where the rows lie along the sum, as many
// that are read later are fetched into the second cache: the hardware does not guess them where they are a page apart. Of
// rows that are TURNED, those of one k lie together.
template <bool TURNED, int ROWS, int VECTORS>
inline void panel_block(index_t k_count, const float* a, index_t a_row, Matrix<float> next, const float* panel,
                        index_t count, float* c, index_t c_row) {
    constexpr index_t line = 64 / sizeof(float), later = 6;  // rows of the panel
    if constexpr (registers == 16)  // the sums are added to these numbers at the end
        for (int m = 0; m < ROWS; ++m)
            for (int v = 0; v < 2; ++v) __builtin_prefetch(c + m * c_row + v * (VECTORS * lanes - 1), 1);
    Vec sums[ROWS][VECTORS] = {};
    const auto add = [&](index_t k) INLINE {
        const float* const from = panel + k * panel_width;
        if constexpr (registers == 32)  // with fewer, the processor has no time for more instructions
            for (index_t at = 0; at < panel_width; at += line) __builtin_prefetch(from + later * panel_width + at);
        Vec values[VECTORS];
        for (int v = 0; v < VECTORS; ++v) values[v] = held(load(from + v * lanes));
        for (int m = 0; m < ROWS; ++m) {
            const Vec factor = splat(TURNED ? a[k * a_row + m] : a[m * a_row + k]);
            for (int v = 0; v < VECTORS; ++v) sums[m][v] += factor * values[v];
        }
    };
    index_t k = 0;
    for (; k + line <= k_count; k += line) {
        if constexpr (!TURNED)
            for (int m = 0; m < ROWS; ++m) __builtin_prefetch(next.data + m * next.row + k, 0, 2);
#pragma GCC unroll 4
        for (index_t at = 0; at < line; ++at) add(k + at);
    }
    for (; k < k_count; ++k) add(k);
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) {
            float* const to = c + m * c_row + v * lanes;
            if (v == VECTORS - 1 && count < lanes)
                store(to, 1, count, load(to, 1, count) + sums[m][v]);
            else
                store(to, load(to) + sums[m][v]);
        }
}

// Terms that registers add up before memory takes their sum: with fewer, that would take a good part of the time.
constexpr index_t panel_sum = 2 * sum_block;

// A long sum is added up in blocks, so that its roundings do not add up along all of it.
template <bool TURNED, int ROWS, int VECTORS>
inline void panel_some(index_t rows, index_t k_count, Matrix<float> a, Matrix<float> next, const float* panel,
                       index_t count, float* c, index_t c_row) {
    if (rows == ROWS) {
        for (index_t k = 0; k < k_count; k += panel_sum)
            panel_block<TURNED, ROWS, VECTORS>(least(panel_sum, k_count - k), TURNED ? a.data + k * a.row : a.data + k, a.row,
                                               next.at(0, k), panel + k * panel_width, count, c, c_row);
        return;
    }
    if constexpr (ROWS > 1) panel_some<TURNED, ROWS - 1, VECTORS>(rows, k_count, a, next, panel, count, c, c_row);
}

// The first cache has room for a line of each of eight rows that lie a page apart, as they often do, and not of more.
constexpr int tallest = 8;

// Rows of a block that meets a whole panel.
constexpr index_t met_rows = 6;

// All rows meet a panel, in equal blocks that fill the registers. For each row, one of `next` is fetched. Rows that are
// TURNED are given with the distance from one k to the next.
template <int VECTORS = panel_vectors, bool TURNED = false>
void panel_rows(index_t m_count, index_t k_count, Matrix<float> a, Matrix<float> next, const float* panel,
                index_t columns, float* c, index_t c_row) {
    if constexpr (VECTORS > 1)
        if (columns <= (VECTORS - 1) * lanes)
            return panel_rows<VECTORS - 1, TURNED>(m_count, k_count, a, next, panel, columns, c, c_row);
    constexpr int tall = registers == 16 || VECTORS == 4 ? met_rows : tallest;
    const index_t count = columns - (VECTORS - 1) * lanes;
    for (index_t m = 0, blocks = (m_count + tall - 1) / tall; blocks > 0; --blocks) {
        const index_t rows = (m_count - m + blocks - 1) / blocks;
        const Matrix<float> own = TURNED ? Matrix<float>{a.data + m, a.row, 1} : a.at(m, 0);
        panel_some<TURNED, tall, VECTORS>(rows, k_count, own, next.at(TURNED ? 0 : m, 0), panel, count, c + m * c_row, c_row);
        m += rows;
    }
}

// Rows copied in equal groups, of as many as meet a panel at once: in each, those of one k lie together.
template <class Group>
INLINE inline void in_equal_groups(index_t m_count, Group group) {
    for (index_t m = 0, left = (m_count + met_rows - 1) / met_rows; left > 0; --left) {
        const index_t height = (m_count - m + left - 1) / left;
        group(m, height);
        m += height;
    }
}
// A group is written in whole vectors: what is too much is written over by what follows, or by nothing at the end.
constexpr index_t groups_room(index_t m_count, index_t k_count) { return m_count * k_count + lanes; }

inline void pack_groups(index_t m_count, index_t k_count, Matrix<float> a, float* to) {
    in_equal_groups(m_count, [&](index_t m, index_t height) INLINE {
        float* const own = to + m * k_count;
        index_t k = 0;
        if (a.column != 1)
            for (; k < k_count; ++k) store(own + k * height, load(a.at(m, k).data, 1, height));
        for (; k + lanes <= k_count; k += lanes)
            transposed(
                lanes, lanes, [&](index_t v) INLINE { return load(a.at(m + least(v, height - 1), k).data); },
                [&](index_t v, Vec values) INLINE { store(own + (k + v) * height, values); });
        for (; k < k_count; ++k)
            for (index_t v = 0; v < height; ++v) own[k * height + v] = *a.at(m + v, k).data;
    });
}

// All groups meet a panel.
inline void group_panel(index_t m_count, index_t k_count, const float* groups, const float* panel, index_t columns,
                        float* c, index_t c_row) {
    in_equal_groups(m_count, [&](index_t m, index_t height) INLINE {
        const Matrix<float> own{groups + m * k_count, height, 1};
        panel_rows<panel_vectors, true>(height, k_count, own, own, panel, columns, c + m * c_row, c_row);
    });
}

// All rows are multiplied with one packed panel of B, whose rows have WIDTH elements even where it has fewer columns.
template <int WIDTH>
void contract_panel(index_t m_count, index_t k_count, Matrix<float> a, const float* panel, index_t columns, float* c,
                    index_t c_row) {
    constexpr int tall = registers == 32 ? 12 : 6;
    const Matrix<float> b{panel, WIDTH, 1};
    constexpr index_t others = WIDTH - lanes;
    if (columns > others) return contract_rows<tall, WIDTH / lanes>(m_count, k_count, a, b, columns - others, c, c_row);
    for (index_t n = 0; n < columns; n += lanes)
        contract_rows<tall, 1>(m_count, k_count, a, b.at(0, n), least(lanes, columns - n), c + n, c_row);
}

}  // namespace superopt
