"""Measure: the links and devices that the processes of a job of torch.distributed have, as a machine.

The links of a level are measured by a shift: each process sends to the process at the same place in the next
part. One process of each part sends first, then all of them at once, which shows whether they share the link.
What does not depend on bytes is measured by all-reduces of a few of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from math import prod, sqrt
from time import perf_counter

import torch
import torch.distributed as dist

from superopt.errors import InputError
from superopt.shard.machine import Device, Level, Machine, parse_machine
from superopt.shard.output.runtime import ProcessMesh

__all__ = ["measure_job", "measured_machine"]

_LONG_ENOUGH_S = 0.05
_MOST_BYTES = 1 << 28
_LEAST_S = 1e-7  # of a round
_TURNS = 5


def measure_job(text: str) -> Machine | None:
    """Return the machine that this job runs on, in the first process; None in the others.

    `text` names the levels, such as `node=2, gpu=4`. The job is one that torchrun started.
    """
    if "RANK" not in os.environ:
        raise InputError(
            "--measure: this process belongs to no job; start one for each device, for example with"
            f" 'torchrun --nproc-per-node {parse_machine(text).devices} --no-python superopt shard ...'"
        )
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        found = measured_machine(parse_machine(text))
        return found if dist.get_rank() == 0 else None
    finally:
        dist.destroy_process_group()


def measured_machine(machine: Machine) -> Machine:
    """Return a machine with its links and devices as measured; every process of the job must call this."""
    if dist.get_world_size() != machine.devices:
        raise InputError(
            f"the machine has {machine.devices} devices and the job has {dist.get_world_size()} processes;"
            " the nearest choice that works: one process for each device"
        )
    place = "cuda" if dist.get_backend() == "nccl" else "cpu"
    begin, latencies = _measured_rounds(machine, place)
    levels = tuple(
        replace(_measured_level(machine, at, place), latency_s=latencies[at]) if level.count > 1 else level
        for at, level in enumerate(machine.levels)
    )
    return Machine(levels, replace(_measured_device(place), begin_s=begin))


def _measured_rounds(machine: Machine, place: str) -> tuple[float, dict[int, float]]:
    """Return the seconds until a collective begins, and those of a round of it at each level.

    An all-reduce of a few bytes takes two rounds for each device but one. All devices together take more
    rounds than those of the innermost level, so that the difference shows what a round takes.
    """
    mesh = ProcessMesh(machine.counts)
    number = torch.zeros(2, device=place)

    def small(dims: tuple[int, ...]) -> float:
        group, _ = mesh.group(dims)
        return min(_slowest(lambda: dist.all_reduce(number, group=group), place) for _ in range(_TURNS))

    split = [at for at, level in enumerate(machine.levels) if level.count > 1]
    if not split:
        return 0.0, {}
    seconds = {at: small((at,)) for at in split}
    rounds = {at: 2 * (machine.counts[at] - 1) for at in split}
    inner, begin = split[-1], 0.0
    if len(split) > 1:
        more = 2 * (machine.devices - 1) - rounds[inner]
        one = max(0.0, small(tuple(split)) - seconds[inner]) / more
        begin = max(0.0, seconds[inner] - rounds[inner] * one)
    return begin, {at: max(_LEAST_S, (seconds[at] - begin) / rounds[at]) for at in split}


def _measured_level(machine: Machine, at: int, place: str) -> Level:
    inner = prod(machine.counts[at + 1 :])
    latency = _shifted(machine, at, 8, place, alone=True)
    together = _speed(machine, at, latency, place, alone=False)
    if inner == 1:
        return replace(machine.levels[at], bytes_per_s=together, shared=True)
    alone = _speed(machine, at, latency, place, alone=True)
    shared = together * inner < sqrt(inner) * alone
    speed = together * inner if shared else together
    return replace(machine.levels[at], bytes_per_s=speed, shared=shared)


def _speed(machine: Machine, at: int, latency: float, place: str, *, alone: bool) -> float:
    """Return the bytes per second that each process sends, with messages long enough to be timed."""
    size = 1 << 16
    while True:
        seconds = _shifted(machine, at, size, place, alone=alone)
        if seconds >= _LONG_ENOUGH_S + latency or size >= _MOST_BYTES:
            return size / max(seconds - latency, 1e-9)
        size *= 2


def _shifted(machine: Machine, at: int, size: int, place: str, *, alone: bool) -> float:
    """Return the seconds in which each process sends so many bytes to the next part of a level."""
    own = machine.places[dist.get_rank()]
    takes_part = not (alone and own[at + 1 :].any())
    stride, count = prod(machine.counts[at + 1 :]), machine.counts[at]
    first = dist.get_rank() - int(own[at]) * stride
    ahead, behind = (first + (int(own[at]) + way) % count * stride for way in (1, -1))
    sent = torch.zeros(size, dtype=torch.uint8, device=place)
    got = torch.empty_like(sent)

    def shift() -> None:
        if takes_part:
            exchange = [dist.P2POp(dist.irecv, got, behind), dist.P2POp(dist.isend, sent, ahead)]
            for work in dist.batch_isend_irecv(exchange):
                work.wait()

    return _slowest(shift, place)


def _slowest(work: Callable[[], object], place: str) -> float:
    """Return the seconds of the slowest process in the best turn."""
    best = float("inf")
    for _ in range(_TURNS):
        dist.barrier()
        start = perf_counter()
        work()
        if place == "cuda":
            torch.cuda.synchronize()
        taken = torch.tensor([perf_counter() - start], device=place)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        best = min(best, float(taken))
    return best


def _measured_device(place: str) -> Device:
    """Return what a device holds and computes while all of them work."""
    dtype = torch.float16 if place == "cuda" else torch.float32
    side, length = (4096, 1 << 27) if place == "cuda" else (512, 1 << 22)
    left = torch.ones(side, side, dtype=dtype, device=place)
    long = torch.ones(length, device=place)
    flops = 2 * side**3 / _slowest(lambda: left @ left, place)
    speed = 2 * 4 * length / _slowest(lambda: long.neg_(), place)
    if place == "cuda":
        held = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    else:
        held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        held //= int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    return Device(float(held), flops, speed)
