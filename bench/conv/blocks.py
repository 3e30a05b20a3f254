"""Blocks: parts of convolutional nets with random weights, and the shapes of what they are given."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["BLOCKS"]


class _Normed(nn.Sequential):
    """A convolution, its batch norm, and an activation or none."""

    def __init__(
        self,
        channels: int,
        made: int,
        size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        active: type[nn.Module] | None = nn.ReLU,
        dilation: int = 1,
    ) -> None:
        padding = dilation * (size // 2)
        convolution = nn.Conv2d(channels, made, size, stride, padding, dilation, groups, bias=False)
        norm = nn.BatchNorm2d(made)
        for one in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert one is not None
            nn.init.uniform_(one, 0.5, 1.5)
        super().__init__(convolution, norm, *([] if active is None else [active()]))


class _Residual(nn.Module):
    """What a body makes of an image, and the image itself or a shorter way, added."""

    def __init__(self, body: nn.Module, short: nn.Module | None = None, *, last: bool = True) -> None:
        super().__init__()
        self.body, self.short, self.last = body, short or nn.Identity(), last

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x) + self.short(x)
        return F.relu(made) if self.last else made


class _Squeezed(nn.Module):
    """Channels scaled by what two small layers make of their averages."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.up(F.silu(self.down(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(scale)


class _ConvNext(nn.Module):
    """A depthwise convolution, a norm over channels, two linear layers, and a scaled residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.up = nn.LayerNorm(channels), nn.Linear(channels, 4 * channels)
        self.down, self.scale = nn.Linear(4 * channels, channels), nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        made = self.scale * self.down(F.gelu(self.up(made)))
        found: Tensor = x + made.permute(0, 3, 1, 2)
        return found


class _Up(nn.Module):
    """An image twice as large, beside the one from the way down."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels // 2, 2, 2)
        self.join = _Normed(channels, channels // 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        large = self.up(x)
        found: Tensor = self.join(torch.cat([large, F.relu(large)], 1))
        return found


class _WaveNet(nn.Module):
    """Gated causal convolutions, each twice as far apart as the one before."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=2**at, padding=2**at) for at in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            a, b = layer(x)[..., : x.shape[-1]].chunk(2, 1)
            x = x + torch.tanh(a) * torch.sigmoid(b)
        return x


class _Causal(nn.Module):
    """The short causal convolution of a state-space model, gated."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels, channels, 4, padding=3, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.convolution(x)[..., : x.shape[-1]])


def _stem() -> nn.Module:
    first, second = nn.Conv1d(80, 384, 3, padding=1), nn.Conv1d(384, 384, 3, stride=2, padding=1)
    return nn.Sequential(first, nn.GELU(), second, nn.GELU())


def _inverted(channels: int, *, size: int, stride: int, active: type[nn.Module], squeezed: bool) -> nn.Module:
    inner = 4 * channels
    body = nn.Sequential(
        _Normed(channels, inner, 1, active=active),
        _Normed(inner, inner, size, stride=stride, groups=inner, active=active),
        *([_Squeezed(inner, channels // 4)] if squeezed else []),
        _Normed(inner, channels, 1, active=None),
    )
    return body if stride > 1 else _Residual(body, last=False)


def _volume() -> nn.Module:
    depthwise = nn.Conv3d(32, 32, 3, padding=1, groups=32)
    return nn.Sequential(depthwise, nn.ReLU(), nn.Conv3d(32, 64, 1), nn.AvgPool3d(3, 2, 1))


BLOCKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet-stem": (
        lambda: nn.Sequential(_Normed(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, 1)),
        (1, 3, 224, 224),
    ),
    "resnet-basic": (
        lambda: _Residual(nn.Sequential(_Normed(64, 64, 3), _Normed(64, 64, 3, active=None))),
        (1, 64, 56, 56),
    ),
    "resnet-bottleneck": (
        lambda: _Residual(
            nn.Sequential(_Normed(256, 64, 1), _Normed(64, 64, 3), _Normed(64, 256, 1, active=None))
        ),
        (1, 256, 56, 56),
    ),
    "resnet-down": (
        lambda: _Residual(
            nn.Sequential(_Normed(64, 128, 3, stride=2), _Normed(128, 128, 3, active=None)),
            _Normed(64, 128, 1, stride=2, active=None),
        ),
        (1, 64, 56, 56),
    ),
    "mobilenet": (
        lambda: _inverted(32, size=3, stride=1, active=nn.ReLU6, squeezed=False), (1, 32, 28, 28),
    ),
    "mobilenet-strided": (
        lambda: _inverted(32, size=3, stride=2, active=nn.Hardswish, squeezed=False), (1, 32, 56, 56),
    ),
    "efficientnet": (
        lambda: _inverted(40, size=5, stride=1, active=nn.SiLU, squeezed=True), (1, 40, 28, 28),
    ),
    "depthwise": (lambda: _Normed(128, 128, 3, groups=128, active=nn.Hardswish), (1, 128, 56, 56)),
    "convnext": (lambda: _ConvNext(96), (1, 96, 56, 56)),
    "unet-up": (lambda: _Up(64), (1, 64, 28, 28)),
    "dilated": (
        lambda: nn.Sequential(*(_Normed(32, 32, 3, groups=32, dilation=2**at) for at in range(4))),
        (1, 32, 64, 64),
    ),
    "wavenet": (lambda: _WaveNet(32, 4), (1, 32, 2048)),
    "causal": (lambda: _Causal(512), (1, 512, 1024)),
    "whisper-stem": (_stem, (1, 80, 1000)),
    "volume": (_volume, (1, 32, 16, 28, 28)),
    "pools": (
        lambda: nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1)), (1, 64, 56, 56),
    ),
}  # fmt: skip
"""Every block: what makes it, and the shape of its image."""
