import triton
import triton.language as tl


@triton.jit
def gqa_prefill_0(
    q_desc, k_desc, v_desc, out_desc,
    G, S, T,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """out[h, g, s, e] from q[h, g, s, d], k[h, t, d], v[h, t, e]."""
    pid = tl.program_id(0)
    pid_s = tl.cdiv(S, BLOCK_S) - 1 - pid % tl.cdiv(S, BLOCK_S)
    pid_g = pid // tl.cdiv(S, BLOCK_S) % G
    pid_h = pid // tl.cdiv(S, BLOCK_S) // G
    offs_s = pid_s * BLOCK_S + tl.arange(0, BLOCK_S)

    q = tl.reshape(q_desc.load([pid_h, pid_g, pid_s * BLOCK_S, 0]), (BLOCK_S, BLOCK_D))
    t12 = tl.full((BLOCK_S,), float("-inf"), dtype=tl.float32)
    t18 = tl.zeros((BLOCK_S, BLOCK_E), dtype=tl.float32)
    t19 = tl.zeros((BLOCK_S,), dtype=tl.float32)
    # maximum(t12, -3.4028234663852886e+38)
    t14 = tl.maximum(t12 * 0.12751743082459868, -3.4028234663852886e+38)
    # Before this, ge(index[s], index[t]) holds everywhere.
    t0_masked = tl.minimum(T, pid_s * BLOCK_S + 1) // BLOCK_T * BLOCK_T
    for t0 in range(0, t0_masked, BLOCK_T):
        k = tl.trans(tl.reshape(k_desc.load([pid_h, t0, 0]), (BLOCK_T, BLOCK_D)))
        t8 = tl.dot(q, k)  # contract[d](q, k)
        t12 = tl.maximum(t12, tl.max(t8, axis=1))  # max[t](t8)
        # maximum(t12, -3.4028234663852886e+38)
        t14_new = tl.maximum(t12 * 0.12751743082459868, -3.4028234663852886e+38)
        scale_t14 = tl.exp2(t14 - t14_new)
        t18 *= scale_t14[:, None]
        t19 *= scale_t14
        t14 = t14_new
        t15 = t8 * 0.12751743082459868 - t14[:, None]  # sub(t8, t14)
        t16 = tl.exp2(t15)  # exp2(t15)
        v = tl.reshape(v_desc.load([pid_h, t0, 0]), (BLOCK_T, BLOCK_E))
        t18 = tl.dot(t16.to(tl.bfloat16), v, t18)  # contract[t](t16, v)
        t19 += tl.sum(t16, axis=1)  # sum[t](t16)
    # Beyond this, ge(index[s], index[t]) holds nowhere.
    for t0 in range(t0_masked, tl.minimum(T, (pid_s + 1) * BLOCK_S), BLOCK_T):
        offs_t = t0 + tl.arange(0, BLOCK_T)
        t7 = offs_s[:, None] >= offs_t[None, :]  # ge(index[s], index[t])
        k = tl.trans(tl.reshape(k_desc.load([pid_h, t0, 0]), (BLOCK_T, BLOCK_D)))
        t8 = tl.dot(q, k)  # contract[d](q, k)
        t11 = tl.where(t7, t8, float("-inf"))  # where(t7, t8, -infinity)
        t12 = tl.maximum(t12, tl.max(t11, axis=1))  # max[t](t11)
        # maximum(t12, -3.4028234663852886e+38)
        t14_new = tl.maximum(t12 * 0.12751743082459868, -3.4028234663852886e+38)
        scale_t14 = tl.exp2(t14 - t14_new)
        t18 *= scale_t14[:, None]
        t19 *= scale_t14
        t14 = t14_new
        t15 = t11 * 0.12751743082459868 - t14[:, None]  # sub(t11, t14)
        t16 = tl.exp2(t15)  # exp2(t15)
        v = tl.reshape(v_desc.load([pid_h, t0, 0]), (BLOCK_T, BLOCK_E))
        t18 = tl.dot(t16.to(tl.bfloat16), v, t18)  # contract[t](t16, v)
        t19 += tl.sum(t16, axis=1)  # sum[t](t16)
    t20 = t18 / t19[:, None]  # div(t18, t19)
    out_desc.store(
        [pid_h, pid_g, pid_s * BLOCK_S, 0],
        tl.reshape(t20.to(tl.bfloat16), (1, 1, BLOCK_S, BLOCK_E)),
    )
