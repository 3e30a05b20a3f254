"""Loss: a linear layer and cross-entropy, forward and backward, whose logits are larger than all else.

    python -m bench.models --loss 4096x512x32000 --json OUT
    python -m bench.models --loss 4096x512x32000 --settings bytes     less than the five minutes of all three

Measured: a step by superopt in its three memory settings, by Inductor, by eager PyTorch, and by PyTorch's
own loss that makes logits for some rows at a time (`linear_cross_entropy`, since 2.13), in turns; the most
memory of a step, with the inputs, over that of inputs and gradients alone; and the errors of the gradients
against float64, over eager's.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.backend.entry import ledger_of
from superopt.bench.harness.records import launch_record
from superopt.bench.harness.results import Results, begin, machine
from superopt.bench.models.memory import peaks_of
from superopt.bench.models.training import check_training
from superopt.errors import InputError
from superopt.tune.measure import times_together

__all__ = ["measure_loss"]

_IGNORED = 7  # each row of so many has no label
_ROWS = 256  # that are computed in float64 at a time
_LEAST_ROUNDS = 3
_TURNS = 12  # the bytes of inputs and gradients over those that are told as `memory`


class _Step:
    """A loss with its gradients, by some program."""

    def __init__(self, program: Callable[..., Tensor], x: Tensor, w: Tensor, y: Tensor) -> None:
        self.program, self.y = program, y
        self.leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]

    def __call__(self) -> None:
        self.drop()
        torch.autograd.backward(self.program(*self.leaves, self.y))

    def drop(self) -> None:
        """Drop the gradients."""
        for one in self.leaves:
            one.grad = None

    def gradients(self) -> list[Tensor]:
        """Return the gradients of a step."""
        self()
        return [one.grad.clone() for one in self.leaves if one.grad is not None]


def _loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x @ w.t(), y)


def _in_chunks() -> dict[str, Callable[..., Tensor]]:
    """Return PyTorch's own loss without whole logits by its name, nothing where this version has none."""
    if not hasattr(F, "linear_cross_entropy"):
        return {}
    options = torch.nn.LinearCrossEntropyOptions()
    return {"eager in chunks": lambda x, w, y: F.linear_cross_entropy(x, w, y, options=options)}


def measure_loss(options: argparse.Namespace) -> int:
    """Measure one size; return the exit code."""
    sizes = options.loss.split("x")
    if len(sizes) != 3 or not all(one.isdecimal() and int(one) > 0 for one in sizes):
        raise InputError(f"--loss is {options.loss!r}; it is rows, width and words, as in 4096x512x32000")
    rows, width, words = map(int, sizes)
    check_training({}, options.settings)
    names = options.settings.split(",")
    torch.manual_seed(0)
    x, w = torch.randn(rows, width), torch.randn(words, width) / width**0.5
    y = torch.randint(0, words, (rows,))
    y[::_IGNORED] = -100
    alone = 2 * 4 * (x.numel() + w.numel()) + 8 * rows
    settings: dict[str, dict[str, Any]] = {
        f"superopt {name}": {"memory": alone // _TURNS if name == "bytes" else name} for name in names
    }
    if options.budget is not None:
        for one in settings.values():
            one["budget_s"] = options.budget
    exact = _exact(x, w, y)
    eager: dict[str, Callable[..., Tensor]] = {"eager": _loss, **_in_chunks()}
    steps = {name: _Step(program, x, w, y) for name, program in eager.items()}
    errors = {name: _errors(step, exact) for name, step in steps.items()}
    for name in ("inductor", *settings):
        backend = "superopt" if name in settings else "inductor"
        steps[name] = _Step(torch.compile(_loss, backend=backend, options=settings.get(name)), x, w, y)
        errors[name] = _errors(steps[name], exact)  # a step of a large size takes seconds, so each one counts
    taken = times_together(steps, [()], seconds=options.seconds, least_rounds=_LEAST_ROUNDS)
    record: dict[str, Any] = launch_record(taken, f"superopt {names[-1]}", "inductor")
    inside = alone // 2
    record["peak"] = {
        name: round((peaks_of(step, step.drop, warm=True).whole + inside) / alone, 3)
        for name, step in steps.items()
    }
    record["errors"] = {
        name: [round(a / b, 3) if b else 0.0 for a, b in zip(found, errors["eager"], strict=True)]
        for name, found in errors.items()
    }
    record["decided"] = {
        name: [one.why for one in ledger_of(told).decisions if one.graph == "joint graph"]
        for name, told in settings.items()
    }
    about = machine() | {"threads": torch.get_num_threads()}
    told = {"seconds": options.seconds, "budget_s": options.budget}
    results = Results([options.loss], options.json, begin("loss", told, about, {}))
    results.keep(options.loss, {"case": options.loss, **record})
    print(_text(options.loss, record))
    return 0


def _exact(x: Tensor, w: Tensor, y: Tensor) -> list[Tensor]:
    """Return the gradients in float64, some rows at a time."""
    leaves = [x.double().requires_grad_(), w.double().requires_grad_()]
    count = int((y >= 0).sum())
    for at in range(0, len(y), _ROWS):
        part = slice(at, at + _ROWS)
        logits = leaves[0][part] @ leaves[1].t()
        torch.autograd.backward(F.cross_entropy(logits, y[part], reduction="sum") / count)
    return [one.grad for one in leaves if one.grad is not None]


def _errors(step: _Step, exact: list[Tensor]) -> list[float]:
    """Return the largest error of each gradient."""
    return [float((a - b).abs().max()) for a, b in zip(step.gradients(), exact, strict=True)]


def _text(case: str, record: Mapping[str, Any]) -> str:
    lines = [f"{case}: ms, peak over inputs and gradients, errors of the gradients over eager's"]
    for name, one in record["measured"].items():
        errors = ", ".join(f"{error:.2f}" for error in record["errors"][name])
        lines.append(f"    {name:20} {one['median_us'] / 1e3:9.1f} {record['peak'][name]:7.3f}   {errors}")
    lines += [f"    {name}: {why}" for name, whys in record["decided"].items() for why in whys]
    return "\n".join(lines)
