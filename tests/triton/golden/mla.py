import triton
import triton.language as tl


@triton.jit
def mla_0(
    q_ptr, qr_ptr, c_ptr, kr_ptr, out_ptr,
    stride_q_b, stride_q_m, stride_q_k,
    stride_qr_b, stride_qr_m, stride_qr_d,
    stride_c_b, stride_c_n, stride_c_k,
    stride_kr_b, stride_kr_n, stride_kr_d,
    stride_out_b, stride_out_m, stride_out_k,
    M, N,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """out[b, m, k] from q[b, m, k], qr[b, m, d], c[b, n, k], kr[b, n, d]."""
    pid = tl.program_id(0)
    pid_m = pid % tl.cdiv(M, BLOCK_M)
    pid_b = pid // tl.cdiv(M, BLOCK_M)
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K)
    offs_d = tl.arange(0, BLOCK_D)
    q_ptr += pid_b * stride_q_b
    qr_ptr += pid_b * stride_qr_b
    c_ptr += pid_b * stride_c_b
    kr_ptr += pid_b * stride_kr_b
    out_ptr += pid_b * stride_out_b

    qr = tl.load(qr_ptr + offs_m[:, None] * stride_qr_m + offs_d[None, :] * stride_qr_d)
    q = tl.load(q_ptr + offs_m[:, None] * stride_q_m + offs_k[None, :] * stride_q_k)
    t9 = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    t14 = tl.zeros((BLOCK_M, BLOCK_K), dtype=tl.float32)
    t15 = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # maximum(t9, -3.4028234663852886e+38)
    t11 = tl.maximum(t9 * 0.10411754627697266, -3.4028234663852886e+38)
    for n0 in range(0, N, BLOCK_N):
        offs_n = n0 + tl.arange(0, BLOCK_N)
        kr = tl.load(kr_ptr + offs_d[:, None] * stride_kr_d + offs_n[None, :] * stride_kr_n)
        t4 = tl.dot(qr, kr)  # contract[d](qr, kr)
        c = tl.load(c_ptr + offs_n[:, None] * stride_c_n + offs_k[None, :] * stride_c_k)
        t5 = tl.dot(q, tl.trans(c))  # contract[k](q, c)
        t6 = t4 + t5  # add(t4, t5)
        t9 = tl.maximum(t9, tl.max(t6, axis=1))  # max[n](t6)
        # maximum(t9, -3.4028234663852886e+38)
        t11_new = tl.maximum(t9 * 0.10411754627697266, -3.4028234663852886e+38)
        scale_t11 = tl.exp2(t11 - t11_new)
        t14 *= scale_t11[:, None]
        t15 *= scale_t11[:, None]
        t11 = t11_new
        t12 = t6 * 0.10411754627697266 - t11[:, None]  # sub(t6, t11)
        t13 = tl.exp2(t12)  # exp2(t12)
        t14 = tl.dot(t13.to(tl.bfloat16), c, t14)  # contract[n](t13, c)
        t15 += t13  # sum[n](t13)
    t15 = tl.sum(t15, axis=1)
    t16 = t14 / t15[:, None]  # div(t14, t15)
    tl.store(
        out_ptr + offs_m[:, None] * stride_out_m + offs_k[None, :] * stride_out_k,
        t16.to(tl.bfloat16),
    )
