"""Pair: two PyTorch programs, whether they are truly equal, and the tensors that they take."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["Function", "Input", "Pair", "constants_of", "draw", "example", "parse"]

Function: TypeAlias = Callable[..., Any]

_ITEM = re.compile(r"(f16|f32|f64|i64|bool)\[([\d,]*)\](?:<(\d+))?")
_DTYPES = {
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i64": torch.int64,
    "bool": torch.bool,
}
_ALWAYS = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0)
_LARGEST = 300.0  # a constant of a program that is larger is no input: its exp is no number


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs of the same inputs. Equal: over the reals, wherever the first of the two is defined."""

    name: str
    f: Function
    g: Function
    inputs: str  # f32[4,6], bool[4,6], or i64[5]<6 for whole numbers from 0 to 5; one or several
    equal: bool = True
    family: str = ""
    pool: tuple[float, ...] = ()  # numbers to be met by the inputs, beside the constants in the code

    @property
    def constants(self) -> tuple[float, ...]:
        """Return the numbers that inputs are drawn from: the programs' own and a few that always matter."""
        found = {*self.pool, *constants_of(self.f), *constants_of(self.g)}
        return tuple(dict.fromkeys((*_ALWAYS, *sorted(found))))


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor that a pair takes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    below: int = 2  # whole numbers are drawn from 0 up to here


def parse(text: str) -> tuple[Input, ...]:
    """Return the inputs that a pair names."""
    found = []
    for item in text.split():
        match = _ITEM.fullmatch(item)
        assert match is not None, f"{item!r} is no input"
        shape = tuple(int(size) for size in match[2].split(",") if size)
        found.append(Input(_DTYPES[match[1]], shape, int(match[3] or 2)))
    return tuple(found)


def example(inputs: Sequence[Input], seed: int = 0) -> tuple[Tensor, ...]:
    """Return tensors as a user would give them: normal numbers of the right dtypes."""
    random = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(one.shape, generator=random).to(one.dtype)
        if one.dtype.is_floating_point
        else torch.randint(0, one.below, one.shape, generator=random).to(one.dtype)
        for one in inputs
    )


def draw(inputs: Sequence[Input], constants: Sequence[float], seed: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield directed inputs, floats as float64: normal, of the program's constants, near them, with ties."""
    random = torch.Generator().manual_seed(seed)
    pool = torch.tensor(constants, dtype=torch.float64)
    own = torch.tensor([one for one in constants if one not in _ALWAYS] or constants, dtype=torch.float64)
    near = torch.cat([own, own + 0.25, own - 0.25])
    few = pool[torch.randint(0, len(pool), (3,), generator=random)]
    wholes = torch.arange(-3, 10, dtype=torch.float64)
    floats: tuple[Callable[[tuple[int, ...]], Tensor], ...] = (
        partial(_normal, random, 1.0),
        partial(_chosen, random, pool),
        partial(_chosen, random, near),
        partial(_chosen, random, few),
        partial(_mixed, random, pool),
        partial(_normal, random, 4.0),
        partial(_chosen, random, wholes),
        lambda shape: torch.rand(shape, generator=random, dtype=torch.float64) + 0.01,
        lambda shape: torch.zeros(shape, dtype=torch.float64),
    )
    shares = (0.5, 0.5, 0.15, 0.85, 0.5, 0.0, 0.5, 1.0, 0.5)
    for number, make in enumerate(floats):
        made = [
            make(one.shape) if one.dtype.is_floating_point else _whole(random, one, shares[number], constants)
            for one in inputs
        ]
        yield tuple(made)
        yield tuple(_tied(random, made))


def constants_of(function: Function) -> set[float]:
    """Return the numbers in the code of a function, of those within it and of those that it closes over."""
    found: set[float] = set()
    waiting: list[Any] = [function]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, CodeType):
            waiting += value.co_consts
        elif isinstance(value, (tuple, list)):
            waiting += value
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found |= {float(value), -float(value)} if abs(value) < _LARGEST else set()
        elif hasattr(value, "__code__"):
            waiting.append(value.__code__)
            waiting += [cell.cell_contents for cell in value.__closure__ or ()]
    return {value for value in found if math.isfinite(value)}


def _normal(random: torch.Generator, scale: float, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=random, dtype=torch.float64) * scale


def _chosen(random: torch.Generator, pool: Tensor, shape: tuple[int, ...]) -> Tensor:
    return pool[torch.randint(0, len(pool), shape, generator=random)]


def _mixed(random: torch.Generator, pool: Tensor, shape: tuple[int, ...]) -> Tensor:
    normal = torch.rand(shape, generator=random) < 0.5
    return torch.where(normal, _normal(random, 1.0, shape), _chosen(random, pool, shape))


def _whole(random: torch.Generator, one: Input, share: float, constants: Sequence[float]) -> Tensor:
    """Return booleans, or whole numbers below the input's bound, many of them of the program's constants."""
    if one.dtype == torch.bool:
        return torch.rand(one.shape, generator=random) < share
    drawn = torch.randint(0, one.below, one.shape, generator=random)
    named = [int(value) for value in constants if value == int(value) and 0 <= value < one.below]
    if not named:
        return drawn
    chosen = torch.rand(one.shape, generator=random) < 0.25
    return torch.where(chosen, _chosen(random, torch.tensor(named), one.shape), drawn)


def _tied(random: torch.Generator, made: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the tensors, each with some numbers of the first one of its kind and shape."""
    first: dict[tuple[torch.dtype, torch.Size], Tensor] = {}
    for tensor in made:
        other = first.setdefault((tensor.dtype, tensor.shape), tensor)
        yield torch.where(torch.rand(tensor.shape, generator=random) < 0.5, tensor, other)
