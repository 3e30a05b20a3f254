"""CpuTarget: the CPU here, through C++."""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from superopt.codegen.children import Children
from superopt.codegen.configjson import config_from_json
from superopt.codegen.cpp import (
    CppConfig,
    CppMuGraph,
    compile_shared,
    compile_source,
    configs,
    default_config,
    emit,
    find_compiler,
    has_unit_strides,
    lower_kernel,
)
from superopt.codegen.cpp.source import CPP_CONTRACTED, CPP_TYPES
from superopt.codegen.errors import CodegenError, NoCompilerError
from superopt.codegen.processor import cpu_name, vectors
from superopt.cost import Device, host_device
from superopt.cost.cpu import kernel_time
from superopt.errors import InputError, SuperoptError
from superopt.ir import Block, MuGraph
from superopt.targets.products import rounded_products
from superopt.targets.target import Configs, Kernel, Target
from superopt.tune.measure import Times, times_together

__all__ = ["CpuTarget"]

_SCHEDULES = ("static", "dynamic", "guided")


@dataclass(frozen=True, slots=True)
class CpuTarget(Target):
    """The CPU that this process runs on."""

    name: str = "cpu"
    torch_device: str = "cpu"
    available: bool = True
    clears_caches: bool = False
    threadsafe: bool = True
    errors: tuple[type[Exception], ...] = (SuperoptError,)

    @property
    def device_name(self) -> str:
        """The processor's name and the number of threads in use."""

        return f"{cpu_name()}, {torch.get_num_threads()} threads"

    def key_parts(self) -> dict[str, str]:
        """Return what results depend on."""

        try:
            compiler = find_compiler().version
        except NoCompilerError:
            compiler = "none"
        rounded = "".join(f", {name} in {told}" for name, told in rounded_products().items())
        return {
            "device": f"{self.device_name}, {torch.backends.cpu.get_cpu_capability()}",
            "compiler": compiler + rounded,  # PyTorch's operators race too
        }

    def builders(self, size: int) -> int:
        """Return two: one compiler has all threads to itself, and what runs here shares the cores with it."""
        return 2

    def default_configs(self, mugraph: MuGraph) -> Configs:
        """Return the default configuration of every kernel."""

        cores = torch.get_num_threads()
        return tuple(
            default_config(lower_kernel(mugraph, number), mugraph.graph.sizes, cores=cores, vectors=vectors())
            if isinstance(kernel, Block)
            else None
            for number, kernel in enumerate(mugraph.kernels)
        )

    def configs(self, mugraph: MuGraph, number: int) -> Iterator[Any]:
        """Yield the configurations of one kernel."""

        yield from configs(
            lower_kernel(mugraph, number),
            mugraph.graph.sizes,
            cores=torch.get_num_threads(),
            vectors=vectors(),
        )

    def config_from_json(self, data: Any) -> Any:
        """Return a configuration from plain data."""
        config = config_from_json(CppConfig, data)
        if config.schedule not in _SCHEDULES or any(length < 1 for _, length in config.tiles):
            raise InputError(f"a configuration for the CPU is wrong: {data!r}")
        return config

    def sources(self, mugraph: MuGraph, configs: Configs) -> tuple[str, ...]:
        """Return the C++ text of every kernel."""
        return tuple(
            emit(lower_kernel(mugraph, number), config).code
            for number, config in enumerate(configs)
            if config is not None
        )

    def prepare_shared(self, dtypes: Collection[str], children: Children) -> None:
        """Compile in good time what many kernels share: their header, and contractions."""
        with contextlib.suppress(CodegenError):  # the first kernel says so
            compile_shared({CPP_TYPES[one] for one in dtypes if one in CPP_CONTRACTED}, children)

    def prepare(
        self, mugraph: MuGraph, configs: Configs, *, limit_seconds: float, children: Children
    ) -> None:
        """Compile every kernel."""
        end = time.monotonic() + limit_seconds

        def compile_one(number: int, config: Any) -> None:
            program = lower_kernel(mugraph, number)
            source = emit(program, config)
            unit_strides = has_unit_strides(program, source)
            compile_source(
                source, unit_strides=unit_strides, timeout_s=end - time.monotonic(), children=children
            )

        blocks = [(number, config) for number, config in enumerate(configs) if config is not None]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            done = [pool.submit(compile_one, *block) for block in blocks]
        for one in done:
            one.result()

    def make(self, mugraph: MuGraph, configs: Configs) -> Kernel:
        """Return the muGraph as compiled kernels."""
        return CppMuGraph(mugraph, {i: one for i, one in enumerate(configs) if one is not None})

    def cost_device(self) -> Device:
        """Return the device that the cost model reckons with."""
        return _host(torch.get_num_threads())

    def predictions(self, mugraph: MuGraph, number: int, configs: Sequence[Any]) -> list[float | None]:
        """Return the predicted time of one kernel in each configuration."""
        program, device = lower_kernel(mugraph, number), self.cost_device()
        return [kernel_time(program, one, device).us for one in configs]

    def renew(self) -> None:
        """Measure the processor's rates again."""

        host_device(torch.get_num_threads(), renew=True)
        _host.cache_clear()

    def times(
        self,
        contenders: Mapping[str, Callable[..., Any]],
        inputs: Sequence[tuple[Any, ...]],
        *,
        seconds: float,
        **rounds: Any,
    ) -> dict[str, Times]:
        """Return the times of functions call by call, taken in turns."""
        return times_together(contenders, inputs, seconds=seconds, **rounds)


@cache
def _host(threads: int) -> Device:
    """Return the CPU here with so many threads."""
    return host_device(threads)
