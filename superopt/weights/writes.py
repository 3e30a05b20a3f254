"""Writes: those to a tensor that PyTorch does not count in its `_version`.

`tensor.data` is another tensor of the same memory, with a count of its own. From the time that a tensor is
watched, what its `data` gives is kept, so that the counts of these aliases, and of their views, are known.
`tensor.data = other` may change the shape and the strides of a tensor but not its address, so it is counted
here. So are the steps of fused optimizers.

All this needs a place that all tensors and all optimizers come by: `torch.Tensor.data` is another property
as long as anything is watched, and all optimizers have a hook from then on. Nothing smaller sees as much.
Samples of the numbers miss a write to a few of them, and to read them on a GPU would take longer than the
call; a sum over all of a weight takes as long as the kernel that reads it. A subclass of the parameter would
see its own `data`, but makes PyTorch compile again.
"""

import sys
import weakref
from collections.abc import Sequence
from ctypes import c_longlong
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["Writes", "writes_to"]

_MOST = 32  # aliases of a tensor; of one that gives more it is no longer told that it is the same

_OURS = 3  # references to an alias that only the list of aliases has, as counted while it is looked at

_watched: dict[int, "Writes"] = {}  # by the id of the tensor
_original: Any = vars(torch._C.TensorBase)["data"]
_hooks: list[object] = []


class Writes:
    """The writes to one tensor, since it is watched, that its `_version` does not count."""

    __slots__ = ("counted", "lost", "noted", "owner")

    def __init__(self, tensor: Tensor) -> None:
        key = id(tensor)
        self.counted = c_longlong(0)  # writes that are known, where compiled code finds their number
        self.noted: list[Tensor] = []  # aliases, whose writes PyTorch counts
        self.lost = False  # whether there are aliases whose writes nobody counts
        self.owner = weakref.ref(tensor, lambda _: _forgotten(key))

    def count(self) -> int:
        """Return a number that grows with each write; -1 where writes cannot be counted any more."""
        return -1 if self.lost else self.counted.value + sum(one._version for one in self.noted)

    def note(self, alias: Tensor) -> None:
        """Keep an alias, so that its count is known as long as the tensor is watched."""
        if len(self.noted) >= _MOST:
            self.forget()
        if len(self.noted) >= _MOST or alias.is_inference():
            self.lost = True
        self.noted.append(alias)

    def step(self) -> None:
        """Count one write."""
        self.counted.value += 1

    def forget(self) -> None:
        """Let aliases go that nobody else has, and no view of them; the writes to them stay counted."""
        if self.lost:
            return
        left = [one for one in self.noted if sys.getrefcount(one) > _OURS or _shared(one)]
        gone = self.count() - self.counted.value - sum(one._version for one in left)
        self.counted.value += gone
        self.noted[:] = left


def _shared(alias: Any) -> bool:
    """Whether views of an alias are left, or that cannot be told."""
    return not hasattr(alias, "_use_count") or alias._use_count() > 1


def writes_to(tensors: Sequence[Tensor]) -> tuple[Writes, ...]:
    """Watch tensors from now on; return the record of each."""
    found = []
    for one in tensors:
        known = _watched.get(id(one))
        if known is None or known.owner() is not one:
            known = _watched[id(one)] = Writes(one)
        known.forget()
        found.append(known)
    if vars(torch.Tensor).get("data") is not _data:
        torch.Tensor.data = _data  # type: ignore[assignment]
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_stepped))
    return tuple(found)


def _forgotten(key: int) -> None:
    """Watch a tensor no longer; `data` is PyTorch's own again where it was the last one.

    The hook stays: an optimizer may be walking through the hooks while a tensor goes.
    """
    _watched.pop(key, None)
    if not _watched and vars(torch.Tensor).get("data") is _data:
        del torch.Tensor.data


def _get(self: Tensor) -> Tensor:
    alias: Tensor = _original.__get__(self)
    known = _watched.get(id(self))
    if known is not None:
        known.note(alias)
    return alias


def _set(self: Tensor, other: Tensor) -> None:
    _original.__set__(self, other)
    _step(self)


def _stepped(optimizer: torch.optim.Optimizer, *unused: object) -> None:
    for group in optimizer.param_groups:
        for one in group["params"]:
            _step(one)


def _step(tensor: Tensor) -> None:
    known = _watched.get(id(tensor))
    if known is not None:
        known.step()


_data = property(_get, _set, _original.__delete__, _original.__doc__)
