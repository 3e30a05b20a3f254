"""Samples: inputs like the given ones, drawn of many distributions, hostile and directed ones too.

Directed distributions aim at the comparisons of a program: they hold its constants and numbers right
beside them, zeros, ones and small integers, so that ties occur. All of these are short dyadic numbers where
they can be, which every dtype holds exactly: then a comparison comes out alike in all dtypes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from superopt.trace.capture.tape import take_apart
from superopt.verify.floats.focus import Focus
from superopt.verify.floats.memory import Memory, laid_out, lying_apart
from superopt.verify.seeds import generator_seed

__all__ = [
    "DIRECTED",
    "DISTRIBUTIONS",
    "MINUS_INFINITY",
    "MISSING",
    "ONLY_FINITE",
    "PLAIN",
    "SMALL_INTEGERS",
    "beside",
    "sample",
    "tensors_of",
    "typical",
]

Draw: TypeAlias = Callable[[Sequence[int], torch.Generator, torch.dtype], Tensor]


def _normal(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(tuple(shape), generator=random, dtype=dtype, device=random.device)


def _uniform(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.rand(tuple(shape), generator=random, dtype=dtype, device=random.device)


def _row_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one number for each row."""
    return (*shape[:-1], 1) if shape else ()


def _ones(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.ones(tuple(shape), dtype=dtype, device=random.device)


def _row_sizes(shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.where(_uniform(shape, random, dtype) < 0.5, 2.0**-12, 1.0).to(dtype)


@dataclass(frozen=True, slots=True)
class Distribution:
    """How tensors are drawn, as float32 or wider before they are rounded to their own dtype."""

    elements: Draw
    rows: Draw | None = None
    """Factors of whole rows."""

    def draw(self, shape: Sequence[int], random: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Return a tensor of numbers that are all drawn."""
        return self._by_rows(self.elements(shape, random, dtype), random, dtype)

    def fill(self, drawn: Tensor, random: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Return a large tensor after writing to it a part that is drawn, again and again."""
        part = self.elements((_PART,), random, dtype).to(drawn.dtype)
        count, numbers = drawn.numel(), drawn.as_strided((drawn.numel(),), (1,))
        whole = count // _PART * _PART
        numbers[:whole].view(-1, _PART).copy_(part)
        numbers[whole:].copy_(part[: count - whole])
        return self._by_rows(drawn, random, dtype)

    def _by_rows(self, drawn: Tensor, random: torch.Generator, dtype: torch.dtype) -> Tensor:
        if self.rows is None:
            return drawn
        return drawn.mul_(self.rows(_row_shape(drawn.shape), random, dtype).to(drawn.dtype))


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": Distribution(_normal),
    "uniform positive": Distribution(_uniform),
    "large": Distribution(lambda *drawn: _normal(*drawn).mul_(16)),
    "huge": Distribution(lambda *drawn: _normal(*drawn).mul_(4096)),
    "near-zero rows": Distribution(_normal, _row_sizes),
    "wide range": Distribution(
        lambda *drawn: _normal(*drawn).mul_(_uniform(*drawn).mul_(12).sub_(8).exp2_())
    ),
    "sparse": Distribution(lambda *drawn: _normal(*drawn).mul_(_uniform(*drawn) < 0.2)),
    "offset": Distribution(lambda *drawn: _normal(*drawn).add_(8)),
    "constant rows": Distribution(_ones, lambda *drawn: _normal(*drawn).mul_(32)),
}
"""How input tensors are drawn."""

_PART = 131_071
"""Numbers that a large tensor repeats, as millions take long to draw: a prime, which no stride is."""

ONLY_FINITE = frozenset({"huge", "constant rows"})
"""Distributions that tell whether NaN or infinity comes up; on them rounding is as large as results."""

PLAIN = ("normal", "uniform positive", "near-zero rows")
"""Moderate distributions of which no number is a zero by chance, so that nothing is divided by one."""

DIRECTED = ("around constants", "program's constants", "small integers")
"""Distributions that aim at the comparisons of a program, the one first that mostly shows all of them."""

SMALL_INTEGERS = (torch.int8, torch.uint8)
"""Integers that are no indices, so that any number is valid."""

MISSING = "missing numbers"
"""A distribution of normal numbers, of which one input lacks some: comparisons can sort out its NaN."""

MINUS_INFINITY = "minus infinities"
"""Normal numbers, and minus infinities among those of one input, at odd seeds in whole rows too."""

_LACKING_ROWS, _LACKING = 0.5, 0.25  # share of rows that lack numbers, and of the numbers that they lack
_LACKING_A_ROW = 2  # numbers that a long row lacks, of which a selection may hide all
_EMPTY_ROWS = 0.1  # share of rows that lack all numbers
_BASIC = (0.0, 1.0, -1.0)
_NEAREST = 6  # halvings of a number's size that bfloat16 still adds to it
_EVEN_ROWS = 0.2  # share of rows whose numbers are all the same: masked as a whole, or of norm 0
_FEW = 4  # numbers of which one tensor is drawn
_BESIDE = 4  # units by which numbers differ that are beside others


def sample(
    name: str,
    inputs: Sequence[Any],
    *,
    seed: int = 0,
    focus: Focus | None = None,
    memory: Memory | None = None,
    lacking: int | None = None,
) -> tuple[Any, ...]:
    """Return inputs like the given ones, floats and booleans drawn anew; all else is kept.

    Every other distribution repeats numbers where an example does, as after `expand`; in the others they
    differ, as a program may be called with either. With a focus, integers are drawn too where any number is
    valid, and directed distributions aim at what the focus names. With a memory, large tensors lie there
    until the next ones are drawn. Where numbers are missing, they are of the input at the position `lacking`,
    or of one that the seed chooses.
    """
    memory = memory or Memory()
    number = [*DISTRIBUTIONS, *DIRECTED, MISSING, MINUS_INFINITY].index(name)
    floats = [at for at, one in enumerate(tensors_of(inputs)) if one.dtype.is_floating_point]
    chosen = floats[seed % len(floats)] if floats else -1
    lacking = chosen if lacking is None else lacking
    randoms: dict[torch.device, torch.Generator] = {}
    count = 0

    def random_on(device: torch.device) -> torch.Generator:
        if device not in randoms:
            randoms[device] = torch.Generator(device).manual_seed(generator_seed(seed * 1009 + number))
        return randoms[device]

    def draw(value: Any) -> Any:
        nonlocal count
        if not isinstance(value, Tensor):
            return (
                value if (found := take_apart(value)) is None else found[1]([draw(one) for one in found[0]])
            )
        position, count = count, count + 1
        made = partial(numbers, position)
        return _once(made, value) if number % 2 == 0 else made(value)

    def numbers(position: int, value: Tensor) -> Tensor:
        random = random_on(_device(value))
        if value.dtype == torch.bool:
            return _like(value, _booleans(value, random))
        if not value.dtype.is_floating_point:
            extent = dict(focus.labels).get(position) if focus is not None else None
            if extent:
                return _like(value, _labels(value, random, extent, _Pool(focus, position)))
            if focus is not None and position in focus.drawn_integers:
                return _like(value, _integers(value, random, name, _Pool(focus, position)))
            if focus is not None and position in focus.kept_integers and not value.is_meta:
                return _like(value, _mixed(value, random, _Pool(focus, position)))
            if value.is_meta and value.dtype in SMALL_INTEGERS:
                return _like(value, _whole_range(value, random))
            return torch.zeros_like(value, device=_device(value)) if value.is_meta else value
        wide = torch.promote_types(value.dtype, torch.float32) if value.dtype.itemsize > 1 else torch.float32
        if name in DIRECTED:
            drawn = _directed(name, value.shape, random, wide, _Pool(focus, position))
        elif name in (MISSING, MINUS_INFINITY):
            drawn = _normal(value.shape, random, wide)
            if position == lacking:
                empty = _EMPTY_ROWS if name == MINUS_INFINITY and seed % 2 else 0.0
                drawn = _missing(drawn, random, float("nan" if name == MISSING else "-inf"), empty)
        elif _is_long(value):
            return DISTRIBUTIONS[name].fill(memory.like(position, value, value.dtype), random, wide)
        else:
            drawn = DISTRIBUTIONS[name].draw(value.shape, random, wide)
        return _like(value, drawn.to(value.dtype))

    return tuple(draw(value) for value in inputs)


def beside(drawn: Sequence[Any], *, seed: int) -> tuple[Any, ...]:
    """Return inputs whose floats differ from those of a draw by a few of their units."""
    randoms: dict[torch.device, torch.Generator] = {}

    def changed(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point or value.dtype.itemsize == 1:
            return value
        if value.device not in randoms:
            randoms[value.device] = torch.Generator(value.device).manual_seed(generator_seed(seed))
        wide = torch.promote_types(value.dtype, torch.float32)
        share = _BESIDE * torch.finfo(value.dtype).eps

        def near(value: Tensor) -> Tensor:
            factors = _normal(value.shape, randoms[value.device], wide).mul_(share).add_(1)
            return _like(value, factors.mul_(value).to(value.dtype))

        return _once(near, value)

    return tuple(tree_map(changed, drawn))


def _is_long(value: Tensor) -> bool:
    """Whether a tensor is made of a part that is repeated: it is in one piece, and no row repeats numbers."""
    long = value.dtype.itemsize > 1 and value.numel() >= 2 * _PART >= 4 * value.shape[-1]
    return long and torch.empty_like(value, device="meta").stride() == value.stride()


def _like(value: Tensor, drawn: Tensor) -> Tensor:
    """Return numbers in the memory layout of an example; where that repeats numbers, as they are drawn."""
    repeats = lying_apart(value).shape != value.shape
    return drawn.to(value.dtype) if repeats else laid_out(drawn.to(value.dtype), value)


def _once(made: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """Return what is made of a tensor, once for all of its numbers that share a place in memory."""
    found = made(lying_apart(value))
    return found if found.shape == value.shape else found.expand(value.shape)


class _Pool:
    """The numbers that one input is aimed at."""

    def __init__(self, focus: Focus | None, position: int) -> None:
        by_input = focus.by_input if focus is not None else ()
        self.own = by_input[position] if position < len(by_input) else ()
        self.all = focus.constants if focus is not None else ()
        self.ties = focus is not None and focus.ties
        # Where other inputs are what the comparisons look at, this one is drawn as in any other test.
        fragile = focus is not None and focus.fragile
        self.beside = not self.own and (fragile or (any(by_input) and not self.ties))

    @property
    def finite(self) -> list[float]:
        """The constants that the input is compared with, or else all of the program's, in order."""
        return sorted({one for one in self.own or self.all if isfinite(one)})

    def numbers(self) -> list[float]:
        """Return all numbers that the input may be drawn of, its own first, which may be infinite."""
        return list(dict.fromkeys([*self.own, *_BASIC, *(one for one in self.all if isfinite(one))]))


def _uniform_of(numbers: Sequence[float], shape: Sequence[int], random: torch.Generator) -> Tensor:
    """Return a tensor whose elements are drawn of some numbers."""
    pool = torch.tensor(numbers, dtype=torch.float64, device=random.device)
    chosen = torch.randint(len(numbers), tuple(shape), generator=random, device=random.device)
    return pool[chosen]


def _some_rows_even(drawn: Tensor, random: torch.Generator) -> Tensor:
    """Return numbers of which some rows repeat their first one."""
    if drawn.dim() < 2 or not drawn.numel():
        return drawn
    rows = _uniform(_row_shape(drawn.shape), random, torch.float64)
    return torch.where(rows < _EVEN_ROWS, drawn[..., :1], drawn)


def _several(numbers: Sequence[float], most: int, random: torch.Generator) -> list[float]:
    """Return some of the numbers, in random order."""
    order = torch.randperm(len(numbers), generator=random, device=random.device)
    return [numbers[i] for i in order[:most].tolist()]


def _directed(
    name: str, shape: Sequence[int], random: torch.Generator, dtype: torch.dtype, pool: _Pool
) -> Tensor:
    """Return one float tensor of a directed distribution."""
    if name == "small integers":
        whole = _uniform_of((-2.0, -1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0), shape, random)
        rows = (
            _uniform(_row_shape(shape), random, torch.float64)
            if len(shape) > 1
            else torch.ones((), device=random.device)
        )
        return torch.where(rows < _EVEN_ROWS, 0.0, whole).to(dtype)
    if pool.beside:
        return _normal(shape, random, dtype)
    if name == "around constants":
        return _some_rows_even(_around(pool, shape, random), random).to(dtype)
    numbers = pool.numbers()
    own = _several(pool.own, _FEW, random) if pool.own else []
    others = [] if pool.ties else _several([one for one in numbers if one not in own], 2, random)
    drawn = _uniform_of([*own, *own, *others, *(_BASIC[:2] if not own else ())], shape, random)
    return (_some_rows_even(drawn, random) if own else drawn).to(dtype)


def _around(pool: _Pool, shape: Sequence[int], random: torch.Generator) -> Tensor:
    """Return constants, and numbers at distances of 1, 1/2, ... 1/64 of their size, or of the largest's."""
    constants = pool.finite or [0.0]
    if not pool.own:  # the input is compared only after other steps: draw rows of several scales
        return _scaled(constants, shape, random)
    scale = max(map(abs, constants)) or 1.0
    center = _uniform_of(constants, shape, random)
    steps = [0.0, *(sign * 2.0**-power for power in range(_NEAREST + 1) for sign in (-1, 1))]
    size = torch.where((center == 0) | (_uniform(shape, random, torch.float64) < 0.5), scale, center.abs())
    return center + _uniform_of(steps, shape, random) * size


def _scaled(constants: Sequence[float], shape: Sequence[int], random: torch.Generator) -> Tensor:
    """Return normal numbers in rows of several scales: 1, near the constants, and their roots."""
    scales = [1.0]
    for one in map(abs, constants):
        if one:
            scales += [one, one / 16, one * 16, one**0.5]
    rows = _uniform_of(scales, _row_shape(shape), random)
    return _normal(shape, random, torch.float64) * rows


def _missing(drawn: Tensor, random: torch.Generator, instead: float, empty: float) -> Tensor:
    """Return numbers some of which are missing, in some of the rows; a share of all rows is empty."""
    if drawn.dim() < 2:
        return drawn.masked_fill(_uniform(drawn.shape, random, torch.float64) < _LACKING, instead)
    rows = _uniform(_row_shape(drawn.shape), random, torch.float64)
    share = min(_LACKING, _LACKING_A_ROW / max(drawn.shape[-1], 1))
    lacks = _uniform(drawn.shape, random, torch.float64) < share
    return drawn.masked_fill((lacks & (rows < _LACKING_ROWS)) | (rows > 1 - empty), instead)


def _booleans(value: Tensor, random: torch.Generator) -> Tensor:
    return torch.rand(tuple(value.shape), generator=random, device=random.device) < 0.5


def _integers(value: Tensor, random: torch.Generator, name: str, pool: _Pool) -> Tensor:
    """Return integers: numbers that the input is compared with and their neighbours, or ids of segments."""
    least, most = torch.iinfo(value.dtype).min, torch.iinfo(value.dtype).max
    own = [round(one) for one in pool.own if isfinite(one)]
    if own and not (pool.ties and name == "small integers"):
        near = [one + step for one in own for step in (-1, 0, 0, 1)]
        return _uniform_of([min(max(one, least), most) for one in near], value.shape, random)
    if value.dtype in SMALL_INTEGERS and not own:
        return _whole_range(value, random)
    ids = torch.randint(4, value.shape, generator=random, device=random.device)
    sorted_ids = name == "small integers" and value.dim() > 0
    return ids.sort(-1).values if sorted_ids else ids


def _whole_range(value: Tensor, random: torch.Generator) -> Tensor:
    kind = torch.iinfo(value.dtype)
    return torch.randint(kind.min, kind.max + 1, value.shape, generator=random, device=random.device)


def _mixed(value: Tensor, random: torch.Generator, pool: _Pool) -> Tensor:
    """Return indices of which some are what they are compared with: between those given, all are valid."""
    if not value.numel():
        return value
    least, most = int(value.min()), int(value.max())
    near = {round(one) + step for one in pool.own if isfinite(one) for step in (-1, 0, 1)}
    valid = sorted(one for one in near if least <= one <= most)
    if not valid:
        return value
    chosen = _uniform(value.shape, random, torch.float32) < 0.5
    return torch.where(chosen, _uniform_of(valid, value.shape, random).to(value.dtype), value)


def _labels(value: Tensor, random: torch.Generator, extent: int, pool: _Pool) -> Tensor:
    """Return places of an axis, and among them the numbers that are compared with labels otherwise."""
    others = [round(one) for one in pool.own if isfinite(one) and one < extent]
    places = torch.randint(extent, tuple(value.shape), generator=random, device=random.device)
    if not others:
        return places
    chosen = _uniform(value.shape, random, torch.float32) < 0.25
    return torch.where(chosen, _uniform_of(others, value.shape, random).to(places.dtype), places)


def typical(inputs: Sequence[Any], *, seed: int = 0) -> tuple[Any, ...]:
    """Return inputs like the given ones to measure with: products with matrices stay as large as what is
    multiplied, as in models that are trained. Of much larger numbers some functions, as `tanh`, take longer.
    """

    def scaled(value: Any) -> Any:
        floats = isinstance(value, Tensor) and value.dtype.is_floating_point and value.dtype.itemsize > 1
        if not floats or value.dim() < 2:
            return value
        return _once(lambda one: one.mul_(max(value.shape[-1], 1) ** -0.5), value)

    return tuple(tree_map(scaled, sample("normal", inputs, seed=seed)))


def _device(value: Tensor) -> torch.device:
    return torch.device("cpu") if value.is_meta else value.device


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors of a result, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    found = take_apart(tree)
    tree = found[0] if found is not None else tree
    if hasattr(tree, "__iter__") and not isinstance(tree, (str, bytes)):  # texts hold texts
        return [tensor for item in tree for tensor in tensors_of(item)]
    return []
