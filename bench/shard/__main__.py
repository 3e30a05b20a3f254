"""Reductions between throttled processes: synthesized programs against one all-reduce, and the simulator.

    python -m bench.shard [--machines 2x2,2x4] [--turns N] [--mbit N] [--links KIND] [--scale]
        [--minutes M] [--json OUT [--resume]]

Four or eight processes of gloo stand for devices in two or four nodes, and in one machine for devices in
nodes in racks. Nodes are network namespaces whose links are throttled by a token bucket; where these are not
permitted, the transport is delayed instead. The processes measure the links themselves.

Then every reduction that some placement of up to three parallel axes asks for is run by every program of at
most five steps (four on three levels), all in turns. Told: in how many reductions a program beats one
all-reduce by 2% or more and by how much; in how many the fastest program is among the ten that the simulator,
given the measured links, ranks first, and in how many one of these ten is as fast as it, but for 2%; and how
far the placements of the same axes differ. A program that wins by noise alone would win here too, so winners
are chosen by one half of the turns and judged by the other half.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations
from math import prod
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

from superopt.bench.harness.command import Parser, above_zero, check_names, check_out, from_one, listed
from superopt.bench.shard.delays import delayed_nodes
from superopt.bench.shard.nodes import Node, throttled_nodes
from superopt.errors import InputError
from superopt.files import replace_text
from superopt.shard.machine import parse_machine
from superopt.shard.placements import Grid, Placement, grid_of, placements
from superopt.shard.proof import prove_sharded
from superopt.shard.reductions import Program, programs
from superopt.shard.search import plan_shardings
from superopt.shard.simulate import Reduction, ranked_programs
from superopt.workloads import WORKLOADS

MACHINES = {"2x2": (2, 2), "2x4": (2, 4), "4x2": (4, 2), "2x2x2": (2, 2, 2)}
BYTES = (1 << 18, 1 << 20)
SCALES = ((2, 8), (8, 8), (16, 8), (8, 8, 8), (64, 8, 8))
LAYER = "llama-layer"
TOP = 10
BEATS = 1.02

Key = tuple[tuple[int, ...], tuple[int, ...]]
"""A reduction: the sizes of finer levels, and those of them that are reduced."""


def levels_of(counts: tuple[int, ...]) -> str:
    """Return the text of a machine with so many parts at each level."""
    return ", ".join(f"{name}={count}" for name, count in zip(_names(counts), counts, strict=True))


def _names(counts: tuple[int, ...]) -> tuple[str, ...]:
    return ("rack", "node", "gpu")[-len(counts) :]


def requests(counts: tuple[int, ...]) -> dict[Key, list[str]]:
    """Return all reductions along one or more axes of some placement; each with the words that ask for it."""
    machine = parse_machine(levels_of(counts))
    found: dict[Key, list[str]] = {}
    for sizes in _factored(machine.devices, 3):
        axes = dict(zip("abc", sizes, strict=False))
        for placement in placements(axes, machine):
            for many in range(1, len(axes) + 1):
                for reduced in combinations(axes, many):
                    words = f"{placement} along {'+'.join(reduced)}"
                    found.setdefault(_reduction(placement, reduced), []).append(words)
    return found


def _factored(size: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write a number as at most so many factors of at least 2."""
    if size > 1 and most > 0:
        yield (size,)
    for first in range(2, size):
        if size % first == 0 and most > 1:
            yield from ((first, *rest) for rest in _factored(size // first, most - 1))


def _reduction(placement: Placement, reduced: tuple[str, ...]) -> Key:
    """Return the finer levels, each as long as it may be, and those that belong to the reduced axes."""
    counts: list[int] = []
    own: list[int] = []
    for column in zip(*placement.factors, strict=True):
        before: bool | None = None
        for axis, factor in zip(placement.axes, column, strict=True):
            if factor == 1:
                continue
            if (axis in reduced) == before:
                counts[-1] *= factor
                continue
            before = axis in reduced
            own += [len(counts)] if before else []
            counts.append(factor)
    return tuple(counts), tuple(own)


def tasks_of(counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return all reductions on a machine, each with all its programs."""
    return [
        {
            "asked": asked,
            "counts": list(finer),
            "own": list(own),
            "bytes": size,
            "programs": [_along(program, own) for program in _programs(len(own))],
        }
        for (finer, own), asked in requests(counts).items()
        for size in BYTES
    ]


def _programs(levels: int) -> tuple[Program, ...]:
    return programs(levels, 5 if levels < 3 else 4)


def _along(program: Program, own: tuple[int, ...]) -> list[list[Any]]:
    return [
        [step.collective, list(own[step.first : step.last]), list(own[step.last :]) if step.masters else []]
        for step in program
    ]


def simulated(task: dict[str, Any], machine: str) -> list[float]:
    """Return the seconds that each program of a reduction should take on a measured machine."""
    own = tuple(task["own"])
    reduction = Reduction(Grid(parse_machine(machine), tuple(task["counts"]), {}), own)
    return [reduction.seconds(program, task["bytes"]) for program in _programs(len(own))]


def measured(
    tasks: list[dict[str, Any]], counts: tuple[int, ...], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the machine as measured, and the seconds of each turn of each program of the tasks done."""
    *outer, gpus = counts
    racks, nodes = (1, *outer)[-2:]
    with (
        tempfile.TemporaryDirectory() as folder,
        ExitStack() as stack,
    ):
        links = racks, nodes, max(1, options.mbit // 2), options.mbit
        kind, places = _nodes(stack, links, options.links)
        place = Path(folder, "request.json")
        request = {
            "address": f"tcp://{places[0].address}:{_free_port() if kind == 'delays' else 29533}",
            "processes": prod(counts),
            "levels": levels_of(counts),
            "seconds": 60 * options.minutes,
            "turns": options.turns,
            "tasks": tasks,
        }
        place.write_text(json.dumps(request), encoding="utf-8")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        workers = [
            subprocess.Popen(
                [*node.command, sys.executable, "-m", "superopt.bench.shard.worker", str(place), str(rank)],
                env=environment | node.environment,
            )
            for rank, node in enumerate(node for node in places for _ in range(gpus))
        ]
        try:
            codes = [worker.wait() for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        if any(codes):
            raise InputError(f"a process of the mesh ended with exit code {next(filter(None, codes))}")
        found: dict[str, Any] = json.loads(Path(f"{place}.out").read_text(encoding="utf-8"))
        return found | {"links": kind}


def _nodes(stack: ExitStack, links: tuple[int, int, int, int], wanted: str) -> tuple[str, list[Node]]:
    """Return how links are throttled, and the nodes: by delays where namespaces are refused."""
    if wanted != "delays":
        try:
            return "namespaces", stack.enter_context(throttled_nodes(*links))
        except InputError as error:
            if wanted == "namespaces":
                raise
            print(f"{error}; the transport is delayed instead", file=sys.stderr)
    return "delays", stack.enter_context(delayed_nodes(*links))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def judged(task: dict[str, Any], seconds: list[list[float]], machine: str) -> dict[str, Any]:
    """Return what one reduction showed: medians of the turns that did not choose the winner."""
    times = simulated(task, machine)
    order = sorted(range(len(times)), key=times.__getitem__)
    plain = next(at for at, one in enumerate(task["programs"]) if [step[0] for step in one] == ["all-reduce"])
    chosen = min(range(len(seconds)), key=lambda at: median(seconds[at][::2]))
    among = min(order[:TOP], key=lambda at: median(seconds[at][::2]))
    alone, best, first, ten = (median(seconds[at][1::2]) for at in (plain, chosen, order[0], among))
    return {name: task[name] for name in ("asked", "counts", "own", "bytes")} | {
        "programs": len(seconds),
        "all_reduce_s": alone,
        "best_s": best,
        "simulated_best_s": first,
        "simulated_s": [times[plain], times[chosen], times[order[0]]],
        "speedup": alone / best,
        "speedup_of_simulated": alone / first,
        "speedup_of_top_10": alone / ten,
        "rank_of_best": order.index(chosen),
        "measured_s": [[round(one, 6) for one in own] for own in seconds],
        "best": task["programs"][chosen],
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the shares and means: over all reductions, and over those that cross levels.

    A reduction among devices that differ in one level only has no levels to make use of: its three programs
    are an all-reduce and the two halves of one. Several placements may ask for the same reduction.
    """
    across = [row for row in rows if len(row["own"]) > 1]
    found: dict[str, float] = {"reductions": len(rows), "across_levels": len(across)}
    for name, own in (("all", rows), ("across_levels", across)):
        if own:
            better = [row["speedup"] for row in own if row["speedup"] >= BEATS]
            asked = [(row["speedup"] >= BEATS, len(row["asked"])) for row in own]
            found |= {
                f"placements.{name}": sum(many for _, many in asked),
                f"share_of_placements_that_beat_all_reduce.{name}": sum(many for won, many in asked if won)
                / sum(many for _, many in asked),
                f"share_that_beats_all_reduce.{name}": len(better) / len(own),
                f"mean_speedup.{name}": geometric_mean([row["speedup"] for row in own]),
                f"mean_speedup_of_those.{name}": geometric_mean(better) if better else 1.0,
                f"most.{name}": max(row["speedup"] for row in own),
                f"mean_speedup_of_simulated.{name}": geometric_mean(
                    [row["speedup_of_simulated"] for row in own]
                ),
            }
    if across:
        found["share_with_best_in_top_10"] = sum(row["rank_of_best"] < TOP for row in across) / len(across)
        as_fast = [row["speedup"] < BEATS * row["speedup_of_top_10"] for row in across]
        found["share_with_as_fast_in_top_10"] = sum(as_fast) / len(across)
    return found | spreads(rows)


def spreads(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return by how much the placements of the same axes differ, for one all-reduce and for the best program.

    Compared are reductions of as many bytes along as many devices of the same machine.
    """
    alike: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        many = prod(row["counts"][at] for at in row["own"])
        alike.setdefault((row["machine"], many, row["bytes"]), []).append(row)
    return {
        f"spread_of_placements.{kind}": max(
            max(row[name] for row in own) / min(row[name] for row in own) for own in alike.values()
        )
        for kind, name in (("all_reduce", "all_reduce_s"), ("best", "best_s"))
    }


def scaled() -> Iterator[dict[str, Any]]:
    """Yield the seconds of both searches, and what they gain, on machines of growing size."""
    links = ("10 GB/s 10 us", "50 GB/s 5 us", "200 GB/s 2 us")
    layer = WORKLOADS[LAYER].graph()
    assert layer is not None
    for counts in SCALES:
        own = zip(_names(counts), counts, links[-len(counts) :], strict=True)
        machine = parse_machine(", ".join(f"{name}={size} @ {link}" for name, size, link in own))
        start = perf_counter()
        ranked = ranked_programs(
            grid_of(machine), tuple(range(len(counts))), 100e6, 4 if len(counts) > 2 else 5
        )
        searched = perf_counter() - start
        plain = next(one for one in ranked if len(one.program) == 1)
        start = perf_counter()
        plans = plan_shardings(layer, machine)
        planned = perf_counter() - start
        verdict = prove_sharded(plans.best.sharded, original=layer)
        assert verdict, str(verdict.verdict)
        yield {
            "devices": machine.devices,
            "counts": list(counts),
            "programs": len(ranked),
            "search_s": searched,
            "simulated_speedup": plain.seconds / ranked[0].seconds,
            "layer_search_s": planned,
            "layer_proof_s": perf_counter() - start - planned,
            "layer_s": plans.best.seconds,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write."""
    parser = Parser("shard", __doc__)
    parser.add_argument("--machines", default=",".join(MACHINES), help="some of %(default)s (default: all)")
    parser.add_argument("--turns", type=from_one, default=4, help="of each program (default 4)")
    parser.add_argument("--mbit", type=from_one, default=160, help="of each node's link (default 160)")
    parser.add_argument(
        "--links",
        choices=("auto", "namespaces", "delays"),
        default="auto",
        help="how links are throttled (default: by network namespaces where they are permitted)",
    )
    parser.add_argument("--scale", action="store_true", help="only simulate, on larger and larger machines")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results here")
    parser.add_argument("--resume", action="store_true", help="keep the reductions that OUT has, and go on")
    parser.add_argument(
        "--minutes", type=above_zero, default=60.0, help="begin no reduction of a machine after them"
    )
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    check_out(options.json, resume=options.resume)
    chosen = listed(options.machines)
    check_names("--machines", chosen, tuple(MACHINES))
    if options.turns < 2:
        raise InputError(
            "--turns 1: give at least 2; one half chooses a program and the other half judges it"
        )
    document: dict[str, Any] = {"schema": "superopt.bench.shard/2", "machines": {}, "reductions": []}
    if options.resume and options.json.exists():
        document = json.loads(options.json.read_text(encoding="utf-8"))
    if options.scale or "scale" not in document:
        document["scale"] = []
        for row in scaled():
            document["scale"].append(row)
            print(
                f"{'x'.join(map(str, row['counts'])):>8}: {row['programs']} programs in"
                f" {row['search_s']:.2f} s, the best {row['simulated_speedup']:.2f} times one all-reduce;"
                f" a layer sharded in {row['layer_search_s']:.1f} s, proven in {row['layer_proof_s']:.1f} s"
            )
    for name in chosen if not options.scale else ():
        _measure(document, name, options)
        document["summary"] = summary(document["reductions"])
        _write(document, options.json)
    for name, value in document.get("summary", {}).items():
        print(f"{name}: {value:.3g}")
    _write(document, options.json)
    return 0


def _write(document: dict[str, Any], place: Path | None) -> None:
    if place is not None:
        replace_text(place, json.dumps(document, indent=1) + "\n")


def _measure(document: dict[str, Any], name: str, options: argparse.Namespace) -> None:
    """Add the reductions of one machine that a document lacks, as many as the time allows."""
    rows = document["reductions"]
    known = {(row["machine"], str(row["counts"]), str(row["own"]), row["bytes"]) for row in rows}
    tasks = [
        task
        for task in tasks_of(MACHINES[name])
        if (name, str(task["counts"]), str(task["own"]), task["bytes"]) not in known
    ]
    if not tasks:
        return
    load = os.getloadavg()[0]  # of other work
    found = measured(tasks, MACHINES[name], options)
    settings = {
        "links": found["links"],
        "mbit_per_s": options.mbit,
        "turns": options.turns,
        "load_before": load,
    }
    document["machines"].setdefault(name, []).append({"measured": found["machine"], **settings})
    print(f"{name}: {found['machine']}")
    for task, seconds in zip(tasks, found["seconds"], strict=False):
        row = {"machine": name} | judged(task, seconds, found["machine"])
        rows.append(row)
        print(
            f"{name} {row['asked'][0]}, {row['bytes']} bytes: {row['speedup']:.2f} times one all-reduce,"
            f" place {row['rank_of_best'] + 1} of {row['programs']} simulated"
        )
    if len(found["seconds"]) < len(tasks):
        left = len(tasks) - len(found["seconds"])
        print(f"{name}: {left} reductions are left; go on with --resume")


if __name__ == "__main__":
    sys.exit(main())
