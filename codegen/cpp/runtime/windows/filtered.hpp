// Filtered: convolutions with three neighbouring taps in fewer products. Two results of three taps w, which read four
// neighbours x, take four products and not six, as Winograd found:
//
//   y0 = m0 + m1 + m2     m0 = (x0 - x2) w0    m1 = (x1 + x2) (w0 + w1 + w2) / 2
//   y1 = m1 - m2 - m3     m3 = (x1 - x3) w2    m2 = (x2 - x1) (w0 - w1 + w2) / 2
//
// Where every other result is wanted, two read five neighbours and take five products, two of which meet the same tap:
//
//   y0 = m0 + m1          m0 = (x0 - x2) w0 + x1 w1    m1 = x2 (w0 + w2)
//   y1 = m1 + m2          m2 = (x4 - x2) w2 + x3 w1
//
// Along two axes these are 16 products and not 36, or 25. Each is summed over the channels, as a product of matrices.
// Where a result is not finite, it is made again by all its products: infinities cancel, and sums of neighbours
// overflow before their products do.

namespace superopt {

// How results lie along an axis of an image: there is one, of one tap; or they have three taps, and their windows begin
// STEP places apart.
template <int STEP>
struct Way;

template <>
struct Way<0> {
    static constexpr int step = 1, taps = 1, made = 1, read = 1, weights = 1, sums = 1;
    static constexpr int weight_of[] = {0}, sum_of[] = {0};

    template <class At>
    INLINE static void split(At) {}
    template <class From, class To>
    INLINE static void split_taps(From w, To u) { u(0) = w(0); }
    template <class From, class To>
    INLINE static void join(From m, To y) { y(0) = m(0); }
};

template <>
struct Way<1> {
    static constexpr int step = 1, taps = 3, made = 2, read = 4, weights = 4, sums = 4;
    static constexpr int weight_of[] = {0, 1, 2, 3}, sum_of[] = {0, 1, 2, 3};

    template <class At>
    INLINE static void split(At x) {
        const Vec first = x(0) - x(2), second = x(1) + x(2), third = x(2) - x(1);
        x(3) = x(1) - x(3), x(0) = first, x(1) = second, x(2) = third;
    }
    template <class From, class To>
    INLINE static void split_taps(From w, To u) {
        const Vec ends = 0.5f * (w(0) + w(2)), middle = 0.5f * w(1);
        u(0) = w(0), u(1) = ends + middle, u(2) = ends - middle, u(3) = w(2);
    }
    template <class From, class To>
    INLINE static void join(From m, To y) {
        y(0) = m(0) + m(1) + m(2);
        y(1) = m(1) - m(2) - m(3);
    }
};

template <>
struct Way<2> {
    static constexpr int step = 2, taps = 3, made = 2, read = 5, weights = 4, sums = 3;
    static constexpr int weight_of[] = {0, 1, 2, 1, 3}, sum_of[] = {0, 0, 1, 2, 2};

    template <class At>
    INLINE static void split(At x) {
        x(0) = x(0) - x(2);
        x(4) = x(4) - x(2);
    }
    template <class From, class To>
    INLINE static void split_taps(From w, To u) {
        u(0) = w(0), u(1) = w(1), u(2) = w(0) + w(2), u(3) = w(2);
    }
    template <class From, class To>
    INLINE static void join(From m, To y) {
        y(0) = m(0) + m(1);
        y(1) = m(1) + m(2);
    }
};

// What is read of an image: its channels; along two axes how many results there are, how far apart places lie, the
// place that the first result reads first, and how many places there are.
template <class T>
struct Image {
    const T* data;
    index_t channels, channel;
    index_t count[2], stride[2], first[2], size[2];
};

// The weights: how many filters there are, and how far apart filters, channels and taps lie.
template <class T>
struct Filters {
    const T* data;
    index_t count, filter, channel;
    index_t tap[2];
};

inline index_t in_vectors(index_t count) { return (count + lanes - 1) / lanes * lanes; }
inline index_t parts_of(index_t count, index_t most) { return (count + most - 1) / most; }

// The sums of neighbours that products are taken of.
template <class H, class W>
INLINE inline void split(Vec (&x)[H::read][W::read]) {
#pragma GCC unroll 5
    for (int row = 0; row < H::read; ++row) W::split([&](int i) INLINE -> Vec& { return x[row][i]; });
#pragma GCC unroll 5
    for (int column = 0; column < W::read; ++column) H::split([&](int i) INLINE -> Vec& { return x[i][column]; });
}

// The results of products.
template <class H, class W>
INLINE inline void join(const Vec (&m)[H::sums][W::sums], Vec (&y)[H::made][W::made]) {
    Vec rows[H::sums][W::made];
#pragma GCC unroll 4
    for (int row = 0; row < H::sums; ++row)
        W::join([&](int i) INLINE { return m[row][i]; }, [&](int i) INLINE -> Vec& { return rows[row][i]; });
#pragma GCC unroll 2
    for (int column = 0; column < W::made; ++column)
        H::join([&](int i) INLINE { return rows[i][column]; }, [&](int i) INLINE -> Vec& { return y[i][column]; });
}

// The sums of taps that products are taken of.
template <class H, class W>
INLINE inline void split_taps(const Vec (&w)[H::taps][W::taps], Vec (&u)[H::weights][W::weights]) {
    Vec rows[H::taps][W::weights];
#pragma GCC unroll 3
    for (int row = 0; row < H::taps; ++row)
        W::split_taps([&](int i) INLINE { return w[row][i]; }, [&](int i) INLINE -> Vec& { return rows[row][i]; });
#pragma GCC unroll 4
    for (int column = 0; column < W::weights; ++column)
        H::split_taps([&](int i) INLINE { return rows[i][column]; }, [&](int i) INLINE -> Vec& { return u[i][column]; });
}

// Make the sums of taps of all filters, each as panels of two vectors of filters, as they are multiplied.
template <class H, class W, class T>
void filter_weights(const Filters<T>& w, index_t channels, float* to, index_t panel, index_t apart) {
    constexpr int all = H::taps * W::taps;
    constexpr index_t some = 16;  // channels at a time
    const bool in_line = w.tap[1] == 1 && (H::taps == 1 || w.tap[0] == W::taps) && w.channel == all;
    Scratch scratch;
    float* const turned = scratch.floats((some * all + lanes) * lanes);
    for (index_t o = 0; o < w.count; o += lanes) {
        const index_t height = least(lanes, w.count - o);
        for (index_t c = 0; c < channels; c += some) {
            const index_t depth = least(some, channels - c);
            const T* const from = w.data + o * w.filter + c * w.channel;
            const auto turn = [&](const T* first, index_t count, index_t step) INLINE {
                for (index_t k = 0; k < count; k += lanes)
                    transposed(
                        height, count - k,
                        [&](index_t v) INLINE {
                            const T* const at = first + v * w.filter + k;
                            __builtin_prefetch(at + 8 * some, 0, 2);  // what the next channels read
                            return load(at, 1, least(lanes, count - k));
                        },
                        [&](index_t v, Vec value) INLINE { store(turned + (k + v) * step * lanes, value); });
            };
            if (in_line)
                turn(from, depth * all, 1);
            else
                for (int tap = 0; tap < all; ++tap) {
                    const T* const first = from + tap / W::taps * w.tap[0] + tap % W::taps * w.tap[1];
                    if (w.channel == 1) {
                        const auto put = [&](index_t k, index_t v) { return turned + ((k + v) * all + tap) * lanes; };
                        for (index_t k = 0; k < depth; k += lanes)
                            transposed(
                                height, depth - k,
                                [&](index_t v) INLINE { return load(first + v * w.filter + k, 1, least(lanes, depth - k)); },
                                [&](index_t v, Vec value) INLINE { store(put(k, v), value); });
                    } else
                        for (index_t k = 0; k < depth; ++k)
                            store(turned + (k * all + tap) * lanes, load(first + k * w.channel, w.filter, height));
                }
            float* const made = to + o / (2 * lanes) * panel + o % (2 * lanes);
            for (index_t k = 0; k < depth; ++k) {
                Vec taps[H::taps][W::taps], u[H::weights][W::weights];
#pragma GCC unroll 9
                for (int tap = 0; tap < all; ++tap)
                    taps[tap / W::taps][tap % W::taps] = load(turned + (k * all + tap) * lanes);
                split_taps<H, W>(taps, u);
#pragma GCC unroll 16
                for (int one = 0; one < H::weights * W::weights; ++one)
                    store(made + one * apart + (c + k) * 2 * lanes, u[one / W::weights][one % W::weights]);
            }
        }
    }
}

constexpr index_t at_once = 2 * lanes;  // channels of an image that are split together

// Copy some rows and columns of an image in fp32, `at_once` channels side by side, with zeros around it.
template <class H, class W, class T>
void copy_image(const Image<T>& x, index_t channel, index_t row, index_t column, index_t rows, index_t columns, float* to) {
    const index_t channels = least(at_once, x.channels - channel);
    const auto read = [](index_t count, int step, int taps) { return step * (count - 1) + taps; };
    for (index_t i = 0; i < rows; ++i, to += columns * at_once) {
        if (row + i >= read(x.count[0], H::step, H::taps) || !inside(x.first[0] + row + i, x.size[0])) {
            fill(to, columns * at_once, 0.0f);
            continue;
        }
        const T* const from = x.data + channel * x.channel + (row + i) * x.stride[0] + column * x.stride[1];
        const index_t begin = least(columns, most(0, -(x.first[1] + column)));
        const index_t last = least(x.size[1] - x.first[1], read(x.count[1], W::step, W::taps)) - column;
        const index_t end = most(begin, least(columns, last));
        if (x.channel == 1) {
            fill(to, begin * at_once, 0.0f);
            for (index_t j = begin; j < end; ++j)
                along(channels, [&](index_t c, auto count, int) INLINE {
                    store(to + j * at_once + c, load(from + j * x.stride[1] + c, 1, count));
                });
            fill(to + end * at_once, (columns - end) * at_once, 0.0f);
            continue;
        }
        for (index_t j = 0; j < columns; j += lanes) {
            const index_t width = least(lanes, columns - j);
            const bool whole = begin <= j && j + lanes <= end;
            for (index_t c = 0; c < channels; c += lanes)
                transposed(
                    least(lanes, channels - c), width,
                    [&](index_t v) INLINE {
                        const T* const at = from + j * x.stride[1] + (c + v) * x.channel;
                        __builtin_prefetch(at + at_once * x.channel, 0, 2);  // the hardware does not, as rows are short
                        return load_window(whole, at, x.stride[1], width, j - begin, 1, end - begin);
                    },
                    [&](index_t v, Vec value) INLINE { store(to + (j + v) * at_once + c, value); });
        }
    }
}

template <int HEIGHT, int WIDTH>
INLINE inline bool are_finite(const Vec (&y)[HEIGHT][WIDTH]) {
    Vec differences{};  // 0, or NaN where a number is not finite
#pragma GCC unroll 4
    for (int one = 0; one < HEIGHT * WIDTH; ++one)
        differences += y[one / WIDTH][one % WIDTH] - y[one / WIDTH][one % WIDTH];
    return sum(differences) == 0;
}

// The result at one place by all its products, for the filters from `o` on.
template <class H, class W, class X, class T>
__attribute__((noinline, cold)) Vec by_all_products(
    const Image<X>& x, const Filters<T>& w, index_t o, index_t row, index_t column) {
    Vec result{};
    for (index_t i = H::step * row; i < H::step * row + H::taps; ++i)
        for (index_t j = W::step * column; j < W::step * column + W::taps; ++j) {
            if (!inside(x.first[0] + i, x.size[0]) || !inside(x.first[1] + j, x.size[1])) continue;
            const X* const from = x.data + i * x.stride[0] + j * x.stride[1];
            const T* const taps = w.data + o * w.filter + (i - H::step * row) * w.tap[0] + (j - W::step * column) * w.tap[1];
            for (index_t c = 0; c < x.channels; ++c)
                result += splat(read(from[c * x.channel])) * load(taps + c * w.channel, w.filter, least(lanes, w.count - o));
        }
    return result;
}

// C[o, i, j] += sum over channels and taps of x[c, STEP i + r, STEP j + s] w[o, c, r, s], with 3 taps s, and 3 taps r
// or, where the step of rows is 0, one.
template <int ROW_STEP, int COLUMN_STEP, class X, class T>
void contract_filtered(const Image<X>& x, const Filters<T>& w, float* c, index_t c_filter, const index_t (&c_at)[2]) {
    using H = Way<ROW_STEP>;
    using W = Way<COLUMN_STEP>;
    constexpr int read = H::read * W::read, kinds = H::weights * W::weights, products = H::sums * W::sums;
    constexpr int down = H::step * H::made, right = W::step * W::made;  // places from tile to tile
    constexpr index_t width = 2 * lanes, block = 96;  // columns of a panel, and tiles that meet it
    if (!x.count[0] || !x.count[1] || !w.count) return;
    const index_t channels = x.channels, apart_k = in_vectors(channels) + lanes;
    const index_t part = parts_of(channels, most(1, parts_of(channels, deep)));  // of a panel, which stays in the first cache
    const index_t broad_made = in_vectors(w.count) + lanes;
    const index_t high = parts_of(x.count[0], H::made), long_ = parts_of(x.count[1], W::made);  // tiles
    const index_t most_long = parts_of(long_, parts_of(long_, block)), most_high = least(high, most(1, block / most_long));
    const index_t most_tiles = most_high * most_long, columns = right * (most_long - 1) + W::read;
    const index_t panel = (channels + 1) * width, apart = parts_of(w.count, width) * panel;
    Scratch scratch;
    float* const weights = scratch.floats(kinds * apart);
    float* const image = scratch.floats((down * (most_high - 1) + H::read) * columns * at_once + lanes * at_once);
    float* const sums = scratch.floats(read * most_tiles * apart_k);
    float* const results = scratch.floats(products * most_tiles * broad_made);
    float* const line = scratch.floats(H::made * W::made * most_long * lanes);
    filter_weights<H, W>(w, channels, weights, panel, apart);
    for (index_t top = 0; top < high; top += most_high)
        for (index_t left = 0; left < long_; left += most_long) {
            const index_t rows = least(most_high, high - top), tiles_long = least(most_long, long_ - left);
            const index_t tiles = rows * tiles_long, read_rows = down * (rows - 1) + H::read;
            for (index_t channel = 0; channel < channels; channel += at_once) {
                copy_image<H, W>(x, channel, down * top, right * left, read_rows, columns, image);
                for (index_t tile = 0; tile < tiles; ++tile) {
                    const index_t at = tile / tiles_long * down * columns + tile % tiles_long * right;
                    for (index_t k = 0; k < least(at_once, channels - channel); k += lanes) {
                        Vec values[H::read][W::read];
#pragma GCC unroll 25
                        for (int one = 0; one < read; ++one)
                            values[one / W::read][one % W::read] =
                                load(image + (at + one / W::read * columns + one % W::read) * at_once + k);
                        split<H, W>(values);
#pragma GCC unroll 25
                        for (int one = 0; one < read; ++one)
                            store(sums + (one * tiles + tile) * apart_k + channel + k, values[one / W::read][one % W::read]);
                    }
                }
            }
            fill(results, products * tiles * broad_made, 0.0f);
            for (int kind = 0; kind < kinds; ++kind)
                for (index_t o = 0; o < w.count; o += width)
                    for (int one = 0; one < read; ++one) {
                        const int i = one / W::read, j = one % W::read;
                        if (H::weight_of[i] * W::weights + W::weight_of[j] != kind) continue;
                        const int product = H::sum_of[i] * W::sums + W::sum_of[j];
                        for (index_t k = 0; k < channels; k += part)
                            contract_panel<width>(tiles, least(part, channels - k), {sums + one * tiles * apart_k + k, apart_k, 1},
                                                  weights + kind * apart + o / width * panel + k * width,
                                                  least(width, w.count - o), results + product * tiles * broad_made + o,
                                                  broad_made);
                    }
            for (index_t row = 0; row < rows; ++row)
                for (index_t o = 0; o < w.count; o += lanes) {
                    const index_t breadth = least(lanes, w.count - o);
                    const index_t height = least(H::made, x.count[0] - H::made * (top + row));
                    const index_t length = least(W::made * tiles_long, x.count[1] - W::made * left);
                    float* const to = c + o * c_filter + H::made * (top + row) * c_at[0] + W::made * left * c_at[1];
                    for (index_t tile = 0; tile < tiles_long; ++tile) {
                        const float* const from = results + (row * tiles_long + tile) * broad_made + o;
                        Vec m[H::sums][W::sums], y[H::made][W::made];
#pragma GCC unroll 16
                        for (int one = 0; one < products; ++one)
                            m[one / W::sums][one % W::sums] = load(from + one * tiles * broad_made);
                        join<H, W>(m, y);
                        if (!are_finite(y))
                            for (index_t i = 0; i < height; ++i)
                                for (index_t j = 0; j < least(W::made, length - W::made * tile); ++j)
                                    y[i][j] = by_all_products<H, W>(
                                        x, w, o, H::made * (top + row) + i, W::made * (left + tile) + j);
                        if (c_filter != 1) {
                            for (int i = 0; i < H::made; ++i)
                                for (int j = 0; j < W::made; ++j)
                                    store(line + ((i * most_long + tile) * W::made + j) * lanes, y[i][j]);
                            continue;
                        }
                        for (index_t i = 0; i < height; ++i)
                            for (index_t j = 0; j < least(W::made, length - W::made * tile); ++j) {
                                float* const at = to + i * c_at[0] + (W::made * tile + j) * c_at[1];
                                store(at, 1, breadth, load(at, 1, breadth) + y[i][j]);
                            }
                    }
                    if (c_filter == 1) continue;
                    for (index_t i = 0; i < height; ++i)
                        for (index_t j = 0; j < length; j += lanes) {
                            const index_t some = least(lanes, length - j);
                            transposed(
                                some, breadth,
                                [&](index_t v) INLINE { return load(line + ((i * most_long * W::made) + j + v) * lanes); },
                                [&](index_t v, Vec value) INLINE {
                                    float* const at = to + v * c_filter + i * c_at[0] + j * c_at[1];
                                    store(at, c_at[1], some, load(at, c_at[1], some) + value);
                                });
                        }
                }
        }
}

// Each is compiled once, for all kernels that call it.
#define FILTERED(ROW_STEP, COLUMN_STEP, X, T)                                                                      \
    void contract_filtered<ROW_STEP, COLUMN_STEP, X, T>(const Image<X>&, const Filters<T>&, float*, index_t, \
                                                        const index_t(&)[2])

}  // namespace superopt
