"""Estimates: what a muGraph takes on a device at least, before tiles are chosen or anything is compiled.

Each kernel is a launch and then the slowest of: bytes from memory, bytes from the shared cache, and
arithmetic on each kind of unit. A tensor is read from memory once per kernel and from the cache where
programs along an axis that it lacks, or later passes, read it again. Steps that lack a grid axis are
repeated along it. A kernel with fewer programs than the device has cores gets only their share of its
units, and not much more of its memory, which is why decoding splits its reductions.

Tile sizes stay open: programs are counted with the smallest sensible tiles and repetitions with the
largest, so that no choice of tiles is ruled out. `superopt.cost.config` knows the tiles.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from superopt.codegen.statements import Compute, KernelProgram, Load, Move, lower_block
from superopt.cost.device import Device
from superopt.cost.work import (
    Mask,
    exp_axes,
    fastest_dtype,
    find_masks,
    kept_share,
    scalar_work,
    tensor_bytes,
    work_axes,
)
from superopt.ir import (
    Block,
    Graph,
    MuGraph,
    Step,
    live_graph,
    tensorless_values,
    value_axes,
    window_axes,
)
from superopt.precision import library_dtype, operand_dtypes, product_dtype

__all__ = ["Estimate", "KernelEstimate", "drawn", "estimate", "floor_us"]

SMALLEST_TILE = 16  # positions of an axis of a matrix product, or of neighbours in memory
WIDE_TILE = 64  # positions of a side of a product on a GPU: smaller tiles waste instructions
LARGEST_TILE = 256  # positions
_DRAW = 2.0  # a core can draw twice its equal share of the memory rate while most others are idle


def drawn(device: Device, share: float) -> float:
    """Return the share of the memory rate that some cores draw; only all cores of a CPU draw all of it."""
    if share >= 1:
        return 1.0
    many = _DRAW * share
    return many / (1 + (_DRAW - 1) * share) if device.kind == "cpu" else min(1.0, many)


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """The least time of one kernel, and what it is made of."""

    number: int
    us: float
    bytes_read: int  # each tensor counted once
    bytes_written: int
    flops_matrix: int
    flops_vector: int
    exps: int  # work of the special function units
    programs: int  # the number of programs with the smallest sensible tiles
    limit: str  # the part that takes longest: "launch", "memory", "cache", "matrix", "vector", "exp"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The least time of a muGraph on a device."""

    us: float
    kernels: tuple[KernelEstimate, ...]
    device: Device


def estimate(mugraph: MuGraph, device: Device) -> Estimate:
    """Return the least time of a muGraph; on a processor, its time in the default tiles of each kernel."""
    known = mugraph.graph.sizes
    masks = find_masks(mugraph.graph, known)
    kernels = tuple(_kernel(mugraph, number, device, known, masks) for number in range(len(mugraph.kernels)))
    if device.timed:
        from superopt.cost.cpu import default_us  # imports PyTorch

        kernels = tuple(replace(one, us=default_us(mugraph, one.number, device)) for one in kernels)
    return Estimate(sum(kernel.us for kernel in kernels), kernels, device)


def floor_us(graph: Graph, device: Device, *, cold: bool = True, kept: bool = False) -> float:
    """Return a time below which no program computes this graph: a shorter measurement is an error.

    Inputs are read once and outputs written once at the peak rate of memory, contractions run at the
    peak rate of the fastest units; what a mask may spare does not count. `cold` states that no cache
    holds the inputs when a run starts, `kept` that what it writes may still be in the cache when it ends,
    as in a single run that finds the cache full of what need not be written. It holds for this graph as it
    is written, since an equivalent one may take less arithmetic, and is as good as the device's numbers:
    those of a host are measured.
    """
    known = graph.sizes
    graph = live_graph(graph)
    axes = value_axes(graph)
    tensorless = tensorless_values(graph)
    uses: dict[int, list[int]] = {}
    for value, step in graph.numbered:
        for i in step.inputs:
            uses.setdefault(i, []).append(value)
    moved = sum(
        _read_bytes(graph, axes, i, port.dtype, uses.get(i, []), known)
        for i, port in enumerate(graph.inputs)
        if i in uses or any(output.value == i for output in graph.outputs)
    )
    written = sum(tensor_bytes(one.port.axes, one.port.dtype, known) for one in graph.outputs)
    moved += max(written - device.l2_bytes, 0) if kept else written
    masks = find_masks(graph, known)
    # A convolution takes fewer products by Winograd's way, and none of the zeros outside.
    slides = window_axes(graph)
    arithmetic = 0.0
    for value, step in graph.numbered:
        work = work_axes(graph, axes, value, step, frozenset())
        if step.op == "contract" and not tensorless[value] and work.isdisjoint(slides):
            rate = device.matrix_flops[fastest_dtype(graph, step)]
            spared = sum(1 - mask.least for mask in masks if mask.axes <= work)
            arithmetic += 2 * _volume(work, known) * max(1 - spared, 0.0) / max(rate, device.vector_flops)
    cached = 0 if cold else min(moved, device.l2_bytes)
    transfer_us = (moved - cached) / (device.memory_gbs * 1e3) + cached / (device.l2_gbs * 1e3)
    return max(transfer_us, arithmetic * 1e6)


def product_sides(
    graph: Graph, axes: tuple[frozenset[str], ...], inputs: tuple[int, ...]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the axes that either operand of a contraction has for itself."""
    a, b = inputs
    return axes[a] - axes[b], axes[b] - axes[a]


def _volume(axes: frozenset[str] | set[str], sizes: Mapping[str, int]) -> int:
    return prod(sizes[axis] for axis in axes)


def _read_bytes(
    graph: Graph,
    axes: tuple[frozenset[str], ...],
    value: int,
    dtype: str,
    readers: list[int],
    sizes: Mapping[str, int],
) -> int:
    """Return how many bytes of a tensor are read; selections and windows may leave the others alone."""
    whole = tensor_bytes(axes[value], dtype, sizes)
    steps = [graph.step_of(reader) for reader in readers]
    if not steps or any(step is None or step.op not in ("select", "window") for step in steps):
        return whole
    return min(whole, sum(tensor_bytes(axes[reader], dtype, sizes) for reader in readers))


def _kernel(
    mugraph: MuGraph,
    number: int,
    device: Device,
    sizes: Mapping[str, int],
    masks: tuple[Mask, ...],
) -> KernelEstimate:
    kernel = mugraph.kernels[number]
    if isinstance(kernel, Block):
        return _Kernel(lower_block(mugraph, number), device, sizes, masks).cost(number)
    # A library is taken to spread its work over all cores.
    stored = mugraph.stores(kernel)
    grid = tuple(value_axes(mugraph.graph)[stored[0]]) if stored else ()
    kernels = (
        *mugraph.kernels[:number],
        Block(tuple(sorted(grid)), kernel.body),
        *mugraph.kernels[number + 1 :],
    )
    program = lower_block(replace(mugraph, kernels=kernels), number)
    return _Kernel(program, device, sizes, masks, least_programs=device.cores, library=True).cost(number)


class _Kernel:
    """One kernel's statements, and what they add up to."""

    def __init__(
        self,
        program: KernelProgram,
        device: Device,
        sizes: Mapping[str, int],
        masks: tuple[Mask, ...],
        least_programs: int = 1,
        *,
        library: bool = False,
    ) -> None:
        self.program = program
        self.graph = program.graph
        self.device = device
        self.sizes = sizes
        self.masks = masks
        self.least_programs = least_programs
        self.library = library
        self.axes = value_axes(self.graph)
        self.tensorless = tensorless_values(self.graph)
        self.loaded = frozenset(tensor.value for tensor in program.loads)
        self.computed = [one for one, _ in program.flat() if isinstance(one, Compute)]
        self.memory = {tensor.value: tensor.dtype for tensor in program.loads}
        steps = ((one.value, one.step) for one in self.computed)
        self.dtypes = operand_dtypes(self.graph, steps, self.memory)

    def cost(self, number: int) -> KernelEstimate:
        device = self.device
        programs = max(self._programs(), self.least_programs)
        share = min(1.0, programs / device.cores)
        read, memory, cached = self._reads()
        written = 0
        for tensor in self.program.stores:
            size = tensor_bytes(tensor.axes, tensor.dtype, self.sizes)
            written += size
            if tensor.port is None and size <= device.l2_bytes:
                cached += size
            else:
                memory += size
        matrix_s, matrix, vector, exps = self._arithmetic()
        seconds = {
            "memory": memory / (device.memory_gbs * 1e9),
            "cache": (memory + cached) / (device.l2_gbs * 1e9),
            "matrix": matrix_s,
            "vector": vector / device.vector_flops,
            "exp": exps / device.exp_per_s,
        }
        for part in seconds:
            seconds[part] /= drawn(device, share) if part in ("memory", "cache") else share
        limit = max(seconds, key=seconds.__getitem__)
        us = seconds[limit] * 1e6
        return KernelEstimate(
            number=number,
            us=device.launch_us + us,
            bytes_read=read,
            bytes_written=written,
            flops_matrix=matrix,
            flops_vector=vector,
            exps=exps,
            programs=programs,
            limit=limit if us > device.launch_us else "launch",
        )

    def _reads(self) -> tuple[int, int, int]:
        """Return the bytes of distinct tensors, those read from memory, and those from the cache."""
        read = memory = cached = 0
        counts: dict[int, int] = {}
        for one, loops in self.program.flat():
            if isinstance(one, Load):
                turns = self._most_tiles({*self.program.grid, *loops} - self._read_along(one.value))
                counts[one.value] = counts.get(one.value, 0) + turns
        for tensor in self.program.loads:
            readers = [one.value for one in self.computed if tensor.value in one.step.inputs]
            size = _read_bytes(self.graph, self.axes, tensor.value, tensor.dtype, readers, self.sizes)
            read += size
            if tensor.port is None and size <= self.device.l2_bytes:
                cached += size
            else:
                memory += size
            cached += size * (counts.get(tensor.value, 1) - 1)
        return read, memory, cached

    def _read_along(self, value: int) -> frozenset[str]:
        """Return the axes along which other parts of a tensor are read: its own, and those of its windows."""
        found = set(self.axes[value])
        for one in self.computed:
            if value in one.step.inputs:
                found.update(axis for place in one.step.places for axis, _ in place.terms)
        return frozenset(found)

    def _most_tiles(self, axes: set[str]) -> int:
        """Return how many of the largest tiles lie along axes; steps that lack the axes repeat for each."""
        return max(ceil(_volume(axes, self.sizes) / LARGEST_TILE), 1)

    def _arithmetic(self) -> tuple[float, int, int, int]:
        """Return seconds on matrix units, their flops, those of vector units, and exps."""
        seconds = 0.0
        matrix = vector = exps = 0
        for one in self.computed:
            if self.tensorless[one.value]:
                continue  # a tensorless value takes a few instructions for each tile
            work = work_axes(self.graph, self.axes, one.value, one.step, self.loaded)
            scalar = scalar_work(one.step.op)
            repeats = self._most_tiles(set(self.program.grid) - work)
            flops = int(self._points(work) * scalar.flops)
            special = exp_axes(self.axes, one.step, work)
            special_repeats = self._most_tiles(set(self.program.grid) - special)
            ops = int(self._points(special) * scalar.exps)
            dtype = self._multiplied(one.step) if self._is_matrix(one) else "f32"
            if dtype in self.device.matrix_flops:
                matrix += flops * repeats
                seconds += flops * repeats / self.device.matrix_flops[dtype]
            else:
                vector += flops * repeats
                exps += ops * special_repeats
        for moved, loops in self.program.flat():
            if isinstance(moved, Move):
                turns = self._most_tiles(set(loops) | (set(self.program.grid) - self.axes[moved.value]))
                rescaled = sum(_volume(self.axes[value], self.sizes) for value, _ in moved.rescales)
                shifts = _volume(self.axes[moved.value], self.sizes)
                vector += turns * (rescaled + shifts * scalar_work(moved.step.op).flops)
                exps += turns * shifts
        return seconds, matrix, vector, exps

    def _points(self, work: frozenset[str]) -> float:
        """Return the positions along these axes that no mask spares."""
        return _volume(work, self.sizes) * kept_share(self.masks, work)

    def _is_matrix(self, one: Compute) -> bool:
        """Return whether both operands have an axis of their own, as matrix units need."""
        if one.step.op != "contract":
            return False
        sides = product_sides(self.graph, self.axes, one.step.inputs)
        return all(_volume(side, self.sizes) > 1 for side in sides)

    def _multiplied(self, step: Step) -> str:
        """Return the dtype in which a contraction multiplies: fp32 is left to the vector units."""
        if self.library:
            return library_dtype({self.memory.get(i, "f32") for i in step.inputs})
        return product_dtype(self.graph, step, self.dtypes)

    def _narrow(self) -> list[tuple[frozenset[str], int]]:
        """Return groups of grid axes, parts left out, of which a tile has several positions, and how many."""
        groups: list[tuple[frozenset[str], int]] = []
        left = set(self.program.grid) - {split.outer for split in self.program.splits}
        for one in self.computed:
            if self._is_matrix(one):
                for side in product_sides(self.graph, self.axes, one.step.inputs):
                    wide = self.device.kind != "cpu" and _volume(side, self.sizes) >= WIDE_TILE
                    groups.append((side & left, WIDE_TILE if wide else SMALLEST_TILE))
                    left -= side
        tensors = (*self.program.loads, *self.program.stores)
        largest = max(tensors, key=lambda one: prod(self.sizes[axis] for axis in one.axes), default=None)
        if largest is not None:
            groups.append((frozenset(largest.axes[-1:]) & left, SMALLEST_TILE))
        return [(group, tile) for group, tile in groups if group]

    def _programs(self) -> int:
        groups = self._narrow()
        alone = set(self.program.grid).difference(*(group for group, _ in groups))
        tiled = (ceil(_volume(group, self.sizes) / tile) for group, tile in groups)
        return prod((self.sizes[axis] for axis in alone), start=prod(tiled))
