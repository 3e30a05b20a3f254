"""Structures: what an operator is given and makes, leaf by leaf.

Nearly all of it is numbers and tensors in tuples, lists and dicts, which take a fraction of the time here
that PyTorch's pytree takes. All other structures are left to it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["change_leaves", "leaves_of"]

_LEAVES = frozenset({bool, complex, float, int, str, torch.device, torch.dtype, type(None)})


def change_leaves(change: Callable[[Any], Any], structure: Any) -> Any:
    """Return a structure with something else in the place of each leaf."""
    kind = type(structure)
    if kind is tuple:
        return tuple([change_leaves(change, one) for one in structure])
    if kind is list:
        return [change_leaves(change, one) for one in structure]
    if kind is dict:
        return {name: change_leaves(change, one) for name, one in structure.items()}
    if kind in _LEAVES or isinstance(structure, Tensor):
        return change(structure)
    return tree_map(change, structure)


def leaves_of(structure: Any) -> Iterator[Any]:
    """Yield the leaves of a structure in order."""
    kind = type(structure)
    if kind is tuple or kind is list:
        for one in structure:
            yield from leaves_of(one)
    elif kind is dict:
        for one in structure.values():
            yield from leaves_of(one)
    elif kind in _LEAVES or isinstance(structure, Tensor):
        yield structure
    else:
        yield from tree_leaves(structure)
