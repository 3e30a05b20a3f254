"""Writes: how often a tensor was written to, beside what PyTorch counts in its `_version`.

PyTorch misses some writes. `tensor.data` is another tensor of the same memory with a count of its own: from
the time that a tensor is watched, its aliases are kept, and those of its views, so that their counts are
known. `tensor.data = other` may change the shape and the strides of a tensor, but keeps its address. Fused
optimizers and collectives write without a word of it in their schemas. All of these are counted here.

That takes a place that all tensors and all optimizers pass: `torch.Tensor.data` is another property as long
as anything is watched, and all optimizers and collectives have a hook from then on. Nothing smaller sees as
much. Samples of the numbers miss a write to a few of them, and to read them on a GPU would take longer than
the call. A sum over a whole weight takes as long as the kernel that reads it. A subclass of the parameter
would see its own `data`, but makes PyTorch compile again.
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

__all__ = ["Writes", "watch_writes", "weights_changed"]

_MOST = 32  # aliases of a tensor that are kept; with more, its writes can no longer be counted

_OURS = 3  # references to an alias that nobody has but the list of aliases, while it is looked at

_watched: dict[int, "Writes"] = {}  # by the id of the tensor
_places: dict[int, set[int]] = {}  # by an address: the ids of the tensors whose memory begins there
_original: Any = vars(torch._C.TensorBase)["data"]
_hooks: list[object] = []


class Writes:
    """The writes to one tensor since it is watched that its `_version` does not count."""

    __slots__ = ("aliases", "counted", "owner", "place", "uncountable")

    def __init__(self, tensor: Tensor) -> None:
        key = id(tensor)
        self.counted = c_longlong(0)  # writes that were seen; compiled code reads the number here
        self.aliases: list[Tensor] = []  # aliases, whose writes PyTorch counts
        self.uncountable = False  # whether the tensor has aliases whose writes nobody counts
        self.owner = weakref.ref(tensor, lambda _: _forgotten(key))
        self.place = 0  # where the memory of the tensor began when that was last looked up

    def count(self) -> int:
        """Return a number that grows with each write; -1 where writes cannot be counted any more."""
        return -1 if self.uncountable else self.counted.value + sum(one._version for one in self.aliases)

    def keep(self, alias: Tensor) -> None:
        """Keep an alias, so that its count is known as long as the tensor is watched."""
        if len(self.aliases) >= _MOST:
            self.drop_aliases()
        if len(self.aliases) >= _MOST or alias.is_inference():
            self.uncountable = True
        self.aliases.append(alias)

    def count_one(self) -> None:
        """Count one write."""
        self.counted.value += 1

    def drop_aliases(self) -> None:
        """Drop the aliases that nobody else has, nor views of them; the writes to them stay counted."""
        if self.uncountable:
            return
        left = [one for one in self.aliases if sys.getrefcount(one) > _OURS or _shared(one)]
        gone = self.count() - self.counted.value - sum(one._version for one in left)
        self.counted.value += gone
        self.aliases[:] = left


def _shared(alias: Any) -> bool:
    """Whether views of an alias are left, or PyTorch cannot tell."""
    return not hasattr(alias, "_use_count") or alias._use_count() > 1


def watch_writes(tensors: Sequence[Tensor]) -> tuple[Writes, ...]:
    """Count the writes to tensors from now on; return the record of each."""
    found = []
    for one in tensors:
        known = _watched.get(id(one))
        if known is None or known.owner() is not one:
            known = _watched[id(one)] = Writes(one)
        known.drop_aliases()
        _note_place(known, one)
        found.append(known)
    if vars(torch.Tensor).get("data") is not _data:
        torch.Tensor.data = _data  # type: ignore[assignment]
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_count_step))
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
        _count_writes_to(tensors)
        return
    for known in list(_watched.values()):
        known.count_one()


def _forgotten(key: int) -> None:
    """Watch a tensor no longer; `data` is PyTorch's own again where it was the last one.

    The hook stays: an optimizer may be walking through the hooks while a tensor goes.
    """
    known = _watched.pop(key, None)
    if known is not None:
        _forget_place(known, key)
    if not _watched and vars(torch.Tensor).get("data") is _data:
        del torch.Tensor.data


def _get(self: Tensor) -> Tensor:
    alias: Tensor = _original.__get__(self)
    for known in _sharing(self):  # views and detached tensors give aliases as well
        known.keep(alias)
    return alias


def _set(self: Tensor, other: Tensor) -> None:
    _original.__set__(self, other)
    _count_write(self)


def _count_step(optimizer: torch.optim.Optimizer, *unused: object) -> None:
    for group in optimizer.param_groups:
        for one in group["params"]:
            _count_write(one)


def _count_write(tensor: Tensor) -> None:
    known = _watched.get(id(tensor))
    if known is not None:
        known.count_one()


def _note_place(known: Writes, tensor: Tensor) -> None:
    """Note where the memory of a tensor begins; if it moves, that is seen as a write, and noted again."""
    _forget_place(known, id(tensor))
    known.place = _place_of(tensor)
    _places.setdefault(known.place, set()).add(id(tensor))


def _forget_place(known: Writes, key: int) -> None:
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


def _count_writes_to(tensors: object) -> None:
    """Count a write to all that shares the memory of tensors, which may lie in lists of lists."""
    if isinstance(tensors, list | tuple):
        for one in tensors:
            _count_writes_to(one)
    elif isinstance(tensors, Tensor):
        for known in _sharing(tensors):
            known.count_one()


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
        _count_writes_to(inputs[0] if inputs else next(iter(named.values())))
        return made

    return run


_data = property(_get, _set, _original.__delete__, _original.__doc__)
