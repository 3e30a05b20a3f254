"""Writes: those to a tensor that PyTorch does not count in its `_version`.

`tensor.data` is another tensor of the same memory, with a count of its own. From the time that a tensor is
watched, what its `data` gives is kept, and that of its views, so that the counts of these aliases are known.
`tensor.data = other` may change the shape and the strides of a tensor but not its address, so it is counted
here. So are the steps of fused optimizers, and what collectives write, of which their schemas say nothing.

All this needs a place that all tensors and all optimizers come by: `torch.Tensor.data` is another property
as long as anything is watched, and all optimizers and collectives have a hook from then on. Nothing smaller
sees as much.
Samples of the numbers miss a write to a few of them, and to read them on a GPU would take longer than the
call; a sum over all of a weight takes as long as the kernel that reads it. A subclass of the parameter would
see its own `data`, but makes PyTorch compile again.
"""

import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import c_longlong
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["Writes", "weights_changed", "writes_to"]

_MOST = 32  # aliases of a tensor; of one that gives more it is no longer told that it is the same

_OURS = 3  # references to an alias that only the list of aliases has, as counted while it is looked at

_watched: dict[int, "Writes"] = {}  # by the id of the tensor
_places: dict[int, set[int]] = {}  # the ids of tensors whose memory begins at an address
_original: Any = vars(torch._C.TensorBase)["data"]
_hooks: list[object] = []


class Writes:
    """The writes to one tensor, since it is watched, that its `_version` does not count."""

    __slots__ = ("counted", "lost", "noted", "owner", "place")

    def __init__(self, tensor: Tensor) -> None:
        key = id(tensor)
        self.counted = c_longlong(0)  # writes that are known, where compiled code finds their number
        self.noted: list[Tensor] = []  # aliases, whose writes PyTorch counts
        self.lost = False  # whether there are aliases whose writes nobody counts
        self.owner = weakref.ref(tensor, lambda _: _forgotten(key))
        self.place = 0  # where the memory of the tensor begins, as it was when it was last asked for

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
        _find(known, one)
        found.append(known)
    if vars(torch.Tensor).get("data") is not _data:
        torch.Tensor.data = _data  # type: ignore[assignment]
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_stepped))
        _hooks.extend(_collectives())
    return tuple(found)


def weights_changed(*changed: nn.Module | Tensor) -> None:
    """Say that these modules' or tensors' numbers were written to in a way that PyTorch does not count.

    What was made of them is made anew in the next call. Without arguments, any weights may have changed.
    """
    tensors: list[Tensor] = []
    for one in changed:
        tensors += [*one.parameters(), *one.buffers()] if isinstance(one, nn.Module) else [one]
    if changed:
        _written(tensors)
        return
    for known in list(_watched.values()):
        known.step()


def _forgotten(key: int) -> None:
    """Watch a tensor no longer; `data` is PyTorch's own again where it was the last one.

    The hook stays: an optimizer may be walking through the hooks while a tensor goes.
    """
    known = _watched.pop(key, None)
    if known is not None:
        _lose(known, key)
    if not _watched and vars(torch.Tensor).get("data") is _data:
        del torch.Tensor.data


def _get(self: Tensor) -> Tensor:
    alias: Tensor = _original.__get__(self)
    for known in _sharing(self):  # views and detached tensors give aliases as well
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


def _find(known: Writes, tensor: Tensor) -> None:
    """Note where the memory of a tensor begins; where it moves, that is seen, and it is asked for again."""
    _lose(known, id(tensor))
    known.place = _place_of(tensor)
    _places.setdefault(known.place, set()).add(id(tensor))


def _lose(known: Writes, key: int) -> None:
    """Forget where the memory of a tensor begins."""
    there = _places.get(known.place, set())
    there.discard(key)
    if not there:
        _places.pop(known.place, None)


def _place_of(tensor: Tensor) -> int:
    with suppress(RuntimeError, NotImplementedError):  # a tensor that stands for others has no memory
        return tensor.untyped_storage().data_ptr()
    return 0


def _sharing(tensor: Tensor) -> list[Writes]:
    """Return the records of a tensor, and of all watched ones whose memory begins where its memory does."""
    place = _place_of(tensor)
    keys = {id(tensor), *(_places.get(place, ()) if place else ())}
    return [known for key in keys if (known := _watched.get(key)) is not None]


def _written(tensors: object) -> None:
    """Count a write to all that shares the memory of tensors, which may lie in lists of lists."""
    if isinstance(tensors, list | tuple):
        for one in tensors:
            _written(one)
    elif isinstance(tensors, Tensor):
        for known in _sharing(tensors):
            known.step()


_WRITING = (
    *("broadcast_", "scatter_", "gather_", "recv_", "recv_any_source_", "alltoall_", "alltoall_base_"),
    *("allreduce_", "allreduce_coalesced_", "reduce_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_"),
    *("_reduce_scatter_base_", "allgather_", "allgather_coalesced_", "allgather_into_tensor_coalesced_"),
    "_allgather_base_",
)
"""The collectives of PyTorch, each of which writes to its first argument."""


def _collectives() -> Iterator[object]:
    """Count what collectives write from now on; yield what must be kept for that."""
    if not torch.distributed.is_available():
        return
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    for name in _WRITING:
        with suppress(AttributeError, RuntimeError):  # this version has none, or others have a hook there
            operator = getattr(torch.ops.c10d, name).default
            hook = _counting(operator)
            library.impl(operator, hook, "ADInplaceOrView", with_keyset=True)  # type: ignore[no-untyped-call]
    yield library


def _counting(operator: Any) -> Any:
    """Return a collective that counts what it writes, when it begins."""

    def run(keys: Any, *inputs: Any, **named: Any) -> Any:
        made = operator.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *inputs, **named)
        _written(inputs[0] if inputs else next(iter(named.values())))
        return made

    return run


_data = property(_get, _set, _original.__delete__, _original.__doc__)
