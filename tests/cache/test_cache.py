import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from superopt.cache import Cache, Key, Record, cache_folder, key_of, versions
from superopt.cache import store as store_module
from superopt.errors import InputError

Keys = Callable[..., Key]
Warnings = Callable[[], list[str]]


def timing_key(kernel: str, *, program: str = "axes m=1\n", device: str = "H200") -> Key:
    return key_of(
        "measurement",
        program=program,
        kernel=kernel,
        configuration={"block_m": 16},
        device=device,
        options={"l2": "cleared"},
        superopt="1",
        torch="2",
        compiler="3",
    )


def test_what_is_put_is_there_in_the_next_run(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    data: dict[str, Any] = {"text": "µ \ud800 \0", "list": [1, 2.5, None, True, {"a": []}], "big": 2**70}
    with Cache.open() as cache:
        assert cache.get(plan_key()) is None
        cache.put(plan_key(), Record(data, label="rms\nnorm"))
    with Cache.open() as cache:
        record = cache.get(plan_key())
        assert cache.get(plan_key(1)) is None
        info = cache.info()
    assert record is not None
    assert (record.data, record.label) == (data, "rmsnorm")
    assert record.made is not None
    assert timedelta(0) <= datetime.now(UTC) - record.made < timedelta(minutes=1)
    assert (info.path, info.unsaved, info.fault, info.read_only) == (folder / "cache-1.db", 0, "", False)
    assert info.entries == {"search": 0, "plan": 1, "measurement": 0, "result": 0, "pending": 0}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert warnings() == []


def test_a_later_put_replaces(folder: Path, plan_key: Keys) -> None:
    with Cache.open() as cache:
        for number in range(3):
            cache.put(plan_key(), Record({"number": number}, made=datetime(2030 - number, 1, 1, tzinfo=UTC)))
        record = cache.get(plan_key())
        assert record is not None
        assert record.data == {"number": 2}
        assert len(cache.entries()) == 1


@pytest.mark.parametrize("bad", [{"a": object()}, {"a": float("nan")}, {"a": {1}}, [1]])
def test_data_only(folder: Path, plan_key: Keys, bad: Any) -> None:
    with Cache.open() as cache, pytest.raises(InputError, match="record"):
        cache.put(plan_key(), Record(bad))


def test_entries_keep_the_parts_readable(folder: Path, plan_key: Keys) -> None:
    with Cache.open() as cache:
        cache.put(plan_key(1), Record({}, label="first"))
        cache.put(timing_key("eager"), Record({"median_us": 1.0}, label="second"))
        second, first = cache.entries()
        assert cache.entries("plan") == (first,)
    assert first.parts == plan_key(1).parts
    assert (first.kind, first.digest, first.label) == ("plan", plan_key(1).digest, "first")
    assert (second.kind, second.parts["kernel"]) == ("measurement", "eager")


def test_records_are_found_by_kind_and_device(folder: Path, plan_key: Keys) -> None:
    with Cache.open() as cache:
        for key in (timing_key("a"), timing_key("b"), timing_key("a", device="A100"), plan_key()):
            cache.put(key, Record({"median_us": 12.5}))
        everything = cache.records("measurement")
        assert [parts["kernel"] for parts, _ in everything] == ["a", "b", "a"]
        assert all(record.data == {"median_us": 12.5} for _, record in everything)
        assert [parts["device"] for parts, _ in cache.records("measurement", device="A100")] == ["A100"]
        assert cache.records("measurement", newest=1) == everything[-1:]


def test_clear_by_kind_and_by_age(folder: Path, plan_key: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with Cache.open() as cache:
        for number in range(4):
            monkeypatch.setattr(time, "time", lambda number=number: now - 86_400 * number)
            cache.put(plan_key(number), Record({}))
        cache.put(timing_key("a"), Record({"median_us": 1.0}))
        monkeypatch.undo()
        assert cache.clear("plan", timedelta(days=1, hours=12)) == 2
        assert [entry.parts["program"] for entry in cache.entries("plan")] == ["axes m=0\n", "axes m=1\n"]
        assert cache.clear("search") == 0
        assert cache.clear("measurement") == 1
        assert cache.clear() == 2
        assert cache.entries() == ()
        with pytest.raises(InputError, match="no kind of record"):
            cache.clear("plans")  # type: ignore[arg-type]


def test_clear_gives_the_space_back(folder: Path, plan_key: Keys) -> None:
    with Cache.open() as cache:
        cache.put(plan_key(), Record({"text": "x" * 3_000_000}))
        cache.clear()
    assert (folder / "cache-1.db").stat().st_size < 200_000


def test_a_use_saves_from_eviction(folder: Path, plan_key: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_TOUCH_AFTER_S", -1.0)
    with Cache.open(limit_bytes=1_000_000) as cache:
        for number in range(40):
            cache.put(plan_key(number), Record({"text": "x" * 50_000}))
            assert cache.get(plan_key(0)) is not None
        kept = {entry.parts["program"] for entry in cache.entries()}
        assert plan_key(0).parts["program"] in kept
        assert plan_key(39).parts["program"] in kept
        assert plan_key(1).parts["program"] not in kept
        assert 8 < len(kept) < 20
        cache.close()
        assert (folder / "cache-1.db").stat().st_size < 1_300_000


def test_another_version_that_is_in_use_keeps_its_records(
    folder: Path, plan_key: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, text = versions()["superopt"], {"text": "x" * 50_000}
    with Cache.open(limit_bytes=1_000_000) as cache:
        clock = time.time()
        for age_days, version in ((40, "left behind"), (2, "another")):
            monkeypatch.setattr(time, "time", lambda past=clock - age_days * 86400: past)
            for number in range(5):
                cache.put(plan_key(number, superopt=version), Record(text))
        monkeypatch.setattr(time, "time", lambda: clock)
        for number in range(60):
            cache.put(plan_key(number, superopt=mine), Record(text))
        kept = [entry.parts["superopt"] for entry in cache.entries()]
    assert kept.count("another") == 5
    assert kept.count("left behind") == 0
    assert 5 <= kept.count(mine) < 15


def test_a_record_larger_than_the_limit_stays_in_memory(
    folder: Path, plan_key: Keys, warnings: Warnings
) -> None:
    with Cache.open(limit_bytes=1_000_000) as cache:
        cache.put(plan_key(1), Record({}))
        cache.put(plan_key(0), Record({"text": "x" * 900_000}))
        assert cache.get(plan_key(0)) is not None
        assert cache.get(plan_key(1)) is not None
    assert len(warnings()) == 1


def test_threads_share_a_cache(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    with Cache.open() as cache:

        def work(thread: int) -> None:
            for number in range(20):
                cache.put(plan_key(100 * thread + number), Record({"n": number}))
                assert cache.get(plan_key(100 * thread + number)) is not None

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(cache.entries()) == 160
    assert warnings() == []


def test_get_and_put_are_fast(folder: Path, plan_key: Keys) -> None:
    record = Record({"text": "x" * 10_000})
    gets, puts = [], []
    with Cache.open() as cache:
        for number in range(50):
            began = time.perf_counter()
            cache.put(plan_key(number), record)
            puts.append(time.perf_counter() - began)
            began = time.perf_counter()
            assert cache.get(plan_key(number)) is not None
            gets.append(time.perf_counter() - began)
    assert sorted(gets)[10] < 1e-3
    assert sorted(puts)[10] < 5e-3


def test_the_import_is_cheap() -> None:
    code = (
        "import sys, superopt.cache; print(sorted({'torch', 'numpy', 'triton', 'egglog'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", "~/there")
    assert cache_folder() == tmp_path / "there"
    monkeypatch.delenv("SUPEROPT_CACHE_DIR")
    assert cache_folder().name == "superopt"


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Record({}).label = "x"  # type: ignore[misc]


def test_a_record_is_removed(tmp_path: Path) -> None:
    kept, removed = timing_key("kept"), timing_key("removed")
    with Cache.open(tmp_path) as cache:
        for key in (kept, removed):
            cache.put(key, Record({"one": 1}))
        cache.remove(removed)
        cache.remove(removed)
        assert cache.get(removed) is None
        assert cache.get(kept) is not None
