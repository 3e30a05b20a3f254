"""Idioms of windows: convolutions, pools, patches, and running totals."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="windows")
wrong = partial(Pair, equal=False, family="windows")

cat, stack = torch.cat, torch.stack


def _separate(x: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Convolve each channel by columns, then by rows."""
    return F.conv2d(F.conv2d(x, u, groups=2), v, groups=2)


IDIOMS = (
    equal(
        "an average by unfolding",
        lambda x: x.unfold(-1, 3, 2).mean(-1),
        lambda x: F.avg_pool1d(x, 3, 2),
        "f32[2,2,9]",
    ),
    equal(
        "a convolution by unfolding",
        lambda x, w: F.conv1d(x[:, None], w[None, None], stride=2)[:, 0],
        lambda x, w: x.unfold(1, 3, 2) @ w,
        "f32[2,9] f32[3]",
    ),
    equal(
        "a convolution by patches",
        lambda x, w: F.conv2d(x, w),
        lambda x, w: (w.flatten(1) @ F.unfold(x, 3)).view(2, 3, 2, 3),
        "f32[2,2,4,5] f32[3,2,3,3]",
    ),
    equal(
        "patches folded together",
        lambda x: F.fold(F.unfold(x, 2), (4, 5), 2),
        lambda x: x * F.fold(F.unfold(torch.ones_like(x), 2), (4, 5), 2),
        "f32[1,2,4,5]",
    ),
    equal(
        "a patch embedding",
        lambda x, w: F.conv2d(x, w, stride=4).flatten(2).transpose(1, 2),
        lambda x, w: x.view(2, 3, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).reshape(2, 4, 48) @ w.flatten(1).T,
        "f32[2,3,8,8] f32[6,3,4,4]",
    ),
    equal(
        "a depthwise convolution",
        lambda x, w: F.conv1d(x, w[:, None], padding=1, groups=3),
        lambda x, w: sum(F.pad(x, (1, 1))[..., i : i + 6] * w[:, i : i + 1] for i in range(3)),
        "f32[2,3,6] f32[3,3]",
    ),
    equal(
        "a causal convolution",
        lambda x, w: F.conv1d(F.pad(x, (2, 0)), w),
        lambda x, w: F.conv1d(x, w, padding=2)[..., :-2],
        "f32[2,3,6] f32[4,3,3]",
    ),
    equal(
        "a dilated convolution",
        lambda x, w: F.conv1d(x, w, dilation=2),
        lambda x, w: F.conv1d(x, stack([w[..., 0], 0 * w[..., 0], w[..., 1]], -1)),
        "f32[2,2,6] f32[3,2,2]",
    ),
    equal(
        "a strided convolution",
        lambda x, w: F.conv2d(x, w, stride=2),
        lambda x, w: F.conv2d(x, w)[..., ::2, ::2],
        "f32[1,2,5,6] f32[3,2,2,2]",
    ),
    equal(
        "convolutions one after the other",
        lambda x, u, v: _separate(x, u[:, None, :, None], v[:, None, None, :]),
        lambda x, u, v: F.conv2d(x, (u[:, :, None] * v[:, None, :])[:, None], groups=2),
        "f32[1,2,4,5] f32[2,2] f32[2,3]",
    ),
    equal(
        "a transposed convolution",
        lambda x, w: F.conv_transpose1d(x, w),
        lambda x, w: F.conv1d(x, w.transpose(0, 1).flip(2), padding=2),
        "f32[2,2,5] f32[2,3,3]",
    ),
    equal(
        "a transposed convolution with a stride",
        lambda x, w: F.conv_transpose1d(x, w, stride=2),
        lambda x, w: torch.einsum("bci,cok->boik", x, w).flatten(2),
        "f32[2,2,5] f32[2,3,2]",
    ),
    equal(
        "an average pool by reshaping",
        lambda x: F.avg_pool2d(x, 2),
        lambda x: x.view(1, 2, 2, 2, 3, 2).mean((3, 5)),
        "f32[1,2,4,6]",
    ),
    equal(
        "padding not counted",
        lambda x: F.avg_pool1d(x, 3, 1, 1, count_include_pad=False),
        lambda x: F.avg_pool1d(x, 3, 1, 1) / F.avg_pool1d(torch.ones_like(x), 3, 1, 1),
        "f32[2,3,6]",
    ),
    equal(
        "adaptive averages of unequal parts",
        lambda x: F.adaptive_avg_pool1d(x, 3),
        lambda x: stack([x[..., :2].mean(-1), x[..., 1:4].mean(-1), x[..., 3:].mean(-1)], -1),
        "f32[2,2,5]",
    ),
    equal(
        "maximum pools one after the other",
        lambda x: F.max_pool2d(x, (2, 1)),
        lambda x: torch.maximum(x[:, :, ::2], x[:, :, 1::2]),
        "f32[1,2,4,3]",
    ),
    equal(
        "a maximum pool with a border",
        lambda x: F.max_pool1d(x, 2, 2, 1),
        lambda x: cat([x[..., :1], torch.maximum(x[..., 1:2], x[..., 2:3]), x[..., 3:]], -1),
        "f32[1,2,4]",
    ),
    equal(
        "a minimum by a maximum pool",
        lambda x: -F.max_pool1d(-x, 2),
        lambda x: x.unfold(-1, 2, 2).amin(-1),
        "f32[1,2,6]",
    ),
    equal(
        "a cumsum backwards",
        lambda x: x.flip(1).cumsum(1).flip(1),
        lambda x: x.sum(1, keepdim=True) - x.cumsum(1) + x,
        "f32[2,6]",
    ),
    equal("differences of a cumsum", lambda x: x.cumsum(1).diff(dim=1), lambda x: x[:, 1:] * 1, "f32[2,6]"),
    equal(
        "a moving sum by a cumsum",
        lambda x: x.cumsum(1)[:, 3:] - x.cumsum(1)[:, :-3],
        lambda x: x.unfold(1, 3, 1)[:, 1:].sum(-1),
        "f32[2,7]",
    ),
    equal("the last of a cumulative product", lambda x: x.cumprod(1)[:, -1], lambda x: x.prod(1), "f32[2,5]"),
    equal(
        "a cumulative logsumexp", lambda x: x.logcumsumexp(1).exp(), lambda x: x.exp().cumsum(1), "f32[2,5]"
    ),
    equal("the last running maximum", lambda x: x.cummax(1).values[:, -1], lambda x: x.amax(1), "f32[2,4]"),
    equal(
        "a flip of a convolution",
        lambda x, w: F.conv1d(x.flip(2), w.flip(2)),
        lambda x, w: F.conv1d(x, w).flip(2),
        "f32[2,2,6] f32[3,2,3]",
    ),
    equal(
        "a batch norm folded into a strided convolution",
        lambda x, w, m, v: F.batch_norm(F.conv2d(x, w, stride=2), m, v.exp()),
        lambda x, w, m, v: F.conv2d(
            x,
            w * (v.exp() + 1e-5).rsqrt()[:, None, None, None],
            -m * (v.exp() + 1e-5).rsqrt(),
            stride=2,
        ),
        "f32[1,2,5,5] f32[3,2,2,2] f32[3] f32[3]",
    ),
)

WRONG = (
    wrong(
        "windows that step by one more",
        lambda x: x.unfold(1, 3, 1)[:, :2],
        lambda x: x.unfold(1, 3, 2)[:, :2],
        "f32[2,7]",
    ),
    wrong(
        "windows too long",
        lambda x: x.unfold(1, 3, 2).sum(-1),
        lambda x: x.unfold(1, 4, 2).sum(-1),
        "f32[2,8]",
    ),
    wrong(
        "the wrong dilation",
        lambda x, w: F.conv1d(x, w, dilation=2),
        lambda x, w: F.conv1d(x, w, dilation=1)[..., :-1],
        "f32[2,2,7] f32[3,2,2]",
    ),
    wrong(
        "the wrong padding",
        lambda x, w: F.conv1d(x, w, padding=1),
        lambda x, w: F.conv1d(F.pad(x, (2, 0)), w),
        "f32[2,2,7] f32[3,2,3]",
    ),
    wrong(
        "the wrong stride",
        lambda x, w: F.conv1d(x, w, stride=2)[..., :2],
        lambda x, w: F.conv1d(x, w, stride=3)[..., :2],
        "f32[2,2,7] f32[3,2,2]",
    ),
    wrong(
        "groups for all channels",
        lambda x, w: F.conv1d(x, w, groups=2),
        lambda x, w: F.conv1d(x, cat([w, w], 1)),
        "f32[2,4,5] f32[4,2,2]",
    ),
    wrong(
        "groups mixed up",
        lambda x, w: F.conv1d(x, w, groups=2),
        lambda x, w: F.conv1d(F.channel_shuffle(x, 2), w, groups=2),
        "f32[2,4,5] f32[4,2,2]",
    ),
    wrong(
        "a kernel transposed",
        lambda x, w: F.conv2d(x, w),
        lambda x, w: F.conv2d(x, w.transpose(2, 3)),
        "f32[1,2,5,5] f32[3,2,2,2]",
    ),
    wrong(
        "a kernel's channels swapped",
        lambda x, w: F.conv1d(x, w),
        lambda x, w: F.conv1d(x, w.transpose(0, 1)),
        "f32[2,3,5] f32[3,3,2]",
    ),
    wrong(
        "a bias of another channel",
        lambda x, w, b: F.conv1d(x, w, b),
        lambda x, w, b: F.conv1d(x, w, b.flip(0)),
        "f32[2,3,5] f32[4,3,2] f32[4]",
    ),
    wrong(
        "a transposed kernel not turned",
        lambda x, w: F.conv_transpose1d(x, w),
        lambda x, w: F.conv1d(x, w.transpose(0, 1), padding=2),
        "f32[2,2,5] f32[2,3,3]",
    ),
    wrong(
        "output padding on the wrong side",
        lambda x, w: F.conv_transpose1d(x, w, stride=2, output_padding=1),
        lambda x, w: F.pad(F.conv_transpose1d(x, w, stride=2), (1, 0)),
        "f32[2,2,5] f32[2,3,2]",
    ),
    wrong(
        "an average of windows too long",
        lambda x: F.avg_pool1d(x, 2, 2),
        lambda x: F.avg_pool1d(x, 3, 2, 1)[..., 1:],
        "f32[2,2,7]",
    ),
    wrong(
        "an average with the wrong divisor",
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 2, divisor_override=3),
        "f32[1,2,4,4]",
    ),
    wrong(
        "the last window cut short",
        lambda x: F.avg_pool1d(x, 2, 2, ceil_mode=True)[..., :3],
        lambda x: F.avg_pool1d(F.pad(x, (0, 1)), 2, 2),
        "f32[1,2,5]",
    ),
    wrong(
        "a padded average of unequal counts",
        lambda x: F.avg_pool1d(x, 2, 2, 1),
        lambda x: F.avg_pool1d(x, 2, 2, 1, count_include_pad=False),
        "f32[1,2,6]",
    ),
    wrong(
        "adaptive averages of the wrong parts",
        lambda x: F.adaptive_avg_pool1d(x, 2),
        lambda x: stack([x[..., :2].mean(-1), x[..., 2:].mean(-1)], -1),
        "f32[2,2,5]",
    ),
    wrong(
        "a maximum pool too large",
        lambda x: F.max_pool1d(x, 2, 1)[..., 1:],
        lambda x: F.max_pool1d(x, 3, 1),
        "f32[1,2,6]",
    ),
    wrong(
        "a maximum pool of zeros at the border",
        lambda x: F.max_pool1d(x, 2, 2, 1),
        lambda x: F.max_pool1d(F.pad(x, (1, 1)), 2),
        "f32[1,2,6]",
    ),
    wrong(
        "a maximum pool's dilation",
        lambda x: F.max_pool1d(x, 2, 1, dilation=2),
        lambda x: F.max_pool1d(x, 2, 1)[..., 1:],
        "f32[1,2,6]",
    ),
    wrong("a cumsum without its own element", lambda x: x.cumsum(1), lambda x: x.cumsum(1) - x, "f32[2,6]"),
    wrong("a cumsum from behind", lambda x: x.cumsum(1), lambda x: x.flip(1).cumsum(1).flip(1), "f32[2,6]"),
    wrong(
        "a cumulative product of the other axis", lambda x: x.cumprod(0), lambda x: x.cumprod(1), "f32[4,4]"
    ),
    wrong(
        "a running maximum for a minimum",
        lambda x: x.cummax(1).values,
        lambda x: x.cummin(1).values,
        "f32[2,5]",
    ),
    wrong("a product of all but one", lambda x: x.prod(1), lambda x: x[:, 1:].prod(1), "f32[2,5]"),
    wrong(
        "a batch norm of other statistics",
        lambda x, m, v: F.batch_norm(x, m, v.exp()),
        lambda x, m, v: F.batch_norm(x, v, m.exp()),
        "f32[2,3,2,2] f32[3] f32[3]",
    ),
    wrong(
        "an instance norm for a batch norm",
        lambda x: F.instance_norm(x),
        lambda x: F.batch_norm(x, None, None, training=True),
        "f32[2,3,2,4]",
    ),
)
