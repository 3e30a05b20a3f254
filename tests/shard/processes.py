"""Runs written modules on processes of gloo, and compares results with those of the whole program."""

import importlib.util
import math
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor


def loaded(path: Path) -> ModuleType:
    """Return a module from a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Case = tuple[Path, dict[str, Tensor], dict[str, Tensor]]
"""A module, the whole tensors that enter, and those that should leave."""


def on_processes(devices: int, work: Callable[[int], Any]) -> list[Any]:
    """Return what each process of a job of gloo makes of its rank, in any order."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Forked processes start in no time; with one thread each, they never meet the threads of their parent.
    context = mp.get_context("fork")
    found = context.SimpleQueue()
    workers = [
        context.Process(target=_run, args=(rank, devices, port, work, found)) for rank in range(devices)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
        if worker.is_alive():
            worker.kill()
    assert [worker.exitcode for worker in workers] == [0] * devices
    return [found.get() for _ in workers]


def _run(
    rank: int, devices: int, port: int, work: Callable[[int], Any], found: "mp.SimpleQueue[Any]"
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=devices)
    found.put(work(rank))
    dist.barrier()
    dist.destroy_process_group()


def worst_errors(cases: list[Case], devices: int) -> list[float]:
    """Return for each case the largest error of any process, in shares of the largest number."""
    errors = on_processes(devices, lambda rank: _errors(cases))
    return [max(own) for own in zip(*errors, strict=True)]


def _errors(cases: list[Case]) -> list[float]:
    worst = []
    for path, inputs, outputs in cases:
        module = loaded(path)
        mesh = module.ProcessMesh(tuple(module.MESH.values()))
        parts = {name: module.local_part(mesh, name, tensor) for name, tensor in inputs.items()}
        made = module.program(mesh, **parts)
        error = 0.0
        for (name, whole), own in zip(outputs.items(), made, strict=True):
            wanted = module.local_part(mesh, name, whole)
            assert own.shape == wanted.shape
            found = float((own - wanted).abs().max() / whole.abs().max())
            error = math.inf if math.isnan(found) else max(error, found)
        worst.append(error)
    return worst
