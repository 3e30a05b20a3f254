"""Constants: inputs whose name says what they hold, as `eye` is the identity matrix of any size."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.images import POOL
from superopt.rules.discover.language.shapes import Shape, Symbols

__all__ = ["CONSTANTS", "Constant", "constant_named", "constrained"]

_NAME = re.compile(r"([a-z]+)\d*")
_WINDOW = (str(POOL),)
_ONE = ("1",)


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of any size: its name, how many dimensions it has, and what it holds."""

    name: str
    rank: int
    holds: Callable[[tuple[int, ...]], NDArray[np.int64]]
    square: bool = False  # its first two dimensions are equal
    window: bool = False  # its last two dimensions are those of a pool
    depth: bool = False  # its second dimension is one
    share: Fraction = Fraction(1)  # of which its elements are multiples


def _centred(sizes: tuple[int, ...]) -> NDArray[np.int64]:
    found = np.zeros(sizes, dtype=np.int64)
    found[..., (sizes[2] - 1) // 2, (sizes[3] - 1) // 2] = np.eye(sizes[0], sizes[1], dtype=np.int64)
    return found


def _boxes(sizes: tuple[int, ...]) -> NDArray[np.int64]:
    found = np.zeros(sizes, dtype=np.int64)
    found[...] = np.eye(sizes[0], sizes[1], dtype=np.int64)[:, :, None, None]
    return found


def _boxes_apart(sizes: tuple[int, ...]) -> NDArray[np.int64]:
    return np.ones(sizes, dtype=np.int64)


_POOL_SHARE = Fraction(1, POOL * POOL)

CONSTANTS = MappingProxyType(
    {
        one.name: one
        for one in (
            Constant("eye", 2, lambda sizes: np.eye(*sizes, dtype=np.int64), square=True),
            Constant("ones", 2, lambda sizes: np.ones(sizes, dtype=np.int64)),
            Constant("zeros", 2, lambda sizes: np.zeros(sizes, dtype=np.int64)),
            Constant("dirac", 4, _centred, square=True),
            Constant("full", 4, lambda sizes: np.ones(sizes, dtype=np.int64)),
            Constant("blank", 4, lambda sizes: np.zeros(sizes, dtype=np.int64)),
            Constant("box", 4, _boxes, square=True, window=True, share=_POOL_SHARE),
            Constant("boxes", 4, _boxes_apart, depth=True, window=True, share=_POOL_SHARE),
        )
    }
)
"""The identity matrix; ones; zeros; the convolution that leaves an image as it is; an image of ones; an image
or weight of zeros; and the weights that make a convolution `avg_pool`, of all channels and of each channel
apart.

A number may follow the name, so that a rule can have several of one kind: `ones`, `ones2`.
"""


def constant_named(name: str) -> Constant | None:
    """Return the constant that an input of this name is, None for a variable."""
    match = _NAME.fullmatch(name)
    return CONSTANTS.get(match[1]) if match else None


def constrained(name: str, shape: Shape, symbols: Symbols) -> bool:
    """Make the dimensions of a constant what they must be; return whether that is possible."""
    constant = constant_named(name)
    if constant is None:
        return True
    if len(shape) != constant.rank or (constant.square and not symbols.same(shape[0], shape[1])):
        return False
    if constant.depth and not symbols.same(shape[1], _ONE):
        return False
    return not constant.window or all(symbols.same(shape[at], _WINDOW) for at in (2, 3))
