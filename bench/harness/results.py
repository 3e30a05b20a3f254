"""Results: the one form of a document of results, where it is read and written.

A document says which suite was run, where, when and with which settings, and has a record for each case
(`superopt.bench.harness.records`). It is written whole after every case, so that an interrupted run keeps
what it measured and `--resume` goes on.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from superopt.bench.harness.records import Means, Record, geometric_means
from superopt.errors import InputError

__all__ = ["VERSION", "Results", "begin", "machine", "read_results", "resumed", "tell", "write_results"]

VERSION = 3


@dataclass(slots=True)
class Results:
    """The document of a running suite, written after every case."""

    names: Sequence[str]  # of the cases asked for
    out: Path | None
    document: Record
    means: Callable[[Iterable[Record]], Means] = geometric_means

    @property
    def records(self) -> dict[str, Record]:
        """The record of each case that has one."""
        found: dict[str, Record] = self.document["cases"]
        return found

    @property
    def any_measured(self) -> bool:
        """Whether the document has a ratio of at least one case."""
        return any(one.get("ratio") is not None for one in self.records.values())

    def keep(self, name: str, record: Mapping[str, Any]) -> None:
        """Note the record of a case, and write the whole document."""
        self.records[name] = dict(record)
        self.document["geometric_mean"] = self.means(self.records.values())
        self.document["not_reached"] = [one for one in self.names if one not in self.records]
        if self.out is not None:
            write_results(self.document, self.out)

    def left(self, minutes: float, *, least_s: float = 0.0) -> Iterator[str]:
        """Yield the names of the cases without a record, until the minutes are over.

        With `least_s`, a case is begun only where that many seconds are left, and half of the time that
        the longest case took.
        """
        deadline, longest = time.monotonic() + 60 * minutes, least_s
        for name in self.names:
            if name in self.records:
                continue
            start = time.monotonic()
            if start + longest > deadline:
                return
            yield name
            longest = max(longest, (time.monotonic() - start) / 2) if least_s else 0.0


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
        found["instructions"] = torch.backends.cpu.get_cpu_capability()
    return found


def write_results(document: Record, place: Path) -> None:
    """Write a document, all of it or nothing."""
    from superopt.result.codec import write_json

    write_json(document, place)


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


def resumed(place: Path | None, *, resume: bool = True) -> Record:
    """Return the document of the file without cases that were never begun; an empty one for a new run."""
    if not resume or place is None or not place.exists():
        return {"cases": {}}
    try:
        found = read_results(place)
    except InputError as error:
        raise InputError(f"{error}; give another --json, or leave out --resume") from error
    begun = {name: one for name, one in found["cases"].items() if one.get("begun", True)}
    return {**found, "cases": begun}


def tell(message: str) -> None:
    """Show what happens, with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.stderr, flush=True)
