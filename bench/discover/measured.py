"""One discovery, measured: a process that is spawned can import this module, and no `__main__`."""

import os
import re
import resource
import time
from functools import partial
from pathlib import Path

from superopt.bench.discover.cases import CASES, setting_of
from superopt.bench.harness.records import Record


def measure(case: str, rules: Path | None = None) -> Record:
    """Return the record of one discovery, made in this process; write its rules where a place is given."""
    from superopt.frontier.engine import explore
    from superopt.rules.discover.discover import discover
    from superopt.rules.discover.store import write_rules

    name, _, count = case.partition("/")
    size = CASES[name][2]
    setting = setting_of(name)
    began, spent = time.perf_counter(), sum(os.times()[:4])
    found = discover(setting, size, partial(explore, workers=int(count or 1)))
    seconds, cpu_seconds = time.perf_counter() - began, sum(os.times()[:4]) - spent
    if rules is not None:
        write_rules(found, rules)
    statuses = [proof.status for _, proof in found.rules]
    graphs = found.counts["graphs"]
    made_s = (found.ms["enumerate"] + found.ms["evaluate"]) / 1e3
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,  # of this process and its workers: what a busy machine does not change
        "peak_mib": _peak_mib(),
        "graphs": graphs,
        "graphs_per_second": graphs / made_s,
        "counts": dict(found.counts),
        "ms": dict(found.ms),
        "proven": statuses.count("proven"),
        "unknown": statuses.count("unknown"),
        "refuted": statuses.count("refuted"),
    }


def _peak_mib() -> float:
    """Return the peak memory of this process, or of the largest worker.

    What `getrusage` says of a process on Linux includes the memory of the one that started it.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    [own] = re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())
    return max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / (1 << 10)
