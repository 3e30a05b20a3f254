"""A user's benchmarks, each measured in several processes: what one of them does, and what they say together.

The first launch searches, tunes and saves what `superopt.optimize` makes; those after it load that, so that
launches differ by what the machine does, not by what was found.
"""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from superopt.bench.blocks import timed_in_blocks
from superopt.bench.declared import Declared
from superopt.bench.harness import Record, failed, launch_record, machine, merged
from superopt.bench.intervals import Launch, speed
from superopt.errors import InputError, SuperoptError

__all__ = ["Request", "launches_of", "measure_all", "run_launch", "together", "with_floor"]


@dataclass(frozen=True, slots=True)
class Request:
    """What one process is asked to measure."""

    file: str
    names: tuple[str, ...]
    out: str  # where its records go
    folder: str  # where results of optimizing are kept from launch to launch
    seconds: float = 3.0  # of measuring each case
    optimize_seconds: float = 5.0  # of racing, when optimizing
    threads: int | None = None  # of PyTorch; None: as many as it takes
    fresh: bool = False  # search and tune anew, whatever the cache holds
    seed: int = 0


def run_launch(request: Request, command: Sequence[str]) -> tuple[dict[str, Record], Record]:
    """Return the records of a process of its own, and what machine it says it is on."""
    from superopt.plans.saved import write_json

    place = Path(request.folder, "request.json")
    write_json(asdict(request), place)
    out = Path(request.out)
    out.unlink(missing_ok=True)
    ended = subprocess.run([*command, str(place)], stdout=sys.stderr, check=False)
    if ended.returncode in (130, -2):
        raise KeyboardInterrupt
    found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"machine": {}, "cases": {}}
    records: dict[str, Record] = found["cases"]
    ending = f"the process that measured it ended with exit code {ended.returncode}"
    for name in request.names:
        records.setdefault(name, {"case": name, "error": ending})
    return records, found["machine"]


def measure_all(
    declared: Sequence[Declared], request: Request, make: Callable[[str], tuple[Any, ...]]
) -> None:
    """Measure the named cases in this process, writing after each; `make` makes inputs of a text."""
    import torch

    from superopt.plans.saved import write_json

    if request.threads is not None:
        torch.set_num_threads(request.threads)
    about = machine() | {"threads": torch.get_num_threads()}
    records: dict[str, Record] = {}
    for one in declared:
        if one.name not in request.names:
            continue
        torch.manual_seed(request.seed)
        try:
            with torch.no_grad():
                records[one.name] = {"case": one.name, **_measure(one, request, make)}
        except Exception as error:  # one case must not end the others
            records[one.name] = failed({"case": one.name}, error)
        write_json({"machine": about, "cases": records}, Path(request.out))


def _measure(one: Declared, request: Request, make: Callable[[str], tuple[Any, ...]]) -> Record:
    import torch

    from superopt.tune.measure import Times

    start = time.perf_counter()
    given = _tuple(make(one.inputs) if isinstance(one.inputs, str) else one.inputs())
    known, runs, absent = _contenders(one, given, request)
    on_device = any(isinstance(value, torch.Tensor) and value.is_cuda for value in given)
    times = timed_in_blocks(
        runs,
        lambda: _copied(given),
        seconds=request.seconds,
        synchronize=torch.cuda.synchronize if on_device else lambda: None,
        seed=request.seed,
    )
    taken = {name: Times([us for block in some for us in block]) for name, some in times.items()}
    found = launch_record(taken, one.ours, one.baseline, blocks=times)
    return {**known, **found, "not_run": absent, "wall_s": round(time.perf_counter() - start, 2)}


def _contenders(
    one: Declared, given: tuple[Any, ...], request: Request
) -> tuple[Record, dict[str, Callable[..., Any]], dict[str, str]]:
    """Return what is known of a case, all that is measured, each called once, and why others are not."""
    import torch

    known: Record = {}
    found: dict[str, Callable[..., Any]] = {}
    absent: dict[str, str] = {}
    if one.optimize:
        best, known = _optimized(one, given, request)
        found["superopt"] = best
    else:
        found[one.name] = one.function
    for name, other in one.against:
        run = other or (one.function if name == "eager" else torch.compile(one.function))
        try:
            run(*_copied(given))
            found[name] = run
        except Exception as error:  # whatever stops a peer must not stop the rest
            if name == one.baseline:
                raise
            absent[name] = str(failed({}, error)["error"])
    return known, found, absent


def _optimized(one: Declared, given: tuple[Any, ...], request: Request) -> tuple[Any, Record]:
    """Return what an earlier launch made of a function, or make it now."""
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
        except InputError:  # then each launch makes it for itself
            place.unlink(missing_ok=True)
    program = print_program(trace(one.function, *given, name=one.name).program)
    kernels = [plan.chosen.name if plan.chosen else "PyTorch's" for plan in best.regions]
    return best, {
        "program": hashlib.sha256(program.encode()).hexdigest()[:16],
        "returned": best.winner,
        "chosen": kernels,
    }


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _copied(given: tuple[Any, ...]) -> tuple[Any, ...]:
    import torch
    from torch.utils._pytree import tree_map

    copied: tuple[Any, ...] = tree_map(
        lambda value: value.clone() if isinstance(value, torch.Tensor) else value, given
    )
    return copied


def together(records: Sequence[Record]) -> Record:
    """Return the record of a case from those of its launches: one that failed says why, and counts."""
    broken = next((one for one in records if one.get("error")), None)
    return dict(broken) if broken is not None else merged(records)


def launches_of(record: Mapping[str, Any], *, baseline: bool = True) -> list[Launch]:
    """Return the blocks of a record as the statistics take them."""
    blocks = record["blocks_us"]
    ours = blocks[record["ours"]]
    base = blocks.get(record["baseline"]) if baseline else None
    return [
        Launch(one, base[at] if base is not None and at < len(base) else []) for at, one in enumerate(ours)
    ]


def with_floor(record: Record, floor: float | None) -> Record:
    """Return a record with how many times as fast as its baseline it is, and whether that is enough."""
    if record.get("error"):
        return record
    try:
        found = speed(launches_of(record))
    except (IndexError, KeyError) as error:
        raise SuperoptError(f"{record['case']}: its times are damaged") from error
    about = {"ratio": found.ratio, "low": found.low, "high": found.high}
    return record | {"speed": about, "floor": floor, "held": floor is None or found.high >= floor}
