"""Programs: what the cost model is tried on, in families of programs that spend their time alike."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from superopt.workloads import WORKLOADS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAMILIES", "PROGRAMS", "Program"]


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

FAMILIES = tuple(dict.fromkeys(one.family for one in PROGRAMS))
"""The names of the families."""
