"""Checkpoints: the finished levels of a search in one file, written atomically and read with suspicion.

The file is an uncompressed npz without pickles (zip checks each part's CRC): `header` is JSON as bytes,
`records` has all states by level and then by key, `arcs` (if kept) the arcs by level.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import CheckpointError, InputError
from superopt.files import replacing
from superopt.frontier.engine.history import History, Level
from superopt.frontier.engine.interface import LevelStats, Space
from superopt.frontier.engine.records import KEY_WORDS, Records, merge, new_key

__all__ = ["Checkpoint"]

log = logging.getLogger(__name__)

FORMAT = "superopt-frontier"
VERSION = 1
# A checkpoint is written after such a pause at the earliest, and takes at most such a share of the time.
PAUSE_SECONDS = 2.0
TIME_SHARE = 0.05


class Checkpoint:
    """The file that one search writes its finished levels to, and can be resumed from."""

    def __init__(self, path: Path, space: Space, *, keep_arcs: bool) -> None:
        self.path = Path(path)
        self._name = space.name
        self._fingerprint = space.fingerprint()
        self._width = space.width
        self._keep_arcs = keep_arcs
        self._next = time.perf_counter() + PAUSE_SECONDS
        self._saved_levels = 0
        self._warned = False

    def check_usable(self) -> None:
        """Refuse a path that can't be a checkpoint, before hours of search depend on it."""
        if self.path.is_dir():
            raise InputError(f"checkpoint {self.path} is a folder; give the path of a file")
        if not self.path.parent.is_dir():
            raise InputError(f"checkpoint {self.path}: there is no folder {self.path.parent}; make it first")

    def save(self, history: History, *, now: bool = False) -> None:
        """Write the finished levels, unless that was done a moment ago; a failure is one warning."""
        if len(history.levels) == self._saved_levels or (time.perf_counter() < self._next and not now):
            return
        began = time.perf_counter()
        try:
            self._write(history)
        except OSError as error:
            if not self._warned:
                log.warning(
                    "checkpoint %s could not be written (%s); the search goes on without", self.path, error
                )
            self._warned = True
        else:
            self._saved_levels = len(history.levels)
        ended = time.perf_counter()
        self._next = ended + max(PAUSE_SECONDS, (ended - began) / TIME_SHARE)

    def _write(self, history: History) -> None:
        levels = history.levels
        header = {
            "format": FORMAT,
            "version": VERSION,
            "space": self._name,
            "fingerprint": self._fingerprint,
            "width": self._width,
            "keep_arcs": self._keep_arcs,
            "levels": [
                {
                    "new": level.new,
                    "arcs": sum(map(len, level.arcs)),
                    "counts": level.counts,
                    "stats": asdict(level.stats),
                }
                for level in levels
            ],
        }
        empty = np.empty((0, self._width + KEY_WORDS), dtype=np.int64)
        parts = {
            "header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
            "records": np.concatenate([merge(level.shares, self._width) for level in levels]),
            "arcs": np.concatenate([empty, *(arcs for level in levels for arcs in level.arcs if len(arcs))]),
        }
        with replacing(self.path) as file:
            np.savez(file, allow_pickle=False, **parts)
        _sync_folder(self.path.parent)

    def load(self) -> list[Level]:
        """Return the levels in the file, or raise one clear sentence about why it can't be resumed from."""
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
                header = json.loads(bytes(parts["header"]))
                self._check_header(header)
                records, arcs = parts["records"], parts["arcs"]
            levels = self._levels(header["levels"], records, arcs)
        except CheckpointError:
            raise
        except FileNotFoundError:
            raise CheckpointError(f"no checkpoint at {self.path}; start without resume to make one") from None
        except PermissionError as error:
            raise CheckpointError(f"checkpoint {self.path} can't be read ({error.strerror})") from None
        except Exception as error:  # numpy and zipfile raise a dozen kinds for a damaged file
            raise CheckpointError(
                f"checkpoint {self.path} is damaged ({error}); delete it and start without resume"
            ) from error
        self._saved_levels = len(levels)
        return levels

    def _check_header(self, header: Any) -> None:
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise CheckpointError(f"{self.path} is not a checkpoint of superopt; give the path of one")
        if header["version"] != VERSION:
            raise CheckpointError(
                f"checkpoint {self.path} has format version {header['version']}, this superopt reads "
                f"{VERSION}; resume with the superopt that wrote it, or start without resume"
            )
        if header["fingerprint"] != self._fingerprint or header["width"] != self._width:
            raise CheckpointError(
                f"checkpoint {self.path} is of another search ({header['fingerprint']}, wanted "
                f"{self._fingerprint}); give the same parameters, or start without resume"
            )
        if header["keep_arcs"] is not self._keep_arcs:
            raise CheckpointError(
                f"checkpoint {self.path} was made with keep_arcs={header['keep_arcs']}; "
                "use the same, or start without resume"
            )

    def _levels(self, heads: list[dict[str, Any]], records: Records, arcs: Records) -> list[Level]:
        for part in (records, arcs):
            if part.dtype != np.int64 or part.ndim != 2 or part.shape[1] != self._width + KEY_WORDS:
                raise ValueError(f"unexpected array {part.dtype}{list(part.shape)}")
        if not heads or sum(head["new"] for head in heads) != len(records):
            raise ValueError("the levels don't add up to the states")
        if sum(head["arcs"] for head in heads) != len(arcs):
            raise ValueError("the levels don't add up to the arcs")
        levels = []
        at = arcs_at = 0
        for number, head in enumerate(heads):
            if head["new"] < 0 or head["arcs"] < 0:
                raise ValueError("negative sizes")
            share = records[at : at + head["new"]]
            _check_order(share)
            kept = arcs[arcs_at : arcs_at + head["arcs"]]
            at, arcs_at = at + head["new"], arcs_at + head["arcs"]
            counts = {str(reason): int(count) for reason, count in head["counts"].items()}
            levels.append(Level((share,), (kept,), _stats(head["stats"], number, len(share)), counts))
        return levels


def _check_order(share: Records) -> None:
    high, low = share.view(np.uint64)[:, 0], share.view(np.uint64)[:, 1]
    rising = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    if not rising.all() or not new_key(share).all():
        raise ValueError("states out of order")


def _stats(saved: dict[str, Any], level: int, new: int) -> LevelStats:
    values = {part.name: saved[part.name] for part in fields(LevelStats)}
    if values["level"] != level or values["new"] != new or values["complete"] is not True:
        raise ValueError("statistics of another level")
    values["worker_seconds"] = tuple(values["worker_seconds"])
    return LevelStats(**values)


def _sync_folder(folder: Path) -> None:
    """Make the rename last; some file systems can't sync a folder, and then need not."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
