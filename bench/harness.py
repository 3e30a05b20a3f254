"""What every race of cases needs: results that survive, means in which losses count, one line a case."""

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

__all__ = ["Results", "failed", "geometric_means", "line", "listed", "machine", "resumed", "tell"]

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


def resumed(place: Path, version: int) -> Record:
    """Return the results that a file holds, less the cases that were never begun."""
    if not place.exists():
        return {"cases": {}}
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SystemExit(
            f"cannot read {place}: it is not JSON; give another --json, or leave out --resume"
        ) from error
    if (
        not isinstance(found, dict)
        or found.get("version") != version
        or not isinstance(found.get("cases"), dict)
    ):
        raise SystemExit(f"{place} is not a result of this benchmark; give another --json")
    begun = {name: one for name, one in found["cases"].items() if one.get("begun", True)}
    return {**found, "cases": begun}


def failed(known: Mapping[str, Any], error: BaseException) -> Record:
    """Return the record of a case that broke, with what is known of it."""
    first = next((text for text in str(error).splitlines() if text.strip()), "no message")
    return {**known, "error": f"{type(error).__name__}: {first}"}


def line(record: Mapping[str, Any]) -> str:
    """Return a record in one line."""
    if record.get("ratio") is None:
        return f"{record['case']}: {record['error']}"
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

    found: Record = {"python": platform.python_version(), "superopt": __version__}
    found["versions"] = versions()
    found["torch"] = torch.__version__
    if torch.cuda.is_available():
        one = torch.cuda.get_device_properties(0)
        found |= {"device": one.name, "capability": [one.major, one.minor], "cuda": torch.version.cuda}
        found |= {"memory_bytes": one.total_memory, "l2_bytes": one.L2_cache_size}
    else:
        found["device"] = platform.processor() or platform.machine()
    return found
