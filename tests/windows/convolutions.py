"""Random convolutions and pools: odd sizes, long strides, much padding, groups, dilation, layouts."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["IMAGE", "READINGS", "TAPS", "Case", "random_case"]

_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED: tuple[Any, ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_USUAL = ((2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 0), (4, 4, 0, 0))
_AVERAGES = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_MAXIMA = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (F.relu, F.silu, torch.tanh, F.hardswish, lambda x: x)


@dataclass(frozen=True, slots=True)
class Case:
    """A program, its tensors, and what it is in words."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    text: str


def random_case(seed: int, dtype: torch.dtype = torch.float32) -> Case:
    """Return the program of a seed; PyTorch runs it without an error."""
    random = Random(seed)
    while True:
        case = random.choice((_convolution, _convolution, _pool, _transposed))(random, dtype)
        try:
            made = case.function(*case.inputs)
        except RuntimeError:  # the window is larger than the padded image, or the padding than half of a pool
            continue
        if all(made.shape[1:]):
            return case


def _image(random: Random, rank: int, channels: int, dtype: torch.dtype) -> Tensor:
    sizes = [random.choice((1, 2, 3, 5, 7, 8, 9, 17)[: 8 - rank]) for _ in range(rank)]
    batch = random.choice((0, 1, 1, 2, 3))
    made = torch.randn(batch, channels, *sizes, dtype=torch.float64).to(dtype)
    layout = random.choice(("contiguous", "contiguous", "channels_last", "strided", "expanded"))
    if layout == "channels_last" and rank in (2, 3):
        made = made.contiguous(memory_format=torch.channels_last if rank == 2 else torch.channels_last_3d)
    elif layout == "strided":
        made = torch.randn(batch, channels, *sizes[:-1], 2 * sizes[-1], dtype=torch.float64).to(dtype)[
            ..., ::2
        ]
    elif layout == "expanded" and channels > 1:
        made = made[:, :1].expand(batch, channels, *sizes)
    return made


def _each(random: Random, rank: int, choices: tuple[int, ...]) -> Any:
    return random.choice(choices) if random.random() < 0.3 else [random.choice(choices) for _ in range(rank)]


def _convolution(random: Random, dtype: torch.dtype) -> Case:
    rank = random.choice((1, 2, 2, 2, 3))
    kind = random.choice(("depthwise", "depthwise", "multiplied", "grouped", "whole", "dense", "pointwise"))
    groups = {"whole": 1, "pointwise": random.choice((1, 2))}.get(kind, random.choice((1, 2, 3, 5)))
    per_group = 1 if kind in ("depthwise", "multiplied") else random.choice((1, 2, 3))
    made = groups if kind == "depthwise" else groups * random.choice((1, 2, 3))
    if kind == "dense":
        groups = random.choice((1, 1, 2))
        per_group, made = random.choice((4, 7, 32, 75)), groups * random.choice((4, 5, 13, 33))
    kernel = [1 if kind == "pointwise" else random.choice((1, 2, 3, 5)[: 5 - rank]) for _ in range(rank)]
    settings = {
        "stride": _each(random, rank, (1, 1, 2, 3, 7)),
        "padding": _each(random, rank, (0, 1, 1, 2, 6)),
        "dilation": _each(random, rank, (1, 1, 2, 3)),
        "groups": groups,
    }
    x = _image(random, rank, groups * per_group, dtype)
    weight = torch.randn(made, per_group, *kernel, dtype=torch.float64).to(dtype)
    bias = torch.randn(made, dtype=torch.float64).to(dtype) if random.random() < 0.7 else None
    activation = random.choice(_ACTIVATIONS)
    convolve: Any = _CONVOLUTIONS[rank - 1]

    def function(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        return activation(convolve(x, weight, *(bias or (None,)), **settings))

    text = f"{kind} conv{rank}d {settings} of {list(x.shape)} with {list(weight.shape)}"
    return Case(function, (x, weight) if bias is None else (x, weight, bias), text)


def _transposed(random: Random, dtype: torch.dtype) -> Case:
    rank, groups = random.choice((1, 2, 2, 3)), random.choice((1, 1, 2))
    usual = random.random() < 0.6
    chosen = [random.choice(_USUAL) if usual else _unusual(random, rank) for _ in range(rank)]
    kernel, stride, padding, more = zip(*chosen, strict=True)
    dilation = [random.choice((1, 2)) if one == 1 else 1 for one in stride]
    settings = {"stride": stride, "padding": padding, "output_padding": more, "dilation": dilation}
    x = _image(random, rank, groups * random.choice((1, 3, 20)), dtype)
    made = random.choice((1, 2, 17))
    weight = torch.randn(x.shape[1], made, *kernel, dtype=torch.float64).to(dtype)
    activation = random.choice(_ACTIVATIONS)
    convolve: Any = _TRANSPOSED[rank - 1]

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return activation(convolve(x, weight, groups=groups, **settings))

    text = f"transposed {settings} of {list(x.shape)} with {list(weight.shape)} in {groups} groups"
    return Case(function, (x, weight), text)


def _unusual(random: Random, rank: int) -> tuple[int, int, int, int]:
    stride = random.choice((1, 2, 2, 3))
    more = random.choice((0, 0, stride - 1))
    return random.choice((1, 2, 3, 4, 5)[: 6 - rank]), stride, random.choice((0, 0, 1, 2)), more


def _pool(random: Random, dtype: torch.dtype) -> Case:
    rank = random.choice((1, 2, 2, 3))
    kernel = [random.choice((1, 2, 3, 5)[: 5 - rank]) for _ in range(rank)]
    stride = random.choice((None, [random.choice((1, 2, 3, 7)) for _ in range(rank)]))
    padding = [random.choice((0, one // 2)) for one in kernel]
    settings: dict[str, Any] = {"stride": stride, "padding": padding, "ceil_mode": random.random() < 0.3}
    maximum = random.random() < 0.5
    if maximum:
        settings["dilation"] = _each(random, rank, (1, 1, 2))
    else:
        settings["count_include_pad"] = random.random() < 0.5
    pool: Any = (_MAXIMA if maximum else _AVERAGES)[rank - 1]
    x = _image(random, rank, random.choice((1, 3)), dtype)
    scale = random.choice((1.0, -2.0))

    def function(x: Tensor) -> Tensor:
        return pool(x * scale, kernel, **settings)

    return Case(function, (x,), f"{pool.__name__} {kernel} {settings} of {list(x.shape)}")


IMAGE, TAPS = torch.Size((2, 4, 9, 7)), torch.Size((4, 4, 3, 3))
READINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "circular": lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), w),
    "reflect": lambda x, w: F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), w, dilation=2).relu(),
    "replicate": lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), w, stride=2),
    "flip": lambda x, w: F.conv2d(x.flip(2), w.flip((2, 3)), padding=1),
    "folded": lambda x, w: F.fold(F.unfold(x, 3, padding=1) * w[0, 0, 0, 0], (9, 7), 3, padding=1),
    "strided": lambda x, w: F.fold(
        F.unfold(x, 3, padding=1, stride=2) * w[0, 0, 0, 0], (9, 7), 3, padding=1, stride=2
    ),
    "rest": lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
}
"""Programs of an image and taps, of which some read dimensions at places that several lines give."""
