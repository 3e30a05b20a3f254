"""The database file: one connection, its schema, its few statements, and the limit on its size.

Faults are raised as they come (sqlite3.Error, OSError); what to do about them is the Cache's business.
A writer takes its lock at once and waits for others; a reader waits for nobody (WAL). The path is looked
at before each use, so that a file deleted or replaced by another process is not written to unseen.
"""

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from superopt.cache.keys import canonical_json, versions
from superopt.cache.place import FILE_NAME, LOCK_SECONDS, SCHEMA, folder_lock, identity, set_aside
from superopt.cache.records import Row

__all__ = ["FileStore", "is_damage"]

_APPLICATION = 0x5375704F  # "SupO", in the header of every file of ours
_TOUCH_AFTER_S = 3600.0  # a use is noted this often at most, so that reading rarely writes
_LATELY_S = 30 * 86400.0  # within which rows were used that another version may need
_FILL = 0.8  # the share of the limit that is in use after rows were evicted

# What another version of superopt keeps has other keys in any case, so no table is ever converted.
_TABLES = (
    """CREATE TABLE entries (
        digest TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        label TEXT NOT NULL,
        device TEXT NOT NULL,
        program TEXT NOT NULL,
        parts TEXT NOT NULL,
        data TEXT NOT NULL,
        made REAL NOT NULL,
        used REAL NOT NULL,
        sum TEXT NOT NULL
    )""",
    "CREATE INDEX entries_by_program ON entries (kind, program, device)",
    "CREATE INDEX entries_by_use ON entries (used)",
)

_COLUMNS = "kind, digest, label, device, program, parts, data, made, used, sum"
_PUT = (
    f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (digest) DO UPDATE SET label = excluded.label, data = excluded.data,"
    " made = excluded.made, used = excluded.used, sum = excluded.sum"
)
_PUT_NEWER = f"{_PUT} WHERE excluded.made > entries.made"


def is_damage(error: Exception) -> bool:
    """Whether an error says that the file is not, or no longer, a database of ours."""
    if isinstance(error, UnicodeDecodeError):  # of the message that quotes the damaged place
        return True
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    lacks = str(error).startswith("no such") or "has no column" in str(error)
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or (code == sqlite3.SQLITE_ERROR and lacks)


class FileStore:
    """The rows of one file. Not for several threads at once: the Cache sees to that."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.path = folder / FILE_NAME
        self.limit_bytes = limit_bytes
        self.read_only = False
        self.notes: list[tuple[str, str]] = []  # a topic, and what became of the file: to be told
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._process = 0

    # -- the connection

    def connect(self) -> sqlite3.Connection:
        """Return the connection to the file that is at the path now; where there is none, make it."""
        if self._connection is not None:
            if self._process != os.getpid():
                _ABANDONED.append(self._connection)  # closing it would take the parent's locks away
                self._connection = None
            elif (now := identity(self.path)) == self._identity:
                return self._connection
            else:
                if now is None:
                    self.notes.append(("removed", "the file was removed while in use; a new one is made"))
                self.disconnect()
        self._process = os.getpid()
        try:
            self._open()
        except BaseException:
            self.disconnect()
            raise
        assert self._connection is not None
        return self._connection

    def disconnect(self) -> None:
        """Close the connection; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._process != os.getpid():
            _ABANDONED.append(connection)
            return
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def set_aside(self, why: str) -> Path | None:
        """Rename the file that failed, unless another process did so before."""
        failed = self._identity
        self.disconnect()
        with folder_lock(self.path.parent):
            if failed is None or identity(self.path) != failed:
                return None
            return set_aside(self.path, why)

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with folder_lock(self.path.parent):
                self._open_to_write()
        except (OSError, sqlite3.OperationalError) as error:
            self.disconnect()
            if not (self._is_closed_to_writers(error) and _may(self.path, os.R_OK)):
                raise
            self._open_to_read()

    def _is_closed_to_writers(self, error: OSError | sqlite3.OperationalError) -> bool:
        if isinstance(error, OSError):
            return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        code = error.sqlite_errorcode & 0xFF  # the same where the file went away meanwhile
        closed = code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        return closed and not _may(self.path.parent, os.W_OK)

    def _open_to_write(self) -> None:
        self.read_only = False
        if identity(self.path) is None:
            for suffix in ("-wal", "-shm"):  # of a file that is gone: they must not meet the new one
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self._link(self.path, uri=False)
        version = self._version()
        if version not in (0, SCHEMA):
            self.disconnect()
            aside = set_aside(self.path, "foreign")
            what = f"the file is no cache of superopt; it is now {aside.name}, and a new one is made"
            self.notes.append(("foreign", what))
            self._link(self.path, uri=False)
            version = 0
        assert self._connection is not None
        if version == 0:
            self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._connection.execute("PRAGMA journal_mode = WAL").fetchall()
        if version == 0:
            self._make_tables()
        self._identity = identity(self.path)

    def _open_to_read(self) -> None:
        """Open a file in a folder that cannot be written; `immutable` needs no side files."""
        location = self.path.absolute().as_uri()
        try:
            self._link(f"{location}?mode=ro", uri=True)
            version = self._version()
        except sqlite3.OperationalError:
            self.disconnect()
            self._link(f"{location}?mode=ro&immutable=1", uri=True)
            version = self._version()
        if version != SCHEMA:
            raise PermissionError("the folder is read-only, and its file is no cache of superopt")
        self.read_only = True

    def _link(self, location: Path | str, *, uri: bool) -> None:
        connection = sqlite3.connect(
            location, uri=uri, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.text_factory = _decode
        self._connection = connection
        self._identity = identity(self.path)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 4194304")

    def _version(self) -> int | None:
        """Return the version of the tables, 0 for an empty file; None where the file is not ours."""
        assert self._connection is not None
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == _APPLICATION:
            return int(version)
        return 0 if not (application or version or tables) else None

    def _make_tables(self) -> None:
        with self._writing() as connection:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that has the write lock from its start."""
        assert self._connection is not None
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk has rolled back by itself
                connection.execute("ROLLBACK")
            raise

    # -- rows

    def get(self, digest: str) -> Row | None:
        """Return one row, as it is in the file, and note its use."""
        connection = self.connect()
        query = f"SELECT {_COLUMNS} FROM entries WHERE digest = ?"
        found = connection.execute(query, (digest,)).fetchone()
        if found is None:
            return None
        row = Row(*found)
        if not self.read_only and isinstance(row.used, float) and time.time() - row.used > _TOUCH_AFTER_S:
            self._touch(connection, digest)
        return row

    def put(self, rows: Iterable[Row], *, newer_only: bool = False) -> int:
        """Write rows in one transaction, over older ones of the same keys; return how many were written."""
        self.connect()
        with self._writing() as connection:
            before = connection.total_changes
            connection.executemany(
                _PUT_NEWER if newer_only else _PUT,
                (
                    (r.kind, r.digest, r.label, r.device, r.program, r.parts, r.data, r.made, r.used, r.sum)
                    for r in rows
                ),
            )
            written = connection.total_changes - before
            self._evict(connection)
        return written

    def rows(
        self,
        kind: str | None = None,
        device: str | None = None,
        newest: int | None = None,
    ) -> list[Row]:
        """Return the rows that match, or the newest of them, oldest first."""
        wanted = {"kind": kind, "device": device}
        chosen = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in chosen) or "1"
        query = f"SELECT {_COLUMNS} FROM entries WHERE {where} ORDER BY made DESC, digest DESC LIMIT :newest"
        limit = -1 if newest is None else newest  # SQLite: a negative limit is none
        return [Row(*found) for found in self.connect().execute(query, {**chosen, "newest": limit})][::-1]

    def drop(self, digest: str) -> None:
        """Remove one row, where the file can be written."""
        self.connect()
        if self.read_only:
            return
        with self._writing() as connection:
            connection.execute("DELETE FROM entries WHERE digest = ?", (digest,))

    def clear(self, kind: str | None, used_before: float | None) -> int:
        """Remove the rows of a kind, or not used since a time, or all; return how many."""
        self.connect()
        with self._writing() as connection:
            removed = connection.execute(
                "DELETE FROM entries WHERE (:kind IS NULL OR kind = :kind)"
                " AND (:before IS NULL OR used < :before)",
                {"kind": kind, "before": used_before},
            ).rowcount
        with contextlib.suppress(sqlite3.OperationalError):  # the space comes back another time
            self.connect().executescript("PRAGMA incremental_vacuum")  # execute() frees one page only
        return removed

    def size_bytes(self) -> int:
        """Return what the file and its log take on the disk."""
        return sum(part.stat().st_size for part in self._parts[:2] if part.exists())

    def is_at(self, path: Path) -> bool:
        """Whether a path leads to the file or to what belongs to it."""
        try:
            place = os.path.realpath(path)
        except ValueError:  # a null character: it leads nowhere
            return False
        return place in map(os.path.realpath, self._parts)

    @property
    def _parts(self) -> tuple[Path, ...]:
        return tuple(self.path.with_name(f"{self.path.name}{suffix}") for suffix in ("", "-wal", "-shm"))

    def _touch(self, connection: sqlite3.Connection, digest: str) -> None:
        with contextlib.suppress(sqlite3.OperationalError):  # not worth a wait or a word
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("UPDATE entries SET used = ? WHERE digest = ?", (time.time(), digest))
        connection.execute(f"PRAGMA busy_timeout = {round(LOCK_SECONDS * 1000)}")

    def _evict(self, connection: sqlite3.Connection) -> None:
        """Remove rows until the file is within its limit.

        What nobody used for a month goes first, then the least recently used rows of this version of
        superopt: another one that is in use keeps its own.
        """
        if _used_bytes(connection) <= self.limit_bytes:
            return
        while (excess := _used_bytes(connection) - int(self.limit_bytes * _FILL)) > 0:
            oldest: list[tuple[int]] = []
            query = (
                "SELECT rowid, length(parts) + length(data) FROM entries ORDER BY used > :lately,"
                " instr(parts, :version) = 0, used, rowid LIMIT 256"
            )
            own = canonical_json({"superopt": versions()["superopt"]})[1:-1]
            given = {"lately": time.time() - _LATELY_S, "version": own}
            for rowid, size in connection.execute(query, given).fetchall():
                oldest.append((rowid,))
                excess -= size
                if excess <= 0:
                    break
            if not oldest:
                return
            connection.executemany("DELETE FROM entries WHERE rowid = ?", oldest)


_ABANDONED: list[sqlite3.Connection] = []
"""Connections of a parent process, kept from being closed."""


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")  # a damaged row is told by its sum
