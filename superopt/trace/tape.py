"""Tape: the flat list of ATen calls that one run of a function makes on tensors without data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Call", "Meta", "Ref", "Source", "Tape", "map_leaves", "refs"]


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the tape, by its position in `Tape.metas`."""

    index: int


@dataclass(frozen=True, slots=True)
class Meta:
    """What is known of a tensor without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size == 0:
                return True
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that the function did not make: an input, or a constant it closes over."""

    name: str
    index: int
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator; tensors among its arguments are Refs."""

    target: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...]
    mutated: tuple[int, ...] = ()  # argument tensors it writes into; its outputs are their new contents


@dataclass(frozen=True, slots=True)
class Tape:
    """One run of a function: what it read, the calls in order, and what it returned."""

    name: str
    metas: tuple[Meta, ...]
    inputs: tuple[Source, ...]
    constants: tuple[Source, ...]
    scalars: dict[int, float | int | bool]  # 0-d constants, which are inlined
    calls: tuple[Call, ...]
    result: Any  # the function's own structure, with Refs for tensors


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree of tuples, lists and dicts with the function applied to every leaf."""
    if isinstance(tree, dict):
        mapped = {key: map_leaves(function, item) for key, item in tree.items()}
        return mapped if type(tree) is dict else _rebuild(tree, mapped)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a namedtuple
        return type(tree)(*(map_leaves(function, item) for item in tree))
    if isinstance(tree, torch.Size):
        return tree
    if isinstance(tree, tuple | list):
        items = [map_leaves(function, item) for item in tree]
        return tuple(items) if isinstance(tree, tuple) else items
    return function(tree)


def _rebuild(tree: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """Return a dict of the same subclass, or a plain one where its constructor takes no dict."""
    try:
        return type(tree)(**items)
    except TypeError:
        return items


def refs(tree: Any) -> Iterator[int]:
    """Yield the tensors of a tree of arguments, in order."""
    if isinstance(tree, Ref):
        yield tree.index
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from refs(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from refs(item)
