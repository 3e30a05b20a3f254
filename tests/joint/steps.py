"""A small language model, losses of it, and a step of training it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH = 90, 12

Loss = Callable[[Tensor, Tensor], Tensor]


class Model(nn.Module):
    """Words, a layer, a norm, and a loss of the words that follow."""

    def __init__(self, loss: Loss, *, tied: bool = False, bias: bool = False, short: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.loss, self.short = loss, short
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        x = self.words(read)
        if not self.short:
            x = self.norm(x + torch.relu(self.layer(x)))
        logits = self.head(x)
        return self.loss(logits.flatten(0, 1), wanted.flatten())


def plain(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits, wanted)


def summed(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits, wanted, reduction="sum")


def smooth(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits, wanted, label_smoothing=0.1)


def capped(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(30 * torch.tanh(logits / 30), wanted)


def with_z(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits, wanted) + 1e-2 * logits.logsumexp(-1).square().mean()


def squared(logits: Tensor, wanted: Tensor) -> Tensor:
    """The gradient that enters depends on the loss."""
    return F.cross_entropy(logits, wanted) ** 2


def words(last: int = WORDS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    read, wanted = torch.randint(0, WORDS, (3, 9)), torch.randint(0, last, (3, 9))
    wanted[0, 3] = -100
    return read, wanted


def step(model: Callable[..., Tensor], parameters: list[nn.Parameter], by: float) -> list[Tensor]:
    for one in parameters:
        one.grad = None
    loss = model(*words())
    (by * loss).backward()
    return [loss.detach(), *(one.grad.clone() for one in parameters if one.grad is not None)]
