// Blocks: products of a few rows and columns, whose sums stay in registers.

namespace superopt {

template <class T>
struct Matrix {
    const T* data;
    index_t row;
    index_t column;
    Matrix at(index_t i, index_t j) const { return {data + i * row + j * column, row, column}; }
    Matrix turned() const { return {data, column, row}; }
};

// Keeps a value in a register, so that the compiler does not load it again for each product.
template <class T>
INLINE inline T held(T value) {
#if defined(__AVX512F__)
    asm("" : "+v"(value));
#elif defined(__x86_64__)
    asm("" : "+x"(value));
#elif defined(__aarch64__)
    asm("" : "+w"(value));
#endif
    return value;
}

// ROWS x VECTORS accumulators stay in registers while k runs. The last vector of C has `count` lanes; of several
// vectors of B all lanes are read.
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
            if (v == VECTORS - 1 && (VECTORS == 1 || count < lanes))
                store(to, 1, count, load(to, 1, count) + sums[m][v]);
            else
                store(to, load(to) + sums[m][v]);
        }
}

// A long sum is added up in blocks, so that its roundings do not add up along all of it.
template <int ROWS, int VECTORS, class A, class B>
inline void contract_some(index_t rows, index_t k_count, Matrix<A> a, Matrix<B> b, index_t count, float* c,
                          index_t c_row) {
    if (rows == ROWS) {
        for (index_t k = 0; k < k_count; k += sum_block)
            contract_block<ROWS, VECTORS>(least(sum_block, k_count - k), a.at(0, k), b.at(k, 0), count, c, c_row);
        return;
    }
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
    constexpr index_t line = 64 / sizeof(B);
    index_t k = 0;
    for (; k + line <= k_count; k += line) {
        for (int n = 0; n < COLUMNS; ++n) __builtin_prefetch(b.data + (n + COLUMNS) * b.column + k);
#pragma GCC unroll 4
        for (index_t at = 0; at < line; at += lanes) add(k + at, lanes);
    }
    for (; k + lanes <= k_count; k += lanes) add(k, lanes);
    if (k < k_count) add(k, k_count - k);
    for (int m = 0; m < ROWS; ++m)
        for (int n = 0; n < COLUMNS; ++n) c[m * c_row + n] += sum(sums[m][n]);
}

// How many elements further lies what is read 4 KB later, where columns are read one after the other.
template <class B>
inline index_t read_later(index_t k_count, Matrix<B> b) {
    constexpr index_t far = 4096 / sizeof(B);
    return k_count > far ? far : far / most(1, k_count) * b.column;
}

// One row: columns are read one after the other, as they often lie in memory. What is read later is fetched into the
// second cache, since the hardware's guesses end with each page.
template <class A, class B>
inline void dot_columns(index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c) {
    constexpr index_t line = 64 / sizeof(B);
    const index_t later = read_later(k_count, b);
    for (index_t n = 0; n < n_count; ++n) {
        const B* const from = b.data + n * b.column;
        Vec sums[4]{};
        along<4>(k_count, [&](index_t k, auto count, int turn) INLINE {
            if (turn * lanes % line == 0) __builtin_prefetch(from + later + k, 0, 2);
            sums[turn] += load(a.data + k, 1, count) * load(from + k, 1, count);
        });
        c[n] += sum(sums);
    }
}

template <int ROWS, int COLUMNS, class A, class B>
inline void dot_rows(index_t m_count, index_t n_count, index_t k_count, Matrix<A> a, Matrix<B> b, float* c,
                     index_t c_row) {
    index_t m = 0;
    for (; m + ROWS <= m_count; m += ROWS) {
        if constexpr (ROWS == 1) {
            dot_columns(n_count, k_count, a.at(m, 0), b, c + m * c_row);
            continue;
        }
        index_t n = 0;
        for (; n + COLUMNS <= n_count; n += COLUMNS)
            dot_block<ROWS, COLUMNS>(k_count, a.at(m, 0), b.at(0, n), c + m * c_row + n, c_row);
        for (; n < n_count; ++n) dot_block<ROWS, 1>(k_count, a.at(m, 0), b.at(0, n), c + m * c_row + n, c_row);
    }
    if constexpr (ROWS > 1)
        if (m < m_count)
            dot_rows<ROWS / 2, COLUMNS>(m_count - m, n_count, k_count, a.at(m, 0), b, c + m * c_row, c_row);
}

}  // namespace superopt
