"""What every suite needs: one form of results, which survive, means in which losses count, a line a case.

A document says what was measured where, and holds a record for each case: `measured` has for each
contender its median and quantiles, `blocks_us` what each block of each launch said (`superopt.bench.blocks`),
`ours` and `baseline` the names of what is compared, `ratios` the times of all others over ours.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.errors import InputError

if TYPE_CHECKING:
    from superopt.tune.measure import Times

__all__ = [
    "VERSION",
    "Results",
    "begin",
    "failed",
    "geometric_means",
    "launch_record",
    "line",
    "listed",
    "machine",
    "merged",
    "read_results",
    "resumed",
    "tell",
]

VERSION = 3

Record = dict[str, Any]
Means = dict[str, dict[str, dict[str, Any]]]


@dataclass(slots=True)
class Results:
    """What a run found so far, written after every case."""

    names: list[str]  # of the cases asked for
    out: Path | None
    document: Record
    means: Callable[[Iterable[Record]], Means]

    @property
    def records(self) -> dict[str, Record]:
        """What is known of each case."""
        found: dict[str, Record] = self.document["cases"]
        return found

    def keep(self, name: str, record: Mapping[str, Any]) -> None:
        """Note the record of a case, and write everything, all of it or nothing."""
        from superopt.plans.saved import write_json

        self.records[name] = dict(record)
        self.document["geometric_mean"] = self.means(self.records.values())
        self.document["not_reached"] = [one for one in self.names if one not in self.records]
        if self.out is not None:
            write_json(self.document, self.out)


def begin(suite: str, settings: Mapping[str, Any], about: Mapping[str, Any], cases: Record) -> Record:
    """Return the document of a suite, as it is before its cases are measured."""
    return {
        "superopt": "bench",
        "version": VERSION,
        "suite": suite,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": dict(about),
        "settings": json.loads(json.dumps(dict(settings), default=str)),
        "cases": cases,
    }


def resumed(place: Path) -> Record:
    """Return the results that a file holds, less the cases that were never begun."""
    if not place.exists():
        return {"cases": {}}
    try:
        found = read_results(place)
    except InputError as error:
        raise InputError(f"{error}; give another --json, or leave out --resume") from error
    begun = {name: one for name, one in found["cases"].items() if one.get("begun", True)}
    return {**found, "cases": begun}


def read_results(place: Path) -> Record:
    """Return the document of a file, or raise InputError."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{str(place)!r} does not exist") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise InputError(f"cannot read {str(place)!r}: {said}") from error
    if not isinstance(found, dict) or found.get("superopt") != "bench":
        raise InputError(f"{str(place)!r} is not a result of `superopt bench run`")
    if found.get("version") != VERSION:
        raise InputError(
            f"{place}: version {found.get('version')!r} of the form of results; this superopt reads"
            f" {VERSION}: run the suite again"
        )
    parts = {"suite": str, "machine": dict, "cases": dict}
    if wrong := [name for name, kind in parts.items() if not isinstance(found.get(name), kind)]:
        raise InputError(f"{place}: {wrong[0]!r} is missing; the file is damaged")
    if not all(isinstance(one, dict) for one in found["cases"].values()):
        raise InputError(f"{place}: a case is no record; the file is damaged")
    return found


def launch_record(
    taken: Mapping[str, "Times"],
    ours: str,
    baseline: str,
    *,
    blocks: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> Record:
    """Return what the times of one process say; without `blocks`, the times are cut into some."""
    from superopt.bench.blocks import in_blocks, quartiles

    measured = {name: one.summary() for name, one in taken.items()}
    blocks = blocks or in_blocks({name: one.us for name, one in taken.items()})
    return {
        "ours": ours,
        "baseline": baseline,
        "measured": {name: _plain(asdict(one)) for name, one in measured.items()},
        "blocks_us": {name: [found] for name, found in quartiles(blocks).items()},
        **_ratios({name: one.median_us for name, one in measured.items()}, ours),
    }


def _ratios(medians: Mapping[str, float], ours: str) -> Record:
    peers = {name: us for name, us in medians.items() if name != ours}
    best = min(peers, key=lambda name: peers[name], default=None)
    return {
        "ratios": {name: us / medians[ours] for name, us in peers.items()},
        "best_peer": best,
        "ratio": None if best is None else peers[best] / medians[ours],
    }


def merged(records: Sequence[Record]) -> Record:
    """Return the record of several launches of one case: the median of their medians, all of their blocks."""
    first = records[0]
    names = [name for name in first["measured"] if all(name in one["measured"] for one in records)]
    measured = {name: _merged([one["measured"][name] for one in records]) for name in names}
    blocks = {name: [part for one in records for part in one["blocks_us"][name]] for name in names}
    medians = {name: one["median_us"] for name, one in measured.items()}
    return {**first, "measured": measured, "blocks_us": blocks, **_ratios(medians, first["ours"])}


def _merged(several: Sequence[Record]) -> Record:
    def middle(field: str) -> float:
        return float(statistics.median(one[field] for one in several))

    shares = [share for share, _ in several[0]["quantiles_us"]]
    return {
        **several[0],
        **{field: middle(field) for field in ("median_us", "low_us", "high_us")},
        "rounds": sum(one["rounds"] for one in several),
        "quantiles_us": [
            [share, statistics.median(one["quantiles_us"][at][1] for one in several)]
            for at, share in enumerate(shares)
        ],
    }


def _plain(data: Mapping[str, Any]) -> Record:
    return {
        key: [list(one) for one in value] if isinstance(value, tuple) else value
        for key, value in data.items()
    }


def failed(known: Mapping[str, Any], error: BaseException) -> Record:
    """Return the record of a case that broke, with what is known of it."""
    first = next((text for text in str(error).splitlines() if text.strip()), "no message")
    return {**known, "error": f"{type(error).__name__}: {first}"}


def line(record: Mapping[str, Any]) -> str:
    """Return a record in one line."""
    if record.get("ratio") is None:
        return f"{record['case']}: {record.get('error')}"
    times = ", ".join(f"{name} {one['median_us']:.1f}" for name, one in record["measured"].items())
    return f"{record['case']}: {record['ratio']:.2f} of {record['best_peer']}; µs: {times}"


def tell(message: str) -> None:
    """Show what happens, with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.stderr, flush=True)


def listed(text: str) -> list[str]:
    """Return the names in a text, by commas."""
    return [name for name in text.split(",") if name]


def geometric_means(records: Iterable[Mapping[str, Any]], *groups: str) -> Means:
    """Return, for each group and each peer, the geometric mean of its time over ours, and of how many.

    `groups` are the fields whose values are groups; all cases make one more.
    """
    ratios: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record.get("ratio") is None:
            continue
        for group in (*(record[field] for field in groups), "all"):
            found = ratios.setdefault(group, {})
            for name, ratio in {**record["ratios"], "best peer": record["ratio"]}.items():
                found.setdefault(name, []).append(ratio)
    return {
        group: {
            name: {"mean": _mean(several), "cases": len(several)} for name, several in sorted(found.items())
        }
        for group, found in sorted(ratios.items())
    }


def _mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def machine() -> Record:
    """Return the device and the versions that results depend on."""
    import torch

    from superopt import __version__
    from superopt.cache import versions
    from superopt.targets import pick_target

    found: Record = {"python": platform.python_version(), "superopt": __version__}
    found["versions"] = versions()
    found["torch"] = torch.__version__
    found["cores"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if torch.cuda.is_available():
        one = torch.cuda.get_device_properties(0)
        found |= {"device": one.name, "capability": [one.major, one.minor], "cuda": torch.version.cuda}
        found |= {"memory_bytes": one.total_memory, "l2_bytes": one.L2_cache_size}
    else:
        found["device"] = pick_target("cpu").device_name.partition(",")[0]
    return found
