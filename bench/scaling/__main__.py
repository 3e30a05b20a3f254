"""How the search scales: serial, processes, MPI and Ray on this machine in turns, and more by a simulation.

    python -m bench.scaling                       two workers, all engines that are installed
    python -m bench.scaling --json OUT --workers 2 --variables 4 --nodes 4 --plot FOLDER

Every run is a process of its own and must find the same bytes. Measured: rows a second, how evenly workers
are busy, and what each level spends beside its slowest worker (exchange and barrier). Beside it stands what
others report of parallelizing such a search: OpenMP and MPI on 96 threads, 3.5 to 7.4 times one.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from superopt.bench.harness.command import Parser, check_names, check_out, from_one
from superopt.bench.harness.records import Record
from superopt.bench.harness.results import Results, begin, machine, resumed
from superopt.bench.scaling.simulation import Assumptions, Rates, simulated
from superopt.errors import SuperoptError
from superopt.frontier.engine.records import KEY_WORDS

ENGINES = ("serial", "processes", "mpi", "ray")
SIMULATED = (1, 2, 16, 100, 1000)
STATES = 1e10


def run(engine: str, workers: int, variables: int, nodes: int) -> dict[str, Any]:
    """Return what one search did, in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "superopt.bench.scaling.one",
        engine,
        *map(str, (workers, variables, nodes)),
    ]
    if engine == "mpi":
        from superopt.frontier.engine.engines import mpiexec

        command = [mpiexec(), "-n", str(workers), *command]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise SuperoptError(
            f"{engine}: {made.stderr.strip().splitlines()[-1] if made.stderr else made.returncode}"
        )
    found: dict[str, Any] = json.loads(made.stdout.strip().splitlines()[-1])
    return found


def case_of(engine: str, runs: Sequence[dict[str, Any]], serial: float) -> Record:
    """Return the record of an engine: the run of median time."""
    middle = statistics.median_low(one["seconds"] for one in runs)
    chosen = next(one for one in runs if one["seconds"] == middle)
    busy = [level["busy_seconds"] for level in chosen["levels"]]
    return {
        "case": engine,
        "seconds": middle,
        "all_seconds": [one["seconds"] for one in runs],
        "speedup": serial / middle,
        "rows_per_second": chosen["candidates"] / middle,
        "candidates": chosen["candidates"],
        "states": chosen["states"],
        "sha256": chosen["sha256"],
        "balance": [min(some) / max(some) if max(some) else 1.0 for some in busy],
        "beside_work_seconds": sum(
            level["seconds"] - max(level["busy_seconds"]) for level in chosen["levels"]
        ),
        "levels": chosen["levels"],
        "exchanged_bytes": 0 if len(busy[0]) < 2 else _exchanged(chosen, len(busy[0])),
    }


def _exchanged(one: dict[str, Any], workers: int) -> int:
    """Return at most how many bytes crossed from one worker to another: senders thin their own duplicates."""
    sent = one["candidates"] * (1 - 1 / workers)
    return int(sent * 8 * (one["width"] + KEY_WORDS))


def rates_of(serial: dict[str, Any]) -> Rates:
    """Return the rates of one worker, and the growth of the space."""
    levels = [level for level in serial["levels"] if level["new"]]
    growth = levels[-1]["new"] / levels[-2]["new"] if len(levels) > 1 else 2.0
    return Rates(
        serial["candidates"] / serial["seconds"],
        serial["candidates"] / serial["states"],
        growth,
        8 * (serial["width"] + KEY_WORDS),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = Parser("scaling", __doc__)
    parser.add_argument("names", nargs="*", metavar="ENGINE", help="only these (default: all installed)")
    parser.add_argument("--workers", type=from_one, default=2)
    parser.add_argument("--variables", type=from_one, default=4)
    parser.add_argument("--nodes", type=from_one, default=4)
    parser.add_argument("--repeats", type=from_one, default=5)
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw the results, too")
    parser.add_results(minutes=30.0)
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    installed = [name for name, module in (("mpi", "mpi4py"), ("ray", "ray")) if find_spec(module)]
    names = ["serial", *(name for name in options.names or ("processes", *installed) if name != "serial")]
    check_names("ENGINE", names, list(ENGINES))
    check_out(options.json, resume=options.resume)
    known = resumed(options.json, resume=options.resume)["cases"]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(options.repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            one = run(name, options.workers, options.variables, options.nodes)
            runs[name].append(one)
            print(
                f"{name:>9}: {one['seconds']:6.2f} s, {one['candidates'] / one['seconds'] / 1e6:.2f} M rows/s"
            )
    if len({one["sha256"] for some in runs.values() for one in some}) != 1:
        raise SystemExit("the engines disagree about the states: that is a bug")
    settings = {key: getattr(options, key) for key in ("workers", "variables", "nodes", "repeats")}
    document = begin("scaling", settings, machine(), known)
    rates, machines = rates_of(runs["serial"][0]), Assumptions()
    document["simulated"] = [
        {"workers": workers, **simulated(rates, workers, STATES, machines)} for workers in SIMULATED
    ]
    results = Results(names, options.json, document, lambda records: {})
    serial = statistics.median_low(one["seconds"] for one in runs["serial"])
    for name in names:
        record = case_of(name, runs[name], serial)
        results.keep(name, record)
        print(
            f"{name:>9}: {record['speedup']:.2f} times serial, "
            f"{record['beside_work_seconds']:.2f} s beside the slowest worker of each level"
        )
    for row in document["simulated"]:
        print(
            f"simulated: {row['workers']:5} workers, {STATES:.0e} states in {row['seconds'] / 3600:8.2f} h "
            f"(work {row['work']:.0f} s, skew {row['skew']:.1f}, exchange {row['exchange']:.0f}, "
            f"barriers {row['barrier']:.2f})"
        )
    if options.plot:
        from superopt.bench.pictures import draw

        print("\n".join(f"wrote {place}" for place in draw([document], ["scaling"], options.plot)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
