#include "runtime.hpp"

namespace superopt {

// grid[h, g]; tuned for 2 h, 4 g, 128 d, 4096 s, 128 e
struct gqa_decode_0 {
    const bf16* q_data;
    const bf16* k_data;
    const bf16* v_data;
    bf16* out_data;
    index_t h_size;
    index_t g_size;
    index_t d_size;
    index_t s_size;
    index_t e_size;
    index_t q_stride_h;
    index_t q_stride_g;
    index_t q_stride_d;
    index_t k_stride_h;
    index_t k_stride_s;
    index_t k_stride_d;
    index_t v_stride_h;
    index_t v_stride_s;
    index_t v_stride_e;
    index_t out_stride_h;
    index_t out_stride_g;
    index_t out_stride_e;
    index_t threads;

    static constexpr index_t g_tile = 4;
    static constexpr index_t s_tile = 512;

    void run() const {
        if (q_stride_d == 1 && out_stride_e == 1)
            run<true>();
        else
#ifdef UNIT_STRIDES_ONLY
            __builtin_trap();
#else
            run<false>();
#endif
    }

    template <bool UNIT_STRIDES>
    void run() const {
        #pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
        for (index_t h = 0; h < h_size; ++h)
        for (index_t g_base = 0; g_base < g_size; g_base += g_tile) {
            const index_t q_stride_d = UNIT_STRIDES ? 1 : this->q_stride_d;
            const index_t out_stride_e = UNIT_STRIDES ? 1 : this->out_stride_e;
            const index_t g_count = least(g_tile, g_size - g_base);
            Scratch scratch;
            float* const t4_tile = scratch.floats(g_tile * d_size);
            float* const t7_tile = scratch.floats(g_tile * e_size);
            float* const t8_tile = scratch.floats(g_tile);
            float* const t5_tile = scratch.floats(g_tile * s_tile);
            float* const t6_tile = scratch.floats(g_tile * s_tile);
            const bf16* const q_tile = q_data + h * q_stride_h + g_base * q_stride_g;
            for (index_t g = 0; g < g_count; ++g) {
                along(d_size, [&](index_t d, auto d_lanes, int) INLINE {
                    const Vec q = load(q_tile + g * q_stride_g + d * q_stride_d, q_stride_d, d_lanes);
                    // t4 = mul(q, t3)
                    const Vec t4 = q * 0.088388346f;
                    store(t4_tile + g * d_size + d, 1, d_lanes, t4);
                });
            }
            fill(t7_tile, g_tile * e_size, 0.0f);
            fill(t8_tile, g_tile, 0.0f);
            for (index_t s_base = 0; s_base < s_size; s_base += s_tile) {
                const index_t s_count = least(s_tile, s_size - s_base);
                fill(t5_tile, g_tile * s_tile, 0.0f);
                // t5 = contract[d](t4, k)
                const bf16* const k_tile = k_data + h * k_stride_h + s_base * k_stride_s;
                contract_pairs(g_count, s_count, d_size,
                               Matrix<float>{t4_tile, d_size, 1},
                               Matrix<bf16>{k_tile, k_stride_d, k_stride_s},
                               t5_tile, s_tile);
                for (index_t g = 0; g < g_count; ++g) {
                    Vec t8_sum{};
                    along(s_count, [&](index_t s, auto s_lanes, int) INLINE {
                        const Vec t5 = load(t5_tile + g * s_tile + s, 1, s_lanes);
                        // t6 = exp(t5)
                        const Vec t6 = exp(t5);
                        store(t6_tile + g * s_tile + s, 1, s_lanes, t6);
                        // t8 += sum[s](t6)
                        t8_sum += first_lanes(t6, s_lanes, 0.0f);
                    });
                    t8_tile[g] += sum(t8_sum);
                }
                // t7 += contract[s](t6, v)
                const bf16* const v_tile = v_data + h * v_stride_h + s_base * v_stride_s;
                contract_pairs(g_count, e_size, s_count,
                               Matrix<float>{t6_tile, s_tile, 1},
                               Matrix<bf16>{v_tile, v_stride_s, v_stride_e},
                               t7_tile, e_size);
            }
            bf16* const out_tile = out_data + h * out_stride_h + g_base * out_stride_g;
            for (index_t g = 0; g < g_count; ++g) {
                const float t8 = read(t8_tile[g]);
                const Divisor t8_divisor(t8);
                along(e_size, [&](index_t e, auto e_lanes, int) INLINE {
                    const Vec t7 = load(t7_tile + g * e_size + e, 1, e_lanes);
                    // t9 = div(t7, t8)
                    const Vec t9 = rough_quotient(t7, t8_divisor);
                    store(out_tile + g * out_stride_g + e * out_stride_e, out_stride_e, e_lanes, t9);
                });
            }
        }
    }
};

}  // namespace superopt

extern "C" void gqa_decode_0(const superopt::gqa_decode_0* kernel) {
    kernel->run();
}
