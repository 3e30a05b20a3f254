"""Whether noise can win a race: races whose outcome is planted, while other processes keep the cores busy.

    python -m bench.races --json OUT              200 races beside eight busy processes, some minutes
    python -m bench.races --json OUT --busy 0     on the machine as it is
    python -m bench.races --json OUT --resume     goes on after those that OUT has
    python -m bench.races --json OUT --threads 2  programs of two threads, which wait for each other

Measured: a program against itself, with as much work, or more, or less. The last race of `superopt.optimize`
decides, by the same code and the same rules. Its decision is wrong where a program with no less work is taken
for the faster one. A race that is left undecided leaves PyTorch's program in place, which is never wrong.
Counted apart: how many of the faster programs are found.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from superopt.bench.harness.command import Parser, above_zero, check_out, from_one
from superopt.bench.harness.records import Record
from superopt.bench.harness.results import begin, machine, resumed, tell, write_results
from superopt.rivals.final import FinalRace, alone, together
from superopt.tune.measure import times_together

__all__ = ["PLANTED", "main", "outcome", "race"]

PLANTED = (-0.3, -0.1, 0.0, 0.0, 0.1, 0.3)
"""How much more work the contender does than its rival."""

_SPIN = "while True: pass"
_CALLS, _SIZE = 20, 96  # products of a program, and their size: a fifth of a millisecond or so


def workload(calls: int) -> Callable[..., Any]:
    """Return a program of so many products of matrices."""
    import torch

    def run(x: torch.Tensor) -> torch.Tensor:
        made = x
        for _ in range(calls):
            made = torch.mm(x, x)
        return made

    return run


def race(more: float, seconds: float) -> FinalRace:
    """Return the last race between a program and one with so much more work, as `optimize` holds it."""
    import torch

    copies = [(torch.randn(_SIZE, _SIZE),) for _ in range(4)]
    contenders = {"eager": workload(_CALLS), "superopt": workload(round(_CALLS * (1 + more)))}
    found = together(contenders, copies, seconds=seconds, times=times_together)
    return alone(found, copies, seconds=seconds, times=times_together) if found.ahead else found


def outcome(found: FinalRace, more: float) -> Record:
    """Return what a race decided, and whether that is wrong."""
    won = found.confirmed
    return {
        "planted": more,
        "winner": found.winner,
        "wrong": found.winner == "superopt" and more >= 0,
        "found": found.winner == "superopt" and more < 0,
        "unsettled": found.unsettled,
        "first": {name: one.median_us for name, one in found.measurements.items()},
        "ratio": None if won is None else won.speed_of("superopt"),
        "interval": None if won is None else list(won.interval),
        "spread": None if won is None else won.spread,
    }


def counts(races: Mapping[str, Record]) -> Record:
    """Return how many races there were, how many were wrong, and how many faster programs were found."""
    faster = [one for one in races.values() if one["planted"] < 0]
    return {
        "races": len(races),
        "wrong": sum(one["wrong"] for one in races.values()),
        "faster": len(faster),
        "found": sum(one["found"] for one in faster),
    }


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Hold the races; return 0 where no decision is wrong."""
    parser = Parser("races", __doc__)
    add = parser.add_argument
    add("--races", type=from_one, default=200, help="how many (default: 200)")
    add("--busy", type=int, default=8, help="busy processes beside them (default: 8)")
    add("--threads", type=from_one, default=1, help="of the programs (default: 1)")
    add("--seconds", type=above_zero, default=2.0, help="of a race (default: 2)")
    add("--json", type=Path, metavar="OUT", required=True, help="where the results go")
    add("--resume", action="store_true", help="keep the races that OUT has, and go on")
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    import torch

    check_out(options.json)
    torch.set_num_threads(options.threads)
    races = resumed(options.json, resume=options.resume)["cases"]
    settings = {
        "busy": options.busy,
        "seconds": options.seconds,
        "threads": options.threads,
        "planted": list(PLANTED),
    }
    document = begin("races", settings, machine() | {"load": os.getloadavg()[0]}, races)
    with _busy(options.busy):
        for number in range(options.races):
            if str(number) in races:
                continue
            more = PLANTED[number % len(PLANTED)]
            found = outcome(race(more, options.seconds), more)
            races[str(number)] = {**found, "load": os.getloadavg()[0]}
            document |= counts(races)
            write_results(document, options.json)
            if found["wrong"]:
                tell(f"race {number} is WRONG: {found}")
    print(
        f"{document['wrong']} of {document['races']} decisions are wrong;"
        f" {document['found']} of {document['faster']} faster programs were found"
    )
    return 1 if document["wrong"] else 0
