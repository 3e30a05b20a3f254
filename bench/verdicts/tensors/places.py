"""Idioms of moved elements: flips, turns, steps, paddings, diagonals, shuffles, and tables."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="places")
wrong = partial(Pair, equal=False, family="places")

cat, stack = torch.cat, torch.stack


def _average_and_difference(x: Tensor) -> Tensor:
    return stack([(x[:, ::2] + x[:, 1::2]) / 2, (x[:, ::2] - x[:, 1::2]) / 2], -1).reshape(x.shape)


def _restored(x: Tensor) -> Tensor:
    low, high = x[:, ::2], x[:, 1::2]
    return stack([low + high, low - high], -1).reshape(x.shape)


IDIOMS = (
    equal("a flip by indices", lambda x: x.flip(1), lambda x: x[:, [4, 3, 2, 1, 0]], "f32[3,5]"),
    equal("a flip and a transpose turn", lambda x: torch.rot90(x), lambda x: x.flip(1).T, "f32[3,5]"),
    equal("four turns", lambda x: x.rot90().rot90().rot90().rot90(), lambda x: x * 1, "f32[3,5]"),
    equal("rolls add up", lambda x: x.roll(2, 1).roll(5, 1), lambda x: x.roll(0, 1), "f32[3,7]"),
    equal("a roll of a flip", lambda x: x.roll(2, 1).flip(1), lambda x: x.flip(1).roll(-2, 1), "f32[3,7]"),
    equal("steps of steps", lambda x: x[:, 1::2][:, ::3], lambda x: x[:, 1::6], "f32[2,13]"),
    equal(
        "transformed there and back",
        lambda x: _restored(_average_and_difference(x)),
        lambda x: x * 1,
        "f32[2,6]",
    ),
    equal(
        "padding of padding",
        lambda x: F.pad(F.pad(x, (1, 0)), (2, 3)),
        lambda x: F.pad(x, (3, 3)),
        "f32[2,5]",
    ),
    equal("negative padding", lambda x: F.pad(x, (-1, -2)), lambda x: x[:, 1:-2], "f32[2,7]"),
    equal(
        "padding with ones",
        lambda x: F.pad(x, (1, 2), value=1.0),
        lambda x: 1 + F.pad(x - 1, (1, 2)),
        "f32[2,5]",
    ),
    equal(
        "a maximum of padding by minus infinity",
        lambda x: F.pad(x, (1, 1), value=-torch.inf).amax(-1),
        lambda x: x.amax(-1),
        "f32[2,4]",
    ),
    equal(
        "reflected padding",
        lambda x: F.pad(x, (2, 1), mode="reflect"),
        lambda x: cat([x[:, 1:3].flip(1), x, x[:, -2:-1]], 1),
        "f32[2,5]",
    ),
    equal(
        "differences by padding",
        lambda x: x - F.pad(x, (1, 0))[:, :-1],
        lambda x: x.diff(dim=1, prepend=0 * x[:, :1]),
        "f32[2,6]",
    ),
    equal(
        "the diagonal of an outer product",
        lambda x, y: torch.outer(x, y).diagonal(),
        lambda x, y: x * y,
        "f32[5] f32[5]",
    ),
    equal(
        "a product with a diagonal matrix",
        lambda x, d: x @ torch.diag(d),
        lambda x, d: x * d,
        "f32[3,5] f32[5]",
    ),
    equal(
        "a diagonal of a diagonal",
        lambda d: torch.diag_embed(d, 1).diagonal(1, -2, -1),
        lambda d: d * 1,
        "f32[3,4]",
    ),
    equal(
        "a trace of a product turned",
        lambda x, y: (x @ y).trace(),
        lambda x, y: (y @ x).trace(),
        "f32[3,5] f32[5,3]",
    ),
    equal(
        "pixels shuffled there and back",
        lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
        lambda x: x * 1,
        "f32[1,8,2,3]",
    ),
    equal(
        "channels shuffled there and back",
        lambda x: F.channel_shuffle(F.channel_shuffle(x, 2), 3),
        lambda x: x * 1,
        "f32[2,6,3]",
    ),
)

WRONG = (
    wrong("a flip of rows", lambda x: x.flip(0), lambda x: x.flip(1), "f32[4,4]"),
    wrong("a flip by indices off by one", lambda x: x.flip(1), lambda x: x[:, [3, 2, 1, 0, 4]], "f32[3,5]"),
    wrong("a turn the other way", lambda x: x.rot90(1), lambda x: x.rot90(-1), "f32[4,4]"),
    wrong("a roll the other way", lambda x: x.roll(1, 1), lambda x: x.roll(-1, 1), "f32[3,5]"),
    wrong("a roll by one more", lambda x: x.roll(2, 1), lambda x: x.roll(3, 1), "f32[3,5]"),
    wrong("a roll of all", lambda x: x.roll(1), lambda x: x.roll(1, 1), "f32[3,5]"),
    wrong("a step of three", lambda x: x[:, :9:2][:, :3], lambda x: x[:, :9:3], "f32[2,9]"),
    wrong("a step from one more", lambda x: x[:, 1::3], lambda x: x[:, 2::3], "f32[2,9]"),
    wrong("two strange steps", lambda x: x[:, 1::2][:, ::3], lambda x: x[:, 1::5], "f32[2,11]"),
    wrong("padding on the wrong side", lambda x: F.pad(x, (1, 2)), lambda x: F.pad(x, (2, 1)), "f32[2,5]"),
    wrong(
        "padding of the wrong axis",
        lambda x: F.pad(x, (1, 1, 0, 0)),
        lambda x: F.pad(x, (0, 0, 1, 1)).T,
        "f32[4,4]",
    ),
    wrong(
        "padding with another number",
        lambda x: F.pad(x, (1, 1)),
        lambda x: F.pad(x, (1, 1), value=0.001),
        "f64[2,5]",
    ),
    wrong(
        "padding by zero for minus infinity",
        lambda x: F.pad(x, (1, 1), value=-torch.inf).amax(-1),
        lambda x: F.pad(x, (1, 1)).amax(-1),
        "f32[2,4]",
    ),
    wrong(
        "padding by the border for a reflection",
        lambda x: F.pad(x, (1, 1), mode="reflect"),
        lambda x: F.pad(x, (1, 1), mode="replicate"),
        "f32[2,5]",
    ),
    wrong("a diagonal off by one", lambda x: x.diagonal(1), lambda x: x.diagonal(-1), "f32[5,5]"),
    wrong("a diagonal for its mirror", lambda x: x.diagonal(), lambda x: x.flip(1).diagonal(), "f32[4,4]"),
    wrong(
        "a diagonal placed off by one",
        lambda d: torch.diag_embed(d, 1),
        lambda d: torch.diag_embed(d, -1),
        "f32[4]",
    ),
    wrong(
        "a trace of the wrong product",
        lambda x, y: (x @ y).trace(),
        lambda x, y: (x @ y.T).trace(),
        "f32[4,4] f32[4,4]",
    ),
    wrong(
        "pixels shuffled otherwise",
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.pixel_shuffle(F.channel_shuffle(x, 2), 2),
        "f32[1,4,2,2]",
    ),
    wrong(
        "channels shuffled by other groups",
        lambda x: F.channel_shuffle(x, 2),
        lambda x: F.channel_shuffle(x, 3),
        "f32[2,6,3]",
    ),
    wrong(
        "reshaped across the other axis", lambda x: x.reshape(3, 4), lambda x: x.T.reshape(3, 4), "f32[4,3]"
    ),
    wrong(
        "a table's numbers swapped",
        lambda x: x * torch.tensor([1.0, 2.0, 4.0]),
        lambda x: x * torch.tensor([1.0, 4.0, 2.0]),
        "f32[2,3]",
    ),
)
