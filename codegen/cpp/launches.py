"""Launches: the kernels of a muGraph for tensors of one form: what each makes, and one call of them all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor as TorchTensor

from superopt.codegen.cpp.calls import Call, Link, chained
from superopt.codegen.cpp.library import LibraryRun
from superopt.codegen.statements import contiguous_strides

if TYPE_CHECKING:
    from superopt.codegen.cpp.launch import CppKernel

__all__ = ["Chain", "Launch", "Made", "chain", "laid_out", "memory"]

_EMPTY = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)
_LINE = 64  # bytes: values between kernels begin at cache lines


@dataclass(frozen=True, slots=True)
class Made:
    """A result of a kernel: its shape, its value, and its name where it leaves."""

    shape: tuple[int, ...]
    value: int
    name: str | None
    crosses: bool  # whether later kernels read it
    bytes: int
    empty: Callable[[], TorchTensor]  # makes memory for one


def memory(shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], TorchTensor]:
    """Return what makes memory for a tensor.

    Inductor's own function takes half a microsecond; PyTorch's public ones take one or two.
    """
    if _EMPTY is not None:
        return partial(_EMPTY, shape, contiguous_strides(shape), dtype)
    return partial(torch.empty, shape, dtype=dtype, device="cpu")  # the default device may be another


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel, what it makes, and what calls it with the addresses of what it reads and makes."""

    kernel: "CppKernel"
    made: list[Made]
    link: Link

    def run(self) -> LibraryRun:
        """Return what runs it as a library kernel is run."""
        call, reads, made = chained([self.link]), self.kernel.reads, self.made

        def run(values: list[TorchTensor], results: dict[str, TorchTensor]) -> None:
            addresses = [values[value].data_ptr() for value in reads]
            for one in made:
                tensor = one.empty()
                addresses.append(tensor.data_ptr())
                if one.crosses:
                    values[one.value] = tensor
                if one.name is not None:
                    results[one.name] = tensor
            call(*addresses)

        return run


def laid_out(launches: "Sequence[Launch]") -> tuple[dict[int, int], int]:
    """Return where values between kernels lie in one piece of memory, in bytes, and how large it is.

    A value gets the first place that none of those needs which are read later.
    """
    last = {value: at for at, launch in enumerate(launches) for value in launch.kernel.reads}
    places, size = dict[int, int](), 0
    taken: list[tuple[int, int, int]] = []  # where values begin and end, and the last kernel that reads them
    for at, launch in enumerate(launches):
        taken = [one for one in taken if one[2] >= at]
        for made in launch.made:
            if made.name is not None:
                continue
            begin = 0
            for other, end, _ in sorted(taken):
                if begin + made.bytes <= other:
                    break
                begin = max(begin, end)
            places[made.value] = begin
            end = begin + -(-made.bytes // _LINE) * _LINE
            taken.append((begin, end, max(last.get(made.value, at), at)))
            size = max(size, end)
    return places, size


@dataclass(frozen=True, slots=True)
class Chain:
    """One call of several kernels: addresses of inputs, of results, and of the memory between, if any."""

    call: Call
    results: list[Made]
    empty_between: Callable[[], TorchTensor] | None  # makes the memory of values between kernels


def chain(launches: Sequence[Launch], inputs: int, outputs: Sequence[str]) -> Chain:
    """Return one call of kernels that read so many inputs, for results in the order of their names."""
    leaving = {one.name: one for launch in launches for one in launch.made if one.name is not None}
    results = [leaving[name] for name in outputs]
    behind, size = laid_out(launches)
    places = {at: (at, 0) for at in range(inputs)}
    places |= {value: (inputs + len(results), offset) for value, offset in behind.items()}
    named = {name: (inputs + at, 0) for at, name in enumerate(outputs)}
    places |= {one.value: named[name] for name, one in leaving.items() if one.crosses}
    links = [
        replace(
            launch.link,
            places=[
                *(places[value] for value in launch.kernel.reads),
                *(places[one.value] if one.name is None else named[one.name] for one in launch.made),
            ],
        )
        for launch in launches
    ]
    return Chain(chained(links), results, memory((size,), torch.uint8) if behind else None)
