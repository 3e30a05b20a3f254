// Long sums: terms are added up in blocks, and each block's sum is added on its own, so that little is rounded away.

namespace superopt {

constexpr index_t sum_block = 128;  // terms of a block
constexpr index_t short_sum = 32;  // up to so many terms, a block would take longer than what is added

// Add a part to a sum. `rest` is what rounding has taken from the sum so far, and is added with the next part.
template <class Number>
INLINE inline void add_part(Number& sum, Number& rest, Number part) {
    const Number term = part + rest, whole = sum + term, added = whole - sum;
    rest = (sum - (whole - added)) + (term - added);
    rest = rest - rest == 0.0f ? rest : Number{};  // of an infinite sum nothing is left
    sum = whole;
}

// Walk along positions as `along` does; after each block of terms for every lane, and at the end, `pause` is told how
// many positions there were.
template <int TURNS = 1, class Body, class Pause>
INLINE inline void along_blocks(index_t count, Body body, Pause pause) {
    constexpr index_t block = sum_block * TURNS * lanes;
    for (index_t first = 0; first < count; first += block) {
        const index_t some = least(block, count - first);
        along<TURNS>(some, [&](index_t at, auto wide, int turn) INLINE { body(first + at, wide, turn); });
        pause(some);
    }
}

// A long sum in registers: these are emptied before they hold much.
class LongSum {
public:
    template <class Registers>
    INLINE void next(Registers& row, index_t terms) {
        terms_ += terms;
        if (terms_ >= index_t(sum_block * sizeof row / sizeof(float))) empty(row);
    }
    template <class Registers>
    INLINE float end(Registers& row) {
        empty(row);
        return sum(whole_);
    }

private:
    Vec whole_{}, rest_{};
    index_t terms_ = 0;

    template <int TURNS>
    INLINE void empty(Vec (&row)[TURNS]) {
        for (int turn = 1; turn < TURNS; ++turn) row[0] += row[turn], row[turn] = Vec{};
        empty(row[0]);
    }
    INLINE void empty(Vec& row) {
        add_part(whole_, rest_, row);
        row = Vec{};
        terms_ = 0;
    }
};

// Add a block to a row of sums, and empty it.
__attribute__((noinline)) inline void add_block(float* block, float* sums, float* rests, index_t count) {
    along(count, [&](index_t i, auto some, int) INLINE {
        Vec sum = load(sums + i, 1, some);
        const Vec part = load(block + i, 1, some);
        if (rests) {
            Vec rest = load(rests + i, 1, some);
            add_part(sum, rest, part);
            store(rests + i, 1, some, rest);
        } else
            sum += part;
        store(sums + i, 1, some, sum);
        store(block + i, 1, some, Vec{});
    });
}

// A row of sums, to which rows of terms are added at `at`; without `rests`, what is rounded away is lost. A sum that has
// rests is long, so that even a few terms of it are added up in a block.
class Sums {
public:
    float* const at;

    INLINE Sums(float* sums, float* rests, float* block, index_t count, index_t terms)
        : at(rests || terms > short_sum ? block : sums), sums_(sums), rests_(rests), count_(count) {
        if (at != sums) fill(at, count, 0.0f);
    }
    // A row of terms was added.
    INLINE void next() {
        if (++terms_ == sum_block) end();
    }
    INLINE void end() {
        terms_ = 0;
        if (at != sums_) add_block(at, sums_, rests_, count_);
    }

private:
    float *const sums_, *const rests_;
    const index_t count_;
    index_t terms_ = 0;
};

// Columns that one row meets at once: as many as make up for the time that each addition takes.
constexpr int vectors_at_once = 2;
constexpr index_t columns_at_once = vectors_at_once * lanes;

// Walk along the next of these columns, vector by vector; the last vector may have fewer lanes.
template <class Body>
INLINE inline void along_columns(index_t first, index_t count, Body body) {
#pragma GCC unroll 2
    for (int turn = 0; turn < vectors_at_once; ++turn) {
        const index_t at = first + turn * lanes, left = count - at;
        if (left >= lanes)
            body(at, AllLanes{}, turn);
        else if (left > 0)
            body(at, left, turn);
    }
}

inline void add_vectors(Vec (&sums)[vectors_at_once], const Vec (&parts)[vectors_at_once]) {
    for (int turn = 0; turn < vectors_at_once; ++turn) sums[turn] += parts[turn];
}

}  // namespace superopt
