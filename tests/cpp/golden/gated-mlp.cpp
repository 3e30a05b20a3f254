#include "runtime.hpp"

namespace superopt {

// grid[m, n]; tuned for 8 m, 2048 k, 5632 n
struct gated_mlp_0 {
    const bf16* x_data;
    const bf16* w1_data;
    const bf16* w2_data;
    bf16* out_data;
    index_t m_size;
    index_t k_size;
    index_t n_size;
    index_t x_stride_m;
    index_t x_stride_k;
    index_t w1_stride_k;
    index_t w1_stride_n;
    index_t w2_stride_k;
    index_t w2_stride_n;
    index_t out_stride_m;
    index_t out_stride_n;
    index_t threads;

    static constexpr index_t m_tile = 8;
    static constexpr index_t n_tile = 480;
    static constexpr index_t k_tile = 512;

    void run() const {
        if (out_stride_n == 1)
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
            const index_t out_stride_n = UNIT_STRIDES ? 1 : this->out_stride_n;
            const index_t m_count = least(m_tile, m_size - m_base);
            const index_t n_count = least(n_tile, n_size - n_base);
            Scratch scratch;
            float* const t3_tile = scratch.floats(m_tile * n_tile);
            float* const t4_tile = scratch.floats(m_tile * n_tile);
            fill(t3_tile, m_tile * n_tile, 0.0f);
            fill(t4_tile, m_tile * n_tile, 0.0f);
            for (index_t k_base = 0; k_base < k_size; k_base += k_tile) {
                const index_t k_count = least(k_tile, k_size - k_base);
                // t3 += contract[k](x, w2)
                const bf16* const x_tile = x_data + m_base * x_stride_m + k_base * x_stride_k;
                const bf16* const w2_tile = w2_data + k_base * w2_stride_k + n_base * w2_stride_n;
                contract_pairs(m_count, n_count, k_count,
                               Matrix<bf16>{x_tile, x_stride_m, x_stride_k},
                               Matrix<bf16>{w2_tile, w2_stride_k, w2_stride_n},
                               t3_tile, n_tile);
                // t4 += contract[k](x, w1)
                const bf16* const w1_tile = w1_data + k_base * w1_stride_k + n_base * w1_stride_n;
                contract_pairs(m_count, n_count, k_count,
                               Matrix<bf16>{x_tile, x_stride_m, x_stride_k},
                               Matrix<bf16>{w1_tile, w1_stride_k, w1_stride_n},
                               t4_tile, n_tile);
            }
            bf16* const out_tile = out_data + m_base * out_stride_m + n_base * out_stride_n;
            for (index_t m = 0; m < m_count; ++m) {
                along(n_count, [&](index_t n, auto n_lanes, int) INLINE {
                    const Vec t4 = load(t4_tile + m * n_tile + n, 1, n_lanes);
                    const Vec t3 = load(t3_tile + m * n_tile + n, 1, n_lanes);
                    // t5 = silu(t4)
                    const Vec t5 = t4 * (1.0f / (1.0f + exp(-t4)));
                    // t6 = mul(t3, t5)
                    const Vec t6 = t3 * t5;
                    store(out_tile + m * out_stride_m + n * out_stride_n, out_stride_n, n_lanes, t6);
                });
            }
        }
    }
};

}  // namespace superopt

extern "C" void gated_mlp_0(const superopt::gated_mlp_0* kernel) {
    kernel->run();
}
