"""Footprint: an estimate of what a program of a kernel holds on chip, before anything is compiled."""

from dataclasses import dataclass
from math import prod, sqrt

from superopt.codegen.statements import Compute, KernelProgram, Load, Start
from superopt.codegen.triton.config import TritonConfig
from superopt.codegen.triton.plan import FEW_ROWS, contractions, scaled_products, sources
from superopt.dtypes import DTYPES, FP8, HALVES
from superopt.ir import selects, value_axes
from superopt.ir.graph import kept_by_identity

__all__ = ["LANE_REGISTERS", "MOST_REGISTERS", "SHARED_BYTES", "Footprint", "footprint", "is_half"]

SHARED_BYTES = 227 << 10  # shared memory that one program may have on sm_90
ADDRESS_BYTES = 20  # for an element far from its neighbours: its place in all loops, and whether it is inside
MOST_REGISTERS = 255  # registers that a thread has
LANE_REGISTERS = 196  # registers of a thread that tiles may take


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a program of a kernel holds on chip."""

    shared_bytes: int  # tiles that loops prefetch
    register_bytes: int  # accumulators, and the two largest tiles or the operands of a product beside them;
    # what is computed from accumulators after their loop takes their place

    def fits(self, config: TritonConfig, shared_bytes: int = SHARED_BYTES) -> bool:
        """Return whether it can run without spilling, as far as an estimate can say."""
        lanes = config.num_warps * 32
        registers = LANE_REGISTERS - (MOST_REGISTERS - (config.most_registers or MOST_REGISTERS))
        return self.shared_bytes <= shared_bytes and self.register_bytes <= lanes * 4 * registers


def footprint(program: KernelProgram, config: TritonConfig) -> Footprint:
    """Return an estimate of what a program holds on chip."""
    axes = value_axes(program.graph)
    tensors = sources(program)
    blocks = config.blocks

    def elements(value: int) -> int:
        return prod(blocks.get(axis, 1) for axis in axes[value])

    shared = largest = beside = fresh = 0
    filled = False  # whether accumulators are there, and what fills them has ended
    kept = _kept_operands(program, config) + _addresses(program, config)
    products = _products(program)
    scaled = frozenset() if config.half_products else scaled_products(program)
    for rows, columns, inner in contractions(program) if not is_half(program) else ():
        if rows and columns and config.precision == "ieee":
            made = prod(blocks.get(axis, 1) for axis in (*rows, *columns))
            summed = prod(blocks.get(axis, 1) for axis in inner)
            largest = max(largest, _multiplied(made, summed, config.num_warps * 32) // 2)
    for statement, loops in program.flat():
        if isinstance(statement, Load):
            size = elements(statement.value) * DTYPES[tensors[statement.value].dtype].bytes
            shared += size * (config.num_stages if loops else 1)
            beside += 0 if loops or not filled else size
        elif isinstance(statement, Start):
            size = elements(statement.value)
            if statement.value not in products:
                size = max(size, _late(program, config, statement.value, beside_products=bool(products)))
            kept += size * 4
        elif isinstance(statement, Compute):
            filled |= bool(statement.accumulates)
            if filled and not loops:
                continue
            if statement.value in products and statement.accumulates:
                if statement.value in scaled:  # the operands of a turn are scaled first
                    fresh = max(fresh, elements(statement.value) * 4)
                continue  # the accumulator itself
            size = elements(statement.value)
            if statement.step.places:  # a load, from other places
                read = tensors[statement.step.inputs[0]]
                shared += size * DTYPES[read.dtype].bytes * (config.num_stages if loops else 1)
                continue
            if statement.step.op == "contract" and selects(program.graph, statement.step):
                size = prod(
                    blocks.get(axis, 1)
                    for axis in axes[statement.step.inputs[0]] | axes[statement.step.inputs[1]]
                )
            largest = max(largest, size * 4)
    return Footprint(shared, kept + fresh + max(2 * largest, beside))


def _addresses(program: KernelProgram, config: TritonConfig) -> int:
    """Return the bytes of registers that addresses take in loops over windows, which have few neighbours."""
    if not any(step.places for step in program.steps()):
        return 0
    axes, blocks, loaded = value_axes(program.graph), config.blocks, sources(program)
    read: set[int] = set()
    for statement, loops in program.flat():
        if isinstance(statement, Compute) and loops:
            step = statement.step
            read |= {statement.value} if step.places else {*step.inputs} & loaded.keys()
    return ADDRESS_BYTES * sum(prod(blocks.get(axis, 1) for axis in axes[value]) for value in read)


@kept_by_identity
def _products(program: KernelProgram) -> frozenset[int]:
    """Return the values of contractions that are matrix products."""
    axes = value_axes(program.graph)
    return frozenset(
        one.value
        for one, _ in program.flat()
        if isinstance(one, Compute) and one.step.op == "contract" and not selects(program.graph, one.step)
        if axes[one.step.inputs[0]] - axes[one.step.inputs[1]]
        if axes[one.step.inputs[1]] - axes[one.step.inputs[0]]
    )


def _late(program: KernelProgram, config: TritonConfig, value: int, *, beside_products: bool) -> int:
    """Return the elements of an accumulator that is reduced after its loop; 0 where it is reduced in it."""
    step = program.graph.step_at(value)
    axes = value_axes(program.graph)
    wide = frozenset[str]().union(*(axes[i] for i in step.inputs))
    size = prod(config.blocks.get(axis, 1) for axis in wide)
    return size if config.is_late(size, beside_products=beside_products) else 0


def _multiplied(made: int, summed: int, lanes: int) -> int:
    """Return the bytes of registers that a product of fp32 numbers without tensor cores takes.

    Each thread holds the rows and columns of its elements, of which the compiler saves about a third.
    """
    side = sqrt(max(made / lanes, 1))
    return int(2 * side * summed * 0.7) * 4 * lanes


def _kept_operands(program: KernelProgram, config: TritonConfig) -> int:
    """Return the bytes of registers in which operands of fp32 products on tensor cores stay for a loop.

    What does not change in a loop is taken apart once, into as many numbers as the precision has; of its
    rows a warp holds no fewer than the hardware multiplies, so several warps hold the same ones.
    """
    parts = {"ieee": 0, "tf32": 1, "tf32x3": 2}[config.precision]
    if is_half(program) or not parts:
        return 0
    axes = value_axes(program.graph)
    made: dict[int, tuple[str, ...]] = {}
    total = 0
    for statement, loops in program.flat():
        if isinstance(statement, (Load, Compute)):
            made[statement.value] = loops
        if isinstance(statement, Compute) and statement.step.op == "contract":
            for i in statement.step.inputs:
                if len(made.get(i, loops)) < len(loops):
                    inner = prod(config.blocks.get(axis, 1) for axis in statement.step.axes)
                    free = axes[i] - frozenset(statement.step.axes)
                    rows = prod(config.blocks.get(axis, 1) for axis in free)
                    total += max(rows, FEW_ROWS * config.num_warps) * inner * parts * 4
    return total


def is_half(program: KernelProgram) -> bool:
    """Return whether products are of half precision: in a program in it, and of operands of eight bits."""
    if any(port.dtype in HALVES for port in program.graph.inputs):
        return True
    loaded = sources(program)
    operands = [step.inputs for step in program.steps() if step.op == "contract"]
    return bool(operands) and all(i in loaded and loaded[i].dtype in FP8 for pair in operands for i in pair)
