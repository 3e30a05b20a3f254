"""A user's functions, measured in one process of several.

The first launch searches, tunes and saves what `superopt.optimize` makes; later launches load that, so that
launches differ by what the machine does, not by what was found.
"""

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from superopt.bench.functions.declared import Declared
from superopt.bench.harness.blocks import timed_in_blocks
from superopt.bench.harness.records import Record, failed, launch_record
from superopt.bench.harness.results import begin, machine, read_results, write_results
from superopt.bench.harness.rivals import ready
from superopt.errors import InputError

__all__ = ["Request", "measure_all", "run_launch"]

_STDERR = 2  # its number, since sys.stderr need not be a file


@dataclass(frozen=True, slots=True)
class Request:
    """What one process is asked to measure."""

    file: str
    names: tuple[str, ...]
    out: str  # where its document goes
    folder: str  # where results of optimizing are kept from launch to launch
    seconds: float = 3.0  # of measuring each case
    optimize_seconds: float = 5.0  # of racing, when optimizing
    threads: int | None = None  # of PyTorch; None: its own choice
    fresh: bool = False  # search and tune anew, whatever the cache holds
    seed: int = 0


def run_launch(request: Request, command: Sequence[str]) -> Record:
    """Return the document of a process of its own; a case that it did not reach has failed."""
    place = Path(request.folder, "request.json")
    place.write_text(json.dumps(asdict(request)), encoding="utf-8")
    out = Path(request.out)
    out.unlink(missing_ok=True)
    ended = subprocess.run([*command, str(place)], stdout=_STDERR, check=False)
    if ended.returncode in (130, -2):
        raise KeyboardInterrupt
    document = read_results(out) if out.exists() else _begun(request, {})
    ending = f"the process that measured it ended with exit code {ended.returncode}"
    for name in request.names:
        document["cases"].setdefault(name, {"case": name, "error": ending})
    return document


def _begun(request: Request, about: Mapping[str, Any]) -> Record:
    settings = {"file": Path(request.file).name, "seconds": request.seconds, "seed": request.seed}
    return begin("functions", settings, about, {})


def measure_all(
    declared: Sequence[Declared], request: Request, make: Callable[[str], tuple[Any, ...]]
) -> None:
    """Measure the named cases in this process, writing after each; `make` makes inputs of a text."""
    import torch

    if request.threads is not None:
        torch.set_num_threads(request.threads)
    document = _begun(request, machine() | {"threads": torch.get_num_threads()})
    for one in declared:
        if one.name not in request.names:
            continue
        torch.manual_seed(request.seed)
        try:
            with torch.no_grad():
                record = {"case": one.name, **_measure(one, request, make)}
        except Exception as error:  # one case must not end the others
            record = failed({"case": one.name}, error)
        document["cases"][one.name] = record
        write_results(document, Path(request.out))


def _measure(one: Declared, request: Request, make: Callable[[str], tuple[Any, ...]]) -> Record:
    import torch

    from superopt.tune.measure import Times

    start = time.perf_counter()
    given = _tuple(make(one.inputs) if isinstance(one.inputs, str) else one.inputs())
    known, ours = _optimized(one, given, request) if one.optimize else ({}, one.function)
    wanted = {name: _made(one, name, other) for name, other in one.against}
    rivals, absent = ready(wanted, lambda: _copied(given), needed=one.baseline)
    on_device = any(isinstance(value, torch.Tensor) and value.is_cuda for value in given)
    times = timed_in_blocks(
        {one.ours: ours, **rivals},
        lambda: _copied(given),
        seconds=request.seconds,
        synchronize=torch.cuda.synchronize if on_device else lambda: None,
        seed=request.seed,
    )
    taken = {name: Times([us for block in some for us in block]) for name, some in times.items()}
    found = launch_record(taken, one.ours, one.baseline, blocks=times)
    return {**known, **found, "not_run": absent, "wall_s": round(time.perf_counter() - start, 2)}


def _made(one: Declared, name: str, other: Callable[..., Any] | None) -> Callable[[], Callable[..., Any]]:
    """Return what makes a rival: the given function, or what its name says of the declared one."""
    import torch

    if other is not None:
        return lambda: other
    return (lambda: one.function) if name == "eager" else (lambda: torch.compile(one.function))


def _optimized(one: Declared, given: tuple[Any, ...], request: Request) -> tuple[Record, Any]:
    """Return what is known of a function and what an earlier launch made of it, or make it now."""
    from superopt import OptimizeOptions, load, optimize
    from superopt.ir import print_program
    from superopt.trace import trace

    place = Path(request.folder, f"{one.name}.json")
    if place.exists():
        best = load(place, one.function)
    else:
        options = OptimizeOptions(
            seconds=request.optimize_seconds,
            torch_compile="torch.compile" in dict(one.against),
            cache=not request.fresh,
            seed=request.seed,
        )
        best = optimize(one.function, *given, name=one.name, options=options)
        try:
            best.save(place)
        except InputError:  # a result that cannot be saved is made by each launch
            place.unlink(missing_ok=True)
    program = print_program(trace(one.function, *given, name=one.name).program)
    known = {
        "program": hashlib.sha256(program.encode()).hexdigest()[:16],
        "returned": best.winner,
        "chosen": [plan.chosen.name if plan.chosen else "PyTorch's" for plan in best.regions],
    }
    return known, best


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _copied(given: tuple[Any, ...]) -> tuple[Any, ...]:
    import torch
    from torch.utils._pytree import tree_map

    copied: tuple[Any, ...] = tree_map(
        lambda value: value.clone() if isinstance(value, torch.Tensor) else value, given
    )
    return copied
