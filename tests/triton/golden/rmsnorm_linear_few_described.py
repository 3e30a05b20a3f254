import triton
import triton.language as tl


@triton.jit
def fp16_scale(largest):
    """Return the power of two by which numbers of this size are divided to be between 2^14 and 2^15."""
    exponent = largest.to(tl.int32, bitcast=True) & 0x7F800000
    return tl.maximum(exponent - (14 << 23), 1 << 23).to(tl.float32, bitcast=True)


@triton.jit
def rmsnorm_linear_0(
    g_ptr,
    x_desc, w_desc, out_desc,
    stride_g_k,
    M, K,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """out[m, n] from x[m, k], g[k], w[k, n]."""
    pid = tl.program_id(0)
    pid_m = pid % tl.cdiv(M, BLOCK_M)
    pid_n = pid // tl.cdiv(M, BLOCK_M)

    t4 = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    t5 = tl.zeros((BLOCK_M,), dtype=tl.float32)
    for k0 in range(0, K, BLOCK_K):
        offs_k = k0 + tl.arange(0, BLOCK_K)
        x = tl.trans(x_desc.load([pid_m * BLOCK_M, k0])).to(tl.float32)
        g = tl.load(g_ptr + offs_k * stride_g_k).to(tl.float32)
        t3 = x * g[:, None]  # mul(x, g)
        t3_scale = fp16_scale(tl.max(tl.abs(t3), axis=0))
        t3_half = (t3 * (1.0 / t3_scale)[None, :]).to(tl.float16)
        w = tl.trans(w_desc.load([k0, pid_n * BLOCK_N]))
        t4 += tl.dot(w, t3_half) * t3_scale[None, :]  # contract[k](t3, w)
        t5 += tl.sum(x * x, axis=0)  # contract[k](x, x)
    t7 = t5 * (1.0 / K)  # div(t5, size[k])
    t9 = t7 + 1e-06  # add(t7, 1e-06)
    t10 = tl.rsqrt(t9)  # rsqrt(t9)
    t11 = t4 * t10[None, :]  # mul(t4, t10)
    out_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], tl.trans(t11.to(tl.float16)))
