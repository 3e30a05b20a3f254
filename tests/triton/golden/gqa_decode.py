import triton
import triton.language as tl


@triton.jit
def gqa_decode_0(
    q_ptr, k_ptr, v_ptr, t8_ptr, t11_ptr, t18_ptr,
    stride_q_b, stride_q_h, stride_q_g, stride_q_d,
    stride_k_b, stride_k_h, stride_k_s_part, stride_k_s_at, stride_k_d,
    stride_v_b, stride_v_h, stride_v_s_part, stride_v_s_at, stride_v_e,
    stride_t8_s_part, stride_t8_b, stride_t8_h, stride_t8_g,
    stride_t11_s_part, stride_t11_b, stride_t11_h, stride_t11_g, stride_t11_e,
    stride_t18_s_part, stride_t18_b, stride_t18_h, stride_t18_g,
    H, G, S_PART, S_AT,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S_AT: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """t8[s_part, b, h, g], t11[s_part, b, h, g, e], t18[s_part, b, h, g] from q[b, h, g, d], k[b, h,
    s_part, s_at, d], v[b, h, s_part, s_at, e]."""
    pid = tl.program_id(0)
    pid_s_part = pid % S_PART
    pid_h = pid // S_PART % H
    pid_b = pid // S_PART // H
    offs_g = tl.arange(0, BLOCK_G)
    mask_g = offs_g < G
    offs_d = tl.arange(0, BLOCK_D)
    offs_e = tl.arange(0, BLOCK_E)
    q_ptr += pid_b * stride_q_b + pid_h * stride_q_h
    k_ptr += pid_b * stride_k_b + pid_h * stride_k_h + pid_s_part * stride_k_s_part
    v_ptr += pid_b * stride_v_b + pid_h * stride_v_h + pid_s_part * stride_v_s_part
    t8_ptr += pid_s_part * stride_t8_s_part + pid_b * stride_t8_b + pid_h * stride_t8_h
    t11_ptr += pid_s_part * stride_t11_s_part + pid_b * stride_t11_b + pid_h * stride_t11_h
    t18_ptr += pid_s_part * stride_t18_s_part + pid_b * stride_t18_b + pid_h * stride_t18_h

    q = tl.load(
        q_ptr + offs_g[:, None] * stride_q_g + offs_d[None, :] * stride_q_d,
        mask=mask_g[:, None],
        other=0.0,
    )
    t6 = tl.full((BLOCK_G,), float("-inf"), dtype=tl.float32)
    t11 = tl.zeros((BLOCK_G, BLOCK_E), dtype=tl.float32)
    t18 = tl.zeros((BLOCK_G, BLOCK_S_AT), dtype=tl.float32)
    # maximum(t6, -3.4028234663852886e+38)
    t8 = tl.maximum(t6 * 0.12751743082459868, -3.4028234663852886e+38)
    for s_at0 in range(0, S_AT, BLOCK_S_AT):
        offs_s_at = s_at0 + tl.arange(0, BLOCK_S_AT)
        k = tl.load(k_ptr + offs_d[:, None] * stride_k_d + offs_s_at[None, :] * stride_k_s_at)
        t5 = tl.dot(q, k)  # contract[d](q, k)
        t6 = tl.maximum(t6, tl.max(t5, axis=1))  # max[s_at](t5)
        # maximum(t6, -3.4028234663852886e+38)
        t8_new = tl.maximum(t6 * 0.12751743082459868, -3.4028234663852886e+38)
        scale_t8 = tl.exp2(t8 - t8_new)
        t11 *= scale_t8[:, None]
        t18 *= scale_t8[:, None]
        t8 = t8_new
        t9 = t5 * 0.12751743082459868 - t8[:, None]  # sub(t5, t8)
        t10 = tl.exp2(t9)  # exp2(t9)
        v = tl.load(v_ptr + offs_s_at[:, None] * stride_v_s_at + offs_e[None, :] * stride_v_e)
        t11 = tl.dot(t10.to(tl.bfloat16), v, t11)  # contract[s_at](t10, v)
        t18 += t10  # sum[s_at](t10)
    t18 = tl.sum(t18, axis=1)
    tl.store(
        t11_ptr + offs_g[:, None] * stride_t11_g + offs_e[None, :] * stride_t11_e,
        t11,
        mask=mask_g[:, None],
    )
    tl.store(t18_ptr + offs_g * stride_t18_g, t18, mask=mask_g)
    tl.store(t8_ptr + offs_g * stride_t8_g, t8, mask=mask_g)


import triton
import triton.language as tl


@triton.jit
def gqa_decode_1(
    t8_ptr, t11_ptr, t18_ptr, out_ptr,
    stride_t8_s_part, stride_t8_b, stride_t8_h, stride_t8_g,
    stride_t11_s_part, stride_t11_b, stride_t11_h, stride_t11_g, stride_t11_e,
    stride_t18_s_part, stride_t18_b, stride_t18_h, stride_t18_g,
    stride_out_b, stride_out_h, stride_out_g, stride_out_e,
    H, G, S_PART, E,
    BLOCK_S_PART: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """out[b, h, g, e] from t8[s_part, b, h, g], t11[s_part, b, h, g, e], t18[s_part, b, h, g]."""
    pid = tl.program_id(0)
    pid_e = pid % tl.cdiv(E, BLOCK_E)
    pid_g = pid // tl.cdiv(E, BLOCK_E) % G
    pid_h = pid // tl.cdiv(E, BLOCK_E) // G % H
    pid_b = pid // tl.cdiv(E, BLOCK_E) // G // H
    offs_e = pid_e * BLOCK_E + tl.arange(0, BLOCK_E)
    t8_ptr += pid_b * stride_t8_b + pid_h * stride_t8_h + pid_g * stride_t8_g
    t11_ptr += pid_b * stride_t11_b + pid_h * stride_t11_h + pid_g * stride_t11_g
    t18_ptr += pid_b * stride_t18_b + pid_h * stride_t18_h + pid_g * stride_t18_g
    out_ptr += pid_b * stride_out_b + pid_h * stride_out_h + pid_g * stride_out_g

    t12 = tl.full((), float("-inf"), dtype=tl.float32)
    t17 = tl.zeros((BLOCK_E, BLOCK_S_PART), dtype=tl.float32)
    t20 = tl.zeros((BLOCK_S_PART,), dtype=tl.float32)
    t13 = tl.maximum(t12, -3.4028234663852886e+38)  # maximum(t12, -3.4028234663852886e+38)
    for s_part0 in tl.range(0, S_PART, BLOCK_S_PART, num_stages=3):
        offs_s_part = s_part0 + tl.arange(0, BLOCK_S_PART)
        t8 = tl.load(t8_ptr + offs_s_part * stride_t8_s_part)
        t12 = tl.maximum(t12, tl.max(t8, axis=0))  # max[s_part](t8)
        t13_new = tl.maximum(t12, -3.4028234663852886e+38)  # maximum(t12, -3.4028234663852886e+38)
        scale_t13 = tl.exp2(t13 - t13_new)
        t17 *= scale_t13
        t20 *= scale_t13
        t13 = t13_new
        t14 = t8 - t13  # sub(t8, t13)
        t15 = tl.exp2(t14)  # exp2(t14)
        t11 = tl.load(t11_ptr + offs_e[:, None] * stride_t11_e + offs_s_part[None, :] * stride_t11_s_part)
        t16 = t11 * t15[None, :]  # mul(t11, t15)
        t17 += t16  # sum[s_part](t16)
        t18 = tl.load(t18_ptr + offs_s_part * stride_t18_s_part)
        t19 = t18 * t15  # mul(t18, t15)
        t20 += t19  # sum[s_part](t19)
    t17 = tl.sum(t17, axis=1)
    t20 = tl.sum(t20, axis=0)
    t21 = t17 / t20  # div(t17, t20)
    tl.store(out_ptr + offs_e * stride_out_e, t21.to(tl.bfloat16))
