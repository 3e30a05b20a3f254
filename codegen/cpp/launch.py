"""Launch: a whole muGraph run on torch tensors, its block kernels as compiled C++."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from struct import Struct
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor as TorchTensor

from superopt.codegen.cpp.calls import Link, load_kernel
from superopt.codegen.cpp.compile import compile_source
from superopt.codegen.cpp.config import CppConfig, default_config, is_much_more_work
from superopt.codegen.cpp.emit import emit, lower_kernel
from superopt.codegen.cpp.launches import Chain, Launch, Made, chain, memory
from superopt.codegen.cpp.library import LibraryKernel, LibraryRun, spread
from superopt.codegen.cpp.over import is_read_before
from superopt.codegen.cpp.source import Argument, CppSource
from superopt.codegen.cpp.sums import are_too_long
from superopt.codegen.forms import Forms, Ready, is_plain, is_stored, stored
from superopt.codegen.processor import vectors
from superopt.codegen.signature import form_of, in_order, sizes_of
from superopt.codegen.statements import KernelProgram, Tensor, axis_strides, contiguous_strides
from superopt.dtypes import torch_dtypes
from superopt.errors import InputError
from superopt.ir import Graph, Port
from superopt.ir.mugraph import Block, MuGraph
from superopt.ir.windows.apart import read_as_one
from superopt.lifetimes import last_reads

if TYPE_CHECKING:
    import ctypes

__all__ = ["PART", "CppKernel", "CppMuGraph", "Prepared", "has_unit_strides"]

PART = 16
"""Positions that a part of a split axis has a multiple of, so that parts start at cache lines."""

Prepared = Callable[[Sequence[TorchTensor]], Sequence[TorchTensor]]
"""A function from a muGraph's inputs to its outputs, both in order, for tensors of one form."""


_Strides = list[list[dict[str, int]]]  # of each axis, of the tensors that a kernel reads and that it writes

_DTYPES = torch_dtypes()
_EMPTY = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)
_PREPARED = 256  # combinations of shapes for which calls are prepared
_LINE = 64  # bytes: values between kernels begin at cache lines


class CppKernel:
    """One compiled kernel; it is called with a record of eight-byte fields, addresses first."""

    def __init__(
        self,
        program: KernelProgram,
        config: CppConfig,
        *,
        flags: Sequence[str] = (),
        lengths: Mapping[str, int] | None = None,
    ) -> None:
        self.program = program
        self.reads = tuple(tensor.value for tensor in program.loads)
        self.source = emit(program, config, lengths)
        self.config, self._flags = config, tuple(flags)
        self._lengths = dict(lengths or program.graph.sizes)  # up to which axes have been
        self._larger: CppKernel | None = None  # the same, printed for longer sums or for all threads
        unit_strides = has_unit_strides(program, self.source)
        self._calls = {unit_strides: self._compiled(unit_strides=unit_strides)}

    def serving(self, sizes: Mapping[str, int]) -> "CppKernel":
        """Return the kernel for some sizes.

        It is printed anew where sums are too long for this one, or where one thread has too much to do.
        """
        lengths, config = self._lengths, self.config
        if are_too_long(self.source.sums, sizes, lengths):
            lengths = {axis: max(size, sizes[axis]) for axis, size in lengths.items()}
        if config.threads == 1 and self.program.grid and is_much_more_work(self.program, sizes):
            config = replace(config, threads=0)
        if lengths is self._lengths and config is self.config:
            return self
        if self._larger is None:
            self._larger = CppKernel(self.program, config, flags=self._flags, lengths=lengths)
        return self._larger.serving(sizes)

    def link(
        self,
        loads: Sequence[Sequence[int]],
        stores: Sequence[Sequence[int]],
        sizes: Mapping[str, int],
        threads: int,
    ) -> Link:
        """Return what calls it with the addresses of tensors of these strides, given in order."""
        unit_strides = _runs_along(self.source, _strides(self.program, loads, stores, sizes))
        if unit_strides not in self._calls:
            self._calls[unit_strides] = self._compiled(unit_strides=unit_strides)
        fields = self.fields(loads, stores, sizes, threads)
        return Link(self._calls[unit_strides], [(at, 0) for at in range(len(loads) + len(stores))], fields)

    def fields(
        self,
        loads: Sequence[Sequence[int]],
        stores: Sequence[Sequence[int]],
        sizes: Mapping[str, int],
        threads: int,
    ) -> bytes:
        """Return what its record has after the addresses of tensors of these strides."""
        strides = _strides(self.program, loads, stores, sizes)
        rest = [one for one in self.source.arguments if one.kind not in ("load", "store")]
        return Struct(f"{len(rest)}q").pack(*(_number(one, strides, sizes, threads) for one in rest))

    def _compiled(self, *, unit_strides: bool) -> "ctypes._FuncPointer":
        path = compile_source(self.source, unit_strides=unit_strides, flags=self._flags)
        return load_kernel(path, self.program.name)


def has_unit_strides(program: KernelProgram, source: CppSource) -> bool:
    """Return whether vectors run along memory in all tensors, as they are where the graph was made."""
    graph = program.graph
    read, made = (list(map(_port, tensors)) for tensors in (program.loads, program.stores))
    loads = [port.strides or contiguous_strides(graph.shape(port)) for port in read]
    stores = [contiguous_strides(graph.shape(port)) for port in made]
    return _runs_along(source, _strides(program, loads, stores, graph.sizes))


def _runs_along(source: CppSource, strides: _Strides) -> bool:
    """Whether vectors run along memory in tensors of these strides."""
    return all(strides[one.stored][one.position][one.axis] == 1 for one in source.unit_strides)


def _number(argument: Argument, strides: _Strides, sizes: Mapping[str, int], threads: int) -> int:
    if argument.kind == "threads":
        return threads
    if argument.kind == "size":
        return sizes[argument.axis]
    return strides[argument.stored][argument.position][argument.axis]


def _port(tensor: Tensor) -> Port:
    """Return a tensor as a port: one between kernels has a dimension for each axis."""
    return tensor.port or Port(tensor.name, tensor.dtype, tuple((axis,) for axis in tensor.axes))


def _strides(
    program: KernelProgram,
    loads: Sequence[Sequence[int]],
    stores: Sequence[Sequence[int]],
    sizes: Mapping[str, int],
) -> _Strides:
    """Return the stride of each axis, of all tensors that a kernel reads and of all that it writes."""
    return [
        [axis_strides(_port(tensor), found, sizes) for tensor, found in zip(tensors, given, strict=True)]
        for tensors, given in ((program.loads, loads), (program.stores, stores))
    ]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What follows from the shapes, strides and dtypes of the inputs, and from the number of threads."""

    sizes: dict[str, int]
    launches: list["Launch | LibraryRun"]


class CppMuGraph:
    """A muGraph as a function of torch tensors by name; it returns the outputs by name."""

    def __init__(
        self,
        mugraph: MuGraph,
        configs: Mapping[int, CppConfig] | None = None,
        *,
        flags: Sequence[str] = (),
    ) -> None:
        self.mugraph = mugraph
        self.graph: Graph = mugraph.graph
        self.inputs = tuple(port.name for port in self.graph.inputs)
        self.outputs = tuple(output.port.name for output in self.graph.outputs)
        self._carried = [one for one in self.graph.outputs if one.value < len(self.graph.inputs)]
        self._unmade: list[Any] = [None] * len(self.graph.steps)
        self._read_as_one = read_as_one(self.graph)
        self._ready: dict[object, Ready] = {}
        self._latest: Ready | None = None
        self._into: dict[object, Chain] = {}
        self._kernels: list[CppKernel | LibraryKernel] = []
        for number, kernel in enumerate(mugraph.kernels):
            if not isinstance(kernel, Block):
                self._kernels.append(LibraryKernel(mugraph, kernel))
                continue
            program = lower_kernel(mugraph, number)
            config = (configs or {}).get(number) or default_config(
                program, self.graph.sizes, cores=torch.get_num_threads(), vectors=vectors()
            )
            self._kernels.append(CppKernel(program, config, flags=flags))

    @property
    def sources(self) -> tuple[str, ...]:
        """The C++ text of every kernel."""
        return tuple(kernel.source.code for kernel in self._kernels if isinstance(kernel, CppKernel))

    def __call__(self, **tensors: TorchTensor) -> dict[str, TorchTensor]:
        """Run the kernels in order."""
        return dict(zip(self.outputs, self.in_order(in_order(self.graph, tensors)), strict=True))

    def in_order(self, given: Sequence[TorchTensor]) -> Sequence[TorchTensor]:
        """Run the kernels on tensors in the order of the graph's inputs; return its outputs in order."""
        threads, latest = torch.get_num_threads(), self._latest
        alike = latest is not None and latest.threads == threads and latest.forms.alike(*given)
        if latest is None or not (alike or latest.serves(given, threads)):
            latest = self._latest = self._ready_for(given, threads)
        found: Sequence[TorchTensor] = latest.run(given)
        return found

    def _ready_for(self, given: Sequence[TorchTensor], threads: int) -> Ready:
        """Return what runs the kernels on tensors of these forms, prepared when they came first."""
        key = threads, form_of(given)
        ready = self._ready.get(key)
        if ready is None:
            if len(self._ready) >= _PREPARED:
                self._ready.clear()
            ready = self._ready[key] = Ready(Forms(given), threads, self.prepared(given))
        return ready

    def prepared(self, given: Sequence[TorchTensor]) -> Prepared:
        """Return what runs the kernels on tensors of these shapes, strides and dtypes, on these threads."""
        if not all(map(is_stored, given)):
            return lambda given: self.in_order(list(map(stored, given)))
        if self._lie_apart(given):
            return lambda given: self.in_order(self._in_one_piece(given))
        for port, one in zip(self.graph.inputs, given, strict=True):
            if not one.is_cpu or not is_plain(one):
                found = f"a {type(one).__name__} on {one.device}"
                raise InputError(
                    f"{self.graph.name}: {port.name!r} is {found}; give a plain tensor on the CPU"
                )
        plan = self._plan(given, torch.get_num_threads())
        return self._chain(plan) or self._launches(plan)

    def _lie_apart(self, given: Sequence[TorchTensor]) -> set[int]:
        """Return the inputs whose dimensions are read as one, and do not lie so."""
        return {at for at in self._read_as_one if given[at].stride() != contiguous_strides(given[at].shape)}

    def _in_one_piece(self, given: Sequence[TorchTensor]) -> Sequence[TorchTensor]:
        """Return the inputs, those whose dimensions are read as one as contiguous tensors."""
        apart = self._lie_apart(given)
        if not apart:
            return given
        return [
            one.clone(memory_format=torch.contiguous_format) if at in apart else one
            for at, one in enumerate(given)
        ]

    def _chain(self, plan: "_Plan") -> Prepared | None:
        """Return one call of all kernels, None where a library or a copy of an input has a part."""
        launches = [one for one in plan.launches if isinstance(one, Launch)]
        if len(launches) < len(plan.launches) or not launches or self._carried:
            return None
        found = chain(launches, len(self.inputs), self.outputs)
        call, results, between = found.call, found.results, found.empty_between
        address, empty = TorchTensor.data_ptr, results[0].empty

        if between is not None:

            def run_with_values_between(given: Sequence[TorchTensor]) -> Sequence[TorchTensor]:
                made, values = [one.empty() for one in results], between()
                call(*map(address, given), *map(address, made), values.data_ptr())
                return made

            return run_with_values_between

        def run(given: Sequence[TorchTensor]) -> Sequence[TorchTensor]:
            made = [one.empty() for one in results]
            call(*map(address, given), *map(address, made))
            return made

        def run_for_one(given: Sequence[TorchTensor]) -> Sequence[TorchTensor]:
            result = empty()
            call(*map(address, given), result.data_ptr())
            return (result,)

        def run_on_one(given: Sequence[TorchTensor]) -> Sequence[TorchTensor]:
            result = empty()
            call(given[0].data_ptr(), result.data_ptr())
            return (result,)

        if len(results) > 1:
            return run
        return run_on_one if len(self.inputs) == 1 else run_for_one

    def into(self, given: Sequence[TorchTensor], results: Sequence[TorchTensor]) -> None:
        """Run the kernels on plain tensors in order, and write the results over contiguous ones.

        A result may lie over an input where `may_lie_over` says so.
        """
        if not all(map(is_stored, given)):
            given = list(map(stored, given))
        given = self._in_one_piece(given)
        threads = torch.get_num_threads()
        key = threads, form_of(given)
        found = self._into.get(key)
        if found is None:
            if not self.makes_all:
                raise InputError(f"{self.graph.name}: not all of its results are written by kernels of ours")
            launches = [one for one in self._plan(given, threads).launches if isinstance(one, Launch)]
            if len(self._into) >= _PREPARED:
                self._into.clear()
            found = self._into[key] = chain(launches, len(self.inputs), self.outputs)
        between = (found.empty_between(),) if found.empty_between is not None else ()
        found.call(*(one.data_ptr() for one in (*given, *results, *between)))

    @property
    def makes_all(self) -> bool:
        """Whether kernels of ours write all results, none of which is an input or made by a library."""
        return not self._carried and all(isinstance(one, CppKernel) for one in self._kernels)

    def may_lie_over(self, output: str, entering: str) -> bool:
        """Return whether a result may be written where an input lies: no kernel reads that afterwards."""
        kernels = [(one.program, one.config) for one in self._kernels if isinstance(one, CppKernel)]
        return self.makes_all and is_read_before(kernels, entering, output)

    def _launches(self, plan: "_Plan") -> Prepared:
        """Return the calls of all kernels in order."""
        runs = [one.run() if isinstance(one, Launch) else one for one in plan.launches]
        ended = last_reads((one.reads for one in self._kernels), staying=range(len(self.inputs)))
        launches = list(zip(runs, ended, strict=True))

        def run(given: Sequence[TorchTensor]) -> Sequence[TorchTensor]:
            values = [*given, *self._unmade]
            results: dict[str, TorchTensor] = {}
            for launch, read_for_the_last_time in launches:
                launch(values, results)
                for value in read_for_the_last_time:
                    values[value] = None
            for output in self._carried:
                carried = values[output.value]
                strides = axis_strides(self.graph.inputs[output.value], carried.stride(), plan.sizes)
                results[output.port.name] = spread(carried, strides, output.port, plan.sizes, copy=True)
            return [results[name] for name in self.outputs]

        if all(isinstance(launch, Launch) for launch in plan.launches):
            return run

        @torch.no_grad()
        def run_with_library(given: Sequence[TorchTensor]) -> Sequence[TorchTensor]:
            if not torch.is_autocast_enabled("cpu"):
                return run(given)
            with torch.autocast("cpu", enabled=False):
                return run(given)

        return run_with_library

    def _plan(self, given: Sequence[TorchTensor], threads: int) -> "_Plan":
        """Return what need not be worked out at every call."""
        sizes = sizes_of(self.mugraph, given, PART)
        strides = {value: one.stride() for value, one in enumerate(given)}
        launches: list[Launch | LibraryRun] = []
        for kernel in self._kernels:
            if isinstance(kernel, LibraryKernel):
                launches.append(kernel.prepared(strides, sizes))
                strides |= {value: contiguous_strides(shape) for value, shape in kernel.shapes(sizes).items()}
                continue
            kernel = kernel.serving(sizes)
            made: list[Made] = []
            for tensor in kernel.program.stores:
                empty = next((one for one in kernel.program.repeated(tensor.value) if not sizes[one]), None)
                if empty is not None:
                    raise InputError(
                        f"{self.graph.name}: axis {empty!r} is empty; {tensor.name} has no program"
                    )
                shape = tuple(prod(sizes[axis] for axis in dim) for dim in _port(tensor).dims)
                name = tensor.name if tensor.port else None
                dtype = _DTYPES[tensor.dtype]
                size = prod(shape) * dtype.itemsize
                made.append(Made(shape, tensor.value, name, tensor.crosses, size, memory(shape, dtype)))
                if tensor.crosses:
                    strides[tensor.value] = contiguous_strides(shape)
            reads = [strides[value] for value in kernel.reads]
            stores = [contiguous_strides(one.shape) for one in made]
            launches.append(Launch(kernel, made, kernel.link(reads, stores, sizes, threads)))
        return _Plan(sizes, launches)
