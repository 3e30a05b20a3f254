import triton
import triton.language as tl


@triton.jit
def gated_mlp_0(
    x_ptr, w1_ptr, w2_ptr, out_ptr,
    stride_x_m, stride_x_k,
    stride_w1_k, stride_w1_n,
    stride_w2_k, stride_w2_n,
    stride_out_m, stride_out_n,
    M, K,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """out[m, n] from x[m, k], w1[k, n], w2[k, n]."""
    pid = tl.program_id(0)
    pid_m = pid % tl.cdiv(M, BLOCK_M)
    pid_n = pid // tl.cdiv(M, BLOCK_M)
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)

    t3 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    t5 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k0 in range(0, K, BLOCK_K):
        offs_k = k0 + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + offs_m[:, None] * stride_x_m + offs_k[None, :] * stride_x_k)
        w1 = tl.load(w1_ptr + offs_k[:, None] * stride_w1_k + offs_n[None, :] * stride_w1_n)
        t3 = tl.dot(x, w1, t3)  # contract[k](x, w1)
        w2 = tl.load(w2_ptr + offs_k[:, None] * stride_w2_k + offs_n[None, :] * stride_w2_n)
        t5 = tl.dot(x, w2, t5)  # contract[k](x, w2)
    t4 = t3 / (1.0 + tl.exp(-t3))  # silu(t3)
    t6 = t4 * t5  # mul(t4, t5)
    tl.store(
        out_ptr + offs_m[:, None] * stride_out_m + offs_n[None, :] * stride_out_n,
        t6.to(tl.bfloat16),
    )
