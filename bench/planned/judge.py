"""Judge: what the compiler makes of one kernel, and what is wrong with it beside kernels written by hand."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.bench.harness.records import Record, first_line
from superopt.bench.kernels.cases import Case
from superopt.cache import versions
from superopt.candidates import Candidate
from superopt.codegen.statements import Compute, KernelProgram, Load, lower_block
from superopt.codegen.triton.choices import exact_axes
from superopt.codegen.triton.plan import inner_turns
from superopt.codegen.triton.run.machine_code import MachineCode, read_machine_code
from superopt.cost import Device
from superopt.dtypes import DTYPES, HALVES
from superopt.errors import SuperoptError
from superopt.ir import value_axes
from superopt.precision import half_of
from superopt.targets.cuda import CudaTarget
from superopt.tune.pool import JobResult, TritonJob

__all__ = ["FINDINGS", "AuditedKernel", "job_of", "judged", "mark_of", "reasoned"]

FINDINGS = {
    "wide": "matrix instructions of tf32 in a program in half precision",
    "library": "a library's product of fp32 in a program in half precision",
    "vectors": "a product of matrices without matrix instructions",
    "old": "a product of many rows without wgmma",
    "waits": "a product of many rows with neither tensor copies nor three stages of copies",
    "synchronous": "the hot loop of few rows waits for its loads",
    "nested": "a loop within the hot loop with no more turns than there are stages, whose loads wait",
    "instructions": "more than 60 instructions of a warp for each KB of weights in a loop of few rows",
    "spills": "registers that do not fit",
    "fails": "the compiler refuses it, or a program needs more memory than it has on chip",
}
"""What is wrong with a kernel, by the word for it."""

_MOST_INSTRUCTIONS = 60.0  # of a warp for each KB
_LEAST_ROWS = 8  # of a tile, from which on there are matrix instructions
_MANY_ROWS = 64  # of a tile, from which on wgmma has its shape
_STAGES = 3
_SMALL = 1 << 20  # bytes of weights and caches
_WGMMA_FROM = 90
_REGISTERS = 65536  # of a multiprocessor
_WAY = 2  # of judging kernels: raised where a record of the same kernels changes
_MARK = 12  # letters


@dataclass(frozen=True, slots=True)
class AuditedKernel:
    """A kernel of a candidate that is compiled."""

    case: Case
    region: int
    place: int  # of the candidate
    number: int
    candidate: Candidate
    config: Any

    @property
    def program(self) -> KernelProgram:
        """What it does, before it is printed."""
        return lower_block(self.candidate.mugraph, self.number)


def job_of(kernel: AuditedKernel, target: CudaTarget) -> TritonJob | str:
    """Return the work of compiling a kernel, or why it cannot be written."""
    try:
        return target.job(
            kernel.case.name, kernel.candidate.mugraph, kernel.number, kernel.config, texts=True
        )
    except SuperoptError as error:
        return first_line(str(error))


def mark_of(kernel: AuditedKernel, job: TritonJob | str, target: CudaTarget) -> str:
    """Return what stands for a kernel, its compiler, and the way it is judged."""
    program = kernel.program
    parts = [f"{_WAY}", target.name, versions()["compiler"], kernel.case.suite]
    parts.append(
        f"{inner_turns(program, kernel.config.blocks)} {[one.port is not None for one in program.loads]}"
    )
    if isinstance(job, str):
        parts.append(job)
    else:
        source = job.source
        parts += [source.text, f"{source.arguments} {sorted(source.config.tiles)} {source.config.options}"]
        parts.append(f"{sorted((job.numbers or {}).items())}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_MARK]


def judged(kernel: AuditedKernel, result: JobResult | str, target: CudaTarget) -> Record:
    """Return the record of a kernel that was compiled, or could not be."""
    mugraph, config = kernel.candidate.mugraph, kernel.config
    tiles = {"tiles": dict(config.tiles), "warps": config.num_warps, "stages": config.num_stages}
    failure = result if isinstance(result, str) else result.failure or target.unfit(result.made)
    if isinstance(result, str) or failure is not None:
        return {**tiles, "failure": failure, "findings": ["fails"]}
    made = result.made
    program = kernel.program
    code = read_machine_code(made.ptx, made.sass, inner_turns=inner_turns(program, config.blocks))
    device = target.cost_device()
    exact = exact_axes(config, mugraph.graph.sizes, program.splits)
    turn, own = _turn_bytes(program, config), _own_bytes(program, config)
    copied = code.loop_copies or code.loop_tensor_copies
    ahead = max(config.num_stages - 1, 1) if copied else 1
    resident = _resident(made.registers, made.shared_bytes, config.num_warps, device)
    instructions = code.loop * config.num_warps / (own / 1024) if own and code.loop else None
    record = {
        **tiles,
        "matrix": code.matrix,
        "registers": made.registers,
        "spill_bytes": made.spill_bytes,
        "shared_kib": made.shared_bytes >> 10,
        "loop": code.loop,
        "loop_matrix": code.loop_matrix,
        "copies": code.loop_copies,
        "tensor_copies": code.loop_tensor_copies,
        "loads": code.loop_loads,
        "barriers": code.loop_barriers,
        "shuffles": code.loop_shuffles,
        "divides": code.loop_divides,
        "masked": sorted(set(program.looped) & set(config.blocks) - exact),
        "instructions_per_kib": None if instructions is None else round(instructions, 1),
        "in_flight_kib": round(resident * ahead * turn / 1024, 1),
    }
    counted = kernel.case.suite == "decode" and _streamed_bytes(program, config) >= _SMALL
    return record | {"findings": _findings(program, config, code, record, target, counted=counted)}


def _findings(
    program: KernelProgram,
    config: Any,
    code: MachineCode,
    record: Record,
    target: CudaTarget,
    *,
    counted: bool,
) -> list[str]:
    """Return what is wrong with a kernel, in the order of `FINDINGS`.

    The instructions of a loop, and what it waits for, count where few rows meet much that is read.
    """
    found = set()
    rows = _rows(program, config)
    is_half = half_of(program.graph) in HALVES
    if is_half and "tf32" in code.types:
        found.add("wide")
    if is_half and rows and not code.matrix:
        found.add("vectors")
    many = rows is not None and rows >= _MANY_ROWS
    if is_half and many and code.matrix:
        if target.capability >= _WGMMA_FROM and not any(name.startswith("wgmma") for name in code.matrix):
            found.add("old")
        if not (record["tensor_copies"] or (record["copies"] and config.num_stages >= _STAGES)):
            found.add("waits")
    if program.looped and not many and code.loop and counted:
        if not (record["copies"] or record["tensor_copies"]) and config.num_stages > 1:
            found.add("synchronous")
        if (record["instructions_per_kib"] or 0) > _MOST_INSTRUCTIONS:
            found.add("instructions")
    if record["spill_bytes"]:
        found.add("spills")
    return [word for word in FINDINGS if word in found]


def reasoned(kernel: AuditedKernel, record: Record) -> Record:
    """Return the record of a kernel with what follows from its program, and the reasons for findings."""
    program, blocks = kernel.program, kernel.config.blocks
    nested = {"nested"} if 0 < inner_turns(program, blocks) <= kernel.config.num_stages else set()
    found = [word for word in FINDINGS if word in nested or word in set(record["findings"]) - {"nested"}]
    record = {**record, "findings": found, "exceptions": {}}
    if "instructions" in found:
        asked = _arithmetic(program, kernel.config) / (_own_bytes(program, kernel.config) / 1024)
        record["arithmetic_per_kib"] = round(asked, 1)
        if record["instructions_per_kib"] - asked <= _MOST_INSTRUCTIONS:
            record["exceptions"] = {"instructions": "arithmetic"}
    return record


def _arithmetic(program: KernelProgram, config: Any) -> float:
    """Return the instructions of warps that the arithmetic on vectors takes at least, in a turn of the loops.

    Those are one for each operation on 32 numbers, and one that makes 32 numbers in half precision wider.
    """
    axes, tensors = value_axes(program.graph), {tensor.value: tensor for tensor in program.loads}
    numbers = 0.0
    wider: set[int] = set()
    for one, loops in program.flat():
        if not isinstance(one, Compute) or not loops or one.step.mapping or not one.step.inputs:
            continue
        met = axes[one.value].union(*(axes[i] for i in one.step.inputs))
        sides = [_volume(config.blocks.get(axis, 1) for axis in side) for side in _sides(axes, one)]
        if one.step.op == "contract" and min(sides) >= _LEAST_ROWS:
            continue
        numbers += _volume(config.blocks.get(axis, 1) for axis in met)
        wider |= {i for i in one.step.inputs if i in tensors and tensors[i].dtype in HALVES}
    for value in wider:
        numbers += _volume(config.blocks.get(axis, 1) for axis in tensors[value].axes)
    return numbers / 32


def _sides(axes: Sequence[frozenset[str]], one: Compute) -> tuple[frozenset[str], frozenset[str]]:
    """Return the axes that each operand of a product has for itself; those of others are none."""
    if len(one.step.inputs) != 2:
        return frozenset(), frozenset()
    a, b = (axes[i] for i in one.step.inputs)
    return a - b, b - a


def _rows(program: KernelProgram, config: Any) -> int | None:
    """Return the rows of the smallest tile of a matrix product; None where there is no product."""
    axes, blocks = value_axes(program.graph), config.blocks
    rows = []
    for one, _ in program.flat():
        if isinstance(one, Compute) and one.step.op == "contract":
            a, b = (axes[i] for i in one.step.inputs)
            if a - b and b - a:
                sides = [_volume(blocks.get(axis, 1) for axis in side) for side in (a - b, b - a)]
                if min(sides) > 1:
                    rows.append(max(sides) if min(sides) >= _MANY_ROWS else min(sides))
    return min(rows, default=None)


def _volume(lengths: Iterable[int]) -> int:
    found = 1
    for length in lengths:
        found *= length
    return found


def _turn_bytes(program: KernelProgram, config: Any) -> int:
    """Return the bytes that a turn of each loop reads from memory."""
    return sum(_loop_bytes(program, config, inner_turns=1).values())


def _own_bytes(program: KernelProgram, config: Any) -> int:
    """Return the bytes of weights and caches that a turn reads."""
    sizes = _loop_bytes(program, config, inner_turns=inner_turns(program, config.blocks))
    return sum(sizes[value] for value in _streamed(program, config))


def _streamed_bytes(program: KernelProgram, config: Any) -> int:
    """Return the bytes of all weights and caches that loops read."""
    sizes = program.graph.sizes
    return sum(
        _volume(sizes[axis] for axis in one.axes) * DTYPES[one.dtype].bytes
        for one in program.loads
        if one.value in _streamed(program, config)
    )


def _streamed(program: KernelProgram, config: Any) -> frozenset[int]:
    """Return weights and caches: the inputs that a loop reads, whose tiles no two programs read."""
    looped = {one.value for one, loops in program.flat() if isinstance(one, Load) and loops}
    spread = {
        axis
        for axis in program.grid
        if config.blocks[axis] < program.graph.sizes[axis] and axis not in config.whole
    }
    return frozenset(
        one.value
        for one in program.loads
        if one.value in looped and one.port is not None and spread <= set(one.axes)
    )


def _loop_bytes(program: KernelProgram, config: Any, *, inner_turns: int) -> dict[int, int]:
    """Return the bytes of each tensor that a turn of the outer loops reads, with all turns of inner ones."""
    tensors = {tensor.value: tensor for tensor in program.loads}
    return {
        one.value: _volume(config.blocks.get(axis, 1) for axis in tensors[one.value].axes)
        * DTYPES[tensors[one.value].dtype].bytes
        * (inner_turns if loops[1:] else 1)
        for one, loops in program.flat()
        if isinstance(one, Load) and loops
    }


def _resident(registers: int, shared_bytes: int, warps: int, device: Device) -> int:
    """Return how many programs a multiprocessor holds at a time."""
    found = [_REGISTERS // (registers * 32 * warps), device.warps_per_core // warps]
    if shared_bytes:
        found.append(device.shared_per_core // (shared_bytes + 1024))
    return max(min(found), 1)
