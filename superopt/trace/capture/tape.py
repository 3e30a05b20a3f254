"""Tape: the flat list of ATen calls that one run of a function makes on tensors without data."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import SUPPORTED_NODES

from superopt.dtypes import dtype_text

__all__ = [
    "Call",
    "Meta",
    "Ref",
    "Source",
    "Tape",
    "comes_back",
    "is_view",
    "leaves",
    "map_leaves",
    "operator_of",
    "refs",
    "repeats_of",
    "results_of",
    "take_apart",
]


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
        return f"{dtype_text(self.dtype)}{list(self.shape)}"

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


_LEAVES = frozenset({Ref, Tensor, torch.Size, int, float, bool, str, bytes, type(None)})


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
    mutated: tuple[int, ...] = ()  # argument tensors it writes into; their new contents are its first outputs
    part_of: int | None = None  # the first call of those that one operator was taken apart into


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
    tables: tuple[Source, ...] = ()  # short constants that the function itself made of numbers
    read: tuple[Tensor, ...] = ()  # tensors from outside whose values became numbers of the program
    rewritten: bool = False  # the calls are not those of the function, but of one that computes the same
    # In which memory PyTorch has each result, by its position: 0 is memory that the function did not make.
    memory: dict[int, int] = field(default_factory=dict)
    # Whether the function does something else for tensors that require gradients, even under no_grad.
    depends_on_requires_grad: bool = False


def operator_of(target: str) -> str:
    """Return the name of an ATen operator: without its overload, and without the underscore of a write."""
    return target.removeprefix("aten.").partition(".")[0].rstrip("_")


@cache
def is_view(operator: Any) -> bool:
    """Return whether an operator returns memory of its arguments."""
    schema = getattr(operator, "_schema", None)
    made = () if schema is None else schema.returns
    return any(one.alias_info is not None and not one.alias_info.is_write for one in made)


def results_of(operator: Any, result: Any, written: Sequence[Tensor]) -> list[Any]:
    """Return what a call made: the tensors that it wrote into, and its results that are new tensors."""
    made = list(result) if isinstance(result, tuple | list) else [result]
    if not written:
        return made
    returns = operator._schema.returns
    fresh = [item for item, one in zip(made, returns, strict=False) if one.alias_info is None]
    return [*written, *fresh]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a structure with the function applied to every leaf that `take_apart` comes down to."""
    found = take_apart(tree)
    if found is None:
        return function(tree)
    items, rebuilt = found
    return rebuilt([map_leaves(function, item) for item in items])


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of a structure, in order."""
    found = take_apart(tree)
    if found is None:
        yield tree
        return
    for item in found[0]:
        yield from leaves(item)


def comes_back(tree: Any) -> bool:
    """Whether `take_apart` makes a tuple, a list or a dict of other items one of the same kind, as it was."""
    kind = type(tree)
    return kind in (tuple, list, dict) or kind in SUPPORTED_NODES or _is_namedtuple(tree)


def _is_namedtuple(tree: Any) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def take_apart(tree: Any) -> tuple[Sequence[Any], Callable[[list[Any]], Any]] | None:
    """Return the items of a structure, and a function that builds one like it of others; None for a leaf.

    Structures are tuples, lists, dicts, dataclasses, and what is registered with PyTorch's pytrees.
    """
    kind = type(tree)
    if kind is tuple or kind is list:
        return tree, kind
    if kind is dict:
        return list(tree.values()), lambda items: dict(zip(tree, items, strict=True))
    if kind in _LEAVES or isinstance(tree, type):
        return None
    if _is_namedtuple(tree):
        return tree, lambda items: kind(*items)
    if kind in SUPPORTED_NODES:
        items, context = SUPPORTED_NODES[kind].flatten_fn(tree)
        return list(items), lambda items: SUPPORTED_NODES[kind].unflatten_fn(items, context)
    if isinstance(tree, dict):
        return list(tree.values()), lambda items: _dict_like(tree, items)
    if isinstance(tree, tuple | list):
        return tree, tuple if isinstance(tree, tuple) else list
    if dataclasses.is_dataclass(tree):
        names = [field.name for field in dataclasses.fields(tree) if hasattr(tree, field.name)]
        return [getattr(tree, name) for name in names], lambda items: _with_fields(tree, names, items)
    return None


def _dict_like(tree: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    """Return a dict of the same subclass, or a plain one where its constructor takes no dict."""
    made = dict(zip(tree, items, strict=True))
    try:
        return type(tree)(**made)
    except TypeError:
        return made


def _with_fields(tree: Any, names: list[str], items: list[Any]) -> Any:
    """Return a copy of a dataclass with other values of its fields; nothing of its own is run."""
    made = copy.copy(tree)
    for name, item in zip(names, items, strict=True):
        object.__setattr__(made, name, item)  # it may be frozen
    return made


def refs(tree: Any) -> Iterator[int]:
    """Yield the tensors of a structure, in order."""
    for leaf in leaves(tree):
        if isinstance(leaf, Ref):
            yield leaf.index


def repeats_of(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Return the first place of each object, where one comes more than once; else nothing."""
    ids = list(map(id, tensors))
    return () if len(set(ids)) == len(ids) else tuple(map(ids.index, ids))
