// Gathered: a contraction of operands that are read through windows. Small parts of them are copied, with zeros
// where a window reads outside, and meet as plain matrices.

namespace superopt {

// Several axes as one index, the last of them innermost.
template <int AXES, int PLACES>
struct Index {
    static constexpr int places = PLACES ? PLACES : 1;
    index_t count[AXES];
    index_t stride[AXES];          // how far apart neighbours lie in memory
    index_t factor[places][AXES];  // how far a place moves with each axis

    index_t size() const {
        index_t all = 1;
        for (int axis = 0; axis < AXES; ++axis) all *= count[axis];
        return all;
    }
    // How far apart neighbours of the whole index lie, where that is one number other than 0; else 0.
    index_t step() const {
        index_t found = 0, next = 0;
        for (int axis = AXES - 1; axis >= 0; --axis) {
            if (count[axis] == 1) continue;
            if (!stride[axis] || (next && stride[axis] != next)) return 0;
            if (!next) found = stride[axis];
            next = stride[axis] * count[axis];
        }
        return next ? found : 1;
    }
    index_t last() const {
        int axis = AXES - 1;
        while (axis > 0 && count[axis] == 1) --axis;
        return stride[axis];
    }
};

// A matrix whose rows and columns are several axes each. An element is 0 where one of its places is outside.
template <class T, int ROWS, int COLUMNS, int PLACES>
struct Gathered {
    static constexpr int places = PLACES ? PLACES : 1;
    const T* data;
    Index<ROWS, PLACES> rows;
    Index<COLUMNS, PLACES> columns;
    index_t first[places];
    index_t size[places];

    Gathered<T, COLUMNS, ROWS, PLACES> turned() const {
        Gathered<T, COLUMNS, ROWS, PLACES> other{data, columns, rows, {}, {}};
        for (int place = 0; place < places; ++place) other.first[place] = first[place], other.size[place] = size[place];
        return other;
    }
    bool is_plain() const { return !PLACES && rows.step() && columns.step(); }
    Matrix<T> plain() const { return {data, rows.step(), columns.step()}; }

    // The matrix at one position of an axis of its rows, or of its columns.
    Gathered at_row(int axis, index_t position) const { return moved(&Gathered::rows, axis, position); }
    Gathered at_column(int axis, index_t position) const { return moved(&Gathered::columns, axis, position); }

private:
    template <class Part>
    Gathered moved(Part part, int axis, index_t position) const {
        Gathered one = *this;
        one.data += position * (this->*part).stride[axis];
        for (int place = 0; place < PLACES; ++place) one.first[place] += position * (this->*part).factor[place][axis];
        (one.*part).count[axis] = 1;
        return one;
    }
};

// Neighbours along the innermost axis: where they begin among the columns, and what the other axes add.
template <int PLACES>
struct Stretch {
    index_t at, length, offset;
    index_t place[PLACES ? PLACES : 1];
};

// A copy in fp32 of neighbours `stride` apart, of which those from `begin` to `end` exist; the others are 0. What
// lies up to a vector behind them is overwritten.
template <class T>
INLINE inline void copy_stretch(const T* from, index_t stride, index_t begin, index_t end, index_t length, float* to) {
    end = most(begin, end);
    for (index_t at = 0; at < length; at += lanes) {
        const bool whole = begin <= at && at + lanes <= end;
        store(to + at, load_window(whole, from + at * stride, stride, least(lanes, length - at), at - begin, 1, end - begin));
    }
}

// How many positions of a stretch lie before the first that is inside, and before the first outside after those.
INLINE inline void clip(index_t place, index_t factor, index_t size, index_t& begin, index_t& end) {
    if (inside(place, size) && inside(place + (end - 1) * factor, size)) return;  // divisions take long
    if (factor < 0) {
        begin = most(begin, place >= size ? (place - size) / -factor + 1 : 0);
        end = least(end, place >= 0 ? place / -factor + 1 : 0);
    } else if (factor == 1) {
        begin = most(begin, -place);
        end = least(end, size - place);
    } else if (factor == 0) {
        if (!inside(place, size)) end = 0;
    } else {
        begin = most(begin, place < 0 ? (-place + factor - 1) / factor : 0);
        end = least(end, place < size ? (size - place + factor - 1) / factor : 0);
    }
}

constexpr int most_stretches = 64;

// Copy some rows and columns in fp32, so that each row lies along memory. A vector behind a row is overwritten, so
// that rows lie so far apart, or are of so few columns that they are copied in order.
template <class T, int ROWS, int COLUMNS, int PLACES>
void gather(const Gathered<T, ROWS, COLUMNS, PLACES>& from, index_t row, index_t height, index_t column, index_t width,
            float* to, index_t to_row) {
    constexpr int last = COLUMNS - 1;
    const auto& columns = from.columns;
    while (width > 0) {
        Stretch<PLACES> stretches[most_stretches];
        index_t position[COLUMNS], rest = column, done = 0;
        for (int axis = last; axis >= 0; --axis) position[axis] = rest % columns.count[axis], rest /= columns.count[axis];
        int count = 0;
        for (; count < most_stretches && done < width; ++count) {
            Stretch<PLACES>& one = stretches[count];
            one.at = done;
            one.length = least(columns.count[last] - position[last], width - done);
            one.offset = 0;
            for (int place = 0; place < PLACES; ++place) one.place[place] = from.first[place];
            for (int axis = 0; axis < COLUMNS; ++axis) {
                one.offset += position[axis] * columns.stride[axis];
                for (int place = 0; place < PLACES; ++place)
                    one.place[place] += position[axis] * columns.factor[place][axis];
            }
            done += one.length;
            position[last] += one.length;
            for (int axis = last; axis > 0 && position[axis] == columns.count[axis]; --axis)
                position[axis] = 0, ++position[axis - 1];
        }
        index_t at[ROWS];
        rest = row;
        for (int axis = ROWS - 1; axis >= 0; --axis) at[axis] = rest % from.rows.count[axis], rest /= from.rows.count[axis];
        for (index_t i = 0; i < height; ++i) {
            index_t offset = 0, moved[PLACES ? PLACES : 1] = {};
            for (int axis = 0; axis < ROWS; ++axis) {
                offset += at[axis] * from.rows.stride[axis];
                for (int place = 0; place < PLACES; ++place) moved[place] += at[axis] * from.rows.factor[place][axis];
            }
            for (int number = 0; number < count; ++number) {
                const Stretch<PLACES>& one = stretches[number];
                index_t begin = 0, end = one.length;
                for (int place = 0; place < PLACES; ++place)
                    clip(one.place[place] + moved[place], columns.factor[place][last], from.size[place], begin, end);
                copy_stretch(from.data + one.offset + offset, columns.stride[last], begin, end, one.length,
                             to + i * to_row + one.at);
            }
            ++at[ROWS - 1];
            for (int axis = ROWS - 1; axis > 0 && at[axis] == from.rows.count[axis]; --axis) at[axis] = 0, ++at[axis - 1];
        }
        column += done, to += done, width -= done;
    }
}

// Rows of a plain matrix in fp32, each along memory.
template <class T, int ROWS, int COLUMNS, int PLACES>
Matrix<float> gathered_rows(const Gathered<T, ROWS, COLUMNS, PLACES>& from, index_t row, index_t height, index_t column,
                            index_t width, Scratch& scratch) {
    if (from.is_plain()) {
        const Matrix<T> part = from.plain().at(row, column);
        if constexpr (__is_same(T, float))
            if (part.column == 1) return part;
        return packed(height, width, part, scratch);
    }
    const index_t to_row = width + lanes;
    float* const to = scratch.floats(height * to_row);
    gather(from, row, height, column, width, to, to_row);
    return {to, to_row, 1};
}

#ifdef MASKED_EDGES
// What the columns of a panel read at one combination of places: for each vector some loads, each of some lanes.
struct PanelLoads {
    static constexpr int vectors = 2;
    int end[vectors];  // after which load a vector is complete
    bool whole[vectors];  // whether it is one load of all lanes
    index_t offset[vectors * (lanes + 1)];
    Chosen chosen[vectors * (lanes + 1)];
};

// Rows of a panel, in tables: where each begins, and with which other rows it shares its combination of places.
template <int PLACES>
struct PanelRows {
    static constexpr int most = 128;  // combinations
    index_t* offset;
    int32_t* combination;
    int count = 0;  // of combinations
    index_t moved[most][PLACES ? PLACES : 1];

    // Whether there are few enough combinations.
    template <class T, int ROWS, int COLUMNS>
    bool note(const Gathered<T, ROWS, COLUMNS, PLACES>& from, Scratch& scratch) {
        const auto& rows = from.rows;
        const index_t size = rows.size();
        offset = reinterpret_cast<index_t*>(scratch.floats(2 * size));
        combination = reinterpret_cast<int32_t*>(scratch.floats(size));
        index_t position[ROWS] = {};
        int before = 0;
        for (index_t row = 0; row < size; ++row) {
            index_t at = 0, place[PLACES ? PLACES : 1] = {};
            for (int axis = 0; axis < ROWS; ++axis) {
                at += position[axis] * rows.stride[axis];
                for (int one = 0; one < PLACES; ++one) place[one] += position[axis] * rows.factor[one][axis];
            }
            const auto is = [&](int number) {
                for (int one = 0; one < PLACES; ++one)
                    if (moved[number][one] != place[one]) return false;
                return true;
            };
            int found = count && before + 1 < count && is(before + 1) ? before + 1 : 0;
            while (found < count && !is(found)) ++found;
            if (found == most) return false;
            if (found == count)
                for (int one = 0; one < PLACES; ++one) moved[count][one] = place[one];
            if (found == count) ++count;
            offset[row] = at, combination[row] = before = found;
            ++position[ROWS - 1];
            for (int axis = ROWS - 1; axis > 0 && position[axis] == rows.count[axis]; --axis)
                position[axis] = 0, ++position[axis - 1];
        }
        return true;
    }
};

// Note what some columns read at a combination of places.
template <class T, int ROWS, int COLUMNS, int PLACES>
PanelLoads panel_loads(const Gathered<T, ROWS, COLUMNS, PLACES>& from, const index_t (&moved)[PLACES ? PLACES : 1],
                       index_t column, index_t width) {
    constexpr int last = COLUMNS - 1;
    const auto& columns = from.columns;
    PanelLoads loads;
    index_t position[COLUMNS], rest = column;
    for (int axis = last; axis >= 0; --axis) position[axis] = rest % columns.count[axis], rest /= columns.count[axis];
    int number = 0;
    for (int vector = 0; vector < PanelLoads::vectors; ++vector) {
        const index_t all = most(0, least(lanes, width - vector * lanes));
        loads.whole[vector] = false;
        for (index_t at = 0; at < all;) {
            const index_t length = least(columns.count[last] - position[last], all - at);
            index_t begin = 0, end = length, offset = 0;
            for (int axis = 0; axis < COLUMNS; ++axis) offset += position[axis] * columns.stride[axis];
            for (int place = 0; place < PLACES; ++place) {
                index_t there = from.first[place] + moved[place];
                for (int axis = 0; axis < COLUMNS; ++axis) there += position[axis] * columns.factor[place][axis];
                clip(there, columns.factor[place][last], from.size[place], begin, end);
            }
            if (begin < end) {
                loads.offset[number] = offset - at * columns.stride[last];
                loads.whole[vector] = end - begin == lanes;
                if (!loads.whole[vector]) loads.chosen[number] = Chosen(columns.stride[last], at + begin, at + end);
                ++number;
            }
            at += length;
            position[last] += length;
            for (int axis = last; axis > 0 && position[axis] == columns.count[axis]; --axis)
                position[axis] = 0, ++position[axis - 1];
        }
        loads.end[vector] = number;
    }
    return loads;
}

// Copy rows of a panel of two vectors.
template <int STRIDE, class T, int PLACES>
void fill_panel(const T* data, const PanelRows<PLACES>& rows, const PanelLoads* loads, index_t row, index_t height,
                float* to) {
    for (index_t i = 0; i < height; ++i, to += PanelLoads::vectors * lanes) {
        const PanelLoads& one = loads[rows.combination[row + i]];
        const T* const from = data + rows.offset[row + i];
        if (one.end[PanelLoads::vectors - 1]) {  // the next panel reads what follows
            const T* const ahead = from + one.offset[0] + STRIDE * PanelLoads::vectors * lanes;
            for (int line = 0; line < STRIDE; ++line) __builtin_prefetch(ahead + line * (64 / sizeof(T)), 0, 2);
        }
        int number = 0;
        for (int vector = 0; vector < PanelLoads::vectors; ++vector) {
            Vec value{};
            if (one.whole[vector]) {
                const T* const at = from + one.offset[number++];
                value = STRIDE == 1 ? load(at) : load_alternate(at);
            } else
                for (; number < one.end[vector]; ++number)
                    value = floats(bits(value) | bits(load_chosen(from + one.offset[number], STRIDE, one.chosen[number])));
            store(to + vector * lanes, value);
        }
    }
}
#endif

constexpr index_t most_kept = 1 << 17;  // elements of all rows that stay in the second cache

#ifdef MASKED_EDGES
// How many rows must share a combination of places: as many as make up for the time that its masks take.
constexpr index_t shared = sizeof(Chosen) > sizeof(Vec) ? 8 : 1;
#endif

// Columns that are neighbours in memory: they are gathered in panels, which all rows meet.
template <class A, class B, int M, int N, int K, int A_PLACES, int B_PLACES>
void contract_columns(const Gathered<A, M, K, A_PLACES>& a, const Gathered<B, K, N, B_PLACES>& b, float* c, index_t c_row) {
    constexpr index_t width = 2 * lanes;
    const index_t m_count = a.rows.size(), n_count = b.columns.size(), k_count = b.rows.size();
    Scratch scratch;
    float* const panel = scratch.floats((least(deep, k_count) + 1) * width);
    // Rows that stay in the second cache meet one panel after the other; of others, a part meets all panels.
    const bool stays = a.is_plain() && m_count * k_count <= most_kept;
    const index_t most_n = stays ? width : n_count;
    const auto each_panel = [&](auto begin, auto fill) INLINE {
        for (index_t block = 0; block < n_count; block += most_n)
            for (index_t k = 0; k < k_count; k += deep) {
                const index_t depth = least(deep, k_count - k);
                Scratch inner;
                const Matrix<float> rows = gathered_rows(a, 0, m_count, k, depth, inner);
                for (index_t n = block; n < least(block + most_n, n_count); n += width) {
                    const index_t breadth = least(width, n_count - n);
                    if (!stays || k == 0) begin(n, breadth);
                    fill(k, depth, n, breadth);
                    contract_panel<width>(m_count, depth, rows, panel, breadth, c + n, c_row);
                }
            }
    };
#ifdef MASKED_EDGES
    PanelRows<B_PLACES> rows;
    const index_t step = b.columns.stride[N - 1];
    if ((step == 1 || step == 2) && rows.note(b, scratch) && k_count >= shared * rows.count) {
        PanelLoads* const loads = reinterpret_cast<PanelLoads*>(scratch.floats(rows.count * index_t(sizeof(PanelLoads) / 4)));
        const auto begin = [&](index_t n, index_t breadth) INLINE {
            for (int one = 0; one < rows.count; ++one) loads[one] = panel_loads(b, rows.moved[one], n, breadth);
        };
        each_panel(begin, [&](index_t k, index_t depth, index_t, index_t) INLINE {
            if (step == 1)
                fill_panel<1>(b.data, rows, loads, k, depth, panel);
            else
                fill_panel<2>(b.data, rows, loads, k, depth, panel);
        });
        return;
    }
#endif
    each_panel([](index_t, index_t) {}, [&](index_t k, index_t depth, index_t n, index_t breadth) INLINE {
        gather(b, k, depth, n, breadth, panel, width);
    });
}

// Rows that are gathered meet all columns, which lie as they are.
template <class A, class B, int M, int N, int K, int A_PLACES, int B_PLACES>
void contract_gathered_rows(const Gathered<A, M, K, A_PLACES>& a, const Gathered<B, K, N, B_PLACES>& b, float* c,
                            index_t c_row) {
    const index_t m_count = a.rows.size(), n_count = b.columns.size(), k_count = b.rows.size();
    const bool plain = b.is_plain();
    const index_t most_k = plain ? 2 * deep : deep;
    for (index_t k = 0; k < k_count; k += most_k) {
        const index_t depth = least(most_k, k_count - k);
        Scratch scratch;
        Matrix<float> columns{};
        if (!plain) {
            float* const to = scratch.floats(n_count * (depth + lanes));
            gather(b.turned(), 0, n_count, k, depth, to, depth + lanes);
            columns = {to, 1, depth + lanes};
        }
        for (index_t m = 0; m < m_count; m += broad) {
            const index_t height = least(broad, m_count - m);
            Scratch inner;
            const Matrix<float> rows = gathered_rows(a, m, height, k, depth, inner);
            if (plain)
                contract(height, n_count, depth, rows, b.plain().at(k, 0), c + m * c_row, c_row);
            else
                contract(height, n_count, depth, rows, columns, c + m * c_row, c_row);
        }
    }
}

// C[m, n] += sum over k of A[m, k] B[k, n], where each of the three is several axes.
template <class A, class B, int M, int N, int K, int A_PLACES, int B_PLACES>
void contract_gathered(const Gathered<A, M, K, A_PLACES>& a, const Gathered<B, K, N, B_PLACES>& b, float* c,
                       const index_t (&c_rows)[M], const index_t (&c_columns)[N]) {
    if (!a.rows.size() || !b.columns.size()) return;
    // In a tile that is not full, positions of an outer axis lie further apart than the inner axes are long.
    index_t next = 0, c_row = 1;
    for (int axis = N - 1; axis >= 0; --axis) {
        if (b.columns.count[axis] == 1) continue;
        if (next ? c_columns[axis] != next : c_columns[axis] != 1) {
            for (index_t at = 0; at < b.columns.count[axis]; ++at)
                contract_gathered(a, b.at_column(axis, at), c + at * c_columns[axis], c_rows, c_columns);
            return;
        }
        next = c_columns[axis] * b.columns.count[axis];
    }
    next = 0;
    for (int axis = M - 1; axis >= 0; --axis) {
        if (a.rows.count[axis] == 1) continue;
        if (next && c_rows[axis] != next) {
            for (index_t at = 0; at < a.rows.count[axis]; ++at)
                contract_gathered(a.at_row(axis, at), b, c + at * c_rows[axis], c_rows, c_columns);
            return;
        }
        if (!next) c_row = c_rows[axis];
        next = c_rows[axis] * a.rows.count[axis];
    }
    if (!b.is_plain() && (b.rows.last() != 1 || b.columns.last() <= 2)) return contract_columns(a, b, c, c_row);
    contract_gathered_rows(a, b, c, c_row);
}

// Each is compiled once, for all kernels that call it.
#define GATHERED(A, B, M, N, K, A_PLACES, B_PLACES)                                                       \
    void contract_gathered<A, B, M, N, K, A_PLACES, B_PLACES>(                                            \
        const Gathered<A, M, K, A_PLACES>&, const Gathered<B, K, N, B_PLACES>&, float*, const index_t(&)[M], \
        const index_t(&)[N])

}  // namespace superopt
