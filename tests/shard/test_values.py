"""Written modules compute what eager computes: in every dtype, under masks, whatever names inputs have."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from superopt.ir import parse_graph
from superopt.shard import shard_program
from superopt.shard.costs import mesh_of
from superopt.shard.machine import parse_machine
from superopt.shard.output.runtime import ProcessMesh, contracted
from superopt.shard.output.written import write_module
from superopt.shard.plans import Plan, Plans
from superopt.shard.proof import prove_sharded
from superopt.shard.sharded import Instruction, Sharded, layout_of

HALF, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """Make this process a job of its own."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def source_of(function: Callable[..., Any], *inputs: Tensor, **how: Any) -> str:
    result = shard_program(function, *inputs, **{"machine": "gpu=1", **how})
    assert result.verdict, str(result.verdict.verdict)
    return result.source


def made_by(function: Callable[..., Any], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return what the module of a function makes on one device."""
    scope: dict[str, Any] = {}
    exec(source_of(function, *inputs), scope)
    found: tuple[Tensor, ...] = scope["program"](scope["ProcessMesh"]((1,)), *inputs)
    return found


def norm(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).half()


WIDE: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "a sum beyond fp16": (lambda x: x.mean(-1), (torch.full((4, 4096), 100.0, dtype=HALF),)),
    "squares beyond fp16": (norm, (torch.full((4, 64), 300.0, dtype=HALF),)),
    "a softmax of more than fp16 counts": (
        lambda x: torch.softmax(x, -1),
        (torch.zeros(1, 1 << 17, dtype=HALF),),
    ),
    "differences beyond eight bits": (
        lambda q, z, s: (q.float() - z.float()) * s,
        (
            torch.full((4, 8), 100, dtype=torch.int8),
            torch.full((4, 1), -100, dtype=torch.int8),
            torch.ones(8),
        ),
    ),
    "halves times floats": (lambda x, w: x.float() @ w, (torch.ones(4, 8, dtype=HALF), torch.ones(8, 4) / 3)),
    "a product of halves beyond fp16": (
        lambda x, w: x.float() @ w.float(),
        (torch.full((4, 256), 30.0, dtype=HALF), torch.full((256, 4), 30.0, dtype=HALF)),
    ),
    "a product of a product beyond fp16": (
        lambda x, w, v: (x.float() @ w.float()) @ v.float(),
        (torch.full((4, 256), 30.0, dtype=HALF), *(torch.full((256, 256), 30.0, dtype=HALF),) * 2),
    ),
    "brain floats": (lambda x, w: x @ w, (torch.ones(4, 64, dtype=BF16), torch.ones(64, 4, dtype=BF16))),
    "float64": (lambda x, w: torch.exp(x) @ w, (torch.ones(4, 8, dtype=FP64) / 3, torch.ones(8, 4).double())),
    "positions in float64": (lambda x: x + (torch.arange(8) / 3).double(), (torch.ones(4, 8, dtype=FP64),)),
    "integers that float32 does not hold": (
        lambda x, a, b: torch.where(a == b, x, -x),
        (torch.ones(4), torch.full((4,), 1 << 24), torch.full((4,), (1 << 24) + 1)),
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_every_dtype_gives_what_eager_gives(name: str) -> None:
    function, inputs = WIDE[name]
    (made,) = made_by(function, *inputs)
    wanted = function(*inputs)
    assert made.dtype == wanted.dtype
    torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize(
    "words", ["ij,jk->ik", "bij,bkj->bik", "jbi,kjb->kbi", "ij,j->i", "ij,kl->ikjl", "ij,jk->k"]
)
def test_a_product_of_halves_is_that_of_floats(words: str) -> None:
    left, right = words.partition("->")[0].split(",")
    sizes = dict(zip("bijkl", (2, 3, 4, 5, 6), strict=True))
    a, b = (torch.randn([sizes[one] for one in axes]).to(BF16) for axes in (left, right))
    torch.testing.assert_close(contracted(words, a, b), torch.einsum(words, a.float(), b.float()))


def hidden(x: Tensor, keep: Tensor) -> Tensor:
    return x.masked_fill(~keep, 0).sum(-1)


INFINITE = torch.tensor([[torch.inf, 1.0, -2.0, 3.0], [torch.nan, 1.0, torch.inf, -torch.inf]])
KEEP = torch.tensor([[False, True, True, True], [False, True, True, False]])
MASKED: tuple[tuple[Callable[..., Tensor], tuple[Tensor, ...]], ...] = (
    (lambda x: x[:, 2:] * 2, (INFINITE,)),
    (lambda x: x[:, :3] + 1, (INFINITE,)),
    (hidden, (INFINITE, KEEP)),
    (hidden, (INFINITE, ~KEEP)),
)


@pytest.mark.parametrize(("function", "inputs"), MASKED)
def test_a_mask_hides_infinities(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    (made,) = made_by(function, *inputs)
    torch.testing.assert_close(made, function(*inputs), equal_nan=True)


def odd(mesh: Tensor, torch: Tensor, F: Tensor, dist: Tensor, device: Tensor) -> Tensor:  # noqa: N803
    return nn.functional.gelu(mesh) * torch.exp() + F * dist - device


def counted(sort_1: Tensor, sort_1_: Tensor) -> Tensor:
    return torch.relu(torch.sort(sort_1 + sort_1_, -1).values)


@pytest.mark.parametrize(
    ("function", "many"),
    [(lambda a, a_: a + 2 * a_, 2), (lambda t2_, t3_: t2_ + 2 * t3_, 2), (odd, 5), (counted, 2)],
)
def test_inputs_may_have_any_name(function: Callable[..., Tensor], many: int) -> None:
    inputs = torch.randn(many, 4, 8).unbind()
    (made,) = made_by(function, *inputs)
    torch.testing.assert_close(made, function(*inputs))


def test_keywords_are_the_names_of_inputs_where_nothing_else_has_them() -> None:
    assert "input: Tensor, match: Tensor" in source_of(
        lambda input, match: input + match, *torch.ones(2, 4, 8)
    )


def test_results_are_no_inputs_nor_each_other() -> None:
    x = torch.randn(4, 8)
    made = made_by(lambda x: (x.t().clone(), torch.relu(x), torch.relu(x).t().clone()), x)
    assert len({one.data_ptr() for one in (x, *made)}) == 4
    assert torch.equal(made[0], x.t())


def test_a_program_has_no_gradients() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    (made,) = made_by(lambda x: x.square(), x)
    with pytest.raises(RuntimeError, match="does not require grad"):
        made.sum().backward()


def test_moves_run_on_the_stream_of_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    @contextmanager
    def stream(one: str) -> Iterator[None]:
        used.append((one, threading.current_thread() is threading.main_thread()))
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    mesh = ProcessMesh((1,))
    tensor: Any = SimpleNamespace(is_cuda=True, device="cuda:0")
    assert mesh.begin(lambda one: one, tensor).result() is tensor
    assert used == [("stream of cuda:0", False)]
    on_cpu = torch.ones(2)
    assert mesh.begin(lambda one: one, on_cpu).result() is on_cpu
    assert len(used) == 1


MOVED = """
graph moved
axes m=8 k=4 n=6
in x: bf16[m, k]
in w: bf16[k, n]
t2 = relu(x)
t3 = contract[k](t2, w)
out y: bf16[m, n] = t3
out z: {dtype}[m, k] = t2
"""


@pytest.mark.parametrize(("dtype", "gathered"), [("bf16", "t2_bf16"), ("f32", "t2_")])
def test_halves_stay_halves_where_they_only_move(dtype: str, gathered: str) -> None:
    """What all readers round is rounded before it moves; weights move as they are."""
    graph, machine = parse_graph(MOVED.format(dtype=dtype)), parse_machine("gpu=2")
    instructions = (
        Instruction("enter", 0, ("m",)),
        Instruction("enter", 1, ("n",)),
        Instruction("step", 2, ("m",), (0,)),
        Instruction("all-gather", 2, (None,), (2,), (0,), "m"),
        Instruction("all-gather", 1, (None,), (1,), (0,), "n"),
        Instruction("step", 3, (None,), (3, 4)),
    )
    sharded = Sharded(layout_of(graph, mesh_of(machine)), instructions, (5, 3))
    assert prove_sharded(sharded)
    source = write_module(Plans(graph, machine, (Plan(sharded, 0.0, 0.0, 0),), True))
    moved = re.findall(r"mesh\.(?:begin\(mesh\.gather, |gather\()(\w+), 0\)", source)
    assert moved == [gathered, "w_"]
    assert "contracted(" in source
