"""Programs that are sharded in the tests, each with its inputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from superopt.ir import Graph
from superopt.trace import trace


def mlp(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x @ w1) @ w2


def biased(x: Tensor, w1: Tensor, w2: Tensor, b: Tensor) -> Tensor:
    return torch.relu(x @ w1) @ w2 + b


def attention(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    tokens, heads = x.shape[0], 8
    q, k, v = ((x @ w).view(tokens, heads, -1).transpose(0, 1) for w in (wq, wk, wv))
    made = torch.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, -1) @ v
    return made.transpose(0, 1).reshape(tokens, -1) @ wo


def merged_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.T, -1) @ v


def log_softmax(x: Tensor, w: Tensor) -> Tensor:
    return torch.log_softmax(x @ w, -1)


def norm(x: Tensor, g: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g


def norm_mlp(x: Tensor, g: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return x + torch.nn.functional.silu(norm(x, g) @ w1) @ w2


def loss(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(x @ w, target)


def experts(x: Tensor, gate: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """All experts on all tokens, weighed by their gates."""
    hidden = torch.relu(torch.einsum("td,edf->etf", x, w1))
    return torch.einsum("te,etd->td", torch.softmax(x @ gate, -1), torch.einsum("etf,efd->etd", hidden, w2))


def routed(x: Tensor, dispatch: Tensor, combine: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """Each group of tokens sends some to the slots of each expert, and takes back what these make of them."""
    sent = torch.einsum("gtes,gtd->egsd", dispatch, x)
    hidden = torch.relu(torch.einsum("egsd,edf->egsf", sent, w1))
    return torch.einsum("gtes,egsd->gtd", combine, torch.einsum("egsf,efd->egsd", hidden, w2))


def gradients(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the function's result and the gradients of all inputs that are floats."""

    def made(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            own = [one.detach().requires_grad_() if one.is_floating_point() else one for one in inputs]
            result = function(*own)
            found = torch.autograd.grad(result.square().sum(), [one for one in own if one.requires_grad])
        return (result.detach(), *found)

    return made


def gradient(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    with torch.enable_grad():
        weight = w.detach().requires_grad_()
        loss = ((x @ weight - target) ** 2).mean()
        return torch.autograd.grad(loss, weight)[0]


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool, device=q.device).tril()
    return torch.softmax((q @ k.T).masked_fill(~mask, float("-inf")), -1) @ v


def layer(
    x: Tensor,
    g: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    h: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
) -> Tensor:
    """A layer as in Llama: attention under a causal mask and a gated MLP, each after a norm."""
    tokens, heads = x.shape[0], 8
    q, k, v = ((norm(x, g) @ w).view(tokens, heads, -1).transpose(0, 1) for w in (wq, wk, wv))
    mask = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
    scores = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(~mask, float("-inf"))
    x = x + (torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(tokens, -1) @ wo
    y = norm(x, h)
    return x + (torch.nn.functional.silu(y @ w1) * (y @ w3)) @ w2


def graph_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    """Return the graph of a function of tensors with these shapes."""
    return trace(function, *(torch.empty(shape, device="meta") for shape in shapes)).graph


LARGE: dict[Callable[..., Any], tuple[tuple[int, ...], ...]] = {
    mlp: ((64, 4096), (4096, 16384), (16384, 4096)),
    biased: ((64, 4096), (4096, 16384), (16384, 4096), (4096,)),
    attention: ((256, 4096), (4096, 4096), (4096, 4096), (4096, 4096), (4096, 4096)),
    merged_attention: ((16, 128), (1 << 20, 128), (1 << 20, 128)),
    log_softmax: ((64, 4096), (4096, 32768)),
    norm: ((4096, 4096), (4096,)),
    norm_mlp: ((1024, 4096), (4096,), (4096, 16384), (16384, 4096)),
    gradient: ((8192, 1024), (1024, 1024), (8192, 1024)),
    causal: ((64, 16), (64, 16), (64, 16)),
    experts: ((1024, 512), (512, 8), (8, 512, 2048), (8, 2048, 512)),
    routed: ((4, 256, 512), (4, 256, 8, 64), (4, 256, 8, 64), (8, 512, 2048), (8, 2048, 512)),
}
"""Programs, each at sizes at which a machine of several devices is worth its while."""
