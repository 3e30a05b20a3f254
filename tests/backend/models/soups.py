"""Random cases: modules of blocks, and modules without a plan, of steps that user code does to a tensor."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..modules import WIDTH, random_module

TOKENS = 11
_HALVES = (torch.bfloat16, torch.float16)

Step = Callable[[Tensor, "Soup", Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """A module, the shape of its first input, whose first two axes may change, and its dtype."""

    module: nn.Module
    shape: tuple[int, int, int]
    dtype: torch.dtype = torch.float32
    tokens: bool = True

    def inputs(self, seed: int, more: int = 0) -> tuple[Tensor, ...]:
        """Return features, and token numbers if it takes any; two axes longer by `more` and twice that."""
        torch.manual_seed(seed)
        batch, length, width = self.shape
        batch, length = batch + more, length + 2 * more
        features = torch.randn(batch, length, width, dtype=self.dtype)
        return (features, torch.randint(0, TOKENS, (batch, length))) if self.tokens else (features,)


class Soup(nn.Module):
    """Steps one after another, now and then with what an earlier one made; one result or three."""

    def __init__(self, steps: Sequence[Step], several: bool) -> None:
        super().__init__()
        self.steps, self.several = tuple(steps), several
        self.square = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.wide = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH) / WIDTH**0.5)
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.number = nn.Parameter(torch.tensor(0.7))
        self.table = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.register_buffer("fixed", torch.linspace(-1, 1, WIDTH))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor | tuple[Tensor, ...]:
        first = x
        for at, step in enumerate(self.steps):
            x = step(x, self, tokens)
            if at == 1:
                x = x + first
        if not self.several:
            return x
        with torch.no_grad():
            self.calls += 1
        return x, x.mean((0, 1)), (x * self.scale).transpose(0, 1)


def _causal(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()


def _heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], x.shape[1], 2, WIDTH // 2)


def _mixed(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    scores = torch.einsum("bthd,bshd->bhts", _heads(x), _heads(x)) / 2
    scores = scores.masked_fill(~_causal(x), -1e4)
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), _heads(x)).flatten(2)


def _padded(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    scores = (x @ soup.square) @ x.mT
    scores = torch.where((tokens > 2)[:, None, :], scores, torch.full((), -3.0, dtype=x.dtype))
    return scores.softmax(-1) @ x


def _biased(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    place = torch.arange(x.shape[1], device=x.device)
    away = (place[:, None] - place[None, :]).abs().to(x.dtype)
    return (x @ x.mT / WIDTH - 0.3 * away).softmax(-1) @ (x @ soup.square)


def _in_place(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    y = x @ soup.square
    y[..., :3] += 1
    y[:, 0].mul_(0.5)
    return y.add_(x).tanh_()


def _rotated(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    angle = torch.arange(x.shape[1], device=x.device).to(x.dtype)[:, None] * soup.fixed
    a, b = x.chunk(2, -1)
    return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()


def _shifted(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    return 0.5 * x + torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1) @ soup.square


def _pooled(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    keep = (tokens != 0).to(x.dtype)[..., None]
    return x - (x * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True).clamp(min=1)


def _low_rank(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    return x @ soup.square + (x @ soup.wide[:, :2]) @ soup.wide[:, :2].T * soup.number


def _by_features(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    y = x.transpose(1, 2)
    return (y * soup.scale[:, None] / y.square().sum((1, 2), keepdim=True).sqrt()).transpose(1, 2) + x


def _swapped(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    y = x.transpose(0, 1).contiguous().view(x.shape[1], x.shape[0], 2, WIDTH // 2)
    return y.flatten(2).transpose(0, 1) @ soup.square.T


def _parts(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    a, b, c = x.split([3, 3, 2], -1)
    made = torch.cat([a * b.sigmoid(), b - a, c * c.mean(-1, keepdim=True)], -1)
    return made @ soup.square


def _as_float(x: Tensor, soup: Soup, tokens: Tensor) -> Tensor:
    y = x.float() if x.dtype in _HALVES else x
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * soup.scale


_STEPS: tuple[Step, ...] = (
    _mixed,
    _padded,
    _biased,
    _in_place,
    _rotated,
    _shifted,
    _pooled,
    _low_rank,
    _by_features,
    _swapped,
    _parts,
    _as_float,
    lambda x, soup, tokens: x @ soup.square @ soup.square.T,  # one weight, read twice
    lambda x, soup, tokens: F.silu(x @ soup.wide)[..., WIDTH:] * (x @ soup.wide)[..., :WIDTH],
    lambda x, soup, tokens: (x @ soup.wide).unflatten(-1, (2, WIDTH)).sum(2),
    lambda x, soup, tokens: x + F.embedding(tokens, soup.table) @ soup.square,
    lambda x, soup, tokens: F.log_softmax(x @ soup.square, -1),
    lambda x, soup, tokens: x - x.logsumexp(1, keepdim=True),
    lambda x, soup, tokens: (x - x.mean((0, 1))) / (x.var((0, 1), unbiased=False) + 0.1).sqrt(),
    lambda x, soup, tokens: x / (1 + x.abs().sum((1, 2), keepdim=True)) + x.mean(0, keepdim=True),
    lambda x, soup, tokens: (x * soup.scale).softmax(1) * soup.number + x,
    lambda x, soup, tokens: x * soup.number.exp() - soup.fixed,
    lambda x, soup, tokens: F.layer_norm(x, (WIDTH,), soup.scale, soup.fixed),
    lambda x, soup, tokens: F.softplus(x) - torch.log1p(x.square()) + torch.erf(x),
    lambda x, soup, tokens: x[:, -1:].expand_as(x).tanh() * x + x[:, :, :1],
    lambda x, soup, tokens: x @ (x.mT @ x / x.shape[1]).softmax(-1),
    lambda x, soup, tokens: x.cumsum(1) / x.shape[1] @ soup.square,
    lambda x, soup, tokens: F.conv1d(x.mT, soup.square[:, :, None]).mT * x,
)
"""Smooth ones: half-precision gradients of the others depend on which of two equal numbers is larger."""

_KINKED: tuple[Step, ...] = (
    lambda x, soup, tokens: x - x.amax((1, 2), keepdim=True) * 0.1,
    lambda x, soup, tokens: torch.maximum(x @ soup.square, x).clamp(-3, 2),
    lambda x, soup, tokens: torch.where(x > 0, x * soup.scale, F.elu(x)),
    lambda x, soup, tokens: F.leaky_relu(x @ soup.square).relu_(),
    lambda x, soup, tokens: x.masked_fill(x < soup.fixed, 0.25) @ soup.square,
    lambda x, soup, tokens: F.hardtanh(x) + x.abs().amin(-1, keepdim=True),
)


def random_case(seed: int) -> Case:
    """Return blocks for an even seed, and steps for an odd one."""
    if seed % 2 == 0:
        module, shape = random_module(seed // 2)
        return Case(module, shape, tokens=False)
    return _soup(seed)


def _soup(seed: int) -> Case:
    """Return a module of three to six steps; one in four is of a half-precision dtype."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dtype = draw.choice((torch.float32,) * 6 + _HALVES)
    steps = _STEPS if dtype in _HALVES else _STEPS + _KINKED
    module = Soup([draw.choice(steps) for _ in range(draw.randint(3, 6))], draw.random() < 0.3)
    case = Case(module, (draw.randint(2, 3), draw.randint(3, 9), WIDTH))
    return replace(case, module=module.to(dtype), dtype=dtype)
