"""Forward and backward on meshes of gloo processes give what PyTorch gives, for layers and their parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shard.cases import attention, gradients, layer, loss, mlp, norm
from shard.processes import Case, worst_errors
from torch import Tensor

from superopt.shard import shard_program
from superopt.shard.machine import parse_machine

# A device so slow that sharding is worth its while on small tensors.
DEVICE = "device 1 MFLOP/s 10 MB/s"
MESHES = {
    "2x2": f"node=2 @ 1 GB/s 2 us own, gpu=2 @ 10 GB/s 1 us, {DEVICE}",
    "2x4": f"node=2 @ 1 GB/s 2 us own, gpu=4 @ 10 GB/s 1 us, {DEVICE}",
}
WIDE = ((32, 32),) * 4
SHAPES: dict[Callable[..., Tensor], tuple[tuple[int, ...], ...]] = {
    mlp: ((8, 16), (16, 32), (32, 16)),
    attention: ((16, 32), *WIDE),
    norm: ((16, 32), (32,)),
    loss: ((16, 32), (32, 64), ()),
    layer: ((16, 32), (32,), *WIDE, (32,), (32, 64), (32, 64), (64, 32)),
}


def inputs_of(function: Callable[..., Tensor]) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    if function is loss:
        *floats, _ = SHAPES[loss]
        made = [torch.randn(shape, generator=random) for shape in floats]
        return [*made, torch.randint(0, 64, (16,), generator=random)]
    return [torch.randn(shape, generator=random) / shape[-1] ** 0.5 for shape in SHAPES[function]]


def case_of(function: Callable[..., Any], inputs: list[Tensor], machine: str, path: Path) -> Case:
    """Shard a function, prove and write it, and say what it should give."""
    result = shard_program(function, *inputs, machine=machine)
    assert result.verdict, str(result.verdict.verdict)
    assert any(any(one.placement) for one in result.plans.best.sharded.instructions), "nothing is split"
    path.write_text(result.source)
    graph = result.plans.graph
    made = function(*inputs)
    outputs = made if isinstance(made, tuple) else (made,)
    names = [port.name for port in graph.inputs]
    assert len(names) == len(inputs)
    wanted = zip((output.port.name for output in graph.outputs), outputs, strict=True)
    return path, dict(zip(names, inputs, strict=True)), dict(wanted)


@pytest.mark.parametrize(
    ("mesh", "functions"),
    [
        ("2x2", (loss,)),
        pytest.param("2x2", tuple(SHAPES), marks=pytest.mark.slow),
        pytest.param("2x4", tuple(SHAPES), marks=pytest.mark.slow),
    ],
)
def test_results_and_gradients_are_those_of_eager(
    mesh: str, functions: tuple[Callable[..., Tensor], ...], tmp_path: Path
) -> None:
    cases = [
        case_of(made, inputs_of(function), MESHES[mesh], tmp_path / f"{function.__name__}_{way}.py")
        for function in functions
        for way, made in (("forward", function), ("backward", gradients(function)))
    ]
    errors = worst_errors(cases, parse_machine(MESHES[mesh]).devices)
    assert max(errors) < 1e-5, dict(zip((case[0].stem for case in cases), errors, strict=True))
