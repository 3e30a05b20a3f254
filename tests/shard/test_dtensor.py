"""The plan for `parallelize_module` runs, and gives what the module gives on one device."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from shard.processes import on_processes
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

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


def worst_error(module: nn.Module, plan: dict[str, Any], x: Tensor, dim: int | None) -> float:
    """Run a module forward and backward after `parallelize_module` on four processes.

    Each has its part of the input along a dimension, or all of it.
    """
    x = x.clone().requires_grad_()
    wanted = module(x)
    names = [name for name, _ in module.named_parameters()]
    grads = torch.autograd.grad(wanted.square().sum(), [x, *module.parameters()])

    def run(rank: int) -> float:
        def own(tensor: Tensor) -> Tensor:
            return (tensor if dim is None else tensor.chunk(4, dim)[rank]).detach()

        mesh = init_device_mesh("cpu", (4,))
        mine = own(x).requires_grad_()
        local = parallelize_module(copy.deepcopy(module), mesh, plan)
        made = local(mine)
        made.square().sum().backward()
        errors = [_error(made, own(wanted)), _error(mine.grad, own(grads[0]))]
        for name, grad in zip(names, grads[1:], strict=True):
            found = local.get_parameter(name).grad
            if isinstance(found, DTensor):
                found = found.full_tensor()
            elif dim is not None:  # each device has the gradient of its own rows
                dist.all_reduce(found)
            errors.append(_error(found, grad))
        return max(errors)

    return float(max(on_processes(4, run)))


def _error(found: Tensor | None, wanted: Tensor) -> float:
    assert found is not None
    assert found.shape == wanted.shape
    return float((found - wanted).detach().abs().max() / wanted.detach().abs().max())


@pytest.mark.parametrize(
    ("machine", "pins", "dim", "ends"),
    [
        (SLOW_TO_START, "x=whole, out=whole", None, "Replicate()"),
        # The sequence is shared out between the blocks: gathered before, scattered after.
        pytest.param(FAST_TO_START, "x=m:gpu, out=m:gpu", 0, "Shard(0)", marks=pytest.mark.slow),
    ],
)
def test_a_plan_for_parallelize_module_runs(machine: str, pins: str, dim: int | None, ends: str) -> None:
    torch.manual_seed(0)
    module = Layer()
    found = sharded(module, machine, pins, memory=21e3)  # all weights have 41 kB
    styles = found.styles("gpu")
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
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    assert worst_error(module, plan, x, dim) < 1e-5


def test_a_move_outside_linear_modules_is_one_line() -> None:
    module = Layer()
    found = sharded(module, SLOW_TO_START, "x=m:gpu, out=whole", memory=1e9)
    with pytest.raises(InputError, match="outside linear modules; use the written module"):
        found.styles("gpu")


class Function(nn.Module):
    """A module of some parts that computes a function of them and of a tensor."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * nn.functional.linear(x, self.weight)


def mlp(
    function: Callable[[Any, Tensor], Tensor] = lambda m, x: m.b(torch.relu(m.a(x))), **parts: Any
) -> Any:
    torch.manual_seed(0)
    return Function(function, **{"a": nn.Linear(32, 256), "b": nn.Linear(256, 32), **parts})


def grouped(m: Any, x: Tensor) -> Tensor:
    """Attention of which two heads share keys and values."""
    q, k, v = (one(x).unflatten(-1, (-1, 4)).transpose(0, 1) for one in (m.q, m.k, m.v))
    k, v = (one.repeat_interleave(2, 0) for one in (k, v))
    return m.o((torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v).transpose(0, 1).flatten(1))


def attention() -> Any:
    torch.manual_seed(0)
    parts = {"q": nn.Linear(32, 32), "v": nn.Linear(32, 16), "o": nn.Linear(32, 32)}
    parts["k"] = nn.Linear(32, 16, bias=False)  # a bias of all keys changes nothing
    return Function(grouped, **parts)


SPLIT = "a_weight=n:gpu, b_weight=n:gpu"


BIASED = pytest.mark.parametrize(
    ("shape", "machine", "pins", "dim"),
    [
        ((16, 32), SLOW_TO_START, "x=whole, out=whole", None),
        ((16, 32), FAST_TO_START, "x=m:gpu, out=m:gpu", 0),
        ((1, 16, 32), FAST_TO_START, "x=m:gpu, out=m:gpu", 1),
        ((2, 16, 32), FAST_TO_START, "x=m:gpu, out=m:gpu", 1),
    ],
)


@BIASED
def test_modules_with_biases_have_styles(
    shape: tuple[int, ...], machine: str, pins: str, dim: int | None
) -> None:
    found = shard_program(mlp(), torch.empty(shape), machine=machine, pins=f"{pins}, {SPLIT}")
    ends = "Replicate()" if dim is None else f"Shard({dim})"
    assert {name: str(style) for name, style in found.styles("gpu").items()} == {
        "a": f"ColwiseParallel(input_layouts={ends}, output_layouts=Shard(-1))",
        "b": f"RowwiseParallel(input_layouts=Shard(-1), output_layouts={ends})",
    }


def test_linear_modules_whose_input_is_named_need_the_written_module() -> None:
    """Before: an IndexError, which parallelize_module raises of such calls, too."""
    module = mlp(lambda m, x: m.b(input=torch.relu(m.a(x))))
    x, pins = torch.empty(16, 32), f"x=whole, out=whole, {SPLIT}"
    found = shard_program(module, x, machine=SLOW_TO_START, pins=pins)
    assert "def program" in found.source
    with pytest.raises(InputError, match="b is called with a named argument"):
        found.styles("gpu")


@pytest.mark.slow
@BIASED
def test_modules_with_biases_run(shape: tuple[int, ...], machine: str, pins: str, dim: int | None) -> None:
    module, x = mlp(), torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = shard_program(module, x, machine=machine, pins=f"{pins}, {SPLIT}")
    plan = {name: style.made() for name, style in found.styles("gpu").items()}
    assert worst_error(module, plan, x, dim) < 1e-5


@pytest.mark.slow
def test_attention_with_groups_of_heads_runs() -> None:
    module, x = attention(), torch.randn(16, 32)
    pins = ", ".join(f"{name}_weight=h:gpu" for name in "qkvo")
    found = shard_program(module, x, machine=SLOW_TO_START, pins=f"x=whole, out=whole, {pins}")
    plan = {name: style.made() for name, style in found.styles("gpu").items()}
    assert set(plan) == set("qkvo")
    assert worst_error(module, plan, x, None) < 1e-5


@pytest.mark.parametrize(
    ("module", "pins", "said"),
    [
        (mlp(b=Doubled(256, 32)), SPLIT, "b_weight is split and belongs to no linear module"),
        (
            mlp(lambda m, x: m.b(m.a(x) * m.g), g=torch.ones(256)),
            SPLIT,
            "constant is split and belongs to no",
        ),
        (mlp(lambda m, x: m.b(m.a(x)) @ m.b.weight), SPLIT, "of b is split and also used"),
        (mlp(lambda m, x: m.b(m.a(x)) / len(x)), f"x=m:gpu, out=m:gpu, {SPLIT}", "a size that is split"),
        (
            mlp(lambda m, x: m.b(m.a(x).view(16, 256))),
            f"x=m:gpu, out=m:gpu, {SPLIT}",
            "take sizes from tensors",
        ),
        (
            mlp(lambda m, x: m.b(m.a(x).unflatten(-1, (8, 32)).softmax(-2).flatten(-2))),
            "a_weight=d:gpu, b_weight=d:gpu",
            "not clear which dimension of",
        ),
    ],
)
def test_what_parallelize_module_would_compute_otherwise_is_one_line(
    module: nn.Module, pins: str, said: str
) -> None:
    found = shard_program(module, torch.randn(16, 32), machine=FAST_TO_START, pins=pins)
    with pytest.raises(InputError, match=said):
        found.styles("gpu")


def test_a_level_that_does_more_than_share_out_data_is_named() -> None:
    two = f"node=2 @ 1 GB/s, {SLOW_TO_START}"
    module, x = mlp(), torch.randn(16, 32)
    rows = shard_program(module, x, machine=two, pins=f"x=m:node, out=m:node, {SPLIT}")
    assert set(rows.styles("gpu")) == {"a", "b"}
    columns = shard_program(module, x, machine=two, pins="a_weight=n:gpu+n:node, b_weight=n:gpu+n:node")
    with pytest.raises(InputError, match="a_weight is split along node, too; shard along gpu alone"):
        columns.styles("gpu")


@pytest.mark.parametrize("axis", [0, 1])
def test_positions_along_a_split_axis_need_the_written_module(axis: int) -> None:
    def shifted(m: Any, x: Tensor) -> Tensor:
        return x + torch.arange(x.shape[axis]).view(-1, *[1] * (1 - axis))

    x = torch.randn(16, 32)
    found = shard_program(Function(shifted), x, machine="gpu=4", pins="x=m:gpu, out=m:gpu", memory=5e3)
    if axis == 1:
        assert found.styles("gpu") == {}
        return
    with pytest.raises(InputError, match="positions along m are split") as error:
        found.styles("gpu")
    assert "\n" not in str(error.value)
