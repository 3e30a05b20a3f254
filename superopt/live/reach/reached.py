"""Reached: the state of all that a function reads besides its arguments, as `reach` found it."""

import types
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

__all__ = ["Getter", "Reached"]

Getter = Callable[[Any], tuple[Any, ...]]


@dataclass(slots=True)
class Reached:
    """What was found, as it is now; two states with the same facts differ in nothing but tensors."""

    facts: list[object] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)  # each once, in the order they are met
    # Lists, and the keys and values of dicts, of which all count.
    items: list[Iterable[Any]] = field(default_factory=list)
    picks: list[tuple[Getter, Any]] = field(default_factory=list)  # some attributes or globals of another
    cells: list[types.CellType] = field(default_factory=list)
    empty: list[Sized] = field(default_factory=list)  # dicts without items, most of them of hooks
    # Lists, dicts of attributes, which may grow, and what is too long to be looked into.
    sized: list[Sized] = field(default_factory=list)
    # Objects of a user's classes, whose classes may be replaced.
    objects: list[Any] = field(default_factory=list)
    # What reads the bytes of arrays, with the bytes that they held.
    arrays: list[tuple[Callable[[], bytes], bytes]] = field(default_factory=list)
    # What refers to kept results of functions, with the ids of some.
    caches: list[tuple[Any, frozenset[int]]] = field(default_factory=list)
    modes: set[Callable[[], bool]] = field(default_factory=set)  # the modes that a user's code asks for
    modules: list[nn.Module] = field(default_factory=list)  # those that have hooks, or may get some
