"""Each fault of the environment: one warning, and the work goes on with nothing lost."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from superopt.cache import Cache, Key, Record, store
from superopt.cache.store import FileStore

Keys = Callable[..., Key]
Warnings = Callable[[], list[str]]


def fill(folder: Path, plan_key: Keys, count: int = 40) -> None:
    with Cache.open(folder) as cache:
        for number in range(count):
            cache.put(plan_key(number), Record({"number": number, "text": "x" * 2000}))


def works(cache: Cache, plan_key: Keys) -> bool:
    """Whether a record put now is there."""
    cache.put(plan_key(777), Record({"a": 1}))
    found = cache.get(plan_key(777))
    return found is not None and found.data == {"a": 1}


def asides(folder: Path) -> list[str]:
    return sorted(
        path.name.rpartition(".")[2].split("-")[0]
        for path in folder.glob("cache-1.db.*")
        if not path.name.endswith(("-wal", "-shm"))
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: random.Random(0).randbytes(len(data)),
        lambda data: b"not a database\n",
        lambda data: data[: len(data) // 2],
        lambda data: data[:5000],
        lambda data: data[:100] + bytes(len(data) - 100),
        lambda data: data[:4096] + random.Random(0).randbytes(len(data) - 4096),
    ],
    ids=["random", "text", "half", "two pages", "zeros", "header only"],
)
def test_a_damaged_file_is_set_aside(
    folder: Path, plan_key: Keys, warnings: Warnings, damage: Callable[[bytes], bytes]
) -> None:
    fill(folder, plan_key)
    path = folder / "cache-1.db"
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with Cache.open() as cache:
        for number in range(40):
            record = cache.get(plan_key(number))
            assert record is None or record.data["number"] == number
        assert works(cache, plan_key)
        assert len(cache.entries()) >= 1
    with Cache.open() as cache:
        assert cache.get(plan_key(777)) is not None
    assert len(warnings()) == 1, warnings()
    assert len(list(folder.glob("cache-1.db.*"))) == 1


@pytest.mark.parametrize("seed", range(12))
def test_some_wrong_bytes_never_make_a_wrong_record(
    folder: Path, plan_key: Keys, warnings: Warnings, seed: int
) -> None:
    fill(folder, plan_key, 20)
    path = folder / "cache-1.db"
    data, chance = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(200):
        data[chance.randrange(100, len(data))] = chance.randrange(256)
    path.write_bytes(data)
    with Cache.open() as cache:
        for number in range(20):
            record = cache.get(plan_key(number))
            assert record is None or record.data == {"number": number, "text": "x" * 2000}
        cache.entries()
        assert works(cache, plan_key)
        cache.export(folder / "export")
    assert warnings()


def test_a_damaged_record_is_dropped(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    fill(folder, plan_key, 3)
    with sqlite3.connect(folder / "cache-1.db") as connection:
        connection.execute("UPDATE entries SET data = '{}' WHERE digest = ?", (plan_key(1).digest,))
        connection.execute("UPDATE entries SET used = 'x' WHERE digest = ?", (plan_key(2).digest,))
    connection.close()
    with Cache.open() as cache:
        assert len(cache.entries()) == 1
        assert [cache.get(plan_key(number)) is None for number in range(3)] == [False, True, True]
        assert len(cache.entries()) == 1
        assert works(cache, plan_key)
    assert len(warnings()) == 1


def test_a_damaged_file_is_set_aside_once(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    fill(folder, plan_key)
    with Cache.open() as first, Cache.open() as second:
        assert first.get(plan_key(0))
        assert second.get(plan_key(0))
        path = folder / "cache-1.db"
        code = f"open({str(path)!r}, 'r+b').write(b'x' * {path.stat().st_size})"
        subprocess.run([sys.executable, "-c", code], check=True)
        first.put(plan_key(100), Record({"a": 1}))
        second.put(plan_key(101), Record({"a": 1}))
        for cache in (first, second):
            assert cache.get(plan_key(100)) is not None
            assert cache.get(plan_key(101)) is not None
            assert cache.info().unsaved == 0
    assert asides(folder) == ["damaged"]
    assert any("is damaged" in line for line in warnings())


@pytest.mark.parametrize("kept", ["nothing", "wal", "folder gone"])
def test_the_file_is_deleted_while_open(folder: Path, plan_key: Keys, warnings: Warnings, kept: str) -> None:
    with Cache.open() as cache, Cache.open() as other:
        assert works(cache, plan_key)
        if kept == "folder gone":
            shutil.rmtree(folder)
        else:
            (folder / "cache-1.db").unlink()
        if kept == "nothing":
            for name in ("cache-1.db-wal", "cache-1.db-shm"):
                (folder / name).unlink()
        assert cache.get(plan_key(777)) is None
        cache.put(plan_key(1), Record({"a": 1}))
        other.put(plan_key(2), Record({"a": 2}))
        assert other.get(plan_key(1)) is not None
        assert cache.get(plan_key(2)) is not None
    with Cache.open() as cache:
        assert len(cache.entries()) == 2
    assert all("the file was removed while in use" in line for line in warnings())
    assert 1 <= len(warnings()) <= 2


def test_another_version_of_the_tables_has_a_file_of_its_own(
    folder: Path, plan_key: Keys, warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        fill(folder, plan_key, 3)
        with monkeypatch.context() as newer:
            newer.setattr(store, "SCHEMA", 2)
            newer.setattr(store, "FILE_NAME", "cache-2.db")
            newer.setattr(store, "_TABLES", (*store._TABLES, "ALTER TABLE entries ADD COLUMN more TEXT"))
            with Cache.open() as cache:
                assert works(cache, plan_key)
                assert len(cache.entries()) == 1
        with Cache.open() as cache:
            assert len(cache.entries()) == 3
    assert warnings() == []
    assert asides(folder) == []


def test_a_database_of_another_program_is_set_aside(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    folder.mkdir()
    with sqlite3.connect(folder / "cache-1.db") as connection:
        connection.execute("CREATE TABLE entries (name TEXT)")
    connection.close()
    with Cache.open() as cache:
        assert works(cache, plan_key)
        assert cache.info().unsaved == 0
    assert len(warnings()) == 1
    assert "is no cache of superopt" in warnings()[0]
    assert asides(folder) == ["foreign"]


def test_a_lost_table_is_damage(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    fill(folder, plan_key, 3)
    with sqlite3.connect(folder / "cache-1.db") as connection:
        connection.execute("DROP TABLE entries")
    connection.close()
    with Cache.open(folder) as cache:
        assert works(cache, plan_key)
        assert cache.info().unsaved == 0
    assert len(warnings()) == 1


def test_a_full_database(
    folder: Path, plan_key: Keys, warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = FileStore._link

    def small(self: FileStore, location: Path | str, *, uri: bool) -> None:
        link(self, location, uri=uri)
        assert self._connection is not None
        self._connection.execute("PRAGMA max_page_count = 20").fetchall()

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "_link", small)
        cache = Cache.open()
        for number in range(50):
            cache.put(plan_key(number), Record({"number": number, "text": "x" * 5000}))
        assert all(cache.get(plan_key(number)) is not None for number in range(50))
        assert len(cache.entries()) == 50
        assert 0 < cache.info().unsaved < 50
        cache.close()
    assert len(warnings()) == 1
    assert "database or disk is full; results of this run stay in memory" in warnings()[0]
    cache.close()  # there is room again
    assert cache.info().unsaved == 0
    with Cache.open() as later:
        assert len(later.entries()) == 50


FULL = """
import logging, sys
from superopt.cache import Cache, Record, key_of
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(name)s %(message)s")
parts = dict(device="d", options={}, superopt="1", torch="1", compiler="1")
cache = Cache.open(sys.argv[1])
keys = [key_of("plan", program=str(n), **parts) for n in range(100)]
for key in keys:
    cache.put(key, Record({"text": "x" * 10_000}))
assert all(cache.get(key) for key in keys)
assert cache.info().unsaved > 0
cache.close()
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("unshare"), reason="needs a mount of its own")
@pytest.mark.parametrize("size", ["300k", "4k"])
def test_a_full_disk(tmp_path: Path, size: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = f"mount -t tmpfs -o size={size} none {disk}"
    if subprocess.run([*unshare, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no mounts in this container")
    command = f'{mount} && exec "$0" -c "$1" {disk}/cache'
    done = subprocess.run(
        [*unshare, "sh", "-c", command, sys.executable, FULL], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "done"
    assert len(lines) == 1, lines
    assert lines[0].startswith("superopt.cache")


@pytest.mark.parametrize("name", ["a file/cache", "a file", "nul\0"])
def test_a_folder_that_cannot_be(tmp_path: Path, plan_key: Keys, warnings: Warnings, name: str) -> None:
    (tmp_path / "a file").write_text("")
    with Cache.open(tmp_path / name) as cache:
        assert works(cache, plan_key)
        assert works(cache, plan_key)
        assert len(cache.entries()) == 1
        info = cache.info()
        assert info.unsaved == 1
        assert info.fault
    assert len(warnings()) == 1


def test_a_folder_where_the_file_should_be(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    (folder / "cache-1.db").mkdir(parents=True)
    for _ in range(3):  # one run opens it many times
        with Cache.open() as cache:
            assert works(cache, plan_key)
    assert len(warnings()) == 1
    assert warnings()[0].endswith("results of this run stay in memory")


def test_two_folders_that_take_nothing_are_two_warnings(
    tmp_path: Path, plan_key: Keys, warnings: Warnings
) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "cache-1.db").mkdir(parents=True)
        with Cache.open(tmp_path / name) as cache:
            assert works(cache, plan_key)
    assert len(warnings()) == 2


def test_a_read_only_folder(unprivileged: Path, plan_key: Keys, warnings: Warnings) -> None:
    unprivileged.chmod(0o555)
    with Cache.open(unprivileged / "cache") as cache:
        assert works(cache, plan_key)
        assert cache.clear() == 1
    with Cache.open(unprivileged) as cache:
        assert works(cache, plan_key)
    unprivileged.chmod(0o755)
    assert len(warnings()) == 2  # one for each cache


@pytest.mark.parametrize("lock", [True, False])
def test_a_read_only_folder_with_a_cache_is_read(
    unprivileged: Path, plan_key: Keys, warnings: Warnings, lock: bool
) -> None:
    fill(unprivileged, plan_key, 3)
    if not lock:
        (unprivileged / "lock").unlink()
    (unprivileged / "cache-1.db").chmod(0o444)
    unprivileged.chmod(0o555)
    with Cache.open(unprivileged) as cache:
        assert cache.get(plan_key(2)) is not None
        assert works(cache, plan_key)
        cache.put(plan_key(2), Record({"new": 1}))
        record = cache.get(plan_key(2))
        assert record is not None
        assert record.data == {"new": 1}
        assert len(cache.entries()) == 4
        assert cache.info().read_only
        assert cache.info().unsaved == 2
    unprivileged.chmod(0o755)
    assert len(warnings()) == 1, warnings()


@pytest.mark.parametrize("home", ["unset", "not writable", "not there", "wrong variable"])
def test_no_home(
    unprivileged: Path, plan_key: Keys, warnings: Warnings, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    for name in ("SUPEROPT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    unprivileged.chmod(0o555)
    monkeypatch.chdir(unprivileged)
    if home == "unset":
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    elif home == "wrong variable":
        monkeypatch.setenv("SUPEROPT_CACHE_DIR", "~no-such-user/cache")
    else:
        monkeypatch.setenv("HOME", str(unprivileged / ("" if home == "not writable" else "none")))
    with Cache.open() as cache:
        assert works(cache, plan_key)
    assert list(unprivileged.iterdir()) == []
    assert len(warnings()) == 1


def test_a_lock_that_is_never_released(
    folder: Path, plan_key: Keys, warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, plan_key, 3)
    monkeypatch.setattr(store, "LOCK_SECONDS", 0.05)
    other = sqlite3.connect(folder / "cache-1.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    cache = Cache.open()
    assert cache.get(plan_key(2)) is not None
    assert works(cache, plan_key)
    assert cache.info().unsaved == 1
    other.execute("ROLLBACK")
    other.close()
    cache.put(plan_key(1), Record({}))
    assert cache.info().unsaved == 0
    cache.close()
    assert len(warnings()) == 1
    assert "database is locked" in warnings()[0]
