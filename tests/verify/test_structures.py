"""Structures are taken apart as PyTorch's pytree does it."""

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from superopt.verify.structures import change_leaves, leaves_of

Pair = namedtuple("Pair", "left right")
X = torch.ones(2)
STRUCTURES = [
    1.5,
    None,
    (),
    (1, [2.0, X], {"b": None, "a": (torch.float32, "text")}),
    Pair(X, [1, 2]),
    [OrderedDict(b=X, a=1)],
    {"size": torch.Size([2, 3]), "slice": slice(1, 2), "dots": ...},
    torch.max(torch.ones(2, 3), dim=1),
]


def described(leaf: Any) -> str:
    return f"<{leaf}>"


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_leaves_and_places_are_those_of_pytree(structure: Any) -> None:
    changed, expected = change_leaves(described, structure), tree_map(described, structure)
    assert changed == expected
    assert type(changed) is type(expected)
    assert list(map(described, leaves_of(structure))) == list(map(described, tree_leaves(structure)))
