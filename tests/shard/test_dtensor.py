"""The plan for `parallelize_module` runs, and gives what the module gives on one device."""

import copy
from typing import Any

import pytest
import torch
from shard.processes import on_processes
from torch import Tensor, nn

from superopt.errors import InputError
from superopt.shard import ShardResult, shard_program

SLOW_TO_START = "gpu=4 @ 200 GB/s 2 us"
FAST_TO_START = "gpu=4 @ 10 GB/s 10 ns"


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.each = width // heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (-1, self.each)).transpose(0, 1) for one in (self.q, self.k, self.v))
        scores = torch.softmax(q @ k.transpose(1, 2) * self.each**-0.5, -1)
        return self.o((scores @ v).transpose(0, 1).flatten(1))


class Layer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.attention = Attention(width, 4)
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def sharded(module: nn.Module, machine: str, pins: str, memory: float) -> ShardResult:
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    found = shard_program(module, x, machine=machine, pins=pins, memory=memory)
    assert found.verdict, str(found.verdict.verdict)
    return found


def rows_of(module: nn.Module, plan: dict[str, Any], rows: int | None) -> list[float]:
    """Run a module after `parallelize_module` on four processes, each with its rows of the input, or all."""
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    wanted = module(x)

    def run(rank: int) -> float:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import parallelize_module

        mesh = init_device_mesh("cpu", (4,))
        own = slice(rank * rows, (rank + 1) * rows) if rows is not None else slice(None)
        with torch.no_grad():
            made = parallelize_module(copy.deepcopy(module), mesh, plan)(x[own])
            return float((made - wanted[own]).abs().max())

    with torch.no_grad():
        return on_processes(4, run)


@pytest.mark.parametrize(
    ("machine", "pins", "rows", "ends"),
    [
        (SLOW_TO_START, "x=whole, out=whole", None, "Replicate()"),
        # The sequence is shared out between the blocks: gathered before, scattered after.
        pytest.param(FAST_TO_START, "x=m:gpu, out=m:gpu", 4, "Shard(0)", marks=pytest.mark.slow),
    ],
)
def test_a_plan_for_parallelize_module_runs(machine: str, pins: str, rows: int | None, ends: str) -> None:
    torch.manual_seed(0)
    module = Layer()
    found = sharded(module, machine, pins, memory=21e3)  # all weights have 41 kB
    styles = found.styles(module, "gpu")
    into = f"ColwiseParallel(input_layouts={ends}, output_layouts=Shard(-1))"
    out = f"RowwiseParallel(input_layouts=Shard(-1), output_layouts={ends})"
    assert {name: str(style) for name, style in styles.items()} == {
        **{f"attention.{name}": into for name in "qkv"},
        "attention.o": out,
        "gate": into,
        "up": into,
        "down": out,
    }
    plan = {name: style.made() for name, style in styles.items()}
    assert max(rows_of(module, plan, rows)) < 1e-5


def test_a_move_outside_linear_modules_is_one_line() -> None:
    module = Layer()
    found = sharded(module, SLOW_TO_START, "x=m:gpu, out=whole", memory=1e9)
    with pytest.raises(InputError, match="outside linear modules; use the written module"):
        found.styles(module, "gpu")
