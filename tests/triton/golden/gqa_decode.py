import triton
import triton.language as tl


@triton.jit
def gqa_decode_0(
    q_ptr, k_ptr, v_ptr, out_ptr,
    stride_q_b, stride_q_h, stride_q_g, stride_q_d,
    stride_k_b, stride_k_h, stride_k_s, stride_k_d,
    stride_v_b, stride_v_h, stride_v_s, stride_v_e,
    stride_out_b, stride_out_h, stride_out_g, stride_out_e,
    H, G, S,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """out[b, h, g, e] from q[b, h, g, d], k[b, h, s, d], v[b, h, s, e]."""
    pid = tl.program_id(0)
    pid_h = pid % H
    pid_b = pid // H
    offs_g = tl.arange(0, BLOCK_G)
    mask_g = offs_g < G
    offs_d = tl.arange(0, BLOCK_D)
    offs_e = tl.arange(0, BLOCK_E)
    q_ptr += pid_b * stride_q_b + pid_h * stride_q_h
    k_ptr += pid_b * stride_k_b + pid_h * stride_k_h
    v_ptr += pid_b * stride_v_b + pid_h * stride_v_h
    out_ptr += pid_b * stride_out_b + pid_h * stride_out_h

    q = tl.load(
        q_ptr + offs_g[:, None] * stride_q_g + offs_d[None, :] * stride_q_d,
        mask=mask_g[:, None],
        other=0.0,
    ).to(tl.float32)
    t4 = q * 0.08838834764831843  # mul(q, 0.08838834764831843)
    t7 = tl.zeros((BLOCK_G, BLOCK_E), dtype=tl.float32)
    t8 = tl.zeros((BLOCK_G, BLOCK_S), dtype=tl.float32)
    for s0 in range(0, S, BLOCK_S):
        offs_s = s0 + tl.arange(0, BLOCK_S)
        k = tl.load(k_ptr + offs_d[:, None] * stride_k_d + offs_s[None, :] * stride_k_s)
        t5 = tl.dot(t4.to(tl.bfloat16), k)  # contract[d](t4, k)
        t6 = tl.exp(t5)  # exp(t5)
        v = tl.load(v_ptr + offs_s[:, None] * stride_v_s + offs_e[None, :] * stride_v_e)
        t7 = tl.dot(t6.to(tl.bfloat16), v, t7)  # contract[s](t6, v)
        t8 += t6  # sum[s](t6)
    t8 = tl.sum(t8, axis=1)
    t9 = t7 / t8[:, None]  # div(t7, t8)
    tl.store(
        out_ptr + offs_g[:, None] * stride_out_g + offs_e[None, :] * stride_out_e,
        t9.to(tl.bfloat16),
        mask=mask_g[:, None],
    )
