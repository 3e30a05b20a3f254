"""The named workloads: tensor programs that matter, each one plain PyTorch function of its tensors.

`WORKLOADS["gated-mlp"].inputs(M=8)` gives example inputs; they are meta tensors unless a device is
named, so that sizes cost nothing. torch is imported only when a workload runs or is traced: the graphs at
default sizes stand in a file beside this one, which `python docs/generate.py` writes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from superopt.dtypes import is_too_large
from superopt.errors import InputError
from superopt.ir import Graph, parse_graph

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["WORKLOADS", "Workload", "workload"]

_Function = Callable[..., "Tensor"]
_F = TypeVar("_F", bound=_Function)


@dataclass(frozen=True, slots=True)
class Workload:
    """A named function, the shapes of its tensors in terms of sizes, and the sizes' defaults."""

    name: str
    function: _Function
    summary: str
    tensors: dict[str, tuple[str, ...]]  # tensor -> the size of each dimension, by name
    sizes: dict[str, int]

    def shapes(self, **sizes: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor, with some sizes replaced."""
        for size, value in sizes.items():
            if size not in self.sizes:
                raise InputError(f"{self.name} has no size {size!r}; it has {', '.join(self.sizes)}")
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InputError(f"{self.name}: size {size} is {value!r}; give a whole number from 0 up")
        known = {**self.sizes, **sizes}
        return {name: tuple(known[dim] for dim in dims) for name, dims in self.tensors.items()}

    def graph(self) -> Graph | None:
        """Return the workload at its default sizes in f16, as it was traced when this version was made.

        None for one that is newer than the file of these graphs.
        """
        text = _graphs().get(self.function.__name__)
        return parse_graph(text) if text is not None else None

    def inputs(self, *, dtype: str = "f16", device: str = "meta", **sizes: int) -> tuple["Tensor", ...]:
        """Return example inputs: without data on the meta device, standard normal elsewhere."""
        import torch

        from superopt.trace.run import TORCH_DTYPES

        if dtype not in TORCH_DTYPES or not TORCH_DTYPES[dtype].is_floating_point:
            floats = [name for name, found in TORCH_DTYPES.items() if found.is_floating_point]
            raise InputError(f"{self.name}: dtype {dtype!r} is not one of {', '.join(floats)}")
        named = self.shapes(**sizes)
        for tensor, shape in named.items():
            if is_too_large(dtype, shape):
                told = ",".join(map(str, shape))
                raise InputError(f"{self.name}: {tensor} as {dtype}[{told}] is larger than any tensor can be")
        shapes = named.values()
        if device == "meta":
            return tuple(torch.empty(shape, dtype=TORCH_DTYPES[dtype], device="meta") for shape in shapes)
        return tuple(torch.randn(shape, device=device).to(TORCH_DTYPES[dtype]) for shape in shapes)


@cache
def _graphs() -> dict[str, str]:
    """Return the text of each workload's graph by the name of its function."""
    text = (Path(__file__).parent / "data" / "workloads.graphs").read_text(encoding="utf-8")
    graphs = (one for one in text.split("\n\n") if one.startswith("graph "))
    return {one.split()[1]: one for one in graphs}


WORKLOADS: dict[str, Workload] = {}
"""Every workload by name."""


def workload(name: str, tensors: str, **sizes: int) -> Callable[[_F], _F]:
    """Register a function of these tensors, written `x[M,K] w[K,N]`, with default sizes."""

    def register(function: _F) -> _F:
        shapes = {
            match[1]: tuple(filter(None, match[2].split(",")))
            for match in re.finditer(r"(\w+)\[([\w,]*)\]", tensors)
        }
        assert set(sizes) == {dim for dims in shapes.values() for dim in dims}, name
        summary = (function.__doc__ or "").strip().splitlines()[0]
        WORKLOADS[name] = Workload(name, function, summary, shapes, sizes)
        return function

    return register


@workload("softmax", "x[M,N]", M=16, N=4096)
def softmax(x: "Tensor") -> "Tensor":
    """Softmax of every row."""
    return x.softmax(-1)


@workload("rmsnorm", "x[M,K] g[K]", M=16, K=4096)
def rmsnorm(x: "Tensor", g: "Tensor") -> "Tensor":
    """RMS norm of every row, with a gain."""
    import torch

    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g


@workload("rmsnorm-linear", "x[M,K] g[K] w[K,N]", M=16, K=4096, N=6144)
def rmsnorm_linear(x: "Tensor", g: "Tensor", w: "Tensor") -> "Tensor":
    """RMS norm, then a matmul."""
    return rmsnorm(x, g) @ w


@workload("layernorm-linear-gelu", "x[M,K] g[K] b[K] w[K,N] c[N]", M=16, K=4096, N=4096)
def layernorm_linear_gelu(x: "Tensor", g: "Tensor", b: "Tensor", w: "Tensor", c: "Tensor") -> "Tensor":
    """Layer norm, a linear layer with a bias, GELU."""
    from torch.nn import functional as F

    return F.gelu(F.layer_norm(x, (x.shape[-1],), g, b) @ w + c)


@workload("gated-mlp", "x[M,K] w1[K,N] w2[K,N]", M=16, K=4096, N=14336)
def gated_mlp(x: "Tensor", w1: "Tensor", w2: "Tensor") -> "Tensor":
    """Gate and up projection: silu(x w1) * (x w2)."""
    from torch.nn import functional as F

    return F.silu(x @ w1) * (x @ w2)


@workload("rmsnorm-mlp", "x[M,K] g[K] w1[K,N] w2[K,N] w3[N,K]", M=16, K=4096, N=14336)
def rmsnorm_mlp(x: "Tensor", g: "Tensor", w1: "Tensor", w2: "Tensor", w3: "Tensor") -> "Tensor":
    """RMS norm, a gated MLP, the down projection."""
    return gated_mlp(rmsnorm(x, g), w1, w2) @ w3


@workload("lora", "x[M,K] w[K,N] a[K,R] b[R,N]", M=16, K=4096, N=4096, R=16)
def lora(x: "Tensor", w: "Tensor", a: "Tensor", b: "Tensor") -> "Tensor":
    """Linear layer with adapter: x w + (x a) b."""
    return x @ w + (x @ a) @ b


def _attention(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return ((q @ k.transpose(-2, -1)) * (1 / sqrt(q.shape[-1]))).softmax(-1) @ v


def _causal_attention(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    import torch

    scores = (q @ k.transpose(-2, -1)) * (1 / sqrt(q.shape[-1]))
    past = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~past, -torch.inf).softmax(-1) @ v


def _grouped(attention: _Function, q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    groups = q.view(q.shape[0], k.shape[1], -1, *q.shape[2:])
    return attention(groups, k.unsqueeze(2), v.unsqueeze(2)).flatten(1, 2)


@workload("mha", "q[B,H,S,D] k[B,H,S,D] v[B,H,S,D]", B=1, H=32, S=2048, D=128)
def mha(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    """Causal attention; each head has its own keys."""
    return _causal_attention(q, k, v)


@workload("gqa", "q[B,H,S,D] k[B,G,S,D] v[B,G,S,D]", B=1, H=32, G=8, S=2048, D=128)
def gqa(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    """Causal attention; groups of heads share keys."""
    return _grouped(_causal_attention, q, k, v)


@workload("mqa", "q[B,H,S,D] k[B,S,D] v[B,S,D]", B=1, H=32, S=2048, D=128)
def mqa(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    """Causal attention; all heads share the keys."""
    return _causal_attention(q, k.unsqueeze(1), v.unsqueeze(1))


@workload("mha-decode", "q[B,H,S,D] k[B,H,T,D] v[B,H,T,D]", B=8, H=32, S=1, T=4096, D=128)
def mha_decode(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    """Cached attention; each head has its own keys."""
    return _attention(q, k, v)


@workload("gqa-decode", "q[B,H,S,D] k[B,G,T,D] v[B,G,T,D]", B=8, H=32, G=8, S=1, T=4096, D=128)
def gqa_decode(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    """Cached attention; groups of heads share keys."""
    return _grouped(_attention, q, k, v)


@workload("mqa-decode", "q[B,H,S,D] k[B,T,D] v[B,T,D]", B=8, H=32, S=1, T=4096, D=128)
def mqa_decode(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    """Cached attention; all heads share the keys."""
    return _attention(q, k.unsqueeze(1), v.unsqueeze(1))


@workload(
    "qknorm-attention",
    "q[B,H,S,D] k[B,H,T,D] v[B,H,T,D] gq[D] gk[D]",
    B=1, H=32, S=16, T=4096, D=128,
)  # fmt: skip
def qknorm_attention(q: "Tensor", k: "Tensor", v: "Tensor", gq: "Tensor", gk: "Tensor") -> "Tensor":
    """Attention with RMS norm on queries and keys."""
    return _attention(rmsnorm(q, gq), rmsnorm(k, gk), v)


@workload(
    "mla",
    "q[B,H,L] qr[B,H,R] c[B,T,L] kr[B,T,R]",
    B=8, H=128, T=4096, L=512, R=64,
)  # fmt: skip
def mla(q: "Tensor", qr: "Tensor", c: "Tensor", kr: "Tensor") -> "Tensor":
    """Latent attention (MLA) of one new token.

    Two products make the scores, and the latent is the value.
    """
    scores = q @ c.transpose(-2, -1) + qr @ kr.transpose(-2, -1)
    return (scores * (1 / sqrt(128 + qr.shape[-1]))).softmax(-1) @ c


@workload("ntrans", "h[M,K] a[M,K] alpha[K]", M=16, K=4096)
def ntrans(h: "Tensor", a: "Tensor", alpha: "Tensor") -> "Tensor":
    """The update of nGPT: one step, then normalize.

    The step leads from h towards the normalized output of the block.
    """

    def unit(x: "Tensor") -> "Tensor":
        return x / x.square().sum(-1, keepdim=True).sqrt()

    return unit(h + alpha * (unit(a) - h))


@workload("matmul", "x[M,K] w[K,N]", M=16, K=4096, N=4096)
def matmul(x: "Tensor", w: "Tensor") -> "Tensor":
    """One matmul."""
    return x @ w


@workload("matmul-matmul", "x[M,K] w1[K,R] w2[R,N]", M=16, K=4096, R=4096, N=4096)
def matmul_matmul(x: "Tensor", w1: "Tensor", w2: "Tensor") -> "Tensor":
    """Two matmuls in a row."""
    return (x @ w1) @ w2


@workload("matmul-rowsum", "x[M,K] w[K,N]", M=16, K=4096, N=4096)
def matmul_rowsum(x: "Tensor", w: "Tensor") -> "Tensor":
    """The row sums of a matmul."""
    return (x @ w).sum(-1)


@workload("linear-cross-entropy", "x[M,K] w[K,V] target[M,V]", M=16, K=4096, V=32000)
def linear_cross_entropy(x: "Tensor", w: "Tensor", target: "Tensor") -> "Tensor":
    """The head of a language model, and its loss.

    Logits and log-softmax, picked by a one-hot target.
    """
    return -((x @ w).log_softmax(-1) * target).sum(-1)


def _rotate(x: "Tensor", cos: "Tensor", sin: "Tensor") -> "Tensor":
    import torch

    x1, x2 = x.chunk(2, -1)
    return x * cos + torch.cat([-x2, x1], -1) * sin


@workload(
    "llama-layer",
    "x[B,S,E] cos[S,D] sin[S,D] g1[E] wq[E,Q] wk[E,P] wv[E,P] wo[Q,E] g2[E] w1[E,N] w2[E,N] w3[N,E]",
    B=1, S=2048, E=4096, D=128, Q=4096, P=1024, N=14336,
)  # fmt: skip
def llama_layer(
    x: "Tensor",
    cos: "Tensor",
    sin: "Tensor",
    g1: "Tensor",
    wq: "Tensor",
    wk: "Tensor",
    wv: "Tensor",
    wo: "Tensor",
    g2: "Tensor",
    w1: "Tensor",
    w2: "Tensor",
    w3: "Tensor",
) -> "Tensor":
    """A whole decoder layer of Llama.

    Norm, q/k/v, RoPE, causal GQA, output, residual, norm, gated MLP, residual.
    """
    size = cos.shape[-1]
    h = rmsnorm(x, g1)
    q, k, v = ((h @ w).view(*h.shape[:2], -1, size).transpose(1, 2) for w in (wq, wk, wv))
    out = _grouped(_causal_attention, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
    x = x + out.transpose(1, 2).flatten(2) @ wo
    return x + rmsnorm_mlp(x, g2, w1, w2, w3)
