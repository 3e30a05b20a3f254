"""Programs with exponentials as people write them in PyTorch, and inputs that overflow careless kernels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

QUERIES, KEYS, WIDTH, HEADS, CLASSES = 5, 37, 8, 2, 61


@dataclass(frozen=True)
class Program:
    function: Callable[..., Tensor | tuple[Tensor, ...]]
    shapes: tuple[tuple[int, ...], ...]
    split: str = ""  # "input dimension": the axis that parts of the work may share out
    shifted: bool = True  # whether a shift runs in its kernel


Q, K, HQ, HK = (QUERIES, WIDTH), (KEYS, WIDTH), (HEADS, QUERIES, WIDTH), (HEADS, KEYS, WIDTH)


def prefill(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    distance = (torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]).to(q.dtype)
    return (q @ k.mT - 0.25 * distance.abs()).softmax(-1) @ v


def additive_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, bias)


def safe(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    weights: Tensor = torch.ops.aten._safe_softmax(q @ k.mT + bias, -1)
    return weights @ v


def padded(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, bias > 0)


def soft_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(q @ k.mT / 30) * 30).softmax(-1) @ v


def sink(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
    scores = q @ k.mT
    shift = torch.maximum(scores.amax(-1, keepdim=True), s)
    weights = (scores - shift).exp()
    return (weights @ v) / (weights.sum(-1, keepdim=True) + (s - shift).exp())


def null_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    shift = scores.amax(-1, keepdim=True).clamp(min=0)
    weights = (scores - shift).exp()
    return (weights @ v) / ((-shift).exp() + weights.sum(-1, keepdim=True))


def sigmoid_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(q @ k.mT) @ v


def differential(q: Tensor, k: Tensor, p: Tensor, r: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) - 0.5 * (p @ r.mT).softmax(-1)) @ v


def pooling(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).softmax(0) @ x


def log_sum_exp(x: Tensor, w: Tensor) -> Tensor:
    return torch.logsumexp(x @ w.mT, -1)


def log_probabilities(x: Tensor, w: Tensor) -> Tensor:
    return F.log_softmax(x @ w.mT, -1)


def cross_entropy(x: Tensor, w: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(x @ w.mT, classes)


def entropy(x: Tensor) -> Tensor:
    return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def sharpened(x: Tensor) -> Tensor:
    """A ratio of powers of one exponential: a degree of 2."""
    weights = x.softmax(-1).square()
    return weights / weights.sum(-1, keepdim=True)


def nested(x: Tensor, w: Tensor) -> Tensor:
    """A softmax of what another one weighs."""
    return (x.softmax(-1) @ w.mT * 9).softmax(-1)


def with_logarithm(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of its denominator, as training keeps it."""
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def not_a_ratio(x: Tensor) -> Tensor:
    return torch.exp(x).sum(-1)


def root_on_one_side(x: Tensor) -> Tensor:
    weights = torch.exp(x)
    return weights.sum(-1).sqrt() / weights.sum(-1)


def different_shifts(x: Tensor) -> Tensor:
    """What is added has two degrees, so that no shift is free."""
    weights = torch.exp(x)
    return (weights.sum(-1) + weights.square().sum(-1)) / weights.sum(-1)


PROGRAMS = {
    "prefill": Program(prefill, (HQ, HK, HK), "k 1"),
    "causal": Program(causal, (HQ, HK, HK), "k 1"),
    "by-hand": Program(by_hand, (Q, K, K), "k 0"),
    "alibi": Program(alibi, (Q, K, K), "k 0"),
    "safe": Program(safe, (HQ, HK, HK, (QUERIES, KEYS)), "k 1"),
    "additive-mask": Program(additive_mask, (HQ, HK, HK, (QUERIES, KEYS)), "k 1"),
    "padded": Program(padded, (HQ, HK, HK, (QUERIES, KEYS)), "k 1"),
    "soft-capped": Program(soft_capped, (Q, K, K), "k 0"),
    "sink": Program(sink, (Q, K, K, (QUERIES, 1)), "k 0"),
    "null-key": Program(null_key, (Q, K, K), "k 0"),
    "sigmoid": Program(sigmoid_attention, (Q, K, K), "k 0", shifted=False),
    "differential": Program(differential, (Q, K, Q, K, K), "k 0"),
    "pooling": Program(pooling, (K, (WIDTH,)), ""),
    "log-sum-exp": Program(log_sum_exp, (Q, (CLASSES, WIDTH)), "w 0"),
    # The result is as long as the scores, so these are kept, and read again.
    "log-probabilities": Program(log_probabilities, (Q, (CLASSES, WIDTH)), shifted=False),
    "cross-entropy": Program(cross_entropy, (Q, (CLASSES, WIDTH), (QUERIES,)), "w 0"),
    "entropy": Program(entropy, ((QUERIES, KEYS),)),
    "softmax": Program(softmax, ((QUERIES, KEYS),)),
    "nested": Program(nested, (Q, (KEYS, WIDTH)), shifted=False),  # rows are whole in a tile
    "with-logarithm": Program(with_logarithm, (Q, K, K), "k 0"),
    "not-a-ratio": Program(not_a_ratio, ((QUERIES, KEYS),), shifted=False),
    "root-on-one-side": Program(root_on_one_side, ((QUERIES, KEYS),), shifted=False),
    "different-shifts": Program(different_shifts, ((QUERIES, KEYS),), shifted=False),
    "sharpened": Program(sharpened, ((QUERIES, KEYS),)),
}


def inputs(name: str, kind: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return inputs: usual ones, logits of any size, one key that outweighs all, masks that hide rows."""
    torch.manual_seed(0)
    made = [torch.randn(shape) for shape in PROGRAMS[name].shapes]
    if kind == "huge":  # logits of up to 1e4, or what half precision can hold
        made[0] *= 3e3 if dtype == torch.float32 else 1e3
    if kind == "dominating":
        made[0] *= 100
        made[min(1, len(made) - 1)][..., 3] *= 50
    if kind == "hidden" and name in ("additive-mask", "padded"):
        made[3] = torch.where(made[3] > 0, made[3], -torch.inf)
        made[3][1] = -torch.inf
    made = [one.to(dtype) for one in made]
    if name == "cross-entropy":
        made[2] = torch.tensor([0, CLASSES - 1, -100, 3, 3])
    return tuple(made)


KINDS = ("usual", "huge", "dominating", "hidden")
