import triton
import triton.language as tl


@triton.jit
def gated_mlp_0(
    x_desc, w1_desc, w2_desc, out_desc,
    M, K,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """out[m, n] from x[m, k], w1[k, n], w2[k, n]."""
    pid = tl.program_id(0)
    pid_m = pid % tl.cdiv(M, BLOCK_M)
    pid_n = pid // tl.cdiv(M, BLOCK_M)

    t3 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    t5 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k0 in range(0, K, BLOCK_K):
        x = x_desc.load([pid_m * BLOCK_M, k0])
        w1 = w1_desc.load([k0, pid_n * BLOCK_N])
        t3 = tl.dot(x, w1, t3)  # contract[k](x, w1)
        w2 = w2_desc.load([k0, pid_n * BLOCK_N])
        t5 = tl.dot(x, w2, t5)  # contract[k](x, w2)
    t4 = t3 / (1.0 + tl.exp(-t3))  # silu(t3)
    t6 = t4 * t5  # mul(t4, t5)
    out_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], t6.to(tl.bfloat16))
