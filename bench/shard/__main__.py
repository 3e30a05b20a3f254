"""Synthesized reductions against one all-reduce, on processes with throttled links; and the search at scale.

    python -m bench.shard --json OUT
    python -m bench.shard --scale

Measured: for each placement of parallel axes and each axis, every program of at most five steps, in turns,
on gloo processes in network namespaces. Against: one all-reduce over the same devices, which is one of the
programs, and the simulator's order of them. Told: in how many reductions a program beats one all-reduce and
by how much, in how many the fastest program is among the ten that the simulator ranks first, and how far
placements differ. A program that wins by noise alone would win here too, so the winner is chosen by one half
of the turns and judged by the other half.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

from superopt.bench.harness.command import Parser, check_out, from_one
from superopt.bench.shard.nodes import throttled_nodes
from superopt.errors import InputError
from superopt.files import replace_text
from superopt.shard.machine import parse_machine
from superopt.shard.placements import grid_of, placements
from superopt.shard.reductions import Program
from superopt.shard.simulate import best_program, ranked_programs

SHAPES = {4: ((2, 2),), 8: ((2, 4), (4, 2))}
BYTES = (1 << 14, 1 << 18, 1 << 20)
SCALES = ((2, 8), (8, 8), (16, 8), (8, 8, 8), (64, 8, 8))
TOP = 10


def machine_text(nodes: int, gpus: int, mbit_per_s: int) -> str:
    """Return the machine that the processes stand for, as the simulator sees it."""
    return f"node={nodes} @ {mbit_per_s / 8:g} MB/s 300 us, gpu={gpus} @ 500 MB/s 150 us"


def tasks_of(nodes: int, gpus: int, mbit_per_s: int) -> list[dict[str, Any]]:
    """Return all reductions on a machine: placements, axes and sizes, with programs in simulated order."""
    machine = parse_machine(machine_text(nodes, gpus, mbit_per_s))
    many = machine.devices
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for data in (size for size in range(2, many + 1) if many % size == 0):
        axes = {"data": data, "tensor": many // data} if data < many else {"data": data}
        for placement in placements(axes, machine):
            grid = grid_of(machine, placement)
            for axis, own in grid.own.items():
                for size in BYTES if own else ():
                    ranked = ranked_programs(grid, own, size)
                    found[grid.counts, own, size] = {
                        "placement": str(placement),
                        "axis": axis,
                        "counts": list(grid.counts),
                        "own": list(own),
                        "bytes": size,
                        "programs": [_along(one.program, own) for one in ranked],
                        "simulated": [one.seconds for one in ranked],
                        "plain": next(
                            at
                            for at, one in enumerate(ranked)
                            if len(one.program) == 1 and one.program[0].collective == "all-reduce"
                        ),
                    }
    return list(found.values())


def _along(program: Program, own: tuple[int, ...]) -> list[list[Any]]:
    return [
        [step.collective, list(own[step.first : step.last]), list(own[step.last :]) if step.masters else []]
        for step in program
    ]


def measured(tasks: list[dict[str, Any]], nodes: int, gpus: int, mbit_per_s: int, turns: int) -> list[Any]:
    """Return the seconds of each turn of each program of each task."""
    with tempfile.TemporaryDirectory() as folder, throttled_nodes(nodes, mbit_per_s) as places:
        place = Path(folder, "request.json")
        request = {
            "address": f"tcp://{places[0][1]}:29533",
            "processes": nodes * gpus,
            "turns": turns,
            "tasks": tasks,
        }
        place.write_text(json.dumps(request), encoding="utf-8")
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "link0", "OMP_NUM_THREADS": "1"}
        workers = [
            subprocess.Popen(
                ["ip", "netns", "exec", places[rank // gpus][0], sys.executable, "-m",
                 "superopt.bench.shard.worker", str(place), str(rank)],
                env=environment,
            )
            for rank in range(nodes * gpus)
        ]  # fmt: skip
        try:
            codes = [worker.wait() for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        if any(codes):
            raise InputError(f"a process of the mesh ended with exit code {next(filter(None, codes))}")
        found: list[Any] = json.loads(Path(f"{place}.out").read_text(encoding="utf-8"))
        return found


def judged(task: dict[str, Any], seconds: list[list[float]]) -> dict[str, Any]:
    """Return what one reduction showed: medians of the turns that did not choose the winner."""
    chosen = min(range(len(seconds)), key=lambda at: median(seconds[at][::2]))
    plain, best, first = (median(seconds[at][1::2]) for at in (task["plain"], chosen, 0))
    kept = ("placement", "axis", "counts", "own", "bytes")
    return {name: task[name] for name in kept} | {
        "programs": len(seconds),
        "all_reduce_s": plain,
        "best_s": best,
        "simulated_best_s": first,
        "speedup": plain / best,
        "speedup_of_simulated": plain / first,
        "rank_of_best": chosen,
        "best": task["programs"][chosen],
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the shares and means over all reductions."""
    levels = [row for row in rows if row["programs"] > TOP]
    return {
        "reductions": len(rows),
        "on_two_levels": len(levels),
        "share_that_beats_all_reduce": sum(row["speedup"] > 1 for row in rows) / len(rows),
        "mean_speedup": geometric_mean([row["speedup"] for row in rows]),
        "most": max(row["speedup"] for row in rows),
        "mean_speedup_of_simulated": geometric_mean([row["speedup_of_simulated"] for row in rows]),
        "share_with_best_in_top_10": sum(row["rank_of_best"] < TOP for row in levels) / max(1, len(levels)),
        "spread_of_all_reduce": max(row["all_reduce_s"] for row in rows if row["bytes"] == BYTES[-1])
        / min(row["all_reduce_s"] for row in rows if row["bytes"] == BYTES[-1]),
    }


def scaled() -> list[dict[str, Any]]:
    """Return the seconds of the search, and the simulated gain, on machines of growing size."""
    links = ("10 GB/s 10 us", "50 GB/s 5 us", "200 GB/s 2 us")
    rows = []
    for counts in SCALES:
        own = zip(("rack", "node", "gpu")[-len(counts) :], counts, links[-len(counts) :], strict=True)
        grid = grid_of(parse_machine(", ".join(f"{name}={size} @ {link}" for name, size, link in own)))
        start = perf_counter()
        ranked = ranked_programs(grid, tuple(range(len(counts))), 100e6, 4 if len(counts) > 2 else 5)
        seconds = perf_counter() - start
        plain = next(one for one in ranked if len(one.program) == 1)
        assert best_program(grid, (len(counts) - 1,), 1e6).seconds > 0
        rows.append(
            {
                "devices": grid.machine.devices,
                "counts": list(counts),
                "programs": len(ranked),
                "search_s": seconds,
                "simulated_speedup": plain.seconds / ranked[0].seconds,
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write."""
    parser = Parser("shard", __doc__)
    parser.add_argument("--processes", type=int, choices=sorted(SHAPES), help="only meshes of so many")
    parser.add_argument("--turns", type=from_one, default=6, help="of each program (default 6)")
    parser.add_argument("--mbit", type=from_one, default=400, help="of each node's link (default 400)")
    parser.add_argument("--scale", action="store_true", help="only simulate, on larger and larger machines")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results here")
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    check_out(options.json)
    if options.turns < 2:
        raise InputError(
            "--turns 1: give at least 2; one half chooses a program and the other half judges it"
        )
    document: dict[str, Any] = {"schema": "superopt.bench.shard/1", "scale": scaled()}
    for row in document["scale"]:
        print(
            f"{'x'.join(map(str, row['counts'])):>8}: {row['programs']} programs searched and simulated in "
            f"{row['search_s']:.2f} s; {row['simulated_speedup']:.2f} times one all-reduce"
        )
    rows: list[dict[str, Any]] = []
    for processes, shapes in SHAPES.items() if not options.scale else ():
        if options.processes not in (None, processes):
            continue
        for nodes, gpus in shapes:
            tasks = tasks_of(nodes, gpus, options.mbit)
            found = measured(tasks, nodes, gpus, options.mbit, options.turns)
            for task, seconds in zip(tasks, found, strict=True):
                row = {"nodes": nodes, "gpus": gpus} | judged(task, seconds)
                rows.append(row)
                print(
                    f"{nodes}x{gpus} {row['placement']} along {row['axis']}, {row['bytes']} bytes: "
                    f"{row['speedup']:.2f} times one all-reduce, place {row['rank_of_best'] + 1} of "
                    f"{row['programs']} simulated"
                )
            document |= {"mbit_per_s": options.mbit, "turns": options.turns, "reductions": rows}
            document["summary"] = summary(rows)
            if options.json is not None:
                replace_text(options.json, json.dumps(document, indent=1) + "\n")
    for name, value in document.get("summary", {}).items():
        print(f"{name}: {value:.3g}")
    if options.json is not None:
        replace_text(options.json, json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
