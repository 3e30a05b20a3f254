// Pairs: the same contraction with operands in bf16, by instructions that multiply pairs along the sum.
//
// Both operands are rounded to bf16, and each sum of products is kept in fp32. The instructions take subnormal
// operands as zero and make subnormal sums zero, as they do in PyTorch's own products of bf16. Where the
// processor has no such instructions, `contract_pairs` is `contract`, which rounds no operand.

namespace superopt {

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(PAIRS_EMULATED)
#define HAS_PAIRS

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__) || defined(TILES_EMULATED)
#define HAS_TILES
constexpr index_t pair_step = 16;  // pairs of a tile: what is packed has a whole number of them
#else
constexpr index_t pair_step = 1;
#endif

constexpr int pair_vectors = 4;                     // of a panel
// Rows that meet a panel at a time. On ARM each of them needs a register for its factor.
constexpr int pair_rows = registers == 16 ? 2 : lanes == 4 ? 5 : 6;
constexpr index_t pair_width = pair_vectors * lanes;  // columns of a panel
constexpr index_t pair_depth = 256;  // elements of a sum for which copied rows and panels meet at a time

// Rows of copies in bf16 start so many elements apart: those of a power of two would compete for the same lines.
constexpr index_t pair_row = pair_depth + 32;

// Every lane holds two numbers in bf16, the first one in its lower half; both products are added to the sum.
INLINE inline Vec add_products(Vec sum, Bits a, Bits b) {
#if defined(PAIRS_EMULATED)
    return sum + floats(a << 16) * floats(b << 16) + floats(a & 0xffff0000) * floats(b & 0xffff0000);
#elif defined(__AVX512BF16__)
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#else
    asm("bfdot %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
#endif
}

INLINE inline Shorts as_bf16(Vec value) {
    Shorts rounded;
#if defined(__AVX512BF16__)
    asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(value));  // a subnormal number becomes 0
#else
    bf16 numbers[lanes];
    store(numbers, value);
    memcpy(&rounded, numbers, sizeof rounded);
#endif
    return rounded;
}

// The first `count` elements, `stride` apart, in bf16; the other lanes are 0.
template <class T>
INLINE inline Shorts halves(const T* from, index_t stride, index_t count) {
    return as_bf16(load(from, stride, count));
}

__attribute__((noinline)) inline Shorts halves_apart(const bf16* from, index_t stride, index_t count) {
    Shorts numbers{};
    for (int lane = 0; lane < lanes; ++lane)
        if (lane < count) numbers[lane] = from[lane * stride].bits;
    return numbers;
}

INLINE inline Shorts halves(const bf16* from, index_t stride, index_t count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if (count < lanes && stride == 1) return load_masked(from, mask_of(count));
#endif
    if (count < lanes || stride != 1) return halves_apart(from, stride, count);
    Shorts numbers;
    memcpy(&numbers, from, sizeof numbers);
    return numbers;
}

// So many pairs are made of so many elements; what is beyond these is 0.
inline index_t pairs_of(index_t count) { return (count + 2 * pair_step - 1) / (2 * pair_step) * pair_step; }

INLINE inline Bits pairs_at(const void* from) {
    Bits pairs;
    memcpy(&pairs, from, sizeof pairs);
    return pairs;
}

// Two vectors in bf16, one after the other.
INLINE inline Bits joined(Vec first, Vec second) {
#if defined(__AVX512BF16__)
    Bits pairs;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs) : "v"(second), "v"(first));
    return pairs;
#else
    const Shorts numbers[2] = {as_bf16(first), as_bf16(second)};
    return pairs_at(numbers);
#endif
}

// The pairs of so many elements, `stride` apart; what is beyond them is 0.
template <class T>
INLINE inline Bits pairs_along(const T* from, index_t stride, index_t count) {
    if constexpr (__is_same(T, bf16))
        if (stride == 1) {
            if (count >= 2 * lanes) return pairs_at(from);
#if defined(__AVX512BW__)
            typedef short Whole __attribute__((vector_size(4 * lanes)));
            return (Bits)__builtin_ia32_loaddquhi512_mask((const short*)from, Whole{}, mask_of(count));
#endif
        }
    return joined(load(from, stride, count), load(from + lanes * stride, stride, count - lanes));
}

// The pairs that two rows make with one another; a row that does not exist is 0.
template <class T>
INLINE inline Bits pairs_across(Matrix<T> from, index_t rows, index_t count) {
    const Shorts first = rows > 0 ? halves(from.data, from.column, count) : Shorts{};
    const Shorts second = rows > 1 ? halves(from.at(1, 0).data, from.column, count) : Shorts{};
    return __builtin_convertvector(first, Bits) | __builtin_convertvector(second, Bits) << 16;
}

INLINE inline Bits splat_pair(const bf16* from) {
    uint32_t pair;
    memcpy(&pair, from, sizeof pair);
    return pair - Bits{};
}

// Memory for bf16; it is counted in pairs.
inline bf16* scratch_halves(Scratch& scratch, index_t pairs) { return reinterpret_cast<bf16*>(scratch.floats(pairs)); }

// A block of memory that is needed soon. It is fetched while products are computed: beside so many pairs, of some
// rows as many bytes as these pairs take.
struct Ahead {
    static constexpr index_t line = 64, together = 16;  // bytes; rows
    const char* from;
    index_t row;   // bytes from one row to the next
    index_t rows;  // so many are left

    template <class T>
    static Ahead of(Matrix<T> block, index_t rows) {
        const index_t row = block.column == 1 ? block.row : block.column;
        return {reinterpret_cast<const char*>(block.data), row * index_t(sizeof(T)), rows};
    }
    // The next rows, or where none is left one line.
    Ahead take() {
        const Ahead taken{from, rows > 0 ? row : 0, rows};
        from += rows > 0 ? together * row : 0;
        rows -= together;
        return taken;
    }
    void fetch(index_t pair) const { __builtin_prefetch(from + pair % together * row + pair / together * line, 0, 2); }
};

// Columns of B that were packed: pair after pair, WIDTH of them beside one another.
template <int WIDTH = pair_width>
struct Panel {
    static constexpr int step = 1;  // vectors that are read together
    const uint32_t* data;

    template <int VECTORS>
    INLINE void read(index_t pair, Bits (&values)[VECTORS]) const {
        for (int v = 0; v < VECTORS; ++v) values[v] = held(pairs_at(data + pair * WIDTH + v * lanes));
    }
    template <int VECTORS>
    INLINE void in_order(Vec (&)[VECTORS]) const {}
};

// ROWS x VECTORS accumulators stay in registers while the pairs run; A has its pairs along rows. The last vector may
// have fewer lanes. The sums are added to C, or where they are `first` written there.
template <int ROWS, int VECTORS, class Columns>
void pairs_block(index_t pairs, Matrix<bf16> a, Columns b, index_t count, float* c, index_t c_row, Ahead ahead,
                 bool first) {
    Vec sums[ROWS][VECTORS] = {};

    for (index_t pair = 0; pair < pairs; ++pair) {
        ahead.fetch(pair);
        Bits values[VECTORS];
        b.read(pair, values);
        for (int m = 0; m < ROWS; ++m) {
            const Bits factor = splat_pair(a.data + m * a.row + 2 * pair);
            for (int v = 0; v < VECTORS; ++v) sums[m][v] = add_products(sums[m][v], factor, values[v]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; ++m) {
        b.in_order(sums[m]);
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) {
            float* const to = c + m * c_row + v * lanes;
            const index_t some = v == VECTORS - 1 ? count : index_t(lanes);
            store(to, 1, some, first ? sums[m][v] : load(to, 1, some) + sums[m][v]);
        }
    }
}

template <int ROWS, int VECTORS, class Columns>
inline void pairs_some(index_t rows, index_t columns, index_t pairs, Matrix<bf16> a, Columns b, float* c,
                       index_t c_row, Ahead ahead, bool first) {
    constexpr int fewer = VECTORS - Columns::step;
    if constexpr (ROWS > 1)
        if (rows < ROWS) return pairs_some<ROWS - 1, VECTORS>(rows, columns, pairs, a, b, c, c_row, ahead, first);
    if constexpr (fewer > 0)
        if (columns <= fewer * lanes)
            return pairs_some<ROWS, fewer>(rows, columns, pairs, a, b, c, c_row, ahead, first);
    pairs_block<ROWS, VECTORS>(pairs, a, b, columns - (VECTORS - 1) * lanes, c, c_row, ahead, first);
}

// All rows of A meet up to VECTORS vectors of columns, in equal blocks of at most ROWS rows.
template <int ROWS = pair_rows, int VECTORS = pair_vectors, class Columns>
inline void pairs_rows(index_t m_count, index_t columns, index_t pairs, Matrix<bf16> a, Columns b, float* c,
                       index_t c_row, Ahead& ahead, bool first = false) {
    for (index_t m = 0, blocks = (m_count + ROWS - 1) / ROWS; blocks > 0; --blocks) {
        const index_t rows = (m_count - m + blocks - 1) / blocks;
        pairs_some<ROWS, VECTORS>(rows, columns, pairs, a.at(m, 0), b, c + m * c_row, c_row, ahead.take(), first);
        m += rows;
    }
}

// A copy in bf16, row after row, with zeros behind it as far as pairs and whole vectors reach: what is read there is
// multiplied by 0, and must not be a NaN.
template <class T>
void pack_halves(index_t rows, index_t columns, Matrix<T> from, bf16* to, index_t row) {
    const index_t whole = most(2 * pairs_of(columns), (columns + 2 * lanes - 1) / (2 * lanes) * (2 * lanes));
    if (from.row == 1 && from.column != 1) {  // read along memory
        for (index_t j = 0; j < columns; ++j)
            for (index_t i = 0; i < rows; i += lanes) {
                const index_t count = least(lanes, rows - i);
                const Shorts numbers = halves(from.at(i, j).data, 1, count);
                for (index_t lane = 0; lane < count; ++lane) to[(i + lane) * row + j].bits = numbers[lane];
            }
        for (index_t i = 0; i < rows; ++i)
            for (index_t j = columns; j < whole; ++j) to[i * row + j].bits = 0;
        return;
    }
    for (index_t i = 0; i < rows; ++i)
        for (index_t j = 0; j < whole; j += 2 * lanes) {
            __builtin_prefetch(from.at(i + 4, j).data);
            const Bits pairs = pairs_along(from.at(i, j).data, from.column, columns - j);
            memcpy(to + i * row + j, &pairs, sizeof pairs);  // a row has room for whole vectors
        }
}

// A copy in pairs along the rows, as panels of WIDTH columns, pair after pair in each. Panels are a row longer than
// needed: else they would compete for the same lines of the cache.
template <int WIDTH = pair_width, class T>
void pack_pairs(index_t rows, index_t columns, Matrix<T> from, uint32_t* to) {
    const index_t pairs = pairs_of(rows);
    const auto at = [&](index_t i, index_t j) { return to + (j / WIDTH * (pairs + 1) + i) * WIDTH + j % WIDTH; };
    if (from.row == 1 && from.column != 1) {
        const auto turn = [&](index_t i, index_t j, index_t height, index_t width, index_t count) INLINE {
            transposed(
                width, height,
                [&](index_t v) INLINE {
                    const Matrix<T> line = from.at(2 * i, j + v);
                    __builtin_prefetch(line.at(2 * lanes, 0).data);
                    return floats(pairs_along(line.data, 1, count));
                },
                [&](index_t v, Vec row) INLINE { memcpy(at(i + v, j), &row, sizeof row); });
        };
        for (index_t j = 0; j < columns; j += lanes)
            for (index_t i = 0; i < pairs; i += lanes) {
                const bool whole = j + lanes <= columns && 2 * (i + lanes) <= rows;
                if (whole)
                    turn(i, j, lanes, lanes, 2 * lanes);
                else
                    turn(i, j, least(lanes, pairs - i), least(lanes, columns - j), rows - 2 * i);
            }
        return;
    }
    for (index_t i = 0; i < pairs; ++i) {
        // The hardware does not guess where rows go on that are so short.
        const T* const ahead = from.at(least(2 * i + 16, rows - 1), 0).data;
        for (index_t j = 0; j < columns; j += lanes) {
            __builtin_prefetch(ahead + j * from.column);
            __builtin_prefetch(ahead + from.row + j * from.column);
            const Bits both = pairs_across(from.at(2 * i, j), rows - 2 * i, columns - j);
            memcpy(at(i, j), &both, sizeof both);
        }
    }
}

inline index_t panels_room(index_t rows, index_t columns) {
    return (pairs_of(rows) + 1) * ((columns + pair_width - 1) / pair_width * pair_width);
}

#if !defined(__clang__)
// Two vectors whose numbers differ in one bit become one: lanes `low` of both, plus those `more` further on.
template <int BIT, int DONE>
INLINE inline void fold_lanes(Vec (&vectors)[lanes], Int low, int more) {
#pragma GCC unroll 16
    for (int one = 0; one < lanes; ++one)
        if ((one & (BIT | DONE)) == 0)
            vectors[one] = __builtin_shuffle(vectors[one], vectors[one | BIT], low) +
                           __builtin_shuffle(vectors[one], vectors[one | BIT], low + more);
}
#endif

// The sum of the lanes of each vector, in the lane of its number.
INLINE inline Vec sums_of_lanes(Vec (&vectors)[lanes]) {
#if defined(__clang__)
    Vec result;
    for (int lane = 0; lane < lanes; ++lane) result[lane] = sum(vectors[lane]);
    return result;
#else
    // In this order of the bits, all shuffles are cheap ones: of halves, then inside four lanes.
    const Int number = lane_numbers(), four = number & ~3, odd = number & 1, other = (number & 2) * (lanes / 2);
    if constexpr (lanes > 4)
        fold_lanes<4, 0>(vectors, number + (number & (lanes / 2)), lanes / 2);
    if constexpr (lanes > 8) fold_lanes<8, 4>(vectors, four + number, 4);
    fold_lanes<1, lanes - 4>(vectors, four + odd + other, 2);
    fold_lanes<2, lanes - 3>(vectors, four + 2 * odd + other, 1);
    return vectors[0];
#endif
}

// The lanes from one on.
INLINE inline Vec from_lane(Vec value, int first) {
#if defined(__clang__)
    Vec result{};
    for (int lane = first; lane < lanes; ++lane) result[lane - first] = value[lane];
    return result;
#else
    return __builtin_shuffle(value, lane_numbers() + first);
#endif
}

// ROWS x COLUMNS dot products at a time, where both operands lie along the sum.
template <int ROWS, int COLUMNS, class B>
inline void pairs_dots(index_t k_count, const bf16* a, index_t a_row, Matrix<B> b, float* c, index_t c_row) {
    constexpr int groups = (ROWS * COLUMNS + lanes - 1) / lanes;
    constexpr bool by_rows = lanes == 16 ? groups == 1 : COLUMNS == lanes;  // each row is part of one vector
    Vec sums[groups][lanes];
#pragma GCC unroll 16
    for (Vec(&group)[lanes] : sums)
#pragma GCC unroll 16
        for (Vec& sum : group) sum = Vec{};
    const auto add = [&](index_t k, index_t count) INLINE {
        Bits factors[ROWS];
#pragma GCC unroll 16
        for (int m = 0; m < ROWS; ++m) factors[m] = held(pairs_at(a + m * a_row + k));
#pragma GCC unroll 16
        for (int n = 0; n < COLUMNS; ++n) {
            const Bits value = held(pairs_along(b.data + n * b.column + k, 1, count));
#pragma GCC unroll 16
            for (int m = 0; m < ROWS; ++m) {
                Vec& sum = sums[(m * COLUMNS + n) / lanes][(m * COLUMNS + n) % lanes];
                sum = add_products(sum, factors[m], value);
            }
        }
    };
    index_t k = 0;
    for (; k + 2 * lanes <= k_count; k += 2 * lanes) {
        for (int n = 0; n < COLUMNS; ++n) __builtin_prefetch(b.data + (n + COLUMNS) * b.column + k);
        add(k, 2 * lanes);
    }
    if (k < k_count) add(k, k_count - k);
#pragma GCC unroll 8
    for (int group = 0; group < groups; ++group) {
        const Vec found = sums_of_lanes(sums[group]);
        if constexpr (by_rows) {
#pragma GCC unroll 16
            for (int m = group * lanes / COLUMNS; m < least((group + 1) * lanes / COLUMNS, ROWS); ++m) {
                float* const to = c + m * c_row;
                const Vec row = m == 0 || COLUMNS == lanes ? found : from_lane(found, m * COLUMNS);
                store(to, 1, COLUMNS, load(to, 1, COLUMNS) + row);
            }
            continue;
        }
#pragma GCC unroll 16
        for (int lane = 0; lane < lanes; ++lane) {
            const int one = group * lanes + lane;
            if (one < ROWS * COLUMNS) c[one / COLUMNS * c_row + one % COLUMNS] += found[lane];
        }
    }
}

// One row, as in `dot_columns`: columns are read as they often lie in memory, one after the other.
template <class B>
inline void pairs_dot_columns(index_t n_count, index_t k_count, const bf16* a, Matrix<B> b, float* c) {
    constexpr index_t line = 64 / sizeof(B), wide = 2 * lanes;
    const index_t later = read_later(k_count, b);
    for (index_t n = 0; n < n_count; ++n) {
        const B* const from = b.data + n * b.column;
        Vec sums[4]{};
        const auto add = [&](index_t k, index_t count, int turn) INLINE {
            if (turn * wide % line == 0)
                for (index_t at = 0; at < wide; at += line) __builtin_prefetch(from + later + k + at, 0, 2);
            sums[turn] = add_products(sums[turn], pairs_at(a + k), pairs_along(from + k, 1, count));
        };
        index_t k = 0;
        for (; k + 4 * wide <= k_count; k += 4 * wide)
#pragma GCC unroll 4
            for (int turn = 0; turn < 4; ++turn) add(k + turn * wide, wide, turn);
        for (; k < k_count; k += wide) add(k, k_count - k, 0);
        c[n] += sum(sums);
    }
}

template <int ROWS, int COLUMNS, class B>
inline void pairs_dot_rows(index_t rows, index_t n_count, index_t k_count, const bf16* a, index_t a_row, Matrix<B> b,
                           float* c, index_t c_row) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return pairs_dot_rows<ROWS - 1, COLUMNS>(rows, n_count, k_count, a, a_row, b, c, c_row);
    index_t n = 0;
    for (; n + COLUMNS <= n_count; n += COLUMNS)
        pairs_dots<ROWS, COLUMNS>(k_count, a, a_row, b.at(0, n), c + n, c_row);
    for (; n < n_count; ++n) pairs_dots<ROWS, 1>(k_count, a, a_row, b.at(0, n), c + n, c_row);
}
#endif

}  // namespace superopt
