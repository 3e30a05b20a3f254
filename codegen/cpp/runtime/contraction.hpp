// Contraction: C[m, n] += sum over k of A[m, k] B[k, n], from any format and strides.

namespace superopt {

// A block of the packed operand: positions of the sum, and columns. A block of this size stays in the second cache.
constexpr index_t deep = 256, deeper = 1024, broad = 256;

constexpr index_t few = 16;  // rows of A, for which nothing of B is copied

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

// A copy in fp32 as panels of WIDTH columns, row after row in each, so that what is read together lies together.
// Panels are a row longer than needed: else they would compete for the same lines of the cache.
template <int WIDTH, class T>
void pack_panels(index_t rows, index_t columns, Matrix<T> from, float* to) {
    const auto at = [&](index_t i, index_t j) { return to + (j / WIDTH * (rows + 1) + i) * WIDTH + j % WIDTH; };
    if (from.row == 1 && from.column != 1) {  // few columns at a time, so that the cache keeps the lines that are read further
        for (index_t j = 0; j < columns; j += lanes)
            for (index_t i = 0; i < rows; i += lanes) {
                const index_t height = least(lanes, rows - i), width = least(lanes, columns - j);
                transposed(
                    width, height, [&](index_t v) INLINE { return load(from.at(i, j + v).data, 1, height); },
                    [&](index_t v, Vec row) INLINE { store(at(i + v, j), row); });
            }
        return;
    }
    for (index_t i = 0; i < rows; ++i) {
        const T* const ahead = from.at(least(i + 8, rows - 1), 0).data;  // rows are too short for the hardware to prefetch
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
            transposed(
                height, width, [&](index_t v) INLINE { return load(from + (i + v) * from_row + j); },
                [&](index_t v, Vec sums) INLINE {
                    float* const to = c + (j + v) * c_row + i;
                    store(to, 1, height, load(to, 1, height) + sums);
                });
        }
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

// Many rows: blocks of B that fit the second cache are packed, and all rows are multiplied with each.
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

// The packed rows of A, for several contractions that read the same A while nothing writes to it.
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
    // Whether the panels hold a matrix already; else they are noted as holding it, and the caller fills them.
    bool hold(index_t m_count, index_t k_count, Matrix<float> a) {
        const bool known = of == a.data && rows == m_count && columns == k_count;
        of = a.data, rows = m_count, columns = k_count;
        return known;
    }
};

// Many rows of A, and columns of B that lie along k: the transpose of C is computed, since A is packed into panels
// faster than B. B is read where it lies or, in another format, a few columns at a time from a copy.
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
    return b.row == 1 && b.column != 1 && m_count > few && k_count >= deep &&
           2 * n_count * k_count >= m_count * (n_count + k_count);
}

// Whether all columns of B lie in one piece, as they would in a panel that is packed.
constexpr index_t panel_columns = 64;
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
    if (b.column != 1 && b.row == 1 && a.column == 1 && m_count <= few)
        return dot_rows<4, 2 * wide>(m_count, n_count, k_count, a, b, c, c_row);
    if (is_panel(n_count, b)) return contract_in_panel(m_count, n_count, k_count, a, b, c, c_row);
    if (is_turned(m_count, n_count, k_count, b)) return contract_turned(m_count, n_count, k_count, a, b, c, c_row, kept);
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

// Compiling the contractions takes most of the time to compile a kernel, and they are the same in all kernels.
// With this macro, a kernel calls contractions that were compiled before.
#define CONTRACTION(B) \
    void contract_floats<B>(index_t, index_t, index_t, Matrix<float>, Matrix<B>, float*, index_t, Panels*)
#define PACKING(A) Matrix<float> packed<A>(index_t, index_t, Matrix<A>, Scratch&)
#define PANEL_PACKING void pack_panels<2 * lanes, float>(index_t, index_t, Matrix<float>, float*)
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
extern template PANELS;
#endif

}  // namespace superopt
