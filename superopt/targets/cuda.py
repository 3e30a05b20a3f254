"""CudaTarget: a CUDA device, here or elsewhere, through Triton."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from math import inf
from typing import Any

import torch

from superopt.cache import versions
from superopt.codegen.configjson import config_from_json
from superopt.codegen.errors import UnsupportedError
from superopt.codegen.statements import KernelProgram, lower_block
from superopt.codegen.triton import (
    CompileReport,
    TritonConfig,
    TritonMuGraph,
    configs,
    default_config,
    emit,
)
from superopt.codegen.triton.choices import exact_axes, misfit
from superopt.codegen.triton.descriptors import described
from superopt.codegen.triton.footprint import MOST_REGISTERS, footprint
from superopt.codegen.triton.plan import contractions, inner_turns
from superopt.codegen.triton.run.machine_code import read_machine_code
from superopt.codegen.triton.source import DESCRIPTORS_FROM
from superopt.cost import Device, TileConfig, config_us, device_named, device_of
from superopt.errors import InputError, SuperoptError, first_line
from superopt.ir import Block, MuGraph
from superopt.targets.target import Configs, Job, Kernel, KernelReport, Target
from superopt.targets.tf32 import is_tf32
from superopt.tune.gpu import times_on_cuda
from superopt.tune.measure import Times
from superopt.tune.pool import JobResult, TritonJob, compile_all

__all__ = ["CudaTarget", "capability_here"]

_MOST_WORKERS = 8
_LEAST_LIMIT_S = 20.0  # seconds that compiling one kernel may take, at least
_LEAST_BUILDERS = 2
_CONTEXT_BYTES = 1 << 30  # device memory that a process takes before it has a tensor
# Memory of a process, in sizes of its inputs: they are drawn in fp32, and there are results as well.
_TENSORS = 8
_PROCESS_BYTES = 4 << 30  # main memory that a process takes
_LEAST_REGISTERS = 32  # of a thread: with fewer, kernels do not compile
_WORD = 4  # bytes: Triton counts spilled words


class _TimeUpError(Exception):
    """No time is left to compile more."""


@dataclass(frozen=True, slots=True)
class CudaTarget(Target):
    """A CUDA device of a compute capability; `device` names the one that predictions are for."""

    capability: int
    device: str = ""
    torch_device: str = "cuda"
    clears_caches: bool = True
    threadsafe: bool = False
    errors: tuple[type[Exception], ...] = (Exception,)  # the compiler and the driver may raise anything

    @property
    def name(self) -> str:
        """The name that chooses it."""
        return f"cuda:{self.capability}"

    @property
    def available(self) -> bool:
        """Whether such a device is here, with Triton to make kernels for it."""
        return capability_here() == self.capability

    @property
    def device_name(self) -> str:
        """The device here by name, or the one that predictions are for."""
        if self.available:
            return str(torch.cuda.get_device_name())
        return self.device or self.name

    def key_parts(self) -> dict[str, str]:
        """Return what results depend on."""
        compiler = versions()["compiler"] + (" tf32" if is_tf32() else "")  # decides which kernels are tried
        return {"device": f"{self.name} {self.device_name}", "compiler": compiler}

    def builders(self, size: int) -> int:
        """Return as many as there are cores, as far as memory goes: each one is a process with a context."""
        each = _CONTEXT_BYTES + _TENSORS * size
        free, _ = torch.cuda.mem_get_info()
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return max(min(_workers(), free // each, memory // _PROCESS_BYTES), _LEAST_BUILDERS)

    def default_configs(self, mugraph: MuGraph) -> Configs:
        """Return the default configuration of every kernel."""
        return tuple(
            default_config(lower_block(mugraph, number), mugraph.graph.sizes, shared_bytes=self._shared_bytes)
            if isinstance(kernel, Block)
            else None
            for number, kernel in enumerate(mugraph.kernels)
        )

    def configs(self, mugraph: MuGraph, number: int) -> Iterator[Any]:
        """Yield the configurations of one kernel, in tf32 where torch's own products may be.

        Those with large tiles come with tensor descriptors too, where the device has them; a kernel without
        products may start while the one before it ends, where the device can do that.
        """
        program, sizes = lower_block(mugraph, number), mugraph.graph.sizes
        early = (
            number
            and self._is_hopper
            and not any(rows and columns for rows, columns, _ in contractions(program))
        )
        for one in configs(program, sizes, tf32=is_tf32(), shared_bytes=self._shared_bytes):
            yield one
            other = described(program, one, sizes) if self._is_hopper and not one.passing else None
            if other is not None:
                yield other
            if early:
                yield replace(one, early=True)

    def config_from_json(self, data: Any) -> Any:
        """Return a configuration from plain data."""
        config = config_from_json(TritonConfig, data)
        warps = config.num_warps in (1, 2, 4, 8, 16, 32)
        if not (warps and 0 < config.num_stages <= 16 and 0 <= config.persistent <= 32):
            raise InputError(f"a configuration for CUDA is wrong: {data!r}")
        if config.most_registers and not _LEAST_REGISTERS <= config.most_registers <= MOST_REGISTERS:
            raise InputError(f"a configuration for CUDA is wrong: {data!r}")
        if config.early and not self._is_hopper:
            raise InputError(f"a configuration starts early; {self.name} cannot do that, cuda:90 can")
        if config.descriptors and not self._is_hopper:
            raise InputError(f"a configuration has tensor descriptors; {self.name} has none, cuda:90 has")
        return config

    def misfit(self, mugraph: MuGraph) -> str | None:
        """Return why a program of a kernel holds too much, in the default configuration."""
        for number, kernel in enumerate(mugraph.kernels):
            if isinstance(kernel, Block):
                reason = misfit(lower_block(mugraph, number), mugraph.graph.sizes, self._shared_bytes)
                if reason is not None:
                    return f"kernel {number}: {reason}"
        return None

    def sources(self, mugraph: MuGraph, configs: Configs) -> tuple[str, ...]:
        """Return the Triton text of every kernel."""
        return tuple(
            self._source(mugraph, number, config).text
            for number, config in enumerate(configs)
            if config is not None
        )

    def make(self, mugraph: MuGraph, configs: Configs) -> Kernel:
        """Return the muGraph as kernels that Triton compiles at their first launch."""
        self.sources(mugraph, configs)  # a kernel that cannot be written fails before anything runs
        return TritonMuGraph(mugraph, configs)

    def compiled(self, kernel: Kernel) -> Mapping[int, KernelReport]:
        """Return what Triton made of the kernels that have run."""
        if not isinstance(kernel, TritonMuGraph):
            return {}
        name = kernel.graph.name.replace(".", "_")
        return {
            number: KernelReport(
                f"{name}_{number}",
                shared_bytes=made.metadata.shared,
                registers=made.n_regs,
                spill_bytes=_WORD * made.n_spills,
            )
            for number, made in kernel.compiled.items()
        }

    def job(self, name: str, mugraph: MuGraph, number: int, config: Any, *, texts: bool = False) -> TritonJob:
        """Return the work of compiling one kernel as it is called at the sizes of its muGraph."""
        source = self._source(mugraph, number, config)
        numbers = source.numbers(lower_block(mugraph, number), mugraph.graph.sizes)
        return TritonJob(name, source, self.name, numbers=numbers, texts=texts)

    def compile_ahead(
        self, jobs: Sequence[Job], *, seconds: float, on_done: Callable[[int, KernelReport | str], None]
    ) -> None:
        """Compile kernels in processes of their own, and hand over each one's report."""
        waiting = []
        for at, (mugraph, number, config) in enumerate(jobs):
            try:
                waiting.append(self.job(str(at), mugraph, number, config, texts=True))
            except SuperoptError as error:
                on_done(at, first_line(error))
        deadline = time.monotonic() + seconds

        def done(result: JobResult) -> None:
            at = int(result.name)
            made = result.made
            failure = result.failure or self.unfit(made)
            on_done(at, failure or self._as_compiled(*jobs[at], made))
            if time.monotonic() > deadline:
                raise _TimeUpError

        with suppress(_TimeUpError):
            compile_all(waiting, workers=_workers(), limit_seconds=max(seconds, _LEAST_LIMIT_S), on_done=done)

    def synchronize(self) -> None:
        """Wait until all that was launched has ended."""
        torch.cuda.synchronize()

    def times(
        self,
        contenders: Mapping[str, Callable[..., Any]],
        inputs: Sequence[tuple[Any, ...]],
        *,
        seconds: float,
        **rounds: Any,
    ) -> dict[str, Times]:
        """Return the times of functions call by call, taken in turns, the cache cleared before each call."""
        return times_on_cuda(contenders, inputs, seconds=seconds, **rounds)

    def cost_device(self) -> Device:
        """Return the device that the cost model reckons with."""
        return _device(self.device_name if self.available else self.device, self.capability)

    def predictions(self, mugraph: MuGraph, number: int, configs: Sequence[Any]) -> list[float | None]:
        """Return the predicted time of one kernel in each configuration; None where it does not fit."""
        program, device = lower_block(mugraph, number), self.cost_device()
        times = [config_us(program, self.tiles(program, one), device) for one in configs]
        return [us if us < inf else None for us in times]

    def tiles(self, program: KernelProgram, config: Any) -> TileConfig:
        """Return the blocks of a configuration, its options, and what a program holds."""
        held = footprint(program, config)
        return TileConfig(
            config.blocks,
            config.num_warps,
            config.num_stages,
            held.shared_bytes,
            held.register_bytes,
            config.precision,
            config.half_products,
            config.descriptors,
        )

    def unfit(self, made: CompileReport) -> str | None:
        """Return why a compiled kernel cannot run on the device; None where it can."""
        if made.shared_bytes <= self._shared_bytes:
            return None
        has = f"a program on {self.device_name} has {self._shared_bytes >> 10}"
        return f"it takes {made.shared_bytes >> 10} KiB of shared memory; {has}"

    def _as_compiled(self, mugraph: MuGraph, number: int, config: Any, made: CompileReport) -> KernelReport:
        """Return the report on a kernel, its time predicted from what the compiler made of it."""
        program = lower_block(mugraph, number)
        code = read_machine_code(made.ptx, made.sass, inner_turns=inner_turns(program, config.blocks))
        tiles = replace(
            self.tiles(program, config),
            shared_bytes=made.shared_bytes,
            registers=made.registers,
            loop_instructions=code.loop,
        )
        us = config_us(program, tiles, self.cost_device())
        return KernelReport(
            f"{mugraph.graph.name.replace('.', '_')}_{number}",
            predicted_us=us if us < inf else None,
            shared_bytes=made.shared_bytes,
            registers=made.registers,
            spill_bytes=made.spill_bytes,
        )

    @property
    def _shared_bytes(self) -> int:
        return self.cost_device().shared_bytes

    @property
    def _is_hopper(self) -> bool:
        """Whether it is an H100 or later, with tensor descriptors and kernels that start early."""
        return self.capability >= DESCRIPTORS_FROM

    def _source(self, mugraph: MuGraph, number: int, config: Any) -> Any:
        program = lower_block(mugraph, number)
        exact = exact_axes(config, mugraph.graph.sizes, program.splits)
        source = emit(program, replace(config, exact=exact))
        reason = source.refusal(self.capability)
        if reason is not None:
            raise UnsupportedError(f"{source.name}: not for {self.name}: {reason}")
        return source


def _workers() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_WORKERS)


def capability_here() -> int | None:
    """Return the compute capability of the device here, or None without one that Triton serves."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@cache
def _device(name: str, capability: int) -> Device:
    """Return a device by a name of ours or its driver's, or by its capability."""
    try:
        return device_of(name or f"cuda:{capability}")
    except InputError:
        return device_named(name, divmod(capability, 10))
