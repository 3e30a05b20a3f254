"""Calls drawn at random: an operator, its arguments, and tensors of some dtype, layout and range."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Call", "drawn_call"]

Shape = tuple[int, ...]
Drawn = tuple[Callable[..., Any], list[Shape]]  # a function, and the shapes of its tensors

_SIZES = (1, 1, 2, 3, 4, 5, 6, 8)
_NUMBERS = (0.0, 1.0, -1.0, 0.5, 2.0, -0.3, 0.01, 3, 0, 1, -1)
_REDUCTIONS = ("none", "sum", "mean")
_DTYPES = (
    (torch.float64,) * 4 + (torch.float32,) * 3 + (torch.float16, torch.bfloat16, torch.bool, torch.int64)
)
_KINDS = ("normal", "normal", "grid", "small", "positive", "big", "infinite")
_LAYOUTS = ("plain", "plain", "transposed", "channels last", "steps", "offset", "expanded")
_SPECIAL = torch.tensor([inf, -inf, 0.0, 1.0], dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Call:
    """A function and inputs for it, and how they came about."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    text: str


class Dice(random.Random):
    """Random choices that are remembered in words."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.said: list[str] = []

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices."""
        found = self.choice(choices)
        self.said.append(str(found))
        return found

    def number(self) -> float:
        """Return a number at which operators may behave in another way."""
        return float(self.pick(*_NUMBERS)) if self.random() < 0.5 else self.pick(*_NUMBERS)

    def size(self) -> int:
        """Return a size, rarely 0."""
        return 0 if self.random() < 0.03 else self.choice(_SIZES)

    def shape(self, least: int = 0, most: int = 4) -> Shape:
        """Return a shape."""
        return tuple(self.size() for _ in range(self.randint(least, most)))


def _activation(dice: Dice) -> Drawn:
    a, b, c = dice.number(), dice.number(), dice.number()
    name, function = dice.choice(
        [
            ("elu", lambda x: torch.ops.aten.elu(x, a, b, c)),
            ("selu", F.selu),
            ("celu", lambda x: F.celu(x, a or 1.0)),
            ("hardswish", F.hardswish),
            ("hardsigmoid", F.hardsigmoid),
            ("hardtanh", lambda x: F.hardtanh(x, min(a, b), max(a, b))),
            ("softshrink", lambda x: F.softshrink(x, abs(a))),
            ("hardshrink", lambda x: F.hardshrink(x, a)),
            ("threshold", lambda x: F.threshold(x, a, b)),
            ("mish", F.mish),
            ("softsign", F.softsign),
            ("tanhshrink", F.tanhshrink),
            ("logsigmoid", F.logsigmoid),
            ("leaky_relu", lambda x: F.leaky_relu(x, a)),
            ("softplus", lambda x: F.softplus(x, a or 1.0, b)),
            ("rrelu", lambda x: F.rrelu(x, 0.1, 0.3, False)),
            ("sign", torch.sign),
            ("sgn", torch.sgn),
            ("logit", lambda x: torch.logit(x, eps=abs(a) / 4 if abs(a) < 4 else None)),
            ("log10", torch.log10),
            ("xlogy", lambda x: torch.xlogy(x, a) + torch.xlogy(b, x)),
            ("clamp", lambda x: torch.clamp(x, a, b)),
        ]
    )
    dice.said.append(name)
    return function, [dice.shape()]


def _of_two(dice: Dice) -> Drawn:
    reduction, a, log_target = dice.pick(*_REDUCTIONS), dice.number(), dice.pick(False, True)
    whole = {
        "kl_div": lambda x, y: F.kl_div(x, y, reduction=reduction, log_target=log_target),
        "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction=reduction, beta=abs(a)),
        "huber": lambda x, y: F.huber_loss(x, y, reduction=reduction, delta=abs(a) or 1.0),
        # A sigmoid that half precision rounds to 1 would be judged by PyTorch's limit of the logarithm, -100.
        "bce": lambda x, y: F.binary_cross_entropy(
            x.sigmoid() * 0.75 + 0.125, y.sigmoid(), reduction=reduction
        ),
        "mse": lambda x, y: F.mse_loss(x, y, reduction=reduction),
    }
    broadcast = {
        "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, x * y, reduction=reduction),
        "hinge": lambda x, y: F.soft_margin_loss(x, (x * y).sign(), reduction=reduction),
        "xlogy": torch.xlogy,
        "lerp": lambda x, y: torch.lerp(x, y, a),
        "add": lambda x, y: torch.add(x, y, alpha=a),
        "rsub": lambda x, y: torch.rsub(x, y, alpha=a),
        "pow": torch.pow,
        "clamp": lambda x, y: torch.clamp(x, min=y, max=y - 1),
        "copysign": torch.copysign,
        "logaddexp": torch.logaddexp,
        "ge": torch.ge,
        "cosine": lambda x, y: F.cosine_similarity(x, y, dim=-1),
    }
    name = dice.pick(*whole, *broadcast)
    shape = dice.shape()
    other = shape if name in whole else tuple(size if dice.random() < 0.8 else 1 for size in shape)
    return {**whole, **broadcast}[name], [shape, other]


def _norm(dice: Dice) -> Drawn:
    kind, affine, train, groups = (
        dice.pick("batch", "group", "instance", "layer", "rms"),
        dice.pick(0, 1, 2),
        dice.pick(False, True),
        dice.pick(1, 2, 3),
    )
    shape = dice.shape(2, 5)
    if kind == "group":
        shape = (shape[0], groups * dice.pick(1, 2), *shape[2:])
    own = shape[-1:] if kind in ("layer", "rms") else shape[1:2]

    def function(x: Tensor, w: Tensor, b: Tensor, m: Tensor) -> Tensor:
        weight, bias = w if affine else None, b if affine > 1 else None
        if kind == "batch":
            return F.batch_norm(x, None if train else m, None if train else m.abs(), weight, bias, train)
        if kind == "group":
            return F.group_norm(x, groups, weight, bias)
        if kind == "instance":
            return F.instance_norm(x, m, m.abs(), weight, bias, use_input_stats=False)
        if kind == "layer":
            return F.layer_norm(x, own, weight, bias)
        return F.rms_norm(x, own, weight)

    return function, [shape, own, own, own]


def _shuffle(dice: Dice) -> Drawn:
    kind, by = dice.pick("pixel", "unpixel", "channel"), dice.pick(1, 2, 3)
    n, c, h, w = (dice.choice(_SIZES) for _ in range(4))
    if kind == "pixel":
        return lambda x: F.pixel_shuffle(x, by) * 2, [(n, c * by * by, h, w)]
    if kind == "unpixel":
        return lambda x: F.pixel_unshuffle(x, by) * 2, [(n, c, h * by, w * by)]
    return lambda x: F.channel_shuffle(x, by) * 2, [(n, c * by, h, w)]


def _pool(dice: Dice) -> Drawn:
    rank = dice.pick(1, 2, 3)
    kernel = tuple(dice.pick(1, 2, 2, 3, 4) for _ in range(rank))
    tiled = dice.random() < 0.6
    sizes = tuple(one * dice.choice((1, 2, 3)) if tiled else dice.choice(_SIZES) for one in kernel)
    stride, padding, gap = dice.pick(None, None, 1, 2, kernel), dice.pick(0, 0, 0, 1), dice.pick(1, 1, 1, 2)
    ceil, count_padding, divisor = (
        dice.pick(False, True),
        dice.pick(False, True),
        dice.pick(None, None, 1, 3, -2),
    )
    indices = dice.pick(False, False, True)
    shape = (*dice.pick((), (2,)), dice.size(), *sizes)
    if dice.pick("average", "maximum") == "maximum":
        largest = getattr(F, f"max_pool{rank}d")
        return lambda x: largest(x, kernel, stride, padding, gap, ceil, indices), [shape]
    more = () if rank == 1 else (divisor,)
    average = getattr(F, f"avg_pool{rank}d")
    return lambda x: average(x, kernel, stride, padding, ceil, count_padding, *more), [shape]


def _adaptive_pool(dice: Dice) -> Drawn:
    rank, indices = dice.pick(1, 2, 3), dice.pick(False, False, True)
    counts = tuple(dice.pick(1, 1, 2, 3, 4, 0) for _ in range(rank))
    even = dice.random() < 0.7
    sizes = tuple(max(one, 1) * dice.choice((1, 2, 3)) if even else dice.choice(_SIZES) for one in counts)
    wanted = counts if rank > 1 else counts[0]
    shape = (*dice.pick((), (2,)), dice.size(), *sizes)
    if dice.pick("average", "maximum") == "maximum":
        largest = getattr(F, f"adaptive_max_pool{rank}d")
        return lambda x: largest(x, wanted, indices), [shape]
    average = getattr(F, f"adaptive_avg_pool{rank}d")
    return lambda x: average(x, wanted), [shape]


def _reduction(dice: Dice) -> Drawn:
    one, keep = dice.pick(0, -1), dice.pick(False, True)
    some, correction = dice.pick(one, (one,), ()), dice.pick(0, 1, 0.5)
    functions: dict[str, Callable[[Tensor], Any]] = {
        "argmax": lambda x: x.argmax(one),
        "argmin-all": lambda x: x.argmin(),
        "sum": lambda x: x.sum(some, keep),
        "mean": lambda x: x.mean(some, keep),
        "var_mean": lambda x: torch.var_mean(x, some, correction=correction, keepdim=keep),
        "amax": lambda x: x.amax(some, keep),
        "max": lambda x: x.max(one, keep),
        "min": lambda x: x.min(one, keep)[0],
        "any": lambda x: x.any(one, keep),
        "all": lambda x: (x > 0).all(some, keep),
        "softmax": lambda x: x.softmax(one),
        "log_softmax": lambda x: x.log_softmax(one, dtype=torch.float64),
        "logsumexp": lambda x: x.logsumexp(one, keep),
        "norm": lambda x: torch.linalg.vector_norm(x, 1, some, keep),
        "count": lambda x: (x > 0).sum(one, keep) * 2.5,
        "prod": lambda x: x.prod(one, keep),
    }
    return functions[dice.pick(*functions)], [dice.shape()]


def _write(dice: Dice) -> Drawn:
    a, shape = dice.number(), (dice.pick(2, 3, 4), dice.pick(2, 3, 4, 6))
    writes: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
        "row": lambda z, x, y: z[0].fill_(a),
        "columns": lambda z, x, y: z[:, 1:].add_(y[:, 1:]),
        "transposed": lambda z, x, y: z.t()[0].mul_(a),
        "flat": lambda z, x, y: z.view(-1)[1:3].zero_(),
        "masked": lambda z, x, y: z.masked_fill_(y > 0, a),
        "through a view": lambda z, x, y: (z[0], z.add_(1))[0].mul_(2),
        "copy": lambda z, x, y: z.copy_(y)[..., -1].sigmoid_(),
        "diagonal": lambda z, x, y: z.diagonal().add_(a),
        "activations": lambda z, x, y: (F.relu_(z[:1]), F.elu_(z[1:]), F.hardtanh_(z, -1, 1)),
        "several": lambda z, x, y: torch._foreach_mul_([z], [y]),
        "step": lambda z, x, y: z[:, ::2].xlogy_(y[:, ::2]),
    }
    write = writes[dice.pick(*writes)]

    def function(x: Tensor, y: Tensor) -> Tensor:
        z = x * 1
        write(z, x, y)
        return z + x

    return function, [shape, shape]


_RULES = (
    *(_activation,) * 2,
    _of_two,
    _norm,
    _shuffle,
    *(_pool,) * 2,
    _adaptive_pool,
    *(_reduction,) * 2,
    _write,
)


def drawn_call(seed: int, dtypes: Sequence[torch.dtype] = _DTYPES) -> Call:
    """Return the call of a seed; PyTorch may refuse it."""
    dice, generator = Dice(seed), torch.Generator().manual_seed(seed)
    function, shapes = dice.choice(_RULES)(dice)
    dtype, kind = dice.choice(dtypes), dice.choice(_KINDS)
    inputs = []
    for shape in shapes:
        layout = dice.choice(_LAYOUTS)
        inputs.append(_laid_out(_numbers(shape, dtype, kind, generator), layout))
        dice.said.append(f"{dtype}{list(shape)} {layout} {kind}")
    return Call(function, tuple(inputs), f"seed {seed}: {' '.join(dice.said)}")


def _numbers(shape: Shape, dtype: torch.dtype, kind: str, generator: torch.Generator) -> Tensor:
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "grid":
        x = torch.randint(-3, 4, shape, generator=generator).double()
    elif kind == "infinite":
        chosen = torch.randint(8, shape, generator=generator)
        x = torch.where(chosen < len(_SPECIAL), _SPECIAL[chosen.clamp(max=len(_SPECIAL) - 1)], x)
    else:
        x = {"small": x.clamp(-1, 1) / 2, "positive": x.abs() + 0.1, "big": x * 20}.get(kind, x)
    if dtype == torch.bool:
        return x > 0
    return x.to(dtype) if dtype.is_floating_point else x.nan_to_num(0, 3, -3).to(dtype)


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """Return the tensor in some layout of memory; expanded, it has the numbers of its first row in all."""
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "channels last" and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "steps":
        return torch.stack([x, x], -1)[..., 0]
    if layout == "offset" and x.dim():
        return torch.cat([x, x])[len(x) :]
    if layout == "expanded" and x.dim():
        return x[:1].expand(x.shape)
    return x
