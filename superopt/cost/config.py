"""Config: what one kernel takes on a GPU under one choice of tiles, as an analytical model.

It adds up what the busiest core does, padded tiles and idle last wave included, and what all programs
read through the shared cache and from memory. A turn of a loop waits for what it reads unless stages
ask for it ahead; stages and programs that share a core let memory, matrix units and vector units work
at the same time. A core issues a few instructions per clock, and small tiles take many: each turn has
its own, and where a product has fewer matrix tiles than a program has warps, several compute the same.

The model ranks configurations, so that a tuner need not compile and measure all of them; its absolute
times are rough.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf, prod, sqrt
from operator import ge
from typing import Literal

from superopt.codegen.statements import (
    Compute,
    KernelProgram,
    Load,
    LoopStatement,
    Move,
    Statement,
    Tensor,
    axis_strides,
)
from superopt.cost.device import Device
from superopt.cost.estimates import drawn, product_sides
from superopt.cost.work import exp_axes, find_masks, kept_share, scalar_work, work_axes
from superopt.dtypes import DTYPES
from superopt.ir import Step, value_axes
from superopt.precision import is_wide, operand_dtypes, product_dtype

__all__ = ["TileConfig", "config_us"]

_LATENCY_S = 0.7e-6  # seconds that a read from a GPU's memory takes, and the start of a program
_CACHE_LATENCY_S = 0.25e-6  # seconds that a read from the cache takes
_TURN_S = 0.04e-6  # seconds for the branch, addresses and barriers of one turn of a loop
_SECTOR = 64  # bytes: two sectors of a cache line, which memory delivers together
_MATRIX_SIDES = 8, 16  # the fewest positions on the two sides of a matrix product of tiles
# Instructions of a warp, counted in the machine code of 45 kernels of few rows: for a turn of a loop, a copy
# of 512 bytes, a copy of a tile by a descriptor (each warp waits for it), a product of 16 x 8 x 16 numbers,
# 16 x 16 numbers of the operand that all warps read, and an operation on 32 numbers.
_TURN, _COPY, _DESCRIBED, _PRODUCT, _OPERAND, _OPERATION = 34.0, 2.7, 17.0, 2.4, 2.2, 2.0
_COPIED = 512  # bytes
_COPIED_LANE = 4  # bytes that each thread copies ahead at least; it waits for fewer
_SCHEDULERS = 4  # schedulers of a core; each issues at most one instruction per clock
_ISSUING = 0.6  # the share of that rate which real kernels reach
_SPECIAL = 16  # special functions that a core takes per clock
# The share of each shorter time that the longest time does not hide, and that share for the time of issuing
# instructions: of two kernels that wait for memory equally long the simpler one is better.
_UNHIDDEN, _EXPOSED = 0.1, 0.2
_SCALED = 3  # operations per number of an operand whose rows are scaled: absolute value, maximum, product
_WIDE_ROWS = 64  # rows of a product that four warps compute together
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}  # bytes of a number that a matrix unit reads
_BUSY_WARPS = 8  # warps that keep all units of a core busy; instructions of one warp overlap, too
_MOST_PROGRAMS = 32  # programs that a core holds at a time, at most
_LANE_BYTES = 255 * 4  # registers of a thread
_LANE_OVERHEAD = 40 * 4  # bytes of registers that a thread needs for addresses and the like
_CACHE_SHARE = 0.75  # the share of the cache that keeps the tensors of a wave


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Tiles and options of one kernel; axes without a tile are whole in one."""

    tiles: Mapping[str, int]
    warps: int = 4
    stages: int = 3
    shared_bytes: int = 0  # shared memory that one program takes
    register_bytes: int = 0
    precision: Literal["ieee", "tf32", "tf32x3"] = "ieee"  # how fp32 numbers are multiplied
    # Operands that may be of any size are rounded to fp16 as they are; else their rows are scaled first.
    half_products: bool = True
    descriptors: bool = False  # whether tensor descriptors copy tiles, without instructions of the warps
    # What the compiler made of it, where it was asked: the registers of a thread, and the instructions of a
    # warp in a turn of a loop, with all turns of loops within it.
    registers: int = 0
    loop_instructions: int = 0


def config_us(program: KernelProgram, config: TileConfig, device: Device) -> float:
    """Return the modelled time of a kernel; infinite where a program does not fit on a core."""
    return _Model(program, config, device).us()


def _issue_rate(device: Device) -> float:
    """Return the instructions of warps that a device issues in a second."""
    clocks = device.exp_per_s / _SPECIAL  # clocks per second of all cores together
    return _ISSUING * _SCHEDULERS * clocks


def _busy(warps: int) -> float:
    """Return the share of a core's rates that so many warps reach."""
    return min(1.0, sqrt(warps / _BUSY_WARPS))


@dataclass(slots=True)
class _Program:
    """What one program does."""

    matrix_s: float = 0.0  # seconds on the matrix units of the whole device
    vector: float = 0.0
    exps: float = 0.0
    shared: float = 0.0  # bytes between shared memory and the matrix units
    turns: int = 0  # turns of all loops
    waits: int = 0  # turns that wait for a tile which is too small to be copied ahead
    issued: float = 0.0  # instructions of all its warps


class _Model:
    """One kernel under one configuration on one device."""

    def __init__(self, program: KernelProgram, config: TileConfig, device: Device) -> None:
        self.program = program
        self.graph = program.graph
        self.config = config
        self.device = device
        self.sizes = self.graph.sizes
        self.axes = value_axes(self.graph)
        self.tensors = {tensor.value: tensor for tensor in program.loads}
        steps = ((one.value, one.step) for one, _ in program.flat() if isinstance(one, Compute))
        memory = {tensor.value: tensor.dtype for tensor in program.loads}
        self.dtypes = operand_dtypes(self.graph, steps, memory)
        self.made = {one.value: self._turns(loops) for one, loops in program.flat() if isinstance(one, Load)}
        for one, loops in program.flat():
            if isinstance(one, Compute):  # the turns after which its value is complete
                self.made[one.value] = self._turns(axis for axis in loops if axis not in one.accumulates)
        self.masks = find_masks(self.graph, self.sizes)
        self.programs = prod(self._count(axis) for axis in program.grid)
        self.resident = self._resident()

    def us(self) -> float:
        """Return the modelled time."""
        if not self.resident:
            return inf
        if not self.programs:
            return self.device.launch_us
        device, config = self.device, self.config
        work = self._work()
        rounds = ceil(self.programs / device.cores)  # programs that the busiest core runs
        active = min(self.resident, rounds)  # programs that it runs at a time
        waves = ceil(rounds / active)
        # The times of one program alone on a core: on matrix units, on vector units, and waiting for memory.
        matrix = device.cores * max(work.matrix_s, work.shared / (device.shared_gbs * 1e9))
        vector = device.cores * (work.vector / device.vector_flops + work.exps / device.exp_per_s)
        issued = device.cores * work.issued / _issue_rate(device)
        alone, together = _busy(config.warps), _busy(active * config.warps)
        # A loop requests tiles some turns ahead: each turn takes at least its share of the latency.
        arrival = work.turns * _LATENCY_S / max(config.stages - 1, 1) + work.waits * _CACHE_LATENCY_S
        turns = 2 * _LATENCY_S + work.turns * _TURN_S
        # Units overlap where programs share a core, memory and arithmetic where there are stages, too.
        longest = max(matrix, vector, issued)
        longest += _UNHIDDEN * (matrix + vector + issued - longest)
        compute = rounds * longest / together + waves * min(matrix, vector) / alone
        memory = max(self._memory_s(work, active), waves * arrival)
        exposed = waves * min(max(matrix, vector) / alone, arrival) / config.stages
        share = _UNHIDDEN if max(matrix, vector) > issued else _EXPOSED
        rest = share * min(memory, compute)
        return device.launch_us + (max(memory, compute) + rest + exposed + waves * turns) * 1e6

    def _tile(self, axis: str) -> int:
        return max(self.config.tiles.get(axis, self.sizes[axis]), 1)

    def _count(self, axis: str) -> int:
        """Return how many tiles an axis has."""
        return ceil(self.sizes[axis] / self._tile(axis))

    def _used(self, axis: str) -> float:
        """Return the positions of an average tile that are not beyond the end."""
        return self.sizes[axis] / max(self._count(axis), 1)

    def _turns(self, loops: Iterable[str]) -> int:
        return prod(self._count(axis) for axis in loops)

    def _turns_of(self, statements: tuple[Statement, ...]) -> int:
        """Return how many turns loops make in all."""
        loops = [one for one in statements if isinstance(one, LoopStatement)]
        return sum(self._count(loop.axis) * max(self._turns_of(loop.body), 1) for loop in loops)

    def _resident(self) -> int:
        """Return how many programs a core holds at a time; none where one is too large for it."""
        device, config = self.device, self.config
        if config.shared_bytes > device.shared_bytes or config.warps > device.warps_per_core:
            return 0
        lanes = config.warps * device.lanes_per_warp
        registers = config.registers * 4 * lanes or min(
            config.register_bytes + lanes * _LANE_OVERHEAD, lanes * _LANE_BYTES
        )
        found = [_MOST_PROGRAMS, device.warps_per_core // config.warps]
        found.append(device.registers_per_core * 4 // registers)
        if config.shared_bytes:
            found.append(max(device.shared_per_core // config.shared_bytes, 1))
        return max(min(found), 1)

    def _work(self) -> _Program:
        work = _Program(turns=self._turns_of(self.program.statements))
        looped = _TURN * self.config.warps * max(work.turns, 1)
        loaded = frozenset(self.tensors)
        for one, loops in self.program.flat():
            before = work.issued
            if isinstance(one, Compute):
                self._add(work, one, self._turns(loops), loaded)
            elif isinstance(one, Load):
                copied = _COPY * self._tile_bytes(self.tensors[one.value]) / _COPIED
                described = _DESCRIBED * self.config.warps
                work.issued += self._turns(loops) * (described if self.config.descriptors else copied)
                if (
                    loops
                    and self._tile_bytes(self.tensors[one.value]) < _COPIED_LANE * 32 * self.config.warps
                ):
                    work.waits += self._turns(loops)
            elif isinstance(one, Move):
                self._add_move(work, one, self._turns(loops))
            looped += work.issued - before if loops else 0.0
            work.issued = before if loops else work.issued
        outer = sum(
            self._count(one.axis) for one in self.program.statements if isinstance(one, LoopStatement)
        )
        work.issued += self.config.loop_instructions * self.config.warps * outer or looped
        return work

    def _add(self, work: _Program, one: Compute, turns: int, loaded: frozenset[int]) -> None:
        """Add the arithmetic of a step in so many turns, that of padding included."""
        axes = work_axes(self.graph, self.axes, one.value, one.step, loaded)
        flops = turns * self._points(axes) * scalar_work(one.step.op).flops
        dtype, times = self._multiplied(one.step) if one.step.op == "contract" else ("", 0)
        sides = self._sides(one) if times else (1, 1)
        if times and all(map(ge, sorted(sides), _MATRIX_SIDES)):
            work.matrix_s += times * flops / self.device.matrix_flops[dtype]
            # A tile product of M x N x K reads MK and KN numbers.
            work.shared += times * flops / 2 * (1 / sides[0] + 1 / sides[1]) * _BYTES[dtype]
            work.issued += times * turns * self._products(one.step, sides) * _BYTES[dtype] / 2
            scaling = self._scaling(one, dtype, turns)
            work.vector += scaling
            work.issued += _OPERATION * scaling / self.device.lanes_per_warp
        else:
            work.vector += flops
            work.issued += _OPERATION * flops / self.device.lanes_per_warp
            special = exp_axes(self.axes, one.step, axes)
            work.exps += turns * self._points(special) * scalar_work(one.step.op).exps

    def _products(self, step: Step, sides: tuple[int, int]) -> float:
        """Return the instructions of all warps that multiply tiles with these sides."""
        inner = prod(map(self._tile, step.axes)) / 16
        if min(sides) >= _WIDE_ROWS and self.device.capability == "90":
            return _PRODUCT * 4 * inner * max(sides) / _WIDE_ROWS
        shared = (
            min(sides) / 16
        )  # the side of the operand that all warps read; up to 8 rows are columns of the instruction
        products = ceil(shared) * ceil(max(sides) / 8) if shared > 0.5 else ceil(max(sides) / 16)
        alike = max(self.config.warps / products, 1.0)
        return inner * (_PRODUCT * products * alike + _OPERAND * shared * self.config.warps)

    def _scaling(self, one: Compute, dtype: str, turns: int) -> float:
        """Return the operations that scale operands where they are made, and products in so many turns."""
        if dtype != "f16" or self.config.half_products:
            return 0.0
        scaled = [i for i in one.step.inputs if is_wide(self.graph, i, self.dtypes)]
        operands = sum(
            self.made.get(i, turns) * _SCALED * prod(map(self._tile, self.axes[i])) for i in scaled
        )
        return operands + turns * len(scaled) * prod(map(self._tile, self.axes[one.value]))

    def _multiplied(self, step: Step) -> tuple[str, int]:
        """Return the rate at which a contraction multiplies, and how often; 0 times on the vector units."""
        dtype = product_dtype(self.graph, step, self.dtypes)
        if dtype in ("f32", "f64"):
            return "tf32", {"ieee": 0, "tf32": 1, "tf32x3": 3}[self.config.precision]
        return dtype, 1

    def _points(self, axes: frozenset[str]) -> float:
        """Return the positions of a tile along these axes that no mask spares."""
        return prod(map(self._tile, axes)) * kept_share(self.masks, axes)

    def _add_move(self, work: _Program, one: Move, turns: int) -> None:
        """Add what moves a running shift and rescales what was added up under the old one."""
        shifts = prod(map(self._tile, self.axes[one.value]))
        rescaled = sum(prod(map(self._tile, self.axes[value])) for value, _ in one.rescales)
        work.vector += turns * (rescaled + shifts * scalar_work(one.step.op).flops)
        work.exps += turns * shifts

    def _sides(self, one: Compute) -> tuple[int, int]:
        """Return how long the sides of a contraction are within a tile."""
        a, b = product_sides(self.graph, self.axes, one.step.inputs)
        return prod(map(self._tile, a)), prod(map(self._tile, b))

    def _tile_bytes(self, tensor: Tensor) -> float:
        """Return the bytes of a tile, those of padding left out."""
        return prod(self._used(axis) for axis in tensor.axes) * DTYPES[tensor.dtype].bytes

    def _sectors(self, tensor: Tensor) -> float:
        """Return how many times the bytes of a tile its whole sectors have."""
        strides = {axis: place for place, axis in enumerate(reversed(tensor.axes))}
        if tensor.port is not None and tensor.port.strides is not None:
            strides = axis_strides(tensor.port, tensor.port.strides, self.sizes)
        run = float(DTYPES[tensor.dtype].bytes)
        for axis in sorted(tensor.axes, key=strides.__getitem__):
            run *= self._used(axis)
            if self._tile(axis) < self.sizes[axis]:
                break
        else:
            return 1.0
        return max(_SECTOR / run, 1.0) if run else 1.0  # an empty tensor moves nothing

    def _memory_s(self, work: _Program, active: int) -> float:
        """Return the time of all traffic below the cores."""
        device = self.device
        memory = cached = 0.0
        wave = min(self.programs, device.cores * active)
        seen: set[int] = set()
        for one, loops in self.program.flat():
            if not isinstance(one, Load):
                continue
            tensor = self.tensors[one.value]
            tile = self._tile_bytes(tensor)
            asked = self.programs * self._turns(loops) * tile
            cached += asked * self._sectors(tensor)
            memory += self._from_memory(tensor, asked, wave, again=one.value in seen)
            seen.add(one.value)
        for tensor in self.program.stores:
            size = self._bytes(tensor)
            cached += size * self._sectors(tensor)
            if tensor.port is not None or size > device.l2_bytes:
                memory += size
        cached += self._spilled(work)
        share = drawn(device, self.programs / device.cores)
        rates = device.memory_gbs * 1e9 * share, device.l2_gbs * 1e9 * share
        return max(memory / rates[0], cached / rates[1])

    def _bytes(self, tensor: Tensor) -> int:
        return prod(self.sizes[axis] for axis in tensor.axes) * DTYPES[tensor.dtype].bytes

    def _from_memory(self, tensor: Tensor, asked: float, wave: int, *, again: bool) -> float:
        """Return the bytes of a tensor that the shared cache does not hold when they are asked for."""
        distinct = self._bytes(tensor)
        room = self.device.l2_bytes * _CACHE_SHARE
        if distinct <= room:
            held = again or tensor.port is None
            return 0.0 if held else min(distinct, asked)
        # The programs of a wave read a shared tensor together; the next wave finds little of it in the cache.
        share, left = 1.0, wave
        for axis in self._launch_order():
            together = max(min(self._count(axis), left), 1)
            if axis in tensor.axes:
                share *= together
            left = ceil(left / together)
        waves = max(self.programs / wave, 1.0)
        if again and distinct / max(waves, 1.0) <= room:
            return 0.0
        return max(min(asked * share / wave, asked), min(distinct, asked))

    def _launch_order(self) -> list[str]:
        """Return the grid axes, those along which consecutive programs lie first."""
        tiled = [axis for axis in self.program.grid if self._tile(axis) > 1]
        single = [axis for axis in self.program.grid if self._tile(axis) == 1]
        return [*tiled, *reversed(single)]

    def _spilled(self, work: _Program) -> float:
        """Return the bytes of registers that do not fit, written and read in every turn of the loops."""
        lanes = self.config.warps * self.device.lanes_per_warp
        spilled = max(self.config.register_bytes - lanes * (_LANE_BYTES - _LANE_OVERHEAD), 0)
        return 2.0 * spilled * max(work.turns, 1) * self.programs
