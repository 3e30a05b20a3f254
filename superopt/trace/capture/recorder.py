"""Recorder: the tape of one run while it is written, on tensors without data."""

import sys
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from superopt.errors import InputError, TraceError, kind_and_line
from superopt.ir import plain_name
from superopt.trace.capture.devices import META, Devices
from superopt.trace.capture.gradients import Gradients
from superopt.trace.capture.tape import (
    Call,
    Meta,
    Ref,
    Source,
    Tape,
    comes_back,
    leaves,
    map_leaves,
    refs,
    results_of,
    take_apart,
)
from superopt.trace.run import TORCH_DTYPES, dtype_name

__all__ = ["Recorder", "StaleError", "location", "numbers_of"]

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size)
_DEPTH = 3  # levels of objects within objects that are searched for tensors
_LONGEST_TABLE = 64  # the longest dimension of a constant whose numbers a proof may use
_LARGEST_TABLE = 256
_PARTING = frozenset({"split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unbind"})
"""Operators whose results are separate parts of one tensor: writing into one part changes no other part."""

_HIDDEN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")


def location() -> str:
    """Return where the traced function is now, as ` (file.py:12)`, or nothing."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HIDDEN):
            return f" ({Path(file).name}:{frame.f_lineno})"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


class StaleError(TraceError):
    """A tensor is read after a view of it was written, so no call on the tape made its numbers."""


class Recorder:
    """The tape while it is written: which tensor object is which position."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        live: str | None,
        *,
        for_proof: bool = False,
        shared: bool = False,
    ) -> None:
        self.name = name
        self.live = live
        self.devices = Devices(live)
        self.gradients = Gradients()
        self.for_proof = for_proof
        self.shared: dict[int, Tensor] | None = {} if shared else None  # an input's id -> its meta tensor
        self.paused = False
        self.calls: list[Call] = []
        self.metas: list[Meta] = []
        self.scalars: dict[int, float | int | bool] = {}
        self.inputs: list[Source] = []
        self.constants: list[Source] = []
        self.tables: list[Source] = []
        self.read: list[Tensor] = []  # tensors whose values the function read as Python numbers
        self.part_of: int | None = None  # the first call of an operator that is being taken apart
        self.fresh: set[int] = set()  # ids of tensors that the function makes of numbers
        self.keep: list[Any] = []  # every object whose id is a key below
        self.position: dict[int, int] = {}
        self.memory: dict[int, tuple[Any, ...]] = {}  # where each tensor has its numbers
        self.twin: dict[int, Tensor] = {}  # a foreign tensor's id -> its meta tensor
        self.storage: dict[int, list[int]] = {}  # storage -> ids of the tensors on it
        self.stale: dict[int, str] = {}  # id -> where one of its views was written
        self.family: dict[int, int] = {}  # id of a part -> the call that made it and parts beside it
        self.outside: set[int] = set()  # storages of inputs and constants
        self.written: set[int] = set()  # storages
        self.names: set[str] = set()
        self.titles: dict[int, str] = {}
        self.failure: tuple[BaseException, str] | None = None
        if isinstance(function, nn.Module):
            for title, tensor in (*function.named_parameters(), *function.named_buffers()):
                self.titles[id(tensor)] = title

    def enter(self, name: str, value: Any) -> Any:
        """Return an input with its tensors replaced by meta tensors that are inputs of the tape."""
        if isinstance(value, Tensor):
            return self._enter_tensor(name, value)
        if isinstance(value, dict | list | tuple) and not isinstance(value, torch.Size):
            return self._enter_parts(name, value)
        if not isinstance(value, _PLAIN):
            raise InputError(
                f"{self.name}: argument {name!r} is a {type(value).__name__};"
                " pass tensors, numbers, or tuples, lists and dicts of them"
            )
        return value

    def _enter_parts(self, name: str, value: Any) -> Any:
        """Return a structure that the function is given, of the same kind, with meta tensors."""
        found = take_apart(value)
        if found is None or not comes_back(value):
            kind = type(value)
            raise InputError(
                f"{self.name}: argument {name!r} is a {kind.__name__}, another kind of"
                f" {kind.__mro__[1].__name__}; pass a plain one, or register it with torch.utils._pytree"
            )
        items, rebuilt = found
        keys = list(value) if isinstance(value, dict) else range(len(items))
        return rebuilt([self.enter(f"{name}_{key}", item) for key, item in zip(keys, items, strict=True)])

    def _enter_tensor(self, name: str, tensor: Tensor) -> Tensor:
        if dtype_name(tensor.dtype) is None or tensor.layout != torch.strided:
            raise InputError(
                f"{self.name}: argument {name!r} is a {tensor.dtype} tensor of layout {tensor.layout};"
                f" supported: strided tensors of {', '.join(TORCH_DTYPES)}"
            )
        meta = _twin(tensor, self.name, name)
        index = self.add(meta)
        self.devices.enter(meta, tensor)
        self.outside.add(_storage(meta))
        self.inputs.append(Source(self.unique(name), index, tensor))
        return meta if self.shared is None else self.shared.setdefault(id(tensor), meta)

    def unique(self, name: str) -> str:
        """Return the name as a plain one that no other tensor has."""
        base = plain_name(name)
        found, count = base, 1
        while found in self.names:
            count += 1
            found = f"{base}_{count}"
        self.names.add(found)
        return found

    def add(self, tensor: Tensor) -> int:
        """Record a tensor that now exists (or has new contents) and return its position."""
        index = len(self.metas)
        self.metas.append(Meta(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride())))
        self.keep.append(tensor)
        self.position[id(tensor)] = index
        self.memory[id(tensor)] = _memory(tensor)
        self.stale.pop(id(tensor), None)
        self.storage.setdefault(_storage(tensor), []).append(id(tensor))
        return index

    def see(self, tensor: Tensor) -> Tensor:
        """Return the meta tensor that stands for a tensor: itself, or a constant's twin."""
        if self.memory.get(id(tensor), ()) not in ((), _memory(tensor)):
            raise TraceError(
                f"{self.name}: a tensor is given the memory of another one, as by `.data =`{location()};"
                " write into it in place, or give the new tensor a name of its own"
            )
        if id(tensor) in self.position:
            if id(tensor) in self.stale:
                raise StaleError(
                    f"{self.name}: a tensor is read after one of its views was written in place"
                    f"{self.stale[id(tensor)]}; build the result with torch.where, cat or stack instead"
                )
            return tensor
        if torch._is_functional_tensor(tensor):
            raise TraceError(f"{self.name}: an operator that is kept whole reads what was written in place")
        if id(tensor) not in self.twin:
            self.twin[id(tensor)] = self._constant(tensor)
            self.memory[id(tensor)] = _memory(tensor)
            self.keep.append(tensor)
        return self.see(self.twin[id(tensor)])

    def _constant(self, tensor: Tensor) -> Tensor:
        title = self.titles.get(id(tensor))
        meta = _twin(tensor, self.name, title or "a constant")
        index = self.add(meta)
        if id(tensor) not in self.fresh:
            self.outside.add(_storage(meta))
        if self._is_inlined(tensor, title):
            self.scalars[index] = _item(tensor)
            self.note(tensor)
        else:
            kind = self.tables if self._is_table(tensor) else self.constants
            kind.append(Source(self.unique(title or "constant"), index, tensor))
        return meta

    def _is_table(self, tensor: Tensor) -> bool:
        """Whether a constant's numbers belong to the program, and are few enough for a proof to know them."""
        if not self.for_proof or id(tensor) not in self.fresh or tensor.device == META:
            return False
        few = tensor.numel() <= _LARGEST_TABLE and max(tensor.shape, default=1) <= _LONGEST_TABLE
        return few and dtype_name(tensor.dtype) is not None and all(map(isfinite, numbers_of(tensor)))

    def _is_inlined(self, tensor: Tensor, title: str | None) -> bool:
        """Whether a 0-d constant becomes a plain number of the program."""
        if tensor.dim() or tensor.device == META or not _is_number(tensor):
            return False
        if self.live is None or id(tensor) in self.fresh:
            return title is None
        if tensor.device.type != self.live:  # PyTorch mixes 0-d tensors with tensors of other devices
            return True
        # The algebra must know infinities, which make masks, and integers and booleans, which make choices.
        return title is None and not (tensor.dtype.is_floating_point and isfinite(_item(tensor)))

    def is_written(self, tensor: Tensor) -> bool:
        """Whether the function has written into a tensor with data, which still holds its earlier numbers."""
        twin = self.twin.get(id(tensor))
        return twin is not None and _storage(twin) in self.written

    def note(self, tensor: Tensor) -> None:
        """Note that the values of a tensor that exists outside the function became numbers."""
        if id(tensor) not in self.fresh:
            self.keep.append(tensor)
            self.read.append(tensor)

    def make(self, tensor: Tensor) -> Tensor:
        """Return a tensor that the function has just made of numbers."""
        self.keep.append(tensor)
        self.fresh.add(id(tensor))
        return tensor

    def record(
        self, target: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any, writes: Any = ()
    ) -> None:
        """Append a call whose tensors were all seen."""
        template = map_leaves(self._ref, args), map_leaves(self._ref, kwargs)
        mutated = tuple(self.position[id(tensor)] for tensor in writes)
        for tensor in writes:
            if _storage(tensor) in self.outside:
                raise TraceError(
                    f"{self.name}: {target} writes into an input or a parameter{location()};"
                    " use the version that returns a new tensor, or .eval() for a module in training"
                )
            self.written.add(_storage(tensor))
            family = self.family.get(id(tensor))
            others = (
                one
                for one in self.storage[_storage(tensor)]
                if family is None or self.family.get(one) != family
            )
            self.stale |= dict.fromkeys(others, location())
        made = results_of(function, result, writes)
        outputs = tuple(self.add(item) if isinstance(item, Tensor) else None for item in made)
        if getattr(function, "_opname", "") in _PARTING and _is_spread(args[0]):
            self.family |= dict.fromkeys(map(id, made), len(self.calls))
        self.gradients.record(function, refs(template), [one for one in outputs if one is not None])
        self.calls.append(Call(target, function, *template, outputs, mutated, self.part_of))

    def _ref(self, leaf: Any) -> Any:
        return Ref(self.position[id(leaf)]) if isinstance(leaf, Tensor) else leaf

    def finish(self, result: Any) -> Tape:
        """Return the finished tape of a function that returned this."""
        for leaf in leaves(result):
            self._check_result(leaf)
            if isinstance(leaf, Tensor) and leaf.requires_grad and not self.for_proof:
                raise TraceError(
                    f"{self.name} returns a tensor that requires gradients of its own, which kernels do not"
                    " compute; return it detached, or turn gradients on outside"
                )
        result = map_leaves(lambda leaf: self.see(leaf) if isinstance(leaf, Tensor) else leaf, result)
        returned = map_leaves(self._ref, result)
        return Tape(
            self.name,
            tuple(self.metas),
            tuple(self.inputs),
            tuple(self.constants),
            self.scalars,
            tuple(self.calls),
            returned,
            tuple(self.tables),
            tuple({id(tensor): tensor for tensor in self.read}.values()),
            memory=self._memory_of(result),
            depends_on_requires_grad=self.gradients.decide(refs(returned)),
        )

    def _memory_of(self, result: Any) -> dict[int, int]:
        """Return a number for the memory of each tensor of a result; 0 is memory from outside."""
        found: dict[int, int] = {}
        made: dict[int, int] = {}
        for leaf in leaves(result):
            if isinstance(leaf, Tensor):
                storage = _storage(leaf)
                number = 0 if storage in self.outside else made.setdefault(storage, len(made) + 1)
                found[self.position[id(leaf)]] = number
        return found

    def _check_result(self, leaf: Any) -> None:
        """Refuse a result out of which tensors cannot be taken."""
        kind = type(leaf).__name__
        if isinstance(leaf, Iterator):
            raise TraceError(f"{self.name} returns a {kind}, which computes later; return a list or a tuple")
        if not isinstance(leaf, Tensor | type) and _holds_tensors(leaf, _DEPTH):
            raise TraceError(
                f"{self.name} returns a {kind}, which holds tensors; return them in tuples, lists, dicts"
                " or a dataclass, or register the class with torch.utils._pytree"
            )

    def explain(self, error: Exception) -> TraceError:
        """Return the one line that a user reads when the function itself fails."""
        message = kind_and_line(error)[:300]
        place = ""
        trace = error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if not file.startswith(_HIDDEN):
                place = f" at {Path(file).name}:{trace.tb_lineno}"
            trace = trace.tb_next
        if self.failure is not None and self.failure[0] is error:
            what = self.failure[1]
            if "data-independent implementation" in message or "data-dependent" in message:
                return TraceError(
                    f"{self.name} fails{place}: {what}: the shape of the result depends on the data;"
                    " keep all elements and use torch.where or a mask"
                )
            return TraceError(
                f"{self.name} fails{place}: {what}: {message}; check the inputs' shapes and dtypes"
            )
        return TraceError(f"{self.name} fails{place}: {message}")


def _twin(tensor: Tensor, function: str, name: str) -> Tensor:
    """Return a meta tensor of the same shape, strides and dtype, on a storage of its own."""
    if not all(type(size) is int for size in tensor.shape):
        raise InputError(f"{function}: {name!r} has symbolic sizes {tuple(tensor.shape)}; pass fixed shapes")
    return torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device=META)


def _is_number(tensor: Tensor) -> bool:
    """Whether the algebra has a number for the value of a 0-d tensor: NaN and complex ones are none."""
    return not tensor.is_complex() and bool(tensor == tensor)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_spread(tensor: Tensor) -> bool:
    """Whether each element of a tensor has surely a place of its own in memory."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return False
            reach += stride * (size - 1)
    return True


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return where a tensor has its numbers."""
    return _storage(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _holds_tensors(value: Any, depth: int) -> bool:
    """Whether an object, or what it holds, has a tensor among its attributes."""
    held = list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        names = (names,) if isinstance(names, str) else names
        held += [getattr(value, name) for name in names if hasattr(value, name)]
    for one in held:
        if any(
            isinstance(leaf, Tensor) or (depth and _holds_tensors(leaf, depth - 1)) for leaf in leaves(one)
        ):
            return True
    return False


def numbers_of(tensor: Tensor) -> list[float | int | bool]:
    """Return the elements of a tensor as plain numbers, whatever modes are active."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        found: list[float | int | bool] = tensor.reshape(-1).tolist()
    return found


def _item(tensor: Tensor) -> float | int | bool:
    """Return the value of a 0-d constant; a plain number, whatever modes are active."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        value = tensor.item()
    assert isinstance(value, float | int | bool)
    return value
