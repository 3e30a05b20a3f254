"""Case: one model, built, and what one process measures of it."""

import argparse
import copy
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from superopt.bench.harness.records import launch_record
from superopt.bench.harness.rivals import ready
from superopt.bench.models.peers import PEERS, POLICIES, peers_of
from superopt.errors import InputError

__all__ = ["DTYPES", "Case", "caches_in", "child"]

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "float32"}
"""By name, the dtype of a model's tensors; of int8 only the weights of its projections have eight bits."""

_TUNED = "superopt tuned"  # what superopt makes of a model once its deferred work is done
_STEPPING = ("llama", "qwen3", "mistral", "gpt2")  # models whose caches are of one kind in all layers

_COMPILED = 64  # programs made of one model; of more than so many, Dynamo would run the rest as eager does
_STEPS = 2  # of a decode before the one that is timed: one token comes after another
_SETTLED = 20  # calls after which weights that are not read have gone to a file
_PATCH, _IMAGE = (
    16,
    128,
)  # pixels; an image has as many patches as a text has tokens, where a case says tokens


class Case:
    """A model, a phase, its tokens and a dtype, from text like `llama:decode:bf16` or `bert:512`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.model, *rest = text.split(":")
        self.decode = "decode" in rest
        self.dtype = next((one for one in rest if one in DTYPES), "fp32")
        numbers = [int(one) for one in rest if one.isdecimal() and int(one) > 0]
        self.tokens = numbers[0] if numbers else None  # of a prefill, or in the cache of a decode
        named = [one for one in rest if not one.isdecimal() or int(one) == 0]
        unknown = [one for one in named if one not in ("decode", "prefill", *DTYPES)]
        from superopt.bench.zoo import MODELS

        if self.model not in MODELS:
            raise InputError(f"no model is named {self.model!r}; there are {', '.join(MODELS)}")
        if unknown:
            raise InputError(
                f"{text}: {unknown[0]!r} is neither prefill, decode, {', '.join(DTYPES)} nor tokens"
            )
        if self.decode and self.model not in _STEPPING:
            raise InputError(f"{text}: the models that decode are {', '.join(_STEPPING)}")


def child(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Return what one process measures of a case: how long compiling takes, or times of a step too."""
    import torch

    model, step = _built(case, options)
    settings: dict[str, Any] = {"preset": options.preset, "weights": options.weights}
    if options.budget is not None:
        settings["budget_s"] = options.budget
    torch._dynamo.config.recompile_limit = _COMPILED
    torch.compile(lambda x: x + 1)(torch.ones(4))
    inductor = step(torch.compile(model))
    if options.child == "inductor":
        return {"compile_s": seconds_of(inductor)}
    from superopt.funnel.warm_up import prepare_machine

    once_s = seconds_of(prepare_machine)
    own = copy.deepcopy(model)  # others' weights stay where they are, when ours go to files
    ours = step(torch.compile(own, backend="superopt", options=settings))
    record: dict[str, Any] = {"compile_s": seconds_of(ours), "once_s": round(once_s, 3), **_taken(settings)}
    if options.child == "superopt":
        return record
    from superopt.tune.measure import times_together

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(options.folder) / "inductor")
    inductor()
    for _ in range(_SETTLED):
        ours()
    record["weights"] = _memory_of(own)

    def peer(name: str) -> Callable[[], Any]:
        if name not in POLICIES:
            return step(PEERS[name](model))
        policy = settings | {"weights": name}
        program = step(torch.compile(copy.deepcopy(model), backend="superopt", options=policy))
        with _kept_in(Path(options.folder) / name):
            program()
        return program

    peers, absent = ready({name: partial(peer, name) for name in peers_of(options)}, tuple)
    steps = {"eager": step(model), "inductor": inductor, **peers, "superopt": ours}
    tuned: dict[str, Any] = {}
    if options.tune:
        # "later" is the default, but with equal options Dynamo would run the code that it has.
        again = settings | {"tune": "later"}
        steps[_TUNED] = step(torch.compile(copy.deepcopy(model), backend="superopt", options=again))
        with _kept_in(Path(options.folder)):
            tuned["tune_s"] = _worked_off(options.tune)
            tuned |= {"compile_s": seconds_of(steps[_TUNED]), **_taken(again)}
    before = _STEPS if case.decode else 0
    times = times_together(steps, [()], seconds=options.seconds, untimed=before)
    record |= _raced({name: one for name, one in times.items() if name != _TUNED})
    if tuned:
        others = {name: one for name, one in times.items() if name not in ("superopt", _TUNED)}
        record["tuned"] = tuned | _raced({**others, "superopt": times[_TUNED]})
    return record | ({"absent": absent} if absent else {})


def _raced(times: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a race that superopt runs with the others."""
    found = launch_record(times, "superopt", "eager")
    return found | {"speedup": round(found["ratios"]["inductor"], 3)}


def _worked_off(minutes: float) -> float:
    """Let a process work off what the budget left, for so many minutes; return the seconds that it took."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "superopt", "tune", "--pending", "--minutes", str(minutes)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=2 * 60 * minutes)
    return round(time.perf_counter() - start, 1)


def caches_in(folder: Path, by: str = "superopt") -> dict[str, str]:
    """Return the variables that let superopt and Inductor keep in a folder what they keep on disk."""
    return {"SUPEROPT_CACHE_DIR": str(folder / "kept"), "TORCHINDUCTOR_CACHE_DIR": str(folder / by)}


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Let superopt and Inductor keep in a folder what they keep on disk, inside the block."""
    places = caches_in(folder)
    before = {name: os.environ.get(name) for name in places}
    os.environ |= places
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _taken(settings: dict[str, Any]) -> dict[str, Any]:
    """Return which regions the backend took under some settings, and why not the others."""
    from superopt.backend.entry import ledger_of

    ledger = ledger_of(settings)
    taken = [one for one in ledger.decisions if one.taken]
    flops, moved = sum(one.flops for one in taken), sum(one.bytes for one in taken)
    return {
        "regions": {"taken": len(taken), "all": len(ledger.decisions), "graphs": ledger.graphs},
        "flops": round(flops / ledger.total_flops, 3) if ledger.total_flops else 0.0,
        "bytes": round(moved / ledger.total_bytes, 3) if ledger.total_bytes else 0.0,
        "explained": ledger.text().splitlines(),
    }


def _memory_of(model: Any) -> dict[str, float]:
    """Return the bytes of a model's weights, what is kept beside them, and what of them went to files."""
    from superopt.weights.away import bytes_away
    from superopt.weights.kept import bytes_kept

    storages = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for one in (*model.parameters(), *model.buffers())
    }
    total, kept, away = sum(storages.values()), bytes_kept(), bytes_away()
    return {"bytes": total, "kept": kept, "away": away, "times": round((total + kept - away) / total, 4)}


def _built(case: Case, options: argparse.Namespace) -> tuple[Any, Callable[[Any], Callable[[], Any]]]:
    """Return a model, and what makes a step of it, or of what it was compiled to."""
    import torch

    from superopt.bench.models.int8 import with_int8_weights
    from superopt.bench.zoo import Decoding, Sizes, build, inputs_of

    torch.manual_seed(0)
    tokens = case.tokens or (options.context if case.decode else options.tokens)
    prefill = options.tokens if case.decode else tokens
    sizes = Sizes(
        width=options.width,
        inner=options.width * 11 // 4,
        heads=options.width // 64,
        kv_heads=max(1, options.width // 256),
        layers=options.layers,
        tokens=prefill,
        image=_PATCH * round(prefill**0.5) if case.tokens and not case.decode else _IMAGE,
        patch=_PATCH,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, DTYPES[case.dtype])
    model = build(case.model, sizes).to(device, dtype)
    if case.dtype == "int8":
        model = with_int8_weights(model)
    if case.decode:
        decoding = Decoding(model, tokens)
        return model, lambda program: _decode(program, decoding)
    inputs = {
        name: value.to(device, dtype if value.is_floating_point() else None)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in inputs_of(case.model, sizes).items()
    }
    return model, lambda program: _step(program, inputs)


def _decode(program: Callable[..., Any], decoding: Any) -> Callable[[], Any]:
    import torch

    def one_token() -> Any:
        decoding.rewind()
        with torch.no_grad():
            return program(**decoding.inputs)[0]

    return one_token


def _step(program: Callable[..., Any], inputs: Mapping[str, Any]) -> Callable[[], Any]:
    import torch

    def infer() -> Any:
        with torch.no_grad():
            return program(**inputs)

    return infer


def seconds_of(step: Callable[[], Any]) -> float:
    """Return how long the first step takes, all that it compiles included.

    A garbage collection over all that PyTorch holds takes 0.2 s and would fall by chance into one of the
    two first steps, so it is made before.
    """
    gc.collect()
    start = time.perf_counter()
    step()
    return round(time.perf_counter() - start, 2)
