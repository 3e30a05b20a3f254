"""Exports: rows as lines of JSON between a header and a footer, so that a cut or changed file is noticed.

{"format": "superopt-cache", "version": 1}
{"kind": "plan", "label": ..., "made": ..., "parts": {...}, "data": {...}}
...
{"end": 17, "sha256": "..."}            the number of rows, and the hash of all lines above
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from superopt.cache.keys import canonical_json
from superopt.cache.records import Row
from superopt.errors import CheckpointError, InputError, reason_of
from superopt.files import replacing

__all__ = ["read_rows", "write_rows"]

FORMAT = "superopt-cache"
VERSION = 1
_MOST_BYTES = 4 << 30
_MOST_LINE_BYTES = 256 << 20


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write an export in place of what was at the path, whole or not at all; return how many rows."""
    count, digest = 0, hashlib.sha256()
    try:
        with replacing(path) as file:
            lines = (row.to_json() for row in rows)
            for count, value in enumerate(({"format": FORMAT, "version": VERSION}, *lines)):  # noqa: B007
                line = f"{canonical_json(value)}\n".encode("ascii")
                digest.update(line)
                file.write(line)
            file.write(canonical_json({"end": count, "sha256": digest.hexdigest()}).encode("ascii") + b"\n")
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {reason_of(error)}") from error
    return count


def read_rows(path: Path) -> list[Row]:
    """Return the rows of an export, every one of them checked, or raise CheckpointError."""
    rows: list[Row] = []
    digest = hashlib.sha256()
    end: dict[str, Any] | None = None
    try:
        if not path.is_file():
            raise InputError(f"{str(path)!r} is {'no file' if path.exists() else 'not there'}")
        if path.stat().st_size > _MOST_BYTES:
            raise CheckpointError(f"{path}: too large for an export of the cache")
        with path.open("rb") as file:
            _check_header(path, file.readline(200), digest)
            number = 1
            while line := file.readline(_MOST_LINE_BYTES):
                number += 1
                if end is not None:
                    raise CheckpointError(f"{path}: line {number} stands after the end")
                value = _parsed(path, number, line)
                if isinstance(value, dict) and "end" in value:
                    end = value
                    continue
                digest.update(line)
                try:
                    rows.append(Row.from_json(value))
                except CheckpointError as error:
                    raise CheckpointError(f"{path}: line {number}: {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r}: {reason_of(error)}") from error
    if end is None:
        raise CheckpointError(f"{path}: it is cut short after {len(rows)} rows; export it again")
    if end != {"end": len(rows), "sha256": digest.hexdigest()}:
        raise CheckpointError(f"{path}: it was changed or damaged after it was written; export it again")
    return rows


def _check_header(path: Path, line: bytes, digest: Any) -> None:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: it is no export of the cache (superopt cache export FILE)")
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{path}: its version is {version!r}")
    if version > VERSION:
        raise CheckpointError(
            f"{path}: it has version {version} of the format, and this superopt reads up to {VERSION};"
            " use the superopt that wrote it, or a newer one"
        )
    digest.update(line)


def _parsed(path: Path, number: int, line: bytes) -> Any:
    if not line.endswith(b"\n"):
        raise CheckpointError(f"{path}: line {number} is cut short; export it again")
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: line {number} is no JSON; export it again") from error
