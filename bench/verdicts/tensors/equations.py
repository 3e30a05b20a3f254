"""Equations of operators as graph rewriters publish them: true by construction, at several shapes.

TASO, PET and TENSAT rewrite graphs of concat, split, transpose, matmul, relu, convolution, pooling and
enlarge by such equations. Their two equations on concatenated grouped convolutions are left out: they
are known to be wrong.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Function, Pair

__all__ = ["EQUATIONS"]

Size: TypeAlias = dict[str, int]

cat = torch.cat
conv = partial(F.conv2d, padding="same")
strided = partial(F.conv2d, stride=2, padding=1)
maximum_pool = partial(F.max_pool2d, kernel_size=3, stride=1, padding=1)
average_pool = partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1)
relu = torch.relu


def _enlarged(w: Tensor) -> Tensor:
    """A kernel of 1 by 1 as one of 3 by 3."""
    return F.pad(w, (1, 1, 1, 1))


def _constant_pool(x: Tensor) -> Tensor:
    """The kernel by which a convolution of each channel with itself is an average pool."""
    channels = x.shape[1]
    eye = torch.eye(channels, dtype=x.dtype)
    return eye[:, :, None, None].expand(channels, channels, 3, 3) / 9


def _unit_kernel(x: Tensor) -> Tensor:
    """The kernel by which a convolution changes nothing."""
    return _enlarged(torch.eye(x.shape[1], dtype=x.dtype)[:, :, None, None])


def _halves(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    half = x.shape[dim] // 2
    return x.narrow(dim, 0, half), x.narrow(dim, half, x.shape[dim] - half)


ELEMENTS: tuple[tuple[str, Function, Function, str], ...] = (
    ("addition is associative", lambda a, b, c: a + (b + c), lambda a, b, c: (a + b) + c, "mn mn mn"),
    ("addition is commutative", lambda a, b: a + b, lambda a, b: b + a, "mn mn"),
    ("multiplication is associative", lambda a, b, c: a * (b * c), lambda a, b, c: (a * b) * c, "mn mn mn"),
    ("multiplication is commutative", lambda a, b: a * b, lambda a, b: b * a, "mn mn"),
    ("distributivity", lambda a, b, c: (a + b) * c, lambda a, b, c: a * c + b * c, "mn mn mn"),
    ("scales multiply", lambda a: 3 * (0.5 * a), lambda a: 1.5 * a, "mn"),
    ("a scale of a sum", lambda a, b: 3 * (a + b), lambda a, b: 3 * a + 3 * b, "mn mn"),
    ("a scale of a product", lambda a, b: 3 * (a * b), lambda a, b: (3 * a) * b, "mn mn"),
    ("a transpose of a transpose", lambda a: a.T.T, lambda a: a * 1, "mn"),
    ("a transpose of a sum", lambda a, b: (a + b).T, lambda a, b: a.T + b.T, "mn mn"),
    ("a transpose of a product of elements", lambda a, b: (a * b).T, lambda a, b: a.T * b.T, "mn mn"),
    ("a transpose of a scale", lambda a: (3 * a).T, lambda a: 3 * a.T, "mn"),
    ("a transpose of relu", lambda a: relu(a).T, lambda a: relu(a.T), "mn"),
    ("matmul is associative", lambda a, b, c: a @ (b @ c), lambda a, b, c: (a @ b) @ c, "mk kn nk"),
    ("matmul of a scale", lambda a, b: 3 * (a @ b), lambda a, b: (3 * a) @ b, "mk kn"),
    ("matmul of a sum", lambda a, b, c: a @ (b + c), lambda a, b, c: a @ b + a @ c, "mk kn kn"),
    ("a transpose of matmul", lambda a, b: (a @ b).T, lambda a, b: b.T @ a.T, "mk kn"),
    (
        "a split of a concat",
        lambda a, b: torch.split(cat([a, b], 1), [a.shape[1], b.shape[1]], 1)[0],
        lambda a, b: a * 1,
        "mn mk",
    ),
    (
        "the other split of a concat",
        lambda a, b: torch.split(cat([a, b], 1), [a.shape[1], b.shape[1]], 1)[1],
        lambda a, b: b * 1,
        "mn mk",
    ),
    ("a concat of a split", lambda a: cat(_halves(a, 1), 1), lambda a: a * 1, "mn"),
    (
        "a concat of concats",
        lambda a, b, c, d: cat([cat([a, b], 0), cat([c, d], 0)], 1),
        lambda a, b, c, d: cat([cat([a, c], 1), cat([b, d], 1)], 0),
        "mn kn mk kk",
    ),
    (
        "a concat is associative",
        lambda a, b, c: cat([cat([a, b], 1), c], 1),
        lambda a, b, c: cat([a, cat([b, c], 1)], 1),
        "mn mk mn",
    ),
    ("a concat of transposes", lambda a, b: cat([a.T, b.T], 0), lambda a, b: cat([a, b], 1).T, "mn mk"),
    (
        "a concat of sums",
        lambda a, b, c, d: cat([a + b, c + d], 1),
        lambda a, b, c, d: cat([a, c], 1) + cat([b, d], 1),
        "mn mn mk mk",
    ),
    (
        "a concat of products",
        lambda a, b, c, d: cat([a * b, c * d], 1),
        lambda a, b, c, d: cat([a, c], 1) * cat([b, d], 1),
        "mn mn mk mk",
    ),
    (
        "a concat of relus",
        lambda a, b: cat([relu(a), relu(b)], 1),
        lambda a, b: relu(cat([a, b], 1)),
        "mn mk",
    ),
    ("a concat of scales", lambda a, b: cat([3 * a, 3 * b], 0), lambda a, b: 3 * cat([a, b], 0), "mn kn"),
    (
        "matmuls of one left side",
        lambda a, b, c: cat([a @ b, a @ c], 1),
        lambda a, b, c: a @ cat([b, c], 1),
        "mk kn kk",
    ),
    (
        "matmuls of one right side",
        lambda a, b, c: cat([a @ c, b @ c], 0),
        lambda a, b, c: cat([a, b], 0) @ c,
        "mk nk kn",
    ),
    (
        "a sum of matmuls",
        lambda a, b, c, d: a @ c + b @ d,
        lambda a, b, c, d: cat([a, b], 1) @ cat([c, d], 0),
        "mk mn kn nn",
    ),
    (
        "two matmuls and a split",
        lambda a, b, c: (a @ b, a @ c),
        lambda a, b, c: torch.split(a @ cat([b, c], 1), [b.shape[1], c.shape[1]], 1),
        "mk kn kk",
    ),
    (
        "a split of a sum",
        lambda a, b: _halves(a + b, 1)[1],
        lambda a, b: _halves(a, 1)[1] + _halves(b, 1)[1],
        "mn mn",
    ),
    ("a split of relu", lambda a: _halves(relu(a), 0)[0], lambda a: relu(_halves(a, 0)[0]), "mn"),
    ("a split of matmul", lambda a, b: _halves(a @ b, 1)[0], lambda a, b: a @ _halves(b, 1)[0], "mk kn"),
    ("relu of relu", lambda a: relu(relu(a)), relu, "mn"),
    (
        "matmul as a convolution",
        lambda a, b: a @ b,
        lambda a, b: F.conv1d(a[:, :, None], b.T[:, :, None])[:, :, 0],
        "mk kn",
    ),
)
"""Equations of matrices: names, both sides, and the inputs by their sizes."""

IMAGES: tuple[tuple[str, Function, Function, str], ...] = (
    ("a convolution of a scale", lambda x, w: conv(3 * x, w), lambda x, w: 3 * conv(x, w), "x w"),
    ("a convolution by a scaled kernel", lambda x, w: conv(x, 3 * w), lambda x, w: conv(3 * x, w), "x w"),
    (
        "a convolution of a sum",
        lambda x, y, w: conv(x + y, w),
        lambda x, y, w: conv(x, w) + conv(y, w),
        "x x w",
    ),
    (
        "a convolution by a sum of kernels",
        lambda x, v, w: conv(x, v + w),
        lambda x, v, w: conv(x, v) + conv(x, w),
        "x w w",
    ),
    (
        "a strided convolution of a scale",
        lambda x, w: strided(3 * x, w),
        lambda x, w: 3 * strided(x, w),
        "x w",
    ),
    (
        "a strided convolution of a sum",
        lambda x, y, w: strided(x + y, w),
        lambda x, y, w: strided(x, w) + strided(y, w),
        "x x w",
    ),
    ("an enlarged kernel", lambda x, w: conv(x, w), lambda x, w: conv(x, _enlarged(w)), "x p"),
    (
        "an enlarged kernel in a sum",
        lambda x, v, w: conv(x, v) + conv(x, w),
        lambda x, v, w: conv(x, _enlarged(v) + w),
        "x p w",
    ),
    ("a residual as a kernel", lambda x, w: conv(x, w) + x, lambda x, w: conv(x, w + _unit_kernel(x)), "x s"),
    ("a kernel that changes nothing", lambda x: conv(x, _unit_kernel(x)), lambda x: x * 1, "x"),
    (
        "convolutions of one image",
        lambda x, v, w: cat([conv(x, v), conv(x, w)], 1),
        lambda x, v, w: conv(x, cat([v, w], 0)),
        "x w w",
    ),
    (
        "unlike convolutions of one image",
        lambda x, v, w: cat([conv(x, v), conv(x, w)], 1),
        lambda x, v, w: conv(x, cat([_enlarged(v), w], 0)),
        "x p w",
    ),
    (
        "a sum of convolutions",
        lambda x, y, v, w: conv(x, v) + conv(y, w),
        lambda x, y, v, w: conv(cat([x, y], 1), cat([v, w], 1)),
        "x x w w",
    ),
    (
        "a convolution of a batch",
        lambda x, y, w: cat([conv(x, w), conv(y, w)], 0),
        lambda x, y, w: conv(cat([x, y], 0), w),
        "x x w",
    ),
    (
        "a split of a convolution",
        lambda x, w: _halves(conv(x, w), 1)[0],
        lambda x, w: conv(x, _halves(w, 0)[0]),
        "x w",
    ),
    (
        "a convolution with relu after a concat",
        lambda x, v, w: cat([relu(conv(x, v)), relu(conv(x, w))], 1),
        lambda x, v, w: relu(conv(x, cat([v, w], 0))),
        "x w w",
    ),
    (
        "a convolution by points",
        lambda x, w: conv(x, w),
        lambda x, w: torch.einsum("bchw,oc->bohw", x, w[:, :, 0, 0]),
        "x p",
    ),
    (
        "grouped convolutions of all",
        lambda x, w: F.conv2d(x, w, padding=1, groups=1),
        lambda x, w: conv(x, w),
        "x w",
    ),
    (
        "a grouped convolution in parts",
        lambda x, w: F.conv2d(x, w[:, : x.shape[1] // 2], padding=1, groups=2),
        lambda x, w: cat(
            [
                conv(part, kernel)
                for part, kernel in zip(x.chunk(2, 1), w[:, : x.shape[1] // 2].chunk(2, 0), strict=True)
            ],
            1,
        ),
        "x w",
    ),
    ("an average pool as a convolution", average_pool, lambda x: conv(x, _constant_pool(x)), "x"),
    (
        "an average pool of a sum",
        lambda x, y: average_pool(x + y),
        lambda x, y: average_pool(x) + average_pool(y),
        "x x",
    ),
    ("an average pool of a scale", lambda x: average_pool(3 * x), lambda x: 3 * average_pool(x), "x"),
    (
        "average pools of channels",
        lambda x, y: cat([average_pool(x), average_pool(y)], 1),
        lambda x, y: average_pool(cat([x, y], 1)),
        "x x",
    ),
    (
        "average pools of a batch",
        lambda x, y: cat([average_pool(x), average_pool(y)], 0),
        lambda x, y: average_pool(cat([x, y], 0)),
        "x x",
    ),
    (
        "maximum pools of channels",
        lambda x, y: cat([maximum_pool(x), maximum_pool(y)], 1),
        lambda x, y: maximum_pool(cat([x, y], 1)),
        "x x",
    ),
    (
        "maximum pools of a batch",
        lambda x, y: cat([maximum_pool(x), maximum_pool(y)], 0),
        lambda x, y: maximum_pool(cat([x, y], 0)),
        "x x",
    ),
    ("relu of a maximum pool", lambda x: relu(maximum_pool(x)), lambda x: maximum_pool(relu(x)), "x"),
    ("a maximum pool of a scale", lambda x: maximum_pool(3 * x), lambda x: 3 * maximum_pool(x), "x"),
    (
        "a maximum pool of a maximum",
        lambda x, y: maximum_pool(torch.maximum(x, y)),
        lambda x, y: torch.maximum(maximum_pool(x), maximum_pool(y)),
        "x x",
    ),
    (
        "a split of an average pool",
        lambda x: _halves(average_pool(x), 1)[1],
        lambda x: average_pool(_halves(x, 1)[1]),
        "x",
    ),
    (
        "a convolution after an average pool",
        lambda x, w: F.conv2d(average_pool(x), w),
        lambda x, w: average_pool(F.conv2d(x, w)),
        "x p",
    ),
    (
        "relu of a concat of channels",
        lambda x, y: relu(cat([x, y], 1)),
        lambda x, y: cat([relu(x), relu(y)], 1),
        "x x",
    ),
    (
        "a convolution with its bias",
        lambda x, w: F.conv2d(x, w, w[:, 0, 0, 0], padding=1),
        lambda x, w: conv(x, w) + w[:, 0, 0, 0][:, None, None],
        "x w",
    ),
)
"""Equations of images: x an image, w a kernel of 3 by 3, p one of points, s one that keeps the channels."""

_MATRICES: tuple[Size, ...] = ({"m": 4, "k": 5, "n": 6}, {"m": 1, "k": 3, "n": 2}, {"m": 7, "k": 2, "n": 9})
_SIZES: tuple[Size, ...] = (
    {"b": 2, "c": 4, "o": 6, "h": 5, "w": 5},
    {"b": 1, "c": 2, "o": 2, "h": 4, "w": 6},
    {"b": 1, "c": 6, "o": 4, "h": 3, "w": 7},
)


def _matrix(letters: str, size: Size) -> str:
    return f"f32[{','.join(str(size[one]) for one in letters)}]"


def _image(letter: str, size: Size) -> str:
    shapes = {
        "x": (size["b"], size["c"], size["h"], size["w"]),
        "w": (size["o"], size["c"], 3, 3),
        "p": (size["o"], size["c"], 1, 1),
        "s": (size["c"], size["c"], 3, 3),
    }
    return f"f32[{','.join(map(str, shapes[letter]))}]"


def _pairs() -> Iterator[Pair]:
    families: tuple[tuple[Any, tuple[Size, ...], Callable[[str, Size], str]], ...] = (
        (ELEMENTS, _MATRICES, _matrix),
        (IMAGES, _SIZES, _image),
    )
    for equations, sizes, spelled in families:
        for size in sizes:
            shape = "x".join(map(str, size.values()))
            for name, f, g, inputs in equations:
                text = " ".join(spelled(one, size) for one in inputs.split())
                yield Pair(f"{name}, {shape}", f, g, text, family="equations")


EQUATIONS: dict[str, Pair] = {pair.name: pair for pair in _pairs()}
"""Every equation at every size, by name."""
