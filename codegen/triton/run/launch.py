"""Launch: a whole muGraph on torch tensors, kernel by kernel."""

import linecache
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from superopt.codegen.errors import UnsupportedError
from superopt.codegen.forms import is_stored, stored
from superopt.codegen.library import LibraryCall, as_result
from superopt.codegen.signature import in_order, sizes_of
from superopt.codegen.statements import (
    KernelProgram,
    axis_strides,
    contiguous_strides,
    lower_block,
    split_extents,
)
from superopt.codegen.statements import Tensor as TensorOfKernel
from superopt.codegen.triton.choices import default_config, exact_axes
from superopt.codegen.triton.config import TritonConfig, next_power
from superopt.codegen.triton.descriptors import layout_refusal, normal_strides
from superopt.codegen.triton.emit import emit
from superopt.codegen.triton.plan import long_sums, make_plan
from superopt.codegen.triton.run.prepared import (
    ALIGNED,
    Action,
    Allocate,
    Launch,
    Library,
    Prepared,
    Seen,
    View,
    alignment_of,
    signature_of,
)
from superopt.codegen.triton.source import DESCRIPTORS_FROM, Argument, TritonSource
from superopt.dtypes import torch_dtypes
from superopt.errors import InputError
from superopt.ir import MuGraph, Port, value_axes
from superopt.ir.mugraph import Call, Kernel

__all__ = ["TritonMuGraph", "load_kernel"]

log = logging.getLogger("superopt")

_Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]

_DTYPES = torch_dtypes()
WIDE_FROM = 2**31
MOST_PREPARED = 1024  # signatures of one muGraph that are kept ready


@cache
def load_kernel(text: str, name: str) -> Any:
    """Return the kernel that a source defines, ready to launch; the source stays visible to debuggers."""
    filename = f"<superopt {name} {hash(text) & 0xFFFFFFFF:08x}>.py"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"__name__": f"superopt_kernel_{name}"}
    exec(compile(text, filename, "exec"), scope)
    return scope[name]


class TritonMuGraph:
    """A muGraph as a callable: `TritonMuGraph(mugraph)(x=x, w=w)` returns its outputs by name."""

    def __init__(self, mugraph: MuGraph, configs: Sequence[TritonConfig | None] | None = None) -> None:
        self.mugraph = mugraph
        self.graph = mugraph.graph
        self.inputs = tuple(port.name for port in self.graph.inputs)
        self.outputs = tuple(output.port.name for output in self.graph.outputs)
        self.axes = value_axes(self.graph)
        self.programs = tuple(
            None if isinstance(kernel, Call) else lower_block(mugraph, at)
            for at, kernel in enumerate(mugraph.kernels)
        )
        self.configs = tuple(configs) if configs is not None else (None,) * len(self.programs)
        if len(self.configs) != len(self.programs):
            raise InputError(
                f"{self.graph.name}: {len(self.configs)} configurations for {len(self.programs)} kernels"
            )
        self._sources: dict[object, TritonSource] = {}
        self._extents: dict[tuple[int, ...], dict[str, int]] = {}
        self._prepared: dict[object, Prepared] = {}
        self._preparing = threading.Lock()

    def source(
        self,
        kernel: int,
        sizes: Mapping[str, int],
        *,
        wide: bool = False,
        plain: frozenset[str] = frozenset(),
        waits: bool = False,
    ) -> TritonSource:
        """Return the source that runs one kernel at these sizes, with masks only where they need them.

        Tensors in `plain` have no descriptors, and a kernel that `waits` does not start before the one before
        it has ended, whatever the kernel's configuration says.
        """
        program = self.programs[kernel]
        if program is None:
            raise InputError(f"{self.graph.name}: kernel {kernel} is a library's; it has no source here")
        sizes = self.extents(sizes)
        config = self._config(kernel, program, sizes, wide=wide, waits=waits)
        long = long_sums(program, config.blocks, sizes)
        key = kernel, config, plain, long  # most sizes have the same source as others
        if key not in self._sources:
            self._sources[key] = emit(program, config, plain, long)
        return self._sources[key]

    @property
    def compiled(self) -> dict[int, Any]:
        """What Triton made of the kernels that have run, by their numbers."""
        actions = [action for one in self._prepared.values() for action in one.actions]
        return {one.number: one.made for one in actions if isinstance(one, Launch) and one.made is not None}

    def extents(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the extents of all axes: parts of split ones hold whole tiles of every kernel."""
        splits = self.mugraph.splits
        if not splits:
            return dict(sizes)
        inner = {axis for split in splits for axis in (split.outer, split.inner)}
        key = tuple(sizes[axis.name] for axis in self.graph.axes if axis.name not in inner)
        if key not in self._extents:
            found = {**sizes, **{split.outer: self.graph.sizes[split.outer] for split in splits}}
            for split in splits:
                found = split_extents(split, found)
            multiples = self.multiples(found)
            for split in splits:
                found[split.outer] = self.graph.sizes[split.outer]
                found = split_extents(split, found, multiples[split.inner])
            self._extents[key] = found
        return self._extents[key]

    def multiples(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return of how many positions the parts of split axes are a multiple long, by the axis of a part."""
        tiles = [
            (make_plan(program, config).roles, config.blocks)
            for program, config in zip(self.programs, self.configs, strict=True)
            if program is not None
            for config in [config or default_config(program, sizes)]
        ]
        return {
            inner: max((blocks[inner] for roles, blocks in tiles if roles.get(inner) == "tile"), default=1)
            for inner in (split.inner for split in self.mugraph.splits)
        }

    def _config(
        self, kernel: int, program: KernelProgram, sizes: Mapping[str, int], *, wide: bool, waits: bool
    ) -> TritonConfig:
        """Return the configuration of a kernel, with all of it that depends on the sizes."""
        config = self.configs[kernel] or default_config(program, sizes)
        config = _covering(program, config, sizes)
        tensors = (*program.loads, *program.stores)
        largest = max((prod(sizes[axis] for axis in one.axes) for one in tensors), default=0)
        return replace(
            config,
            exact=exact_axes(config, sizes, program.splits),
            wide=wide or config.wide or largest >= WIDE_FROM,
            early=config.early and not waits,
        )

    def __call__(self, **tensors: Tensor) -> dict[str, Tensor]:
        """Return the outputs by name."""
        return dict(zip(self.outputs, self.in_order(in_order(self.graph, tensors)), strict=True))

    def in_order(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the outputs in the graph's order, from the inputs in that order."""
        signature = signature_of(given)
        return (self._prepared.get(signature) or self._prepare(signature, given))(given)

    def prepared(self, given: Sequence[Tensor]) -> _Run:
        """Return the call for tensors of these shapes, strides, dtypes and alignments."""
        run, aligned = self._prepare(signature_of(given), given), alignment_of(given)
        return lambda given: (run if alignment_of(given) == aligned else self.in_order)(given)

    def _prepare(self, signature: object, given: Sequence[Tensor]) -> _Run:
        """Return the call for a signature, made by the first thread that needs it."""
        if not all(map(is_stored, given)):
            return lambda given: self.in_order(list(map(stored, given)))
        with self._preparing:
            if signature not in self._prepared:
                if len(self._prepared) >= MOST_PREPARED:
                    self._prepared.clear()
                    self._extents.clear()
                self._prepared[signature] = _Preparation(self, given).prepared()
            return self._prepared[signature]


@dataclass(slots=True)
class _Memory:
    """A value in memory: its slot, and the stride of each of its axes."""

    slot: int
    strides: dict[str, int]
    aligned: bool = True  # whether it starts at a multiple of 16 bytes

    def reach(self, sizes: Mapping[str, int]) -> int:
        """Return the largest offset of an element."""
        return sum((sizes[axis] - 1) * stride for axis, stride in self.strides.items())


class _Preparation:
    """Working out what a call on tensors of one signature does."""

    def __init__(self, built: TritonMuGraph, given: Sequence[Tensor]) -> None:
        self.built = built
        self.graph = built.graph
        self.sizes = built.extents(sizes_of(built.mugraph, given))
        self.device = given[0].device if given else torch.device("cpu")
        for port, tensor in zip(self.graph.inputs, given, strict=True):
            if tensor.device != self.device:
                raise InputError(
                    f"{self.graph.name}: {port.name!r} is on {tensor.device}, but"
                    f" {self.graph.inputs[0].name!r} is on {self.device}; move them to one device"
                )
        self.memory = {
            value: _Memory(
                value, axis_strides(port, tensor.stride(), self.sizes), tensor.data_ptr() % ALIGNED == 0
            )
            for value, (port, tensor) in enumerate(zip(self.graph.inputs, given, strict=True))
        }
        self.wide = any(held.reach(self.sizes) >= WIDE_FROM for held in self.memory.values())
        self.actions: list[Action] = []
        self.slots = len(given)
        self.results: dict[str, int] = {}

    def prepared(self) -> Prepared:
        """Return the call."""
        for at, kernel in enumerate(self.built.mugraph.kernels):
            program = self.built.programs[at]
            if program is None:
                self._library(kernel)
            else:
                self._launch(at, program)
        for output in self.graph.outputs:
            if output.port.name not in self.results:
                self._leave(output.port, self.memory[output.value], copy=True)
        results = tuple(self.results[output.port.name] for output in self.graph.outputs)
        index = self.device.index if self.device.type == "cuda" else None
        return Prepared(tuple(self.actions), results, index)

    def _next_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _launch(self, number: int, program: KernelProgram) -> None:
        waits = not _is_hopper(self.device)
        source = self.built.source(number, self.sizes, wide=self.wide, waits=waits)
        written = {tensor.name: self._allocate(tensor) for tensor in program.stores}
        grid = source.launched(self.sizes, _processors(self.device))
        for tensor in program.stores:
            empty = next((axis for axis in program.repeated(tensor.value) if not self.sizes[axis]), None)
            if empty is not None:
                raise InputError(f"{self.graph.name}: axis {empty!r} is empty; {tensor.name} has no program")
        if grid:
            held = {tensor.name: self.memory[tensor.value] for tensor in program.loads} | written
            plain = self._plain(source, held)
            if plain:
                source = self.built.source(number, self.sizes, wide=self.wide, plain=plain, waits=waits)
            refused = source.refusal(_capability(self.device)) if self.device.type == "cuda" else None
            if refused is not None:
                raise UnsupportedError(f"{source.name}: not for {self.device}: {refused}")
            self.actions.append(self._launched(number, source, grid, held))
        for tensor in program.stores:
            if tensor.crosses:
                self.memory[tensor.value] = written[tensor.name]
            if tensor.port is not None and tensor.name not in self.results:
                self._leave(tensor.port, written[tensor.name])

    def _plain(self, source: TritonSource, held: Mapping[str, _Memory]) -> frozenset[str]:
        """Return the tensors of a kernel that can have no descriptors here, and log why."""
        found = set()
        supported = _has_descriptors(self.device)
        for one in source.descriptors:
            name = one.tensor or ""
            seen = held[name]
            axes = [axis for axis, _ in one.seen]
            reason: str | None = f"{self.device} has none; they need compute capability 9.0"
            if supported:
                reason = layout_refusal(
                    name, one.dtype or "", self.sizes, seen.strides, axes, aligned=seen.aligned
                )
            if reason is not None:
                log.info("%s: no tensor descriptor of %s: %s", source.name, name, reason)
                found.add(name)
        return frozenset(found)

    def _launched(self, number: int, source: TritonSource, grid: int, held: Mapping[str, _Memory]) -> Launch:
        arguments: list[Any] = []
        places: list[tuple[int, int]] = []
        descriptors: list[tuple[int, Seen]] = []
        for at, one in enumerate(source.arguments):
            if one.kind == "tensor":
                places.append((at, held[one.tensor or ""].slot))
                arguments.append(None)
            elif one.kind == "descriptor":
                descriptors.append((at, self._seen_by(one, held[one.tensor or ""])))
                arguments.append(None)
            elif one.kind == "stride":
                arguments.append(held[one.tensor or ""].strides[one.axis or ""])
            else:
                sized = self.sizes if one.kind == "extent" else source.config.blocks
                arguments.append(sized[one.axis or ""])
        kernel = load_kernel(source.text, source.name)
        return Launch(
            number, kernel, grid, arguments, tuple(places), source.config.options, tuple(descriptors)
        )

    def _seen_by(self, descriptor: Argument, held: _Memory) -> Seen:
        axes = [axis for axis, _ in descriptor.seen]
        return Seen(
            held.slot,
            [self.sizes[axis] for axis in axes],
            list(normal_strides(descriptor.dtype or "", self.sizes, held.strides, axes)),
            [positions for _, positions in descriptor.seen],
        )

    def _allocate(self, tensor: TensorOfKernel) -> _Memory:
        """Return memory for what a kernel writes: an output in its final shape, where it has all its axes."""
        kept = self.built.axes[tensor.value]
        axes = tuple(axis for axis in tensor.axes if axis in kept)
        shape = tuple(self.sizes[axis] for axis in axes)
        slot = self._next_slot()
        made = _Memory(slot, dict(zip(axes, contiguous_strides(shape), strict=True)))
        if tensor.port is not None and axes == tensor.axes:
            shape = self._shape(tensor.port)
            self.results[tensor.name] = slot
        self.actions.append(Allocate(shape, _DTYPES[tensor.dtype], self.device))
        return made

    def _shape(self, port: Port) -> tuple[int, ...]:
        return tuple(prod(self.sizes[axis] for axis in dim) for dim in port.dims)

    def _leave(self, port: Port, held: _Memory, *, copy: bool = False) -> None:
        """Make a value the tensor of a port: axes grouped into dimensions, missing ones repeated."""
        strides = tuple(held.strides.get(axis, 0) for axis in port.axes)
        seen = _seen(tuple(self.sizes[axis] for axis in port.axes), strides)
        shape, dtype = self._shape(port), _DTYPES[port.dtype]
        self.results[port.name] = self._next_slot()
        result = partial(as_result, shape=shape, dtype=dtype, copy=copy)
        self.actions.append(View(held.slot, lambda tensor: result(seen(tensor))))

    def _library(self, kernel: Kernel) -> None:
        mugraph = self.built.mugraph
        loaded = {value: self._named(value) for value in mugraph.loads(kernel)}
        axes = {value: tuple(self.memory[value].strides) for value in loaded}
        stored = mugraph.stores(kernel)
        # Kernels read what crosses to them in the dtype that the muGraph states, whatever torch makes.
        read = {value for other in mugraph.kernels if other is not kernel for value in mugraph.loads(other)}
        stated = dict(mugraph.rounded)
        rounded = {value: _DTYPES[stated.get(value, "f32")] for value in stored if value in read}
        call = LibraryCall(self.graph, kernel, axes, stored, self.sizes, rounded)
        self.actions.append(Library(call, loaded))
        for value in stored:
            shape = tuple(self.sizes[axis] for axis in call.axes[value])
            strides = dict(zip(call.axes[value], contiguous_strides(shape), strict=True))
            self.memory[value] = _Memory(self._next_slot(), strides)
        left = set[int]()  # what leaves more than once is copied: each result has memory of its own
        for output in self.graph.outputs:
            if output.value in stored:
                self._leave(output.port, self.memory[output.value], copy=output.value in left)
                left.add(output.value)

    def _named(self, value: int) -> int:
        """Return the slot where a value has a dimension for each of its axes."""
        held = self.memory[value]
        ports = self.graph.inputs[value : value + 1]
        if all(len(dim) == 1 for port in ports for dim in port.dims):
            return held.slot
        shape = tuple(self.sizes[axis] for axis in held.strides)
        self.actions.append(View(held.slot, _seen(shape, tuple(held.strides.values()))))
        return self._next_slot()


def _processors(device: torch.device) -> int:
    """Return how many programs a device runs at a time, at least; few in Triton's interpreter."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _has_descriptors(device: torch.device) -> bool:
    """Return whether a device copies tiles by tensor descriptors; Triton's interpreter does."""
    return device.type != "cuda" or _is_hopper(device)


def _is_hopper(device: torch.device) -> bool:
    """Return whether a device is one of NVIDIA's since the H100, which starts kernels early, too."""
    return device.type == "cuda" and torch.version.hip is None and _capability(device) >= DESCRIPTORS_FROM


def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _seen(shape: tuple[int, ...], strides: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Return what shows the memory of a tensor with these dimensions, from where the tensor starts."""
    return lambda tensor: tensor.as_strided(shape, strides, tensor.storage_offset())


def _covering(program: KernelProgram, config: TritonConfig, sizes: Mapping[str, int]) -> TritonConfig:
    """Return the configuration with tiles of whole axes long enough for these sizes."""
    roles = make_plan(program, config).roles
    tiles = tuple(
        (axis, max(tile, next_power(sizes[axis])) if roles.get(axis) == "whole" else tile)
        for axis, tile in config.tiles
    )
    return replace(config, tiles=tiles)
