"""How fast the search engine is: serial, a static partition, and owner-computes with several workers.

    python -m bench.frontier --case programs-4x4 --workers 2 --json OUT

Measured: the engine whose workers own states. Against: one process, and the obvious partition, which deals
the frontier of each level to the workers, where each deduplicates what it made, and merges the results at
the barrier. All three search the same space (`superopt.bench.programs`) with the same code to expand,
key and deduplicate, and must find the same states. Repeats are interleaved, so that a noisy moment meets
all three alike.

Two busy cores only show on a machine that does nothing else. So the CPU time that other programs took
during each run is measured, and a run with more than a few per cent of it is kept in the file but not
counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from superopt.bench.harness.command import Parser, above_zero, check_out, from_one
from superopt.bench.harness.records import Record, launch_record
from superopt.bench.harness.results import Results, begin, machine
from superopt.bench.programs import Programs
from superopt.errors import InputError
from superopt.frontier.engine import explore
from superopt.frontier.engine.duplicates import Pending, Seen
from superopt.frontier.engine.records import KEY_WORDS, Records, distinct, join
from superopt.frontier.engine.transports.memory import Store, store_share
from superopt.frontier.engine.worker import Pace, candidates_of
from superopt.tune.measure import Times

RESULTS = Path(__file__).parent / "results"
QUIET_SHARE = 0.04
ENGINES = ("serial", "static", "owner")


@dataclass(frozen=True, slots=True)
class Run:
    """One search: what it did in how many seconds, and how busy each worker was on each level."""

    engine: str
    seconds: float
    candidates: int
    states: int
    busy_seconds: list[list[float]]
    barrier_seconds: list[float]
    digest: int
    others_share: float = 0.0

    @property
    def quiet(self) -> bool:
        """Whether other programs took so little of the machine that the run counts."""
        return self.others_share <= QUIET_SHARE


def run_explore(engine: str, space: Programs, workers: int) -> Run:
    """Return a search by the engine of the package."""
    began = time.perf_counter()
    found = explore(space, workers=workers)
    seconds = time.perf_counter() - began
    assert found.stopped is None
    levels = found.levels[1:]
    busy = [list(stats.worker_seconds) for stats in levels]
    barrier = [stats.seconds - max(stats.worker_seconds) for stats in levels]
    candidates = sum(stats.candidates for stats in found.levels)
    return Run(engine, seconds, candidates, len(found.rows), busy, barrier, digest(found.keys))


def digest(keys: np.ndarray[Any, Any]) -> int:
    """Return a number that tells sets of keys apart, whatever their order."""
    return int(np.bitwise_xor.reduce(keys[:, 0] * np.uint64(3) ^ keys[:, 1])) if len(keys) else 0


def run_static(space: Programs, workers: int) -> Run:
    """Return a search that deals each level's frontier to workers and merges their finds in the parent."""
    began = time.perf_counter()
    words = space.width + KEY_WORDS
    inbound = Store(workers, words, keep_arcs=False).new
    outbound = Store(1, words, keep_arcs=False).new[0]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(workers)]
    crew = [
        context.Process(
            target=static_worker,
            args=(space, pipe[1], outbound, inbound[worker], worker, workers),
            daemon=True,
        )
        for worker, pipe in enumerate(pipes)
    ]
    for process in crew:
        process.start()
    seen = Seen()
    roots = space.roots()
    new = distinct(join(roots, space.keys(roots)))
    found, busy, barrier = [new], [], []
    candidates = len(roots)
    while len(new):
        seen.add(new)
        store_share(outbound, 0, new)
        for pipe, _ in pipes:
            pipe.send(len(new))
        reports = [pipe.recv() for pipe, _ in pipes]
        parent_began = time.perf_counter()
        pending = Pending(seen, space.width, keep_arcs=False)
        for records, (count, _, _) in zip(inbound, reports, strict=True):
            if count:
                pending.add(records[:count])
        new, _ = pending.finish()
        new = new.copy()
        found.append(new)
        candidates += sum(made for _, made, _ in reports)
        busy.append([seconds for _, _, seconds in reports])
        barrier.append(time.perf_counter() - parent_began)
    for pipe, _ in pipes:
        pipe.send(-1)
    for process in crew:
        process.join()
    keys = np.concatenate([records[:, :KEY_WORDS] for records in found if len(records)]).view(np.uint64)
    seconds = time.perf_counter() - began
    return Run("static", seconds, candidates, len(keys), busy, barrier, digest(keys))


def static_worker(
    space: Programs, pipe: Any, frontier: Records, finds: Records, worker: int, workers: int
) -> None:
    """Expand a share of the rows of each level, and leave the distinct results in shared memory."""
    pace = Pace()
    while (size := pipe.recv()) >= 0:
        began = time.perf_counter()
        mine = frontier[worker:size:workers, KEY_WORDS:]
        pending = Pending(Seen(), space.width, keep_arcs=False)
        at = made = 0
        while at < len(mine):
            batch_began = time.perf_counter()
            rows = np.ascontiguousarray(mine[at : at + pace.rows])
            candidates = candidates_of(space, rows)
            pending.add(candidates)
            pace.learn(len(rows), len(candidates), time.perf_counter() - batch_began)
            at += len(rows)
            made += len(candidates)
        records, _ = pending.finish()
        store_share(finds, 0, records)
        pipe.send((len(records), made, time.perf_counter() - began))


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU seconds of the whole machine, and of this program with its ended children."""
    times = psutil.cpu_times()
    busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy, sum(usage.ru_utime + usage.ru_stime for usage in own)


def watched(engine: Callable[[Programs], Run], space: Programs) -> Run:
    """Return a run with the share of the machine that other programs took meanwhile."""
    busy, own = cpu_seconds()
    began = time.perf_counter()
    run = engine(space)
    seconds = time.perf_counter() - began
    busy_after, own_after = cpu_seconds()
    others = max(0.0, (busy_after - busy) - (own_after - own))
    return replace(run, others_share=round(others / (seconds * multiprocessing.cpu_count()), 4))


def quiet_runs(runs: list[Run]) -> int:
    """Return how many quiet runs every engine has at least."""
    return min(sum(run.engine == engine and run.quiet for run in runs) for engine in ENGINES)


def measure(space: Callable[[], Programs], workers: int, repeats: int, budget: float) -> list[Run]:
    """Run all engines in turn until each has its quiet runs; one small run of each is the warm-up."""
    engines: dict[str, Callable[[Programs], Run]] = {
        "serial": lambda space: run_explore("serial", space, 1),
        "static": lambda space: run_static(space, workers),
        "owner": lambda space: run_explore("owner", space, workers),
    }
    for engine in ENGINES:
        engines[engine](Programs(variables=2, nodes=3))
    runs: list[Run] = []
    began = time.perf_counter()
    turn = 0
    while turn < repeats or (time.perf_counter() - began < budget and quiet_runs(runs) < repeats):
        for engine in ENGINES[turn % 3 :] + ENGINES[: turn % 3]:
            run = watched(engines[engine], space())
            runs.append(run)
            print(
                f"{engine:>7}: {run.seconds:6.2f} s, {run.candidates / run.seconds / 1e6:.2f} M rows/s, "
                f"others used {100 * run.others_share:.0f}% of the machine",
                flush=True,
            )
        turn += 1
    if len({(run.candidates, run.states, run.digest) for run in runs}) != 1:
        raise SystemExit("the engines disagree about the states: that is a bug")
    return runs


def record(runs: list[Run], space: Programs, workers: int) -> Record:
    """Return the runs as the record of a case; where some are quiet, only those are counted."""
    quiet = quiet_runs(runs) > 0
    counted = [run for run in runs if run.quiet or not quiet]
    taken = {
        engine: Times([run.seconds * 1e6 for run in counted if run.engine == engine]) for engine in ENGINES
    }
    raced = launch_record(taken, "owner", "serial")
    medians = {engine: raced["measured"][engine]["median_us"] / 1e6 for engine in ENGINES}
    return {
        "case": f"programs-{space.variables}x{space.nodes}",
        **raced,
        "space": space.fingerprint(),
        "workers": workers,
        "quiet_share": QUIET_SHARE,
        "only_quiet_runs_counted": quiet,
        "candidates": runs[0].candidates,
        "states": runs[0].states,
        "rows_per_second": {engine: round(runs[0].candidates / us) for engine, us in medians.items()},
        "speedup_over_serial": {
            engine: round(medians["serial"] / medians[engine], 3) for engine in ENGINES[1:]
        },
        "runs": [
            asdict(run)
            | {
                "counted": run in counted,
                "seconds": round(run.seconds, 4),
                "busy_seconds": [[round(value, 4) for value in level] for level in run.busy_seconds],
                "barrier_seconds": [round(value, 4) for value in run.barrier_seconds],
            }
            for run in runs
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results and the picture; return the exit code."""
    parser = Parser("frontier", __doc__)
    add = parser.add_argument
    add("--variables", type=from_one, default=4)
    add("--nodes", type=from_one, default=4)
    add("--case", default="", help="both of these, as in programs-4x4")
    add("--workers", type=from_one, default=2)
    add("--repeats", type=from_one, default=5)
    add("--seconds", type=above_zero, default=300.0, help="how long to wait for quiet runs")
    add("--seed", type=int, default=0)
    add("--json", type=Path, default=RESULTS / "frontier.json")
    add("--plot", type=Path, metavar="FOLDER", help="draw the results, too")
    return parser.run(arguments, _run)


def _run(given: argparse.Namespace) -> int:
    if given.case:
        sizes = given.case.removeprefix("programs-").split("x")
        if len(sizes) != 2 or not all(one.isdigit() for one in sizes):
            raise InputError(f"--case is {given.case!r}; write programs-4x4")
        given.variables, given.nodes = map(int, sizes)
    check_out(given.json)

    def space() -> Programs:
        return Programs(variables=given.variables, nodes=given.nodes, seed=given.seed)

    runs = measure(space, given.workers, given.repeats, given.seconds)
    found = record(runs, space(), given.workers)
    settings = {"repeats": given.repeats, "seconds": given.seconds, "seed": given.seed}
    document = begin("frontier", settings, machine() | {"numpy": np.__version__}, {})
    results = Results([found["case"]], given.json, document)
    results.keep(found["case"], found)
    for engine in ENGINES[1:]:
        print(f"{engine}: {found['speedup_over_serial'][engine]:.2f} times serial")
    print(f"wrote {given.json}")
    if given.plot:
        from superopt.bench.pictures import draw

        print("\n".join(f"wrote {place}" for place in draw([document], ["frontier"], given.plot)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
