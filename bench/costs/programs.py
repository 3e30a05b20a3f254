"""Programs: what the cost model is tried on, in families of programs that spend their time alike."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from superopt.workloads import WORKLOADS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAMILIES", "HELD_OUT", "PROGRAMS", "Program"]


@dataclass(frozen=True, slots=True)
class Program:
    """A function of tensors of one dtype, and their shapes."""

    family: str
    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "f32"

    def inputs(self) -> "tuple[Tensor, ...]":
        """Return example inputs, without data."""
        import torch

        from superopt.trace.run import TORCH_DTYPES

        dtype = TORCH_DTYPES[self.dtype]
        return tuple(torch.empty(shape, dtype=dtype, device="meta") for shape in self.shapes)


def _layer_norm(x: "Tensor", g: "Tensor", b: "Tensor") -> "Tensor":
    from torch.nn import functional as F

    return F.layer_norm(x, (x.shape[-1],), g, b)


def _log_softmax(x: "Tensor") -> "Tensor":
    return x.log_softmax(-1)


def _unit_rows(x: "Tensor") -> "Tensor":
    return x / x.square().sum(-1, keepdim=True).sqrt()


def _attention_with_bias(q: "Tensor", k: "Tensor", v: "Tensor", bias: "Tensor") -> "Tensor":
    return (q @ k.transpose(-2, -1) * (1 / sqrt(q.shape[-1])) + bias).softmax(-1) @ v


def _softmax_pooling(x: "Tensor", w: "Tensor") -> "Tensor":
    return ((x @ w).softmax(-1).unsqueeze(-1) * x).sum(1)


def _gated_pooling(x: "Tensor", v: "Tensor", u: "Tensor", w: "Tensor") -> "Tensor":
    scores = (x @ v).tanh() * (x @ u).sigmoid() @ w
    return (scores.softmax(1).unsqueeze(-1) * x).sum(1)


def _experts(x: "Tensor", gate: "Tensor", up: "Tensor", down: "Tensor") -> "Tensor":
    import torch

    hidden = torch.einsum("mk,ekn->emn", x, up).relu()
    return torch.einsum("emn,enk,me->mk", hidden, down, (x @ gate).softmax(-1))


def _weighted_experts(x: "Tensor", gate: "Tensor", w: "Tensor") -> "Tensor":
    import torch

    return (torch.einsum("mk,ekn->men", x, w) * (x @ gate).softmax(-1).unsqueeze(-1)).sum(1)


def _cross_entropy(x: "Tensor", target: "Tensor") -> "Tensor":
    return -(x.log_softmax(-1) * target).sum(-1).mean()


def _divergence(x: "Tensor", y: "Tensor") -> "Tensor":
    p = x.softmax(-1)
    return (p * (x.log_softmax(-1) - y.log_softmax(-1))).sum(-1).mean()


def _variance(x: "Tensor") -> "Tensor":
    return x.var(0, unbiased=False)


def _log_sum_exp(x: "Tensor") -> "Tensor":
    return x.logsumexp(-1)


def _squared_distance(x: "Tensor", y: "Tensor") -> "Tensor":
    return (x - y).square().sum()


def _group_norm(x: "Tensor", g: "Tensor", b: "Tensor") -> "Tensor":
    mean, var = x.mean((2, 3), keepdim=True), x.var((2, 3), unbiased=False, keepdim=True)
    return (x - mean) * (var + 1e-5).rsqrt() * g + b


def _batch_norm(x: "Tensor") -> "Tensor":
    return (x - x.mean(0)) * (x.var(0, unbiased=False) + 1e-5).rsqrt()


def _cosine(x: "Tensor", y: "Tensor") -> "Tensor":
    return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def _bilinear(x: "Tensor", a: "Tensor", y: "Tensor") -> "Tensor":
    return ((x @ a) * y).sum(-1)


def _covariance(x: "Tensor") -> "Tensor":
    centred = x - x.mean(0)
    return centred.T @ centred / x.shape[0]


def _linear_attention(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    q, k = q.sigmoid(), k.sigmoid()
    return q @ (k.transpose(-2, -1) @ v) / (q @ k.sum(-2, keepdim=True).transpose(-2, -1))


def _gaussian_kernel(x: "Tensor", y: "Tensor") -> "Tensor":
    squares = x.square().sum(-1, keepdim=True) + y.square().sum(-1) - 2 * (x @ y.T)
    return (squares * -0.01).exp()


def _taxi_distance(x: "Tensor", y: "Tensor") -> "Tensor":
    return (x.unsqueeze(1) - y).abs().sum(-1)


def _entropy(x: "Tensor") -> "Tensor":
    return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)


def _three_products(x: "Tensor", a: "Tensor", b: "Tensor", c: "Tensor") -> "Tensor":
    return x @ a @ b @ c


def _scaled_columns(x: "Tensor", w: "Tensor") -> "Tensor":
    return x @ (w / w.square().sum(0).sqrt())


def _middle_softmax(x: "Tensor") -> "Tensor":
    return x.softmax(1)


def _instance_norm(x: "Tensor") -> "Tensor":
    centred = x - x.mean((2, 3), keepdim=True)
    return centred / (centred.square().mean((2, 3), keepdim=True) + 1e-5).sqrt()


def _soft_neighbours(x: "Tensor", y: "Tensor", labels: "Tensor") -> "Tensor":
    return (x @ y.T).softmax(-1) @ labels


def _margin(x: "Tensor") -> "Tensor":
    return x.logsumexp(-1) - x.amax(-1)


def _low_rank(x: "Tensor", u: "Tensor", y: "Tensor", v: "Tensor") -> "Tensor":
    return ((x @ u) * (y @ v)).sum(-1)


def _gated_chain(x: "Tensor", a: "Tensor", b: "Tensor", c: "Tensor") -> "Tensor":
    return ((x @ a).sigmoid() * (x @ b)) @ c


def _weighted_columns(x: "Tensor", y: "Tensor") -> "Tensor":
    return x.softmax(0) @ y.T


def _cross_attention(q: "Tensor", k: "Tensor", v: "Tensor", gate: "Tensor") -> "Tensor":
    return (q @ k.transpose(-2, -1) * 0.125).softmax(-1) @ v * gate.sigmoid()


def _named(family: str, name: str, case: str, dtype: str = "f32", **sizes: int) -> Program:
    found = WORKLOADS[name]
    label = f"{name}/{case}" + ("" if dtype == "f32" else f"/{dtype}")
    return Program(family, label, found.function, tuple(found.shapes(**sizes).values()), dtype)


PROGRAMS = (
    _named("matmul", "matmul", "512", M=512, K=512, N=512),
    _named("gated mlp", "gated-mlp", "1024-m8", M=8, K=1024, N=2816),
    Program("norm", "layer norm/512x2048", _layer_norm, ((512, 2048), (2048,), (2048,))),
    _named("softmax", "softmax", "2048-m512", M=512, N=2048),
    _named("attention", "gqa-decode", "t4096", B=1, H=8, G=2, S=1, T=4096, D=128),
    Program("attention with bias", "4x256x64", _attention_with_bias,
            ((1, 4, 256, 64),) * 3 + ((4, 256, 256),)),
    Program("softmax pooling", "8x512x256", _softmax_pooling, ((8, 512, 256), (256,))),
    Program("experts", "4x64x256x512", _experts, ((64, 256), (256, 4), (4, 256, 512), (4, 512, 256))),
    Program("loss", "cross entropy/256x8192", _cross_entropy, ((256, 8192), (256, 8192))),
    Program("reduction", "variance/4096x1024", _variance, ((4096, 1024),)),
    _named("matmul", "rmsnorm-linear", "2048-m8", M=8, K=2048, N=2048),
    _named("gated mlp", "gated-mlp", "512-m128", M=128, K=512, N=1408),
    _named("norm", "rmsnorm", "4096-m256", M=256, K=4096),
    Program("softmax", "log softmax/8x32000", _log_softmax, ((8, 32000),)),
    _named("attention", "mha", "s256", B=1, H=8, S=256, D=64),
    Program("attention with bias", "8x16x512x64", _attention_with_bias,
            ((1, 8, 16, 64), (1, 8, 512, 64), (1, 8, 512, 64), (8, 16, 512))),
    Program("softmax pooling", "gated/4x256x256x64", _gated_pooling,
            ((4, 256, 256), (256, 64), (256, 64), (64,))),
    Program("experts", "8x16x512x512", _weighted_experts, ((16, 512), (512, 8), (8, 512, 512))),
    _named("loss", "linear-cross-entropy", "512-m8", M=8, K=512, V=8192),
    Program("reduction", "log sum exp/512x4096", _log_sum_exp, ((512, 4096),)),
    _named("matmul", "lora", "1024-m64", M=64, K=1024, N=1024, R=16),
    _named("gated mlp", "rmsnorm-mlp", "512-m16", M=16, K=512, N=1408),
    _named("norm", "ntrans", "1024-m512", M=512, K=1024),
    Program("softmax", "softmax/64x512x512", WORKLOADS["softmax"].function, ((64 * 64, 512),)),
    _named("attention", "qknorm-attention", "s16-t1024", B=1, H=4, S=16, T=1024, D=64),
    Program("loss", "divergence/256x2048", _divergence, ((256, 2048), (256, 2048))),
    _named("reduction", "matmul-rowsum", "512-m64", M=64, K=512, N=2048),
    _named("matmul", "layernorm-linear-gelu", "1024-m64", M=64, K=1024, N=1024),
    _named("norm", "rmsnorm", "2048-m8", M=8, K=2048),
    _named("matmul", "matmul-matmul", "1024-m8", M=8, K=1024, R=1024, N=1024),
    Program("reduction", "squared distance/1024x2048", _squared_distance, ((1024, 2048),) * 2),
    _named("matmul", "rmsnorm-linear", "2048-m8", "bf16", M=8, K=2048, N=2048),
    _named("gated mlp", "gated-mlp", "512-m128", "bf16", M=128, K=512, N=1408),
    _named("attention", "gqa-decode", "t4096", "bf16", B=1, H=8, G=2, S=1, T=4096, D=128),
)  # fmt: skip
"""All programs: rounds of one of each family, so that a run short of time has all families."""

HELD_OUT = (
    Program("group norm", "8x32x64x49", _group_norm, ((8, 32, 64, 49), (32, 1, 1), (32, 1, 1))),
    Program("batch norm", "3000x384", _batch_norm, ((3000, 384),)),
    Program("similarity", "cosine/900x768", _cosine, ((900, 768),) * 2),
    Program("similarity", "bilinear/300x320x320", _bilinear, ((300, 320), (320, 320), (300, 320))),
    Program("gram", "covariance/6000x96", _covariance, ((6000, 96),)),
    Program("linear attention", "6x384x48", _linear_attention, ((6, 384, 48),) * 3),
    Program("pairs", "gaussian/200x700x40", _gaussian_kernel, ((200, 40), (700, 40))),
    Program("pairs", "taxi/96x160x64", _taxi_distance, ((96, 64), (160, 64))),
    Program("softmax along the middle", "24x200x96", _middle_softmax, ((24, 200, 96),)),
    Program("entropy", "700x1500", _entropy, ((700, 1500),)),
    Program("chain", "3x700x300x900x100", _three_products, ((3, 700), (700, 300), (300, 900), (900, 100))),
    Program("chain", "150x400x300x200x50", _three_products, ((150, 400), (400, 300), (300, 200), (200, 50))),
    Program("scaled columns", "20x600x1100", _scaled_columns, ((20, 600), (600, 1100))),
    Program("cross attention", "12x40x77x64", _cross_attention,
            ((12, 40, 64), (12, 77, 64), (12, 77, 64), (12, 40, 64))),
    _named("narrow", "matmul-rowsum", "700-m1", M=1, K=3000, N=700),
    _named("narrow", "rmsnorm", "640-m3000", M=3000, K=640),
    _named("narrow", "lora", "2048-m8", M=8, K=2048, N=2048, R=16),
    Program("instance norm", "6x40x30x37", _instance_norm, ((6, 40, 30, 37),)),
    Program("neighbours", "120x333x60x21", _soft_neighbours, ((120, 60), (333, 60), (333, 21))),
    Program("margin", "500x777", _margin, ((500, 777),)),
    Program("low rank", "257x130x19", _low_rank, ((257, 130), (130, 19), (257, 130), (130, 19))),
    Program("gated chain", "33x210x150x75", _gated_chain, ((33, 210), (210, 150), (210, 150), (150, 75))),
    Program("weighted columns", "300x90x77", _weighted_columns, ((300, 90), (77, 90))),
)  # fmt: skip
"""Programs of other kinds and sizes than those by which the model was made: nothing may be fitted to them."""

FAMILIES = tuple(dict.fromkeys(one.family for one in PROGRAMS))
"""The names of the families."""
