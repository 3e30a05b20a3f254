"""Random small modules, made of what models are made of."""

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 8
HEADS = 2


class Norm(nn.Module):
    """One of the usual norms."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(WIDTH) if kind == "layer" else nn.RMSNorm(WIDTH, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Mlp(nn.Module):
    """Two linear layers around an activation."""

    def __init__(self, act: Callable[[Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=bias)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=bias)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class Gated(nn.Module):
    """A gated MLP, its two first layers apart or in one."""

    def __init__(self, act: Callable[[Tensor], Tensor], merged: bool) -> None:
        super().__init__()
        self.merged = merged
        self.up = nn.Linear(WIDTH, 4 * WIDTH if merged else 2 * WIDTH, bias=False)
        self.gate = None if merged else nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            gate, up = self.up(x).chunk(2, -1)
        else:
            gate, up = self.gate(x), self.up(x)
        return self.down(self.act(gate) * up)


class Attention(nn.Module):
    """Self-attention written out, or by PyTorch's own function."""

    def __init__(self, causal: bool, whole: bool, grouped: bool) -> None:
        super().__init__()
        self.keys = HEADS // 2 if grouped else HEADS
        size = WIDTH // HEADS
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, 2 * self.keys * size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.causal, self.whole, self.size = causal, whole, size

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, HEADS, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, self.keys, self.size).permute(2, 0, 3, 1, 4)
        if self.keys != HEADS:
            k, v = (one.repeat_interleave(HEADS // self.keys, 1) for one in (k, v))
        if self.whole:
            made = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-1, -2) / self.size**0.5
            if self.causal:
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            made = scores.softmax(-1) @ v
        return self.out(made.transpose(1, 2).reshape(batch, length, WIDTH))


class Scale(nn.Module):
    """A learned scale and what is pointwise around it."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x * self.scale) / (1 + x.abs().mean(-1, keepdim=True))


class Residual(nn.Module):
    """What it holds, added to its input."""

    def __init__(self, inner: nn.Module, norm: nn.Module | None) -> None:
        super().__init__()
        self.inner, self.norm = inner, norm

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x if self.norm is None else self.norm(x))


_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.silu,
    F.relu,
    F.gelu,
    torch.tanh,
    torch.sigmoid,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: F.relu(x).square(),
)


def random_module(seed: int) -> tuple[nn.Module, tuple[int, int, int]]:
    """Return a module and the shape of its input."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    blocks = [_block(draw) for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.5:
        blocks.append(nn.Linear(WIDTH, draw.choice((3, 16))))
    return nn.Sequential(*blocks), (draw.randint(2, 3), draw.randint(3, 9), WIDTH)


def _block(draw: random.Random) -> nn.Module:
    act = draw.choice(_ACTIVATIONS)
    coin = [draw.random() < 0.5 for _ in range(4)]
    makers: tuple[Callable[[], nn.Module], ...] = (
        lambda: Mlp(act, coin[0]),
        lambda: Gated(act, coin[0]),
        lambda: Attention(coin[0], coin[1], coin[2]),
        lambda: Scale(act),
    )
    inner = draw.choice(makers)()
    norm = Norm(draw.choice(("layer", "rms"))) if coin[3] else None
    return Residual(inner, norm) if draw.random() < 0.8 else inner
