// Filtered: convolutions with three neighbouring taps in fewer products. Two results of three taps w, which read four
// neighbours x, take four products and not six, as Winograd found:
//
//   y0 = m0 + m1 + m2     m0 = (x0 - x2) w0    m1 = (x1 + x2) (w0 + w1 + w2) / 2
//   y1 = m1 - m2 - m3     m3 = (x1 - x3) w2    m2 = (x2 - x1) (w0 - w1 + w2) / 2
//
// Along two axes these are 16 products and not 36. Each is summed over the channels, as a product of matrices.

namespace superopt {

// What is read of an image: its channels, and along two axes the results, the first place that the first result reads,
// and how many places there are. A convolution along one axis has one tap, and one position, along the first of both.
template <class T, int TAPS>
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

// How many neighbours are read along the first axis, and how many results they give, with 3 taps or with 1.
constexpr int read_of(int taps) { return taps == 3 ? 4 : 1; }
constexpr int made_of(int taps) { return taps == 3 ? 2 : 1; }
inline index_t in_vectors(index_t count) { return (count + lanes - 1) / lanes * lanes; }
inline index_t parts_of(index_t count, index_t most) { return (count + most - 1) / most; }

// The sums of neighbours that products are taken of.
template <int READ>
INLINE inline void split(Vec (&x)[READ][4]) {
    const auto four = [](Vec& a, Vec& b, Vec& c, Vec& d) INLINE {
        const Vec first = a - c, second = b + c, third = c - b;
        d = b - d, a = first, b = second, c = third;
    };
#pragma GCC unroll 4
    for (int row = 0; row < READ; ++row) four(x[row][0], x[row][1], x[row][2], x[row][3]);
    if constexpr (READ == 4)
#pragma GCC unroll 4
        for (int column = 0; column < 4; ++column) four(x[0][column], x[1][column], x[2][column], x[3][column]);
}

// The results of products.
template <int READ, int MADE>
INLINE inline void join(const Vec (&m)[READ][4], Vec (&y)[MADE][2]) {
    Vec rows[READ][2];
#pragma GCC unroll 4
    for (int row = 0; row < READ; ++row) {
        rows[row][0] = m[row][0] + m[row][1] + m[row][2];
        rows[row][1] = m[row][1] - m[row][2] - m[row][3];
    }
#pragma GCC unroll 2
    for (int column = 0; column < 2; ++column)
        if constexpr (READ == 1)
            y[0][column] = rows[0][column];
        else {
            y[0][column] = rows[0][column] + rows[1][column] + rows[2][column];
            y[1][column] = rows[1][column] - rows[2][column] - rows[3][column];
        }
}

// The sums of taps that products are taken of.
template <int TAPS>
INLINE inline void split_taps(const Vec (&w)[TAPS][3], Vec (&u)[read_of(TAPS)][4]) {
    const auto four = [](Vec a, Vec b, Vec c, Vec& first, Vec& second, Vec& third, Vec& fourth) INLINE {
        const Vec ends = 0.5f * (a + c), middle = 0.5f * b;
        first = a, second = ends + middle, third = ends - middle, fourth = c;
    };
    Vec rows[TAPS][4];
#pragma GCC unroll 3
    for (int row = 0; row < TAPS; ++row)
        four(w[row][0], w[row][1], w[row][2], rows[row][0], rows[row][1], rows[row][2], rows[row][3]);
#pragma GCC unroll 4
    for (int column = 0; column < 4; ++column)
        if constexpr (TAPS == 1)
            u[0][column] = rows[0][column];
        else
            four(rows[0][column], rows[1][column], rows[2][column], u[0][column], u[1][column], u[2][column], u[3][column]);
}

// Make the sums of taps of all filters, for each product as panels of two vectors of filters, as they are multiplied.
template <int TAPS, class T>
void filter_weights(const Filters<T>& w, index_t channels, float* to, index_t panel, index_t product) {
    constexpr int all = 3 * TAPS;
    constexpr index_t some = 16;  // channels at a time
    const bool in_line = w.tap[1] == 1 && (TAPS == 1 || w.tap[0] == 3) && w.channel == all;
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
                        [&](index_t v) INLINE { return load(first + v * w.filter + k, 1, least(lanes, count - k)); },
                        [&](index_t v, Vec value) INLINE { store(turned + (k + v) * step * lanes, value); });
            };
            if (in_line)
                turn(from, depth * all, 1);
            else
                for (int tap = 0; tap < all; ++tap) {
                    const T* const first = from + tap / 3 * w.tap[0] + tap % 3 * w.tap[1];
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
                Vec taps[TAPS][3], u[read_of(TAPS)][4];
#pragma GCC unroll 9
                for (int tap = 0; tap < all; ++tap) taps[tap / 3][tap % 3] = load(turned + (k * all + tap) * lanes);
                split_taps<TAPS>(taps, u);
#pragma GCC unroll 16
                for (int one = 0; one < 4 * read_of(TAPS); ++one)
                    store(made + one * product + (c + k) * 2 * lanes, u[one / 4][one % 4]);
            }
        }
    }
}

// Copy some rows and columns of an image in fp32, channels side by side, with zeros around it.
template <class T, int TAPS>
void copy_image(const Image<T, TAPS>& x, index_t row, index_t column, index_t rows, index_t columns, float* to, index_t deep) {
    for (index_t i = 0; i < rows; ++i, to += columns * deep) {
        if (row + i >= x.count[0] + TAPS - 1 || !inside(x.first[0] + row + i, x.size[0])) {
            fill(to, columns * deep, 0.0f);
            continue;
        }
        const T* const from = x.data + (row + i) * x.stride[0] + column * x.stride[1];
        const index_t begin = least(columns, most(0, -(x.first[1] + column)));
        const index_t last = least(x.size[1] - x.first[1], x.count[1] + 2) - column;
        const index_t end = most(begin, least(columns, last));
        if (x.channel == 1) {
            fill(to, begin * deep, 0.0f);
            for (index_t j = begin; j < end; ++j)
                along(x.channels, [&](index_t c, auto count, int) INLINE {
                    store(to + j * deep + c, load(from + j * x.stride[1] + c, 1, count));
                });
            fill(to + end * deep, (columns - end) * deep, 0.0f);
            continue;
        }
        for (index_t j = 0; j < columns; j += lanes) {
            const index_t width = least(lanes, columns - j);
            const bool whole = begin <= j && j + lanes <= end;
            for (index_t c = 0; c < x.channels; c += lanes)
                transposed(
                    least(lanes, x.channels - c), width,
                    [&](index_t v) INLINE {
                        const T* const at = from + j * x.stride[1] + (c + v) * x.channel;
                        return load_window(whole, at, x.stride[1], width, j - begin, 1, end - begin);
                    },
                    [&](index_t v, Vec value) INLINE { store(to + (j + v) * deep + c, value); });
        }
    }
}

// C[o, i, j] += sum over channels and taps of x[c, i + r, j + s] w[o, c, r, s], with 3 taps s, and 3 or 1 taps r.
template <class X, class W, int TAPS>
void contract_filtered(const Image<X, TAPS>& x, const Filters<W>& w, float* c, index_t c_filter,
                       const index_t (&c_at)[2]) {
    constexpr int read = read_of(TAPS), made = made_of(TAPS), products = 4 * read;
    constexpr index_t width = 2 * lanes, block = 64;  // columns of a panel, and tiles that meet it
    const index_t channels = x.channels, deep_image = in_vectors(channels), deep = deep_image + lanes;
    const index_t broad_made = in_vectors(w.count) + lanes;
    const index_t high = parts_of(x.count[0], made), long_ = parts_of(x.count[1], 2);  // tiles
    const index_t most_long = parts_of(long_, parts_of(long_, block)), most_high = least(high, most(1, block / most_long));
    const index_t most_tiles = most_high * most_long, columns = 2 * most_long + 2;
    const index_t panel = (channels + 1) * width, product = parts_of(w.count, width) * panel;
    Scratch scratch;
    float* const weights = scratch.floats(products * product);
    float* const image = scratch.floats((made * most_high + read - made) * columns * deep_image);
    float* const sums = scratch.floats(products * most_tiles * deep);
    float* const results = scratch.floats(products * most_tiles * broad_made);
    float* const line = scratch.floats(made * 2 * most_long * lanes);
    filter_weights<TAPS>(w, channels, weights, panel, product);
    for (index_t top = 0; top < high; top += most_high)
        for (index_t left = 0; left < long_; left += most_long) {
            const index_t rows = least(most_high, high - top), tiles_long = least(most_long, long_ - left);
            const index_t tiles = rows * tiles_long, read_rows = made * rows + read - made;
            copy_image(x, made * top, 2 * left, read_rows, columns, image, deep_image);
            for (index_t tile = 0; tile < tiles; ++tile) {
                const float* const from = image + (tile / tiles_long * made * columns + tile % tiles_long * 2) * deep_image;
                for (index_t k = 0; k < deep_image; k += lanes) {
                    Vec values[read][4];
#pragma GCC unroll 16
                    for (int one = 0; one < products; ++one)
                        values[one / 4][one % 4] = load(from + (one / 4 * columns + one % 4) * deep_image + k);
                    split<read>(values);
#pragma GCC unroll 16
                    for (int one = 0; one < products; ++one)
                        store(sums + (one * tiles + tile) * deep + k, values[one / 4][one % 4]);
                }
            }
            fill(results, products * tiles * broad_made, 0.0f);
            for (int one = 0; one < products; ++one)
                for (index_t o = 0; o < w.count; o += width)
                    contract_panel<width>(tiles, channels, {sums + one * tiles * deep, deep, 1},
                                          weights + one * product + o / width * panel, least(width, w.count - o),
                                          results + one * tiles * broad_made + o, broad_made);
            for (index_t row = 0; row < rows; ++row)
                for (index_t o = 0; o < w.count; o += lanes) {
                    const index_t breadth = least(lanes, w.count - o);
                    const index_t height = least(made, x.count[0] - made * (top + row));
                    const index_t length = least(2 * tiles_long, x.count[1] - 2 * left);
                    float* const to = c + o * c_filter + made * (top + row) * c_at[0] + 2 * left * c_at[1];
                    for (index_t tile = 0; tile < tiles_long; ++tile) {
                        const float* const from = results + (row * tiles_long + tile) * broad_made + o;
                        Vec m[read][4], y[made][2];
#pragma GCC unroll 16
                        for (int one = 0; one < products; ++one)
                            m[one / 4][one % 4] = load(from + one * tiles * broad_made);
                        join<read, made>(m, y);
                        if (c_filter != 1) {
                            for (int i = 0; i < made; ++i)
                                for (int j = 0; j < 2; ++j)
                                    store(line + ((i * most_long + tile) * 2 + j) * lanes, y[i][j]);
                            continue;
                        }
                        for (index_t i = 0; i < height; ++i)
                            for (index_t j = 0; j < least(2, length - 2 * tile); ++j) {
                                float* const at = to + i * c_at[0] + (2 * tile + j) * c_at[1];
                                store(at, 1, breadth, load(at, 1, breadth) + y[i][j]);
                            }
                    }
                    if (c_filter == 1) continue;
                    for (index_t i = 0; i < height; ++i)
                        for (index_t j = 0; j < length; j += lanes) {
                            const index_t some = least(lanes, length - j);
                            transposed(
                                some, breadth,
                                [&](index_t v) INLINE { return load(line + (i * most_long * 2 + j + v) * lanes); },
                                [&](index_t v, Vec value) INLINE {
                                    float* const at = to + v * c_filter + i * c_at[0] + j * c_at[1];
                                    store(at, c_at[1], some, load(at, c_at[1], some) + value);
                                });
                        }
                }
        }
}

}  // namespace superopt
