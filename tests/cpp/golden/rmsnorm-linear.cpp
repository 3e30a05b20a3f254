#include "runtime.hpp"

namespace superopt {

// grid[m, n]; tuned for 8 m, 2048 k, 2048 n
struct rmsnorm_linear_0 {
    const bf16* x_data;
    const bf16* g_data;
    const bf16* w_data;
    bf16* out_data;
    index_t m_size;
    index_t k_size;
    index_t n_size;
    index_t x_stride_m;
    index_t x_stride_k;
    index_t g_stride_k;
    index_t w_stride_k;
    index_t w_stride_n;
    index_t out_stride_m;
    index_t out_stride_n;
    index_t threads;

    static constexpr index_t m_tile = 8;
    static constexpr index_t n_tile = 512;
    static constexpr index_t k_tile = 512;

    void run() const {
        if (x_stride_k == 1 && g_stride_k == 1 && out_stride_n == 1)
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
        for (index_t m_base = 0; m_base < m_size; m_base += m_tile)
        for (index_t n_base = 0; n_base < n_size; n_base += n_tile) {
            const index_t x_stride_k = UNIT_STRIDES ? 1 : this->x_stride_k;
            const index_t g_stride_k = UNIT_STRIDES ? 1 : this->g_stride_k;
            const index_t out_stride_n = UNIT_STRIDES ? 1 : this->out_stride_n;
            const index_t m_count = least(m_tile, m_size - m_base);
            const index_t n_count = least(n_tile, n_size - n_base);
            Scratch scratch;
            float* const t4_tile = scratch.floats(m_tile * n_tile);
            float* const t5_tile = scratch.floats(m_tile);
            float* const t3_tile = scratch.floats(m_tile * k_tile);
            float* const t10_tile = scratch.floats(m_tile);
            fill(t4_tile, m_tile * n_tile, 0.0f);
            fill(t5_tile, m_tile, 0.0f);
            for (index_t k_base = 0; k_base < k_size; k_base += k_tile) {
                const index_t k_count = least(k_tile, k_size - k_base);
                const bf16* const x_tile = x_data + m_base * x_stride_m + k_base * x_stride_k;
                const bf16* const g_tile = g_data + k_base * g_stride_k;
                for (index_t m = 0; m < m_count; ++m) {
                    Vec t5_sum[4]{};
                    along<4>(k_count, [&](index_t k, auto k_lanes, int turn) INLINE {
                        const Vec x = load(x_tile + m * x_stride_m + k * x_stride_k, x_stride_k, k_lanes);
                        const Vec g = load(g_tile + k * g_stride_k, g_stride_k, k_lanes);
                        // t3 = mul(x, g)
                        const Vec t3 = x * g;
                        store(t3_tile + m * k_tile + k, 1, k_lanes, t3);
                        // t5 += contract[k](x, x)
                        t5_sum[turn] += first_lanes(x * x, k_lanes, 0.0f);
                    });
                    t5_tile[m] += sum(t5_sum);
                }
                // t4 += contract[k](t3, w)
                const bf16* const w_tile = w_data + k_base * w_stride_k + n_base * w_stride_n;
                contract_pairs(m_count, n_count, k_count,
                               Matrix<float>{t3_tile, k_tile, 1},
                               Matrix<bf16>{w_tile, w_stride_k, w_stride_n},
                               t4_tile, n_tile);
            }
            along(m_count, [&](index_t m, auto m_lanes, int) INLINE {
                const Vec t5 = load(t5_tile + m, 1, m_lanes);
                // t7 = div(t5, t6)
                const Vec t7 = t5 / float(k_size);
                // t9 = add(t7, t8)
                const Vec t9 = t7 + 1e-06f;
                // t10 = rsqrt(t9)
                const Vec t10 = 1.0f / sqrt(t9);
                store(t10_tile + m, 1, m_lanes, t10);
            });
            bf16* const out_tile = out_data + m_base * out_stride_m + n_base * out_stride_n;
            for (index_t m = 0; m < m_count; ++m) {
                const float t10 = read(t10_tile[m]);
                along(n_count, [&](index_t n, auto n_lanes, int) INLINE {
                    const Vec t4 = load(t4_tile + m * n_tile + n, 1, n_lanes);
                    // t11 = mul(t4, t10)
                    const Vec t11 = t4 * t10;
                    store(out_tile + m * out_stride_m + n * out_stride_n, out_stride_n, n_lanes, t11);
                });
            }
        }
    }
};

}  // namespace superopt

extern "C" void rmsnorm_linear_0(const superopt::rmsnorm_linear_0* kernel) {
    kernel->run();
}
