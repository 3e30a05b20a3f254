import triton
import triton.language as tl


@triton.jit
def function_0(
    x_ptr, k_ptr, bias_ptr, out_ptr,
    stride_x_b, stride_x_h, stride_x_s, stride_x_d,
    stride_k_a, stride_k_h, stride_k_t, stride_k_e,
    stride_bias_a,
    stride_out_b, stride_out_a, stride_out_i, stride_out_j,
    H, S, D, A, T, E, I, J,
    BLOCK_H: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_J: tl.constexpr,
):
    """out[b, a, i, j] from x[b, h, s, d], k[a, h, t, e], bias[a]."""
    pid = tl.program_id(0)
    pid_a = pid % tl.cdiv(A, BLOCK_A)
    pid_j = pid // tl.cdiv(A, BLOCK_A) % tl.cdiv(J, BLOCK_J)
    pid_i = pid // tl.cdiv(A, BLOCK_A) // tl.cdiv(J, BLOCK_J) % I
    pid_b = pid // tl.cdiv(A, BLOCK_A) // tl.cdiv(J, BLOCK_J) // I
    offs_a = pid_a * BLOCK_A + tl.arange(0, BLOCK_A)
    offs_j = pid_j * BLOCK_J + tl.arange(0, BLOCK_J)
    mask_j = offs_j < J
    x_ptr += pid_b * stride_x_b
    out_ptr += pid_b * stride_out_b + pid_i * stride_out_i

    t4 = tl.zeros((BLOCK_A, BLOCK_J), dtype=tl.float32)
    for h0 in range(0, H, BLOCK_H):
        offs_h = h0 + tl.arange(0, BLOCK_H)
        for offs_t in range(T):
            for offs_e in range(E):
                # window[s = 2*i + t - 1, d = 2*j + e - 1](x)
                s_at = 2 * pid_i + offs_t - 1
                s_inside = s_at >= 0
                d_at = 2 * offs_j + offs_e - 1
                d_inside = d_at >= 0
                t3 = tl.load(
                    x_ptr + s_at * stride_x_s + offs_h[:, None] * stride_x_h + d_at[None, :] * stride_x_d,
                    mask=mask_j[None, :] & s_inside & d_inside[None, :],
                    other=0.0,
                )
                k = tl.load(
                    k_ptr + offs_t * stride_k_t + offs_e * stride_k_e + offs_a[:, None] * stride_k_a + offs_h[None, :] * stride_k_h,
                )
                t4 = tl.dot(k, t3, t4)  # contract[h, t, e](t3, k)
    bias = tl.load(bias_ptr + offs_a * stride_bias_a).to(tl.float32)
    t5 = t4 + bias[:, None]  # add(t4, bias)
    t6 = tl.maximum(t5, 0.0, propagate_nan=tl.PropagateNan.ALL)  # relu(t5)
    tl.store(
        out_ptr + offs_a[:, None] * stride_out_a + offs_j[None, :] * stride_out_j,
        t6.to(tl.float16),
        mask=mask_j[None, :],
    )
