"""Every operator that only proofs know: what its sums over masks compute is what PyTorch computes."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.trace import trace

SEEDS = 12  # random forms of each operator

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]


def _shape(random: Random, rank: int, most: int = 6) -> tuple[int, ...]:
    return tuple(random.randint(1, most) for _ in range(rank))


def _dims(random: Random, rank: int) -> list[int]:
    """Return some dimensions, each once, counted from either end."""
    chosen = random.sample(range(rank), random.randint(1, rank))
    return [dim - rank * random.randint(0, 1) for dim in chosen]


def flip(random: Random) -> Case:
    rank = random.randint(1, 3)
    dims = _dims(random, rank)
    return lambda x: x.flip(dims) * 2, (_shape(random, rank),)


def roll(random: Random) -> Case:
    rank = random.randint(1, 3)
    dims = _dims(random, rank)
    shifts = [random.randint(-9, 9) for _ in dims]
    return lambda x: x.roll(shifts, dims) * 2, (_shape(random, rank),)


def roll_of_all(random: Random) -> Case:
    shift = random.randint(-9, 9)
    return lambda x: x.roll(shift) * 2, (_shape(random, random.randint(1, 3), 4),)


def rot90(random: Random) -> Case:
    rank = random.randint(2, 3)
    times, dims = random.randint(-5, 5), random.sample(range(-rank, 0), 2)
    return lambda x: torch.rot90(x, times, dims) * 2, (_shape(random, rank),)


def slices(random: Random) -> Case:
    start, end, step = random.randint(-8, 8), random.randint(-8, 8), random.randint(1, 4)
    at = random.choice([-1, 1])
    function = (lambda x: x[:, start:end:step] * 2) if at == 1 else (lambda x: x[..., start::step] * 2)
    return function, (_shape(random, 2, 7),)


def split(random: Random) -> Case:
    sizes = [random.randint(0, 20) for _ in range(3)]
    return lambda x: [part * 2 for part in x.split(sizes, 1)], ((2, sum(sizes)),)


def slice_of_a_view(random: Random) -> Case:
    rows, columns = random.randint(2, 5), random.randint(2, 5)
    start, step = random.randint(0, 3), random.randint(1, 3)
    return lambda x: x.T.reshape(-1)[start::step] * 2, ((rows, columns),)


def cat(random: Random) -> Case:
    lengths = [random.randint(0, 31) for _ in range(2)] + [1]
    return lambda x, y, z: torch.cat([x, y, z], -1) * 2, tuple((3, length) for length in lengths)


def cat_of_views(random: Random) -> Case:
    rows, columns, more = random.randint(1, 4), random.randint(1, 4), random.randint(1, 5)
    return lambda x, y: torch.cat([y, x.T.reshape(-1), y]) * 2, ((rows, columns), (more,))


def cat_of_masked(random: Random) -> Case:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.masked_fill(x > 0, -torch.inf), y], -1).softmax(-1)

    return function, ((3, random.randint(1, 5)), (3, random.randint(1, 5)))


def pad(random: Random) -> Case:
    sizes = [random.randint(-1, 3) for _ in range(2 * random.randint(1, 2))]
    value = random.choice([0.0, 0.0, 1.5, -3.0])
    return lambda x: F.pad(x, sizes, value=value) * 2, (tuple(random.randint(3, 5) for _ in range(3)),)


def pad_with_infinity(random: Random) -> Case:
    sizes = [random.randint(0, 2), random.randint(0, 2)]
    return lambda x: F.pad(x, sizes, value=-torch.inf).softmax(-1), (_shape(random, 2),)


def pad_at_the_border(random: Random) -> Case:
    sizes = [random.randint(0, 2) for _ in range(4)]
    mode = random.choice(["reflect", "replicate"])
    return lambda x: F.pad(x, sizes, mode=mode) * 2, ((2, 2, random.randint(3, 5), random.randint(3, 5)),)


def diagonal(random: Random) -> Case:
    rank = random.randint(2, 3)
    dims, offset = random.sample(range(rank), 2), random.randint(-3, 3)
    shape = tuple(random.randint(4, 6) for _ in range(rank))
    return lambda x: x.diagonal(offset, *dims) * 2, (shape,)


def diag_embed(random: Random) -> Case:
    rank = random.randint(1, 2)
    dims, offset = random.sample(range(rank + 1), 2), random.randint(-3, 3)
    return lambda x: torch.diag_embed(x, offset, *dims) * 2, (_shape(random, rank),)


def diag(random: Random) -> Case:
    offset = random.randint(-2, 2)
    return lambda x, y: (x.diag(offset) * 2, y.diag(offset) * 2), ((4, 5), (3,))


def trace_of(random: Random) -> Case:
    return lambda x: x.trace() * 2, (_shape(random, 2),)


def unfold(random: Random) -> Case:
    at, size, step = random.choice([0, 1, -1]), random.randint(1, 4), random.randint(1, 3)
    return lambda x: x.unfold(at, size, step) * 2, ((random.randint(4, 7), random.randint(4, 7)),)


def view(random: Random) -> Case:
    shape = random.choice([(6, 4), (4, 6), (2, 3, 4), (8, 3), (4, 3, 2), (12, 2), (24,)])
    return lambda x: x.reshape(shape).sin() * 2, (
        random.choice([(3, 8), (6, 4), (2, 12), (4, 6), (2, 4, 3)]),
    )


def view_there_and_back(random: Random) -> Case:
    rows, columns = random.choice([(3, 4), (4, 6), (6, 4), (9, 2)])
    return lambda x: (x.reshape(columns, rows) * 2).reshape(rows, columns) + x, ((rows, columns),)


def pixel_shuffle(random: Random) -> Case:
    factor = random.randint(1, 3)
    image = (*_shape(random, random.randint(0, 1), 2), 2 * factor**2, *_shape(random, 2, 3))
    back = (*image[:-3], 2, factor * random.randint(1, 3), factor * random.randint(1, 3))
    return lambda x, y: (F.pixel_shuffle(x, factor) * 2, F.pixel_unshuffle(y, factor) * 2), (image, back)


def channel_shuffle(random: Random) -> Case:
    groups = random.randint(1, 3)
    return lambda x: F.channel_shuffle(x, groups) * 2, ((2, groups * random.randint(1, 3), 3),)


MOVES: tuple[Callable[[Random], Case], ...] = (
    flip, roll, roll_of_all, rot90, slices, split, slice_of_a_view, cat, cat_of_views, cat_of_masked, pad,
    pad_with_infinity, pad_at_the_border, diagonal, diag_embed, diag, trace_of, unfold, view,
    view_there_and_back, pixel_shuffle, channel_shuffle,
)  # fmt: skip


def convolution(random: Random) -> Case:
    rank, groups = random.randint(1, 3), random.randint(1, 2)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    stride, padding, dilation = ([random.randint(low, 2) for _ in range(rank)] for low in (1, 0, 1))
    image = (2, 2 * groups, *(random.randint(5, 6) for _ in range(rank)))
    kernel = (3 * groups, 2, *(random.randint(1, 3) for _ in range(rank)))

    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        settings: Any = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return convolve(x, w, b, **settings), convolve(x[0], w, **settings)

    return function, (image, kernel, (3 * groups,))


def transposed_convolution(random: Random) -> Case:
    rank, groups = random.randint(1, 2), random.randint(1, 2)
    convolve = (F.conv_transpose1d, F.conv_transpose2d)[rank - 1]
    stride, padding, dilation = ([low + random.randint(0, 1) for _ in range(rank)] for low in (1, 0, 1))
    more = [random.randint(0, max(one, other) - 1) for one, other in zip(stride, dilation, strict=True)]
    image = (2, 2 * groups, *(random.randint(4, 5) for _ in range(rank)))
    kernel = (2 * groups, 3, *(random.randint(1, 3) for _ in range(rank)))
    settings: Any = (stride, padding, more, groups, dilation)
    return lambda x, w, b: convolve(x, w, b, *settings), (image, kernel, (3 * groups,))


def convolution_of_constants(random: Random) -> Case:
    size = random.randint(3, 5)

    def function(x: Tensor) -> Tensor:
        ones = x.new_ones(1, 1, 3, 3)
        return F.conv2d(x, ones, padding=1) + F.conv2d(torch.ones_like(x), ones, padding=1)

    return function, ((1, 1, size, size),)


def _pool(random: Random, rank: int) -> tuple[list[int], list[int], list[int], bool]:
    kernel = [random.randint(1, 4) for _ in range(rank)]
    stride = [random.randint(1, 4) for _ in range(rank)]
    padding = [random.randint(0, one // 2) for one in kernel]
    return kernel, random.choice([stride, kernel]), padding, random.choice([True, False])


def average_pool(random: Random) -> Case:
    rank = random.randint(1, 3)
    pool: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    settings = (*_pool(random, rank), random.choice([True, False]))
    divisor = {"divisor_override": random.choice([None, 3])} if rank > 1 else {}
    return lambda x: pool(x, *settings, **divisor), ((2, 2, *(random.randint(5, 8) for _ in range(rank))),)


def maximum_pool(random: Random) -> Case:
    rank = random.randint(1, 3)
    pool: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    kernel, stride, padding, ceil = _pool(random, rank)
    dilation = random.randint(1, 2)
    shape = (2, 2, *(random.randint(7, 9) for _ in range(rank)))
    return lambda x: pool(x, kernel, stride, padding, dilation, ceil), (shape,)


def adaptive_pool(random: Random) -> Case:
    rank = random.randint(1, 3)
    average: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]
    largest: Any = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[rank - 1]
    sizes = [random.randint(1, 5) for _ in range(rank)]
    shape = (2, 2, *(random.randint(4, 7) for _ in range(rank)))
    return lambda x: (average(x, sizes), largest(x, sizes)), (shape,)


def patches(random: Random) -> Case:
    kernel = [random.randint(1, 3) for _ in range(2)]
    dilation, padding, stride = (random.randint(low, 2) for low in (1, 0, 1))
    size = [random.randint(5, 7) for _ in range(2)]

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        made = F.unfold(x, kernel, dilation, padding, stride)
        return made, F.fold(made * 2, size, kernel, dilation, padding, stride)

    return function, ((2, 2, *size),)


def running(random: Random) -> Case:
    rank = random.randint(1, 3)
    dim = random.randint(-rank, rank - 1)
    return lambda x: (
        x.cumsum(dim),
        x.cumprod(dim),
        x.logcumsumexp(dim),
        x.cummax(dim).values,
        x.cummin(dim).values,
    ), (_shape(random, rank),)


def running_count(random: Random) -> Case:
    dim = random.randint(-2, 1)
    return lambda x: (torch.ones_like(x).cumsum(dim) * x, (x > 0).cumsum(dim) * x), (_shape(random, 2),)


def prod(random: Random) -> Case:
    dim, keep = random.randint(-2, 1), random.choice([True, False])
    return lambda x: (x.prod(dim, keepdim=keep), x[:2, :2].prod()), (_shape(random, 2),)


def norms(random: Random) -> Case:
    def function(x: Tensor, mean: Tensor, deviation: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        var = deviation.square() + 0.1
        return (
            F.batch_norm(x, mean, var, w, b),
            F.batch_norm(x, mean, var),
            F.batch_norm(x, None, None, w, b, training=True),
            F.instance_norm(x, weight=w, bias=b),
        )

    channels = random.randint(1, 4)
    return function, ((2, channels, *_shape(random, 2, 4), 2), *[(channels,)] * 4)


def tables(random: Random) -> Case:
    rows, columns = random.randint(1, 3), random.randint(1, 5)
    numbers = [[random.choice([0, 1, 2, -7, 5]) for _ in range(columns)] for _ in range(rows)]

    def function(x: Tensor) -> tuple[Tensor, ...]:
        table = torch.tensor(numbers)
        places = torch.arange(columns) == table
        return x * table, torch.where(places, x, 0), x + torch.tensor(numbers, dtype=x.dtype) / 3, table

    return function, ((rows, columns),)


WINDOWS: tuple[Callable[[Random], Case], ...] = (
    convolution, transposed_convolution, convolution_of_constants, average_pool, maximum_pool, adaptive_pool,
    patches, running, running_count, prod, norms, tables,
)  # fmt: skip


def check(make: Callable[[Random], Case], seed: int) -> None:
    """Check that a random form of an operator is algebra, and computes what PyTorch does."""
    function, shapes = make(Random(f"{make.__name__} {seed}"))
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    expected = function(*inputs)
    traced = trace(function, *inputs, for_proof=True)
    assert not traced.program.opaque, traced.program.opaque
    assert not traced.constants
    torch.testing.assert_close(traced.run(*inputs), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("make", MOVES + WINDOWS, ids=lambda make: make.__name__)
def test_as_eager(make: Callable[[Random], Case], seed: int) -> None:
    check(make, seed)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.tensor([0.0, -torch.inf]),
        lambda x: x + torch.tensor([0.0, torch.nan]),
        lambda x: x[:, :1] * torch.tensor([float(i) for i in range(65)]),
    ],
    ids=["infinity", "nan", "long"],
)
def test_constants_that_are_no_tables(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 2)
    traced = trace(function, x, for_proof=True)
    assert traced.constants
    torch.testing.assert_close(traced.run(x), function(x), equal_nan=True)


def test_a_table_is_a_constant_where_programs_run() -> None:
    assert trace(lambda x: x * torch.tensor([1.0, 2.0, 4.0]), torch.randn(3)).constants


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.flip(1),
        lambda x: x.roll(1, 1),
        lambda x: F.pad(x, (1, 2)),
        lambda x: x[:, 1::2],
        lambda x: F.conv1d(x[None], x[:, None, :3], groups=2),
    ],
    ids=["flip", "roll", "pad", "step", "convolution"],
)
def test_long_axes_stay_opaque(function: Callable[[Tensor], Tensor]) -> None:
    """A proof evaluates an axis whole, or the elements that were moved there would be missing."""
    x = torch.randn(2, 97, dtype=torch.float64)
    traced = trace(function, x, for_proof=True)
    assert traced.program.opaque
    torch.testing.assert_close(traced.run(x), function(x))


@pytest.mark.parametrize("for_proof", [False, True])
@pytest.mark.parametrize("number", [1.5, -2.0, 0.5, 3])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64], ids=str)
def test_a_padding_holds_its_number_in_the_dtype(dtype: torch.dtype, number: float, for_proof: bool) -> None:
    x = torch.tensor([[0, 1, 1]]).to(dtype)

    def function(x: Tensor, y: Tensor) -> Tensor:
        return F.pad(x, (1, 2), value=number) * y

    y = torch.arange(6.0, dtype=torch.float64)
    traced = trace(function, x, y, for_proof=for_proof)
    torch.testing.assert_close(traced.run(x, y), function(x, y))
