"""Modules: random ones with gradients, whose steps superopt splits, against eager PyTorch and float64.

    python -m bench.models --modules 500
    python -m bench.models --modules 500 --json OUT --resume --minutes 4     in parts

A step is compiled as far as superopt changes it: what its forward and its backward pass compute and keep.
Both are then run operator by operator, so that 500 modules take minutes. A result is wrong where its error
is above eight times eager's, and above some roundings of the largest number; and above eight times that of
the operators that Inductor is given, split as PyTorch splits them: these may round otherwise than eager's.
"""

import argparse
import os
import random
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from superopt.bench.harness.command import check_out
from superopt.bench.harness.results import Results, begin, machine, resumed
from superopt.errors import InputError

__all__ = ["RandomModule", "compiled", "judge", "measure_modules"]

_SETTINGS: tuple[str | int, ...] = ("fast", "balanced", 1)
_FACTOR, _SMALL = 8.0, {torch.float32: 4e-6, torch.bfloat16: 4e-2}
_TOGETHER = 20  # modules of a record

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
_TIED = ("once", "twice", "padded", "by index")
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
        self.tied = draw.choice(("", "", *_TIED))
        if self.tied:  # the last layer is that of words, which are read as well
            self.told.append(f"tied {self.tied}")

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

    def _read(self, ids: Tensor) -> Tensor:
        """Return the words of some numbers."""
        words = self.head.weight
        if self.tied == "by index":
            return words[ids - len(words)]
        found = F.embedding(ids, words, padding_idx=1 if self.tied == "padded" else None)
        return found * F.embedding(ids.flip(-1), words) if self.tied == "twice" else found

    def forward(self, x: Tensor, y: Tensor) -> Any:
        """Return a loss, or a loss and what is made beside it."""
        if self.tied:
            x = x + self._read((7 * y.cumsum(-1)) % len(self.head.weight))
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

    return _by_operators(module, split), ledger


def _inductors(module: nn.Module) -> Callable[..., Any]:
    """Return a module as PyTorch splits the step that Inductor would compile."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    def split(graph: Any, inputs: Any, **told: Any) -> Any:
        joint_graph_passes(graph)
        return min_cut_rematerialization_partition(graph, inputs, **{"compiler": "inductor", **told})

    return _by_operators(module, split)


def _by_operators(module: nn.Module, split: Callable[..., Any]) -> Callable[..., Any]:
    """Return a module whose step is split so, and run operator by operator."""
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.aot_autograd import aot_module
    from torch._inductor.decomposition import select_decomp_table

    plain: Callable[..., Any] = lambda graph, inputs: make_boxed_func(graph.forward)  # noqa: E731
    program: Callable[..., Any] = aot_module(
        module, plain, plain, partition_fn=split, decompositions=select_decomp_table()
    )
    return program


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
    fault = _worse(found, eager, exact, small)
    if fault:
        told = f"seed {seed}, {memory}{', bf16' * half}: {' '.join(module.told)} {module.shape}"
        inductors = _worse(found, _step(_inductors(module), module, x, y, half), exact, small)
        if inductors:
            return [], f"{told}: {fault} as eager's; {inductors} as that of Inductor's operators"
    return [one.why for one in ledger.decisions if one.taken], ""


def _worse(found: list[Tensor], theirs: list[Tensor], exact: list[Tensor], small: float) -> str:
    """Return which result errs more than others may, or ""."""
    for at, (a, b, c) in enumerate(zip(found, theirs, exact, strict=True)):
        error, allowed = (float((one - c).abs().max()) for one in (a, b))
        if a.shape != b.shape or not error <= _FACTOR * allowed + small * max(float(c.abs().max()), 1e-3):
            return f"result {at} errs by {error:.3g}, not by {allowed:.3g}"
    return ""


def _double(seed: int, x: Tensor, y: Tensor) -> list[Tensor]:
    module = RandomModule(seed).double()
    return _step(module, module, x.double(), y, half=False)


def measure_modules(options: argparse.Namespace) -> int:
    """Judge so many modules in each memory setting; return the exit code."""
    from superopt.backend.joint.limits import small

    check_out(options.json, resume=options.resume)
    cases = {
        f"{memory}:{first}": (memory, range(first, min(first + _TOGETHER, options.modules)))
        for first in range(0, options.modules, _TOGETHER)
        for memory in _SETTINGS
    }
    about = machine() | {"threads": torch.get_num_threads()}
    results = Results(list(cases), options.json, begin("modules", {"together": _TOGETHER}, about, {}))
    kept = resumed(options.json, resume=options.resume)
    if kept["cases"] and any(kept[part] != results.document[part] for part in ("suite", "settings")):
        raise InputError(f"{options.json} was made with other options")
    # A block that was cut short by a smaller number of modules is judged again.
    whole = {text: len(seeds) for text, (_, seeds) in cases.items()}
    results.records.update(
        {text: one for text, one in kept["cases"].items() if one["judged"] == whole.get(text)}
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SUPEROPT_CACHE_DIR"] = folder
        with small(fused=False):
            for text in results.left(options.minutes):
                results.keep(text, _judged(*cases[text]))
                for fault in results.records[text]["wrong"]:
                    print(fault, flush=True)
    return _told(results, options.modules)


def _judged(memory: str | int, seeds: range) -> dict[str, Any]:
    """Return how many modules were judged, changed, and computed in chunks, and what was wrong."""
    made = [judge(seed, memory, half=seed % 4 == 3) for seed in seeds]
    chunked = sum(any("in chunks" in one for one in changes) for changes, _ in made)
    counts = {"judged": len(made), "changed": sum(bool(changes) for changes, _ in made), "chunked": chunked}
    return {**counts, "wrong": [fault for _, fault in made if fault]}


def _told(results: Results, modules: int) -> int:
    wrong, short = 0, False
    for memory in _SETTINGS:
        records = [one for text, one in results.records.items() if text.split(":")[0] == str(memory)]
        judged, changed, chunked = (
            sum(one[name] for one in records) for name in ("judged", "changed", "chunked")
        )
        faults = sum(len(one["wrong"]) for one in records)
        changes = f"{changed} changed, {chunked} in chunks, {faults} wrong"
        print(f"{memory}: {judged} of {modules} random modules, {changes}")
        wrong, short = wrong + faults, short or judged < modules
    if short:
        print("the minutes are over; --resume goes on")
    return 1 if wrong or short else 0
