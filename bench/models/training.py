"""Training: a step forward and backward by several compilers, in turns, and the most memory it holds.

A step ends with the gradients of all parameters. The loss is that of the language model's head where the
model has one, else the mean square of what it makes. Memory is counted by `bench.models.memory`: the peak of
all that a step allocates, and that of its activations, which is all but the gradients that it leaves. The
gradients are compared with those of the same model in float64: their errors are told over those of eager
PyTorch's, which rounds too.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from math import inf, isnan
from pathlib import Path
from statistics import geometric_mean
from types import FunctionType
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.records import launch_record
from superopt.bench.harness.results import Results, begin, machine, resumed
from superopt.bench.harness.rivals import ready
from superopt.bench.models.case import Case, seconds_of
from superopt.bench.models.memory import peaks_of
from superopt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["FAMILIES", "SETTINGS", "check_training", "train", "trained"]

FAMILIES = ("llama", "qwen3", "mistral", "gemma2", "gpt2", "mixtral", "bert", "vit")
"""The models that are trained where none are named, in fp32 and under autocast to bf16."""

_HEADED = FAMILIES[:6]
_BUDGET = 0.5  # of the activations that Inductor keeps by default
_ACTIVATIONS = "inductor with an activation budget"
SETTINGS = ("fast", "balanced", "bytes")
"""Of memory, in which superopt trains."""

_LEAST_ROUNDS = 11
_TINY = 1e-30  # the length of a gradient below which it counts as one of that length


def check_training(cases: Mapping[str, Case], settings: str) -> None:
    """Raise InputError for a case that is not trained, or for a setting of memory that there is not."""
    if not settings or not set(settings.split(",")) <= set(SETTINGS):
        raise InputError(f"--settings is {settings!r}; known are {', '.join(SETTINGS)}")
    for text, case in cases.items():
        if case.decode or case.dtype not in ("fp32", "bf16"):
            raise InputError(f"{text}: what is trained is a prefill, in fp32 or under autocast to bf16")


def trained(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Return the times and the peaks of a training step, measured in this process."""
    import torch

    from superopt.tune.measure import bytes_of, times_together

    with (
        torch._inductor.config.patch(fx_graph_cache=False),  # a cached graph has met no pass of ours
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        model, inputs = _built(case, options)
        settings: dict[str, dict[str, Any]] = {
            f"superopt {name}": {"memory": options.bytes if name == "bytes" else name}
            for name in options.settings.split(",")
        }
        if options.budget is not None:
            for one in settings.values():
                one["budget_s"] = options.budget
        compiled: dict[str, _Step] = {}
        for name in ("eager", "inductor", _ACTIVATIONS, *settings):
            own = copy.deepcopy(model)
            loss = _loss_of(own)
            program = loss if name == "eager" else _program(loss, settings.get(name))
            compiled[name] = _Step(own, program, inputs, half=case.dtype == "bf16")
        exact = _exact(model, inputs)
        taken: dict[str, float] = {}

        def begun(name: str) -> Callable[[], Any]:
            taken[name] = seconds_of(_patched(name, compiled[name]))
            return compiled[name]

        steps, absent = ready({name: partial(begun, name) for name in compiled}, tuple)
        record = launch_record(
            times_together(steps, [()], seconds=options.seconds, least_rounds=_LEAST_ROUNDS),
            next(iter(settings)),
            "inductor",
        )
        peaks = {name: peaks_of(step, compiled[name].drop) for name, step in steps.items()}
        record["peak_bytes"] = {name: one.whole for name, one in peaks.items()}
        record["activation_bytes"] = {name: one.passing for name, one in peaks.items()}
        record["gradient_bytes"] = bytes_of(model.parameters())  # all of them are there at the end of a step
        record["errors"] = _over_eager({name: compiled[name].error(exact) for name in steps})
        record["first_s"] = taken
        record["decided"] = {name: _decided(one) for name, one in settings.items()}
        return record | ({"absent": absent} if absent else {})


class _Step:
    """A step of training: it begins without gradients, and ends with those of all parameters."""

    def __init__(
        self, model: "nn.Module", program: Callable[..., Any], inputs: Mapping[str, Any], *, half: bool
    ) -> None:
        self.model, self.program, self.inputs, self.half = model, program, inputs, half

    def drop(self) -> None:
        """Drop the gradients."""
        self.model.zero_grad(set_to_none=True)

    def __call__(self) -> None:
        import torch

        self.drop()
        with torch.autocast("cpu", dtype=torch.bfloat16) if self.half else nullcontext():
            loss = self.program(**self.inputs)
        loss.backward()

    def gradients(self) -> list["Tensor"]:
        """Return the gradients of a step."""
        self()
        return [one.grad for one in self.model.parameters() if one.grad is not None]

    def error(self, exact: Sequence["Tensor"]) -> float:
        """Return the largest error of a gradient, over its length.

        It is infinity where there are more or fewer gradients, or where one is NaN.
        """
        found = self.gradients()
        if len(found) != len(exact):
            return inf
        pairs = zip(found, exact, strict=True)
        errors = [float((a - b).norm() / b.norm().clamp_min(_TINY)) for a, b in pairs]
        return inf if any(map(isnan, errors)) else max(errors)


def _exact(model: "nn.Module", inputs: Mapping[str, Any]) -> list["Tensor"]:
    """Return the gradients of a step in float64."""
    import torch

    def wide(one: Any) -> Any:
        return one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one

    own: Any = copy.deepcopy(model).double()
    given = {name: wide(one) for name, one in inputs.items()}
    if hasattr(own, "set_experts_implementation"):  # PyTorch multiplies no groups of matrices in float64
        own.set_experts_implementation("eager")
    return _Step(own, _loss_of(own), given, half=False).gradients()


def _over_eager(errors: Mapping[str, float]) -> dict[str, float]:
    """Return errors over that of eager PyTorch."""
    return {name: round(one / errors["eager"], 3) if errors["eager"] else inf for name, one in errors.items()}


def _loss_of(model: "nn.Module") -> FunctionType:
    """Return what computes the loss alone: logits that a step returned could not be spared by anybody."""
    import torch

    def loss(**inputs: Any) -> Any:
        made = model(**inputs)
        if "labels" in inputs:
            return made.loss
        first = made if isinstance(made, torch.Tensor) else made[0]
        return (first if first.dtype == torch.float64 else first.float()).square().mean()

    assert isinstance(loss, FunctionType)
    return loss


def _program(loss: FunctionType, settings: dict[str, Any] | None) -> Callable[..., Any]:
    """Return the compiled loss, of a code of its own: programs of one code share what is compiled first."""
    import torch

    own = FunctionType(loss.__code__.replace(), loss.__globals__, closure=loss.__closure__)
    if settings is None:
        return torch.compile(own)
    return torch.compile(own, backend="superopt", options=settings)


def _patched(name: str, step: Callable[[], Any]) -> Callable[[], Any]:
    """Return a first step under what PyTorch's own partitioner is to keep."""
    import torch

    def first() -> Any:
        with torch._functorch.config.patch(activation_memory_budget=_BUDGET):
            return step()

    return first if name == _ACTIVATIONS else step


def _decided(settings: dict[str, Any]) -> list[str]:
    from superopt.backend.entry import ledger_of

    return [one.why for one in ledger_of(settings).decisions if one.graph == "joint graph"]


def _built(case: Case, options: argparse.Namespace) -> tuple["nn.Module", dict[str, Any]]:
    import torch

    from superopt.bench.zoo import Sizes, build, inputs_of

    torch.manual_seed(0)
    tokens = case.tokens or options.tokens
    sizes = Sizes(
        width=options.width,
        inner=options.width * 11 // 4,
        heads=options.width // 64,
        kv_heads=max(1, options.width // 256),
        layers=options.layers,
        vocabulary=options.vocabulary,
        tokens=tokens,
    )
    headed = case.model in _HEADED
    inputs = inputs_of(case.model, sizes)
    model: Any = build(case.model, sizes, head=headed).train()
    if headed:  # of a loss that transformers does not tell by a class's name it warns, which breaks the graph
        model.loss_type = "ForCausalLM"
    return model, inputs | ({"labels": inputs["input_ids"]} if headed else {})


def train(cases: Mapping[str, Case], options: argparse.Namespace) -> int:
    """Measure every case in a process of its own; return the exit code."""
    import torch
    import transformers

    check_training(cases, options.settings)
    names = ("width", "layers", "tokens", "vocabulary", "bytes", "budget", "seconds", "settings")
    settings = {"train": True, **{name: getattr(options, name) for name in names}}
    about = machine() | {"transformers": transformers.__version__, "threads": torch.get_num_threads()}
    results = Results(list(cases), options.json, begin("training", settings, about, {}))
    kept = resumed(options.json, resume=options.resume)
    if kept["cases"] and kept["settings"] != settings:
        raise InputError(f"{options.json} was made with other options")
    results.records.update({text: one for text, one in kept["cases"].items() if "error" not in one})
    for text in results.left(options.minutes):
        results.keep(text, {"case": text, **_in_process(text, options)})
        print(_line(text, results.records[text]), flush=True)
    made = [one for one in results.records.values() if "ratios" in one]
    if made:
        mean = geometric_mean(one["ratios"]["inductor"] for one in made)
        first, *_ = options.settings.split(",")
        print(f"superopt {first}: {mean:.3f} times Inductor in the geometric mean of {len(made)} cases")
    return 0 if len(made) == len(cases) else 1


def _in_process(text: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a process measures, or why there is nothing."""
    command = [sys.executable, "-m", "superopt.bench.models", "--train", "--child", "trained"]
    command += ["--cases", text]
    for name in ("width", "layers", "tokens", "vocabulary", "bytes", "seconds", "settings"):
        command += [f"--{name}", str(getattr(options, name))]
    command += [] if options.budget is None else ["--budget", str(options.budget)]
    with _folder() as places:
        try:
            done = subprocess.run(
                command, env=places, capture_output=True, text=True, timeout=60 * options.limit
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took more than {options.limit:g} minutes"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


@contextmanager
def _folder() -> Iterator[dict[str, str]]:
    """Give an environment whose caches are empty."""
    with tempfile.TemporaryDirectory() as folder:
        kept, inductor = Path(folder) / "kept", Path(folder) / "inductor"
        yield {**os.environ, "SUPEROPT_CACHE_DIR": str(kept), "TORCHINDUCTOR_CACHE_DIR": str(inductor)}


def _line(text: str, record: Mapping[str, Any]) -> str:
    if "error" in record:
        return f"{text:16} failed: {record['error']}"
    theirs = record["measured"]["inductor"]["median_us"]
    told = [
        f"    {name:36} {one['median_us'] / 1e3:9.1f} ms {theirs / one['median_us']:6.2f}"
        f" {record['peak_bytes'][name] / 2**20:9.1f} MB, activations"
        f" {record['activation_bytes'][name] / 2**20:9.1f}, errors {record['errors'][name]:.2f} of eager's"
        for name, one in record["measured"].items()
    ]
    reasons = [f"    {name}: {why}" for name, whys in record["decided"].items() for why in whys]
    return "\n".join([text, *told, *reasons])
