"""Records: what a key leads to, and the rows they are kept as."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from superopt.cache.keys import Key, Kind, canonical_json, key_of
from superopt.errors import CheckpointError, InputError

__all__ = ["Entry", "Record", "Row", "row_of"]

_OVERHEAD_BYTES = 400  # what a row takes besides its texts, with its places in the indexes
_LABEL_CHARACTERS = 200
_LATEST = 1e11  # seconds since 1970 that a date can still hold


@dataclass(frozen=True, slots=True)
class Record:
    """One result as plain JSON data, with a label for listings and the time it was made (by `put`)."""

    data: Mapping[str, Any]
    label: str = ""
    made: datetime | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing shows of one record."""

    kind: Kind
    digest: str
    label: str
    parts: Mapping[str, Any]
    made: datetime
    used: datetime
    size_bytes: int


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")


@dataclass(frozen=True, slots=True)
class Row:
    """A record as it is stored: texts, seconds since 1970, and a sum that tells a damaged row."""

    kind: Kind
    digest: str
    label: str
    device: str
    program: str  # the digest of the part, to select by
    parts: str
    data: str
    made: float
    used: float
    sum: str

    @property
    def size_bytes(self) -> int:
        """About what it takes in the file."""
        return len(self.parts) + len(self.data) + len(self.label) + _OVERHEAD_BYTES

    @property
    def is_whole(self) -> bool:
        """Whether nothing in it changed since it was made; any type may stand in a damaged field."""
        try:
            sound = 0 <= self.used < _LATEST and 0 <= self.made < _LATEST
            return sound and self.sum == _sum(
                self.kind, self.digest, self.label, self.parts, self.data, self.made
            )
        except (TypeError, ValueError, AttributeError):
            return False

    def record(self) -> Record:
        """Return the record in it."""
        return Record(json.loads(self.data), self.label, moment(self.made))

    def entry(self) -> Entry:
        """Return what a listing shows."""
        return Entry(
            self.kind,
            self.digest,
            self.label,
            json.loads(self.parts),
            moment(self.made),
            moment(self.used),
            self.size_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as one line of an export: the digest follows from the parts."""
        return {
            "kind": self.kind,
            "label": self.label,
            "made": self.made,
            "parts": json.loads(self.parts),
            "data": json.loads(self.data),
        }

    @staticmethod
    def from_json(value: Any) -> "Row":
        """Return the row of one line of an export, or raise CheckpointError."""
        if not isinstance(value, dict) or set(value) != {"kind", "label", "made", "parts", "data"}:
            raise CheckpointError("it is no record: it needs kind, label, made, parts and data")
        made, parts, data = value["made"], value["parts"], value["data"]
        if not (_is_time(made) and made < _LATEST):
            raise CheckpointError(f"made is {made!r}, not seconds since 1970")
        if not (isinstance(value["label"], str) and isinstance(parts, dict) and isinstance(data, dict)):
            raise CheckpointError("its label, parts or data are of the wrong type")
        try:
            key = key_of(cast(Kind, str(value["kind"])), **parts)
            return row_of(key, Record(data, value["label"], moment(made)))
        except InputError as error:
            raise CheckpointError(str(error)) from error
        except RecursionError as error:
            raise CheckpointError("its parts are nested too deeply") from error


def row_of(key: Key, record: Record) -> Row:
    """Return the row that keeps a record under its key."""
    if not isinstance(record.data, Mapping):
        raise InputError(f"a record's data is a {type(record.data).__name__}; give a mapping")
    try:
        data = canonical_json(dict(record.data))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a record holds what JSON cannot: {error}") from error
    now = time.time()
    made = (record.made or moment(now)).timestamp()  # to a µs, as an export and import keep it
    label = "".join(c for c in record.label[:_LABEL_CHARACTERS] if c.isprintable())
    parts = key.parts
    return Row(
        kind=key.kind,
        digest=key.digest,
        label=label,
        device=str(parts["device"]).encode("ascii", "backslashreplace").decode(),
        program=program_digest(parts["program"]),
        parts=key.text,
        data=data,
        made=made,
        used=now,
        sum=_sum(key.kind, key.digest, label, key.text, data, made),
    )


def program_digest(program: Any) -> str:
    """Return what rows are selected by when all records of one program are wanted."""
    return hashlib.sha256(canonical_json(program).encode()).hexdigest()[:32]


def moment(seconds: float) -> datetime:
    """Return a time in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def _sum(kind: str, digest: str, label: str, parts: str, data: str, made: float) -> str:
    text = "\0".join((kind, digest, label, parts, data, repr(made)))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
