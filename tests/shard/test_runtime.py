"""Collectives between processes: each reduction program leaves the sum, or the maximum, everywhere."""

from math import prod

import pytest
import torch
from quick import few
from shard.processes import on_processes

from superopt.shard.output.runtime import ProcessMesh, ReductionStep
from superopt.shard.reductions import programs


def steps_of(levels: int, own: tuple[int, ...]) -> list[list[ReductionStep]]:
    return [
        [
            (step.collective, own[step.first : step.last], own[step.last :] if step.masters else ())
            for step in program
        ]
        for program in programs(levels)
    ]


@pytest.mark.parametrize(
    ("sizes", "own"),
    [((2, 2), (0, 1)), ((4,), (0,)), pytest.param((2, 2, 2), (0, 2), marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("elements", few([7, 16], 7))  # the first is padded to whole chunks
def test_programs_leave_the_reduction_everywhere(
    sizes: tuple[int, ...], own: tuple[int, ...], elements: int
) -> None:
    wanted = steps_of(len(own), own)

    def work(rank: int) -> list[bool]:
        mesh = ProcessMesh(sizes)
        all_tensors = [(torch.arange(elements) * (device + 3) % 11).float() for device in range(prod(sizes))]
        members = torch.stack([all_tensors[member] for member in mesh.members(rank, own)])
        return [
            torch.equal(mesh.reduce(all_tensors[rank], program, how), whole)
            for program in wanted
            for how, whole in (("+", members.sum(0)), ("^", members.max(0).values))
        ]

    devices = prod(sizes)
    assert all(all(found) for found in on_processes(devices, work))


def test_a_maximum_keeps_nan_and_the_order_of_all_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    numbers = torch.tensor([[nan, 1.0, -inf, -0.5, 2.0, -nan, 0.0], [0.0, nan, -1.0, -0.25, inf, -2.0, -3.0]])
    wanted, ways = numbers.amax(0), steps_of(1, (0,))

    def work(rank: int) -> list[bool]:
        mesh = ProcessMesh((2,))
        made = [
            (mesh.reduce(numbers[rank].to(dtype), program, "^"), wanted.to(dtype))
            for dtype in (torch.float32, torch.float64, torch.bfloat16)
            for program in ways
        ]
        return [torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in made]

    assert all(all(found) for found in on_processes(2, work))
