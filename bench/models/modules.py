"""Modules: random ones with gradients, whose steps superopt splits, against eager PyTorch and float64.

    python -m bench.models --modules 500

A step is compiled as far as superopt changes it: what its forward and its backward pass compute and keep.
Both are then run operator by operator, so that 500 modules take minutes. A result is wrong where its error
is above eight times eager's, and above some roundings of the largest number.
"""

import argparse
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["RandomModule", "compiled", "force_changes", "judge", "measure_modules"]

_SETTINGS: tuple[str | int, ...] = ("fast", "balanced", 1)
_FACTOR, _SMALL = 8.0, {torch.float32: 4e-6, torch.bfloat16: 4e-2}
_LEAST_BYTES = 1 << 10  # of values that are worth turns, and of what is worth a choice
_RACE_S = 0.01

Layer = Callable[[Tensor], Tensor]

_POINTWISE: dict[str, Layer] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "square": lambda x: x.square() * 0.1,
    "softmax": lambda x: 3 * x.softmax(-1),
    "softplus": F.softplus,
    "clamp": lambda x: x.clamp(-0.7, 0.7),
    "exp": lambda x: torch.exp(-x.abs()),
    "turned": lambda x: x.roll(1, -1),
    "halves": lambda x: torch.cat([x.chunk(2, -1)[1], -x.chunk(2, -1)[0]], -1),
    "cumulative": lambda x: x.cumsum(-2) / 3,
    "detached": lambda x: x * x.detach().sigmoid(),
    "half": lambda x: x.to(torch.bfloat16).to(x.dtype) + x,
}
_KINDS = ("linear", "norm", "rms", "pointwise", "gated", "attention", "by hand", "residual", "checkpoint")


class RandomModule(nn.Module):
    """Layers drawn by a seed, over rows of tokens; `told` says which."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = random.Random(seed)
        self.width = draw.choice([6, 8, 16])
        self.told: list[str] = []
        self.weights = nn.ParameterList()
        self.layers = [self._layer(draw, 0) for _ in range(draw.randint(1, 5))]
        self.head = nn.Linear(self.width, draw.choice([3, 40, 90]), bias=draw.random() < 0.5)
        self.loss = draw.choice(["entropy", "square", "several", "sum"])
        self.told.append(self.loss)
        self.shape = draw.choice([(1, 1), (2, 7), (3, 9), (1, 33)])

    def _weight(self, *shape: int) -> None:
        self.weights.append(nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5))

    def _layer(self, draw: random.Random, depth: int) -> Layer:
        kind = draw.choice(_KINDS[: None if depth < 2 else 6])
        self.told.append(kind)
        n = self.width
        at = len(self.weights)  # a copy of the module has other weights
        if kind == "linear":
            self._weight(n, n)
            self._weight(n)
            return lambda x: F.linear(x, self.weights[at], self.weights[at + 1])
        if kind in ("norm", "rms"):
            self._weight(n)
            if kind == "norm":
                return lambda x: F.layer_norm(x, (n,), self.weights[at])
            return lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weights[at]
        if kind == "pointwise":
            name = draw.choice(list(_POINTWISE))
            self.told[-1] = name
            return _POINTWISE[name]
        if kind == "gated":
            for shape in ((2 * n, n), (2 * n, n), (n, 2 * n)):
                self._weight(*shape)
            gate: Layer = draw.choice([_POINTWISE["silu"], _POINTWISE["gelu"]])
            return lambda x: (
                (gate(x @ self.weights[at].t()) * (x @ self.weights[at + 1].t())) @ (self.weights[at + 2].t())
            )
        if kind in ("attention", "by hand"):
            self._weight(3 * n, n)
            causal = draw.random() < 0.5
            return lambda x: self._attention(x, at, causal=causal, whole=kind == "attention")
        inner = [self._layer(draw, depth + 1) for _ in range(draw.randint(1, 3))]

        def run(x: Tensor) -> Tensor:
            for one in inner:
                x = one(x)
            return x

        if kind == "residual":
            return lambda x: x + run(x)
        return lambda x: checkpoint(run, x, use_reentrant=False)

    def _attention(self, x: Tensor, at: int, *, causal: bool, whole: bool) -> Tensor:
        rows, tokens, n = x.shape
        q, k, v = (
            one.view(rows, tokens, 2, n // 2).transpose(1, 2)
            for one in (x @ self.weights[at].t()).split(n, -1)
        )
        if whole:
            made = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        else:
            scores = q @ k.transpose(-1, -2) / (n // 2) ** 0.5
            if causal:
                ones = torch.ones(tokens, tokens, dtype=torch.bool).tril()
                scores = scores.masked_fill(~ones, float("-inf"))
            made = scores.softmax(-1) @ v
        return made.transpose(1, 2).reshape(rows, tokens, n)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        """Return a loss, or a loss and what is made beside it."""
        for one in self.layers:
            x = one(x)
        z = self.head(x)
        flat = z.flatten(0, 1).float() if z.dtype == torch.bfloat16 else z.flatten(0, 1)
        if self.loss == "entropy":
            return F.cross_entropy(flat, y.flatten() % z.shape[-1])
        if self.loss == "square":
            return flat.square().mean()
        return (flat.sum(), x.tanh()) if self.loss == "several" else flat.sin().sum()


def compiled(module: nn.Module, memory: str | int) -> tuple[Callable[..., Any], Any]:
    """Return a module as superopt splits its step, and the ledger of what was decided."""
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.aot_autograd import aot_module
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    from superopt.backend.decision import Ledger
    from superopt.backend.graphpass import RegionPass
    from superopt.backend.joint.joint_pass import JointPass
    from superopt.backend.joint.partition import Partitioner
    from superopt.backend.options import read_options

    ledger = Ledger(read_options({"memory": memory, "cache": False}))
    joint = JointPass(ledger, RegionPass(ledger))
    ours = Partitioner(ledger, joint)

    def split(graph: Any, inputs: Any, **told: Any) -> Any:
        with torch._inductor.config.patch(joint_custom_post_pass=joint):
            joint_graph_passes(graph)
        return ours(graph, inputs, **told)

    plain: Callable[..., Any] = lambda graph, inputs: make_boxed_func(graph.forward)  # noqa: E731
    made = aot_module(module, plain, plain, partition_fn=split, decompositions=select_decomp_table())
    return made, ledger


def _step(program: Callable[..., Any], module: nn.Module, x: Tensor, y: Tensor, half: bool) -> list[Tensor]:
    """Return the loss, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    module.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        made = program(x, y)
        several = made if isinstance(made, list | tuple) else (made,)
        loss = torch.stack(
            [(one.float() if half else one).sum() * (0.7 - at) for at, one in enumerate(several)]
        ).sum()
    torch.autograd.backward(loss)
    grads = [x.grad, *(one.grad for one in module.parameters())]
    return [loss.detach(), *(torch.zeros(()) if one is None else one.detach() for one in grads)]


def judge(seed: int, memory: str | int, *, half: bool = False) -> tuple[list[str], str]:
    """Return why a seed's module was changed where it was, and what is wrong with its step, or ""."""
    module = RandomModule(seed)
    x, y = torch.randn(*module.shape, module.width), torch.randint(0, 3, module.shape)
    exact = _double(seed, x, y)
    eager = _step(module, module, x, y, half)
    program, ledger = compiled(module, memory)
    found = _step(program, module, x, y, half)
    small = _SMALL[torch.bfloat16 if half else torch.float32]
    told = f"seed {seed}, {memory}{', bf16' * half}: {' '.join(module.told)} {module.shape}"
    for at, (a, b, c) in enumerate(zip(found, eager, exact, strict=True)):
        error, allowed = (float((one - c).abs().max()) for one in (a, b))
        if a.shape != b.shape or not error <= _FACTOR * allowed + small * max(float(c.abs().max()), 1e-3):
            return [], f"{told}: result {at} errs by {error:.3g}, eager's by {allowed:.3g}"
    return [one.why for one in ledger.decisions if one.taken], ""


def _double(seed: int, x: Tensor, y: Tensor) -> list[Tensor]:
    module = RandomModule(seed).double()
    return _step(module, module, x.double(), y, half=False)


def force_changes() -> None:
    """Let small modules be changed wherever that is possible, whatever a race says, in this process."""
    from superopt.backend.joint import joint_pass, judged, partition
    from superopt.backend.joint.turns import choice, run, stages

    plain: Callable[..., Any] = lambda graph, *given: graph  # noqa: E731
    vars(partition).update(_LEAST_BYTES=_LEAST_BYTES)
    vars(joint_pass).update(_LEAST_BYTES=_LEAST_BYTES, _FEWER_BYTES=_LEAST_BYTES)
    vars(judged).update(_RACE_S=_RACE_S, _MOST_RACE_S=_RACE_S, compiled_by_inductor=plain)
    vars(run).update(compiled_by_inductor=plain)
    vars(stages).update(_LEAST_FLOPS=1)
    vars(choice).update(_TURN_BYTES=_LEAST_BYTES, _MORE=(1,), _SLACK=dict.fromkeys(choice.LEAST_SPEED, inf))
    choice.LEAST_SPEED.update(dict.fromkeys(choice.LEAST_SPEED, 0.0))


def measure_modules(options: argparse.Namespace) -> int:
    """Judge so many modules in each memory setting; return the exit code."""
    wrong, taken, turned = [], Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SUPEROPT_CACHE_DIR"] = folder
        force_changes()
        for memory in _SETTINGS:
            for seed in range(options.modules):
                changes, fault = judge(seed, memory, half=seed % 4 == 3)
                taken[str(memory)] += bool(changes)
                turned[str(memory)] += any("in turns" in one for one in changes)
                if fault:
                    wrong.append(fault)
                    print(fault, flush=True)
    counts = ", ".join(f"{name}: {count} changed, {turned[name]} in turns" for name, count in taken.items())
    print(f"{options.modules} random modules in each setting ({counts}); {len(wrong)} wrong")
    return 1 if wrong else 0
