"""Random losses of logits: gradients in chunks are as near to those of float64 as eager's."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.backend.decision import Decision, Ledger
from superopt.backend.graphpass import RegionPass
from superopt.backend.joint.joint_pass import JointPass
from superopt.backend.joint.limits import changed
from superopt.backend.options import read_options

from .steps import WIDTH, WORDS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("noted")]

CASES = 30  # of each memory setting
LEAST_TAKEN = 0.4
FACTOR, SMALL = 8.0, 2e-6  # of eager's error, and of the largest gradient

Loss = Callable[..., Tensor]

BETWEEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nothing": lambda z, other: z,
    "cap": lambda z, other: 5 * torch.tanh(z / 5),
    "scale": lambda z, other: 1.7 * z,
    "relu": lambda z, other: F.relu(z),
    "silu": lambda z, other: F.silu(z),
    "gate": lambda z, other: z * torch.sigmoid(other),
    "norm": lambda z, other: z / (z.square().mean(-1, keepdim=True) + 1).sqrt(),
    "centered": lambda z, other: z - z.mean(-1, keepdim=True),
}
TERMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mean": lambda z, y, v: F.cross_entropy(z, y),
    "sum": lambda z, y, v: 0.1 * F.cross_entropy(z, y, reduction="sum"),
    "smooth": lambda z, y, v: F.cross_entropy(z, y, label_smoothing=0.2),
    "each": lambda z, y, v: (F.cross_entropy(z, y, reduction="none") * (y > 20)).sum(),
    "z": lambda z, y, v: 0.1 * z.logsumexp(-1).square().mean(),
    "square": lambda z, y, v: z.square().mean(),
    "entropy": lambda z, y, v: -(z.softmax(-1) * z.log_softmax(-1)).sum(-1).mean(),
    "largest": lambda z, y, v: 0.1 * z.amax(-1).sum(),
    "mixed": lambda z, y, v: (z.softmax(-1) @ v).square().sum(),
    "margin": lambda z, y, v: F.relu(1 + z - z.mean(-1, keepdim=True)).mean(),
    "columns": lambda z, y, v: torch.sigmoid(z).mean(0).square().sum(),  # needs sums of all chunks
}


def random_loss(seed: int) -> tuple[str, Loss]:
    """Return a loss, and what it is made of."""
    draw = random.Random(seed)
    between = draw.choices(list(BETWEEN), k=draw.randint(0, 2))
    weights = [5.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 0.5]
    terms = dict.fromkeys(draw.choices(list(TERMS), weights, k=draw.randint(1, 3)))
    biased, tied, squared = draw.random() < 0.3, draw.random() < 0.4, draw.random() < 0.1
    rows = draw.choice([(27,), (3, 9)])

    def loss(x: Tensor, w: Tensor, v: Tensor, b: Tensor, y: Tensor) -> Tensor:
        z = x.view(*rows, -1) @ w.t()
        if biased:
            z = z + b
        for name in between:
            z = BETWEEN[name](z, x.view(*rows, -1) @ v.t())
        z = z.flatten(0, -2)
        made = torch.stack([TERMS[name](z, y, w if tied else v) for name in terms]).sum()
        return made * made if squared else made

    told = [*between, *terms, *["bias"] * biased, *["tied"] * tied, *["squared"] * squared, str(rows)]
    return ", ".join(told), loss


def compiled(loss: Loss, memory: str | int, noted: list[Decision], *before: Any) -> Loss:
    """Return a loss whose joint graph our pass saw, after others; nothing else is compiled."""
    from functorch.compile import aot_function, make_boxed_func, min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    ledger = Ledger(read_options({"memory": memory, "budget_s": 600, "cache": False}))
    ours = JointPass(ledger, RegionPass(ledger), before)

    def partition(joint: Any, inputs: Any, **more: Any) -> Any:
        with torch._inductor.config.patch(joint_custom_post_pass=ours):
            joint_graph_passes(joint)
        return min_cut_rematerialization_partition(joint, inputs, **more)

    plain = lambda graph, inputs: make_boxed_func(graph.forward)  # noqa: E731
    made: Loss = aot_function(
        loss, plain, plain, partition_fn=partition, decompositions=select_decomp_table()
    )
    return made


def gradients(loss: Loss, given: list[Tensor], y: Tensor, by: float) -> list[Tensor]:
    leaves = [one.clone().requires_grad_() for one in given]
    made = loss(*leaves, y)
    (by * made).backward()
    return [made.detach(), *(torch.zeros_like(one) if one.grad is None else one.grad for one in leaves)]


def tensors(seed: int) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(seed)
    large = 10.0 if seed % 5 == 0 else 1.0
    x, w, v = large * torch.randn(27, WIDTH), torch.randn(WORDS, WIDTH), torch.randn(WORDS, WIDTH)
    y = torch.randint(0, WORDS, (27,))
    y[torch.rand(27) < 0.2] = -100
    return [x, w, v, torch.randn(WORDS)], y


def judge(seed: int, memory: str | int, noted: list[Decision]) -> tuple[bool, str]:
    """Return whether a case is taken, and what is wrong with its gradients."""
    told, loss = random_loss(seed)
    given, y = tensors(seed)
    before = len(noted)
    program = compiled(loss, memory, noted)
    wrong = ""
    for by in (1.0, -3.0):
        exact = gradients(loss, [one.double() for one in given], y, by)
        eager, found = gradients(loss, given, y, by), gradients(program, given, y, by)
        for at, (a, b, c) in enumerate(zip(found, eager, exact, strict=True)):
            error, allowed = (float((one - c).abs().max()) for one in (a, b))
            if not error <= FACTOR * allowed + SMALL * float(c.abs().max()):
                wrong = f"seed {seed} ({told}): result {at} errs by {error:.3g}, eager's by {allowed:.3g}"
    return any(one.taken for one in noted[before:]), wrong


@pytest.mark.parametrize("memory", ["fast", "balanced", 9000])
def test_random_losses(memory: str | int, noted: list[Decision]) -> None:
    with changed(fused=False):
        judged = list(map(partial(judge, memory=memory, noted=noted), range(CASES)))
    assert [wrong for _, wrong in judged if wrong] == []
    assert sum(taken for taken, _ in judged) >= LEAST_TAKEN * CASES
