import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from superopt.cache import Cache, Key, Record, key_of
from superopt.cache.records import Row
from superopt.cache.store import FileStore
from superopt.errors import CheckpointError, InputError

Keys = Callable[..., Key]
Warnings = Callable[[], list[str]]


@pytest.fixture
def export(tmp_path: Path, plan_key: Keys) -> Path:
    """An export of three plans and a measurement."""
    measured = plan_key().parts | {"kernel": "k", "configuration": {"warps": 4}}
    with Cache.open(tmp_path / "first") as cache:
        for number in range(3):
            cache.put(plan_key(number), Record({"number": number, "text": "µ\n"}, label=f"plan {number}"))
        cache.put(key_of("measurement", **measured), Record({"median_us": 2.0, "quantiles_us": {"0.2": 1.5}}))
        assert cache.export(tmp_path / "export.jsonl") == 4
    return tmp_path / "export.jsonl"


def rewritten(lines: list[Any]) -> bytes:
    """Return an export of other lines with a footer that fits."""
    body = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()
    footer = {"end": len(lines) - 1, "sha256": hashlib.sha256(body).hexdigest()}
    return body + json.dumps(footer).encode() + b"\n"


def test_an_import_brings_everything(tmp_path: Path, plan_key: Keys, export: Path) -> None:
    with Cache.open(tmp_path / "first") as first, Cache.open(tmp_path / "second") as second:
        assert second.import_(export) == 4
        assert second.import_(export) == 0
        assert second.records("measurement") == first.records("measurement")
        assert [(e.digest, e.label, e.made) for e in second.entries()] == [
            (e.digest, e.label, e.made) for e in first.entries()
        ]
        assert second.get(plan_key(2)) == first.get(plan_key(2))
        assert second.export(tmp_path / "again.jsonl") == 4
    assert (tmp_path / "again.jsonl").read_bytes() == export.read_bytes()


def test_an_import_replaces_only_what_is_older(tmp_path: Path, plan_key: Keys, export: Path) -> None:
    with Cache.open(tmp_path / "second") as cache:
        cache.put(plan_key(0), Record({"mine": 1}, made=datetime(2001, 1, 1, tzinfo=UTC)))
        cache.put(plan_key(1), Record({"mine": 1}))
        assert cache.import_(export) == 3
        data = [dict(record.data) for n in range(2) if (record := cache.get(plan_key(n)))]
    assert data == [{"number": 0, "text": "µ\n"}, {"mine": 1}]


def good(plan_key: Keys, **other: Any) -> dict[str, Any]:
    return {"kind": "plan", "label": "", "made": 1e9, "parts": plan_key(5).parts, "data": {}} | other


HEADER = {"format": "superopt-cache", "version": 1}
LINES: dict[str, tuple[Callable[[Keys], Any], str]] = {
    "text": (lambda keys: "not json", "line 3 is no JSON"),
    "list": (lambda keys: [1], "line 3: it is no record"),
    "field missing": (lambda keys: {"kind": "plan"}, "line 3: it is no record"),
    "field more": (lambda keys: good(keys, code="import os"), "line 3: it is no record"),
    "kind": (lambda keys: good(keys, kind="code"), "no kind of record is named 'code'"),
    "part missing": (lambda keys: good(keys, parts={"program": "x"}), "key of a plan needs device"),
    "part more": (lambda keys: good(keys, parts=keys().parts | {"x": 1}), "has no part x"),
    "part named oddly": (lambda keys: good(keys, parts=keys().parts | {"kind": 1}), "has no part kind"),
    "part empty": (lambda keys: good(keys, parts=keys().parts | {"device": ""}), "nothing in device"),
    "data": (lambda keys: good(keys, data=[]), "wrong type"),
    "label": (lambda keys: good(keys, label=3), "wrong type"),
    "made text": (lambda keys: good(keys, made="today"), "made is 'today'"),
    "made far": (lambda keys: good(keys, made=1e300), "not seconds since 1970"),
    "infinite": (lambda keys: good(keys, data={"a": float("inf")}), "JSON cannot"),
    "deep": (lambda keys: '{"data": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 3"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_wrong_row_stops_the_import(tmp_path: Path, plan_key: Keys, name: str) -> None:
    line, message = LINES[name]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(rewritten([HEADER, good(plan_key), line(plan_key)]))
    with Cache.open(tmp_path / "cache") as cache:
        with pytest.raises(CheckpointError) as caught:
            cache.import_(path)
        assert cache.entries() == ()
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "no export of the cache"),
    "foreign": (lambda data: b'{"schema": "superopt.search/1"}\n', "no export of the cache"),
    "binary": (lambda data: os.urandom(10_000), "no export of the cache"),
    "sqlite": (lambda data: b"SQLite format 3\0" + bytes(10_000), "no export of the cache"),
    "future": (lambda data: data.replace(b'"version":1', b'"version":7', 1), "has version 7 of the format"),
    "no version": (lambda data: data.replace(b'"version":1', b'"version":"1"', 1), "its version is '1'"),
    "no footer": (lambda data: data[: data.rindex(b'{"end"')], "cut short after 4 rows"),
    "cut": (lambda data: data[:-200], "cut short"),
    "half": (lambda data: data[: len(data) // 2], "cut short"),
    "changed": (lambda data: data.replace(b'"number":1', b'"number":2'), "changed or damaged"),
    "row lost": (lambda data: b"".join(data.splitlines(True)[:2] + data.splitlines(True)[3:]), "changed or"),
    "joined": (lambda data: data + data, "stands after the end"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_whole_export_is_refused(tmp_path: Path, export: Path, name: str) -> None:
    change, message = FILES[name]
    export.write_bytes(change(export.read_bytes()))
    with Cache.open(tmp_path / "second") as cache:
        with pytest.raises(CheckpointError, match=message):
            cache.import_(export)
        assert cache.entries() == ()


@pytest.mark.parametrize("name", ["none.jsonl", ".", "nul\0", "none/x"])
def test_what_cannot_be_read_or_written(tmp_path: Path, name: str) -> None:
    with Cache.open(tmp_path / "cache") as cache:
        with pytest.raises(InputError, match=r"jsonl|no file|not there|null byte"):
            cache.import_(tmp_path / name)
        if name != "none.jsonl":
            with pytest.raises(InputError, match="cannot write"):
                cache.export(tmp_path / name)


def test_an_export_replaces_a_file_whole(tmp_path: Path, export: Path) -> None:
    with Cache.open(tmp_path / "empty") as cache:
        assert cache.export(export) == 0
        assert len(export.read_text().splitlines()) == 2
        assert cache.import_(export) == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["export.jsonl"]


def test_a_cache_that_cannot_be_read_is_not_exported_empty(
    tmp_path: Path, plan_key: Keys, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: FileStore, *wanted: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    before = export.read_bytes()
    with Cache.open(tmp_path / "first") as cache:
        monkeypatch.setattr(FileStore, "rows", fail)
        with pytest.raises(InputError, match=r"cannot read the cache: .*disk I/O error"):
            cache.export(export)
    assert export.read_bytes() == before


def test_an_import_without_a_file_stays_in_memory(
    tmp_path: Path, plan_key: Keys, export: Path, warnings: Warnings
) -> None:
    with Cache.open(export / "impossible") as cache:
        cache.put(plan_key(1), Record({"mine": 1}))
        assert cache.import_(export) == 3
        assert cache.get(plan_key(0)) is not None
        mine = cache.get(plan_key(1))
        assert mine is not None
        assert mine.data == {"mine": 1}
    assert len(warnings()) == 1


def test_parts_that_are_nested_too_deeply_are_no_record(plan_key: Keys) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CheckpointError, match="nested too deeply"):
        Row.from_json(good(plan_key, parts=plan_key().parts | {"options": deep}))
