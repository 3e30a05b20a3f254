"""Prepared: a call of a muGraph on tensors of one signature, with nothing left but to allocate and launch.

Tensors of a call lie in numbered slots; each action fills some of them. A kernel's first launch goes
through Triton's compiler; later ones go straight to what it compiled, on the stream that is current then.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from superopt.codegen.library import LibraryCall
from superopt.codegen.signature import form_of
from superopt.lifetimes import last_reads

__all__ = [
    "Action",
    "Allocate",
    "Launch",
    "Library",
    "Prepared",
    "Seen",
    "View",
    "alignment_of",
    "signature_of",
]

ALIGNED = 16  # bytes: Triton compiles another kernel for a tensor that starts elsewhere

_first_launch = threading.Lock()

Slots = list[Any]
"""Tensors, and None for those that nothing reads any more."""


def alignment_of(tensors: Sequence[Tensor]) -> list[bool]:
    """Return which tensors start at a multiple of 16 bytes."""
    return [one.data_ptr() % ALIGNED == 0 for one in tensors]


def signature_of(tensors: Sequence[Tensor]) -> tuple[object, ...]:
    """Return all that a prepared call depends on."""
    return form_of(tensors), tuple(alignment_of(tensors))


@dataclass(slots=True)
class Allocate:
    """Fills the next slot with new memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it reads."""
        return ()

    def __call__(self, slots: Slots) -> None:
        """Allocate the memory."""
        slots.append(torch.empty(self.shape, dtype=self.dtype, device=self.device))


@dataclass(slots=True)
class View:
    """Fills the next slot with a view of a slot's tensor."""

    slot: int
    seen: Callable[[Tensor], Tensor]

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it reads."""
        return (self.slot,)

    def __call__(self, slots: Slots) -> None:
        """Make the view."""
        slots.append(self.seen(slots[self.slot]))


@dataclass(slots=True)
class Library:
    """Fills the next slots with the results of a library call."""

    call: LibraryCall
    loaded: Mapping[int, int]  # value -> slot

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it reads."""
        return tuple(self.loaded.values())

    def __call__(self, slots: Slots) -> None:
        """Make the library call."""
        slots += self.call({value: slots[slot] for value, slot in self.loaded.items()})


@dataclass(slots=True)
class Seen:
    """How a tensor descriptor sees the tensor of a slot."""

    slot: int
    shape: list[int]
    strides: list[int]
    block: list[int]
    kind: type | None = None
    fields: dict[str, Any] = field(default_factory=dict)  # all fields of a descriptor but its tensor

    def __call__(self, slots: Slots) -> Any:
        """Return the descriptor; only the first one is checked, which takes longer than a launch."""
        tensor = slots[self.slot]
        if self.kind is None:
            from triton.tools.tensor_descriptor import TensorDescriptor

            first = TensorDescriptor(tensor, self.shape, self.strides, self.block)
            self.fields = {name: value for name, value in vars(first).items() if name != "base"}
            self.kind = TensorDescriptor
            return first
        made: Any = object.__new__(self.kind)
        vars(made).update(self.fields, base=tensor)
        return made


@dataclass(slots=True)
class Launch:
    """A kernel, its arguments in order, and which of them are tensors of the call, or descriptors of them."""

    number: int  # the number of the kernel in its muGraph
    kernel: Any
    grid: int
    arguments: list[Any]
    places: tuple[tuple[int, int], ...]  # the place of an argument, and the slot of its tensor
    options: Mapping[str, int]
    descriptors: tuple[tuple[int, Seen], ...] = ()  # the places of arguments, and what they describe
    run: Callable[..., object] | None = field(default=None)
    made: Any = None  # the kernel that Triton compiled, once it ran

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it reads."""
        return *(slot for _, slot in self.places), *(seen.slot for _, seen in self.descriptors)

    def __call__(self, slots: Slots) -> None:
        """Launch the kernel on the current stream of the current device."""
        arguments = self.arguments.copy()
        for at, slot in self.places:
            arguments[at] = slots[slot]
        for at, seen in self.descriptors:
            arguments[at] = seen(slots)
        if self.run is None:
            with _first_launch:  # Triton's compiler is not safe for two threads
                made = self.kernel[(self.grid,)](*arguments, **self.options)
            if _is_compiled(made):
                self.made, self.run = made, made[(self.grid, 1, 1)]
            else:
                self.run = self._through_the_compiler
        else:
            self.run(*arguments)

    def _through_the_compiler(self, *arguments: Any) -> None:
        self.kernel[(self.grid,)](*arguments, **self.options)


Action = Allocate | View | Library | Launch


def _is_compiled(made: object) -> bool:
    """Return whether a launch compiled something, as it does not in Triton's interpreter."""
    from triton.compiler import CompiledKernel

    return isinstance(made, CompiledKernel)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The actions of a call in order, and the slots of its results; `device` is the number of a CUDA one."""

    actions: tuple[Action, ...]
    results: tuple[int, ...]
    device: int | None
    last_reads: list[list[int]] = field(init=False)  # slots that each action is the last to read

    def __post_init__(self) -> None:
        found = last_reads((action.reads for action in self.actions), staying=self.results)
        object.__setattr__(self, "last_reads", found)

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs in order, given the inputs in order."""
        if self.device is None or torch.cuda.current_device() == self.device:
            return self._run(tensors)
        with torch.cuda.device(self.device):
            return self._run(tensors)

    def _run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        slots: Slots = list(tensors)
        for action, read_for_the_last_time in zip(self.actions, self.last_reads, strict=True):
            action(slots)
            for slot in read_for_the_last_time:  # its memory may go to what the same stream does next
                slots[slot] = None
        return [slots[slot] for slot in self.results]
