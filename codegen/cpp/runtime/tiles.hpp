// Tiles: rows of bf16 meet a panel in the tile registers of AMX: 16 rows by 16 columns of sums in each.

namespace superopt {

#if defined(HAS_TILES)

constexpr index_t tile_side = 16;          // rows, columns, and pairs of a tile
constexpr index_t tile_line = 4 * tile_side;  // bytes of a row

#if defined(TILES_EMULATED)
inline float (&tile(int number))[tile_side][tile_side] {
    static thread_local float tiles[8][tile_side][tile_side];
    return tiles[number];
}
template <int TILE>
inline void tile_clear() { memset(tile(TILE), 0, sizeof tile(TILE)); }
template <int TILE>
inline void tile_load(const void* from, index_t stride) {
    for (index_t i = 0; i < tile_side; ++i) memcpy(tile(TILE)[i], static_cast<const char*>(from) + i * stride, tile_line);
}
template <int TILE>
inline void tile_store(float* to, index_t stride) {
    for (index_t i = 0; i < tile_side; ++i) memcpy(reinterpret_cast<char*>(to) + i * stride, tile(TILE)[i], tile_line);
}
template <int SUM, int A, int B>
inline void tile_multiply() {
    for (index_t i = 0; i < tile_side; ++i)
        for (index_t pair = 0; pair < tile_side; ++pair)
            for (index_t j = 0; j < tile_side; ++j) {
                const uint32_t a = to_bits(tile(A)[i][pair]), b = to_bits(tile(B)[pair][j]);
                tile(SUM)[i][j] += from_bits(a << 16) * from_bits(b << 16);
                tile(SUM)[i][j] += from_bits(a & 0xffff0000) * from_bits(b & 0xffff0000);
            }
}
inline void tiles_begin() {}
inline void tiles_end() {}
inline bool tiles_allowed() { return true; }
#else
template <int TILE>
inline void tile_clear() { asm volatile("tilezero %%tmm%c0" ::"i"(TILE)); }
template <int TILE>
inline void tile_load(const void* from, index_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(TILE), "r"(from), "r"(stride) : "memory");
}
template <int TILE>
inline void tile_store(float* to, index_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(TILE), "r"(to), "r"(stride) : "memory");
}
template <int SUM, int A, int B>
inline void tile_multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(A), "i"(B));
}
inline void tiles_begin() {
    struct __attribute__((aligned(64))) {
        uint8_t palette = 1, start = 0, unused[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    } shape;
    for (int one = 0; one < 8; ++one) shape.bytes[one] = tile_line, shape.rows[one] = tile_side;
    asm volatile("ldtilecfg %0" ::"m"(shape));
}
inline void tiles_end() { asm volatile("tilerelease"); }

// Whether Linux lets this process use the tiles: it must be asked once.
inline bool tiles_allowed() {
    static const bool allowed = [] {
        constexpr long arch_prctl = 158, ask = 0x1023, tile_data = 18;
        long result;
        asm volatile("syscall" : "=a"(result) : "a"(arch_prctl), "D"(ask), "S"(tile_data) : "rcx", "r11", "memory");
        return result == 0;
    }();
    return allowed;
}
#endif

// The tile registers of this thread, configured while they are in use.
class TilesInUse {
public:
    explicit TilesInUse(bool wanted) : used_(wanted && tiles_allowed()) {
        if (used_) tiles_begin();
    }
    ~TilesInUse() {
        if (used_) tiles_end();
    }
    TilesInUse(const TilesInUse&) = delete;
    TilesInUse& operator=(const TilesInUse&) = delete;
    explicit operator bool() const { return used_; }

private:
    bool used_;
};

// Up to 32 rows meet a panel: with two tiles of rows and two of columns, each loaded one is used twice.
template <bool SECOND>
void tiles_block(index_t rows, index_t pairs, const bf16* a, const uint32_t* panel, index_t columns, float* c,
                 index_t c_row, Ahead ahead) {
    constexpr index_t a_line = pair_row * sizeof(bf16), panel_line = pair_width * sizeof(uint32_t);
    tile_clear<0>(), tile_clear<1>(), tile_clear<2>(), tile_clear<3>();
    for (index_t pair = 0; pair < pairs; pair += tile_side) {
        for (index_t one = 0; one < tile_side; ++one) ahead.fetch(pair + one);
        tile_load<6>(panel + pair * pair_width, panel_line);
        tile_load<7>(panel + pair * pair_width + tile_side, panel_line);
        tile_load<4>(a + 2 * pair, a_line);
        tile_multiply<0, 4, 6>(), tile_multiply<1, 4, 7>();
        if constexpr (SECOND) {
            tile_load<5>(a + tile_side * pair_row + 2 * pair, a_line);
            tile_multiply<2, 5, 6>(), tile_multiply<3, 5, 7>();
        }
    }
    alignas(64) float sums[2 * tile_side][2 * tile_side];
    constexpr index_t line = sizeof sums[0];
    tile_store<0>(sums[0], line), tile_store<1>(sums[0] + tile_side, line);
    if constexpr (SECOND) tile_store<2>(sums[tile_side], line), tile_store<3>(sums[tile_side] + tile_side, line);
    for (index_t m = 0; m < rows; ++m)
        along(columns, [&](index_t n, auto count, int) INLINE {
            float* const to = c + m * c_row + n;
            store(to, 1, count, load(to, 1, count) + load(sums[m] + n));
        });
}

inline void tiles_panel(index_t m_count, index_t columns, index_t pairs, const bf16* a, const uint32_t* panel,
                        float* c, index_t c_row, Ahead& ahead) {
    static_assert(pair_width % (2 * tile_side) == 0);
    for (index_t n = 0; n < columns; n += 2 * tile_side)
        for (index_t m = 0; m < m_count; m += 2 * tile_side) {
            const index_t rows = least(2 * tile_side, m_count - m), some = least(2 * tile_side, columns - n);
            const auto block = rows > tile_side ? tiles_block<true> : tiles_block<false>;
            block(rows, pairs, a + m * pair_row, panel + n, some, c + m * c_row + n, c_row, ahead.take());
        }
}
#endif

}  // namespace superopt
