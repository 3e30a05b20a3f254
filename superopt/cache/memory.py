"""Memory store: rows that could not be written to the file, kept for as long as the process lives."""

from collections.abc import Iterable

from superopt.cache.records import Row

__all__ = ["MemoryStore"]


class MemoryStore:
    """As FileStore, without a file; the rows used longest ago give way at the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._rows: dict[str, Row] = {}  # the one used last comes last
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, digest: str) -> Row | None:
        """Return one row, which is now the one used last."""
        row = self._rows.pop(digest, None)
        if row is not None:
            self._rows[digest] = row
        return row

    def put(self, rows: Iterable[Row]) -> None:
        """Keep rows, in place of older ones of the same keys."""
        for row in rows:
            self.drop(row.digest)
            self._rows[row.digest] = row
            self._bytes += row.size_bytes
        while self._bytes > self.limit_bytes and len(self._rows) > 1:
            self.drop(next(iter(self._rows)))

    def rows(self, kind: str | None = None, device: str | None = None) -> list[Row]:
        """Return the rows that match."""
        return [
            row for row in self._rows.values() if kind in (None, row.kind) and device in (None, row.device)
        ]

    def drop(self, digest: str) -> None:
        """Remove one row."""
        row = self._rows.pop(digest, None)
        if row is not None:
            self._bytes -= row.size_bytes

    def clear(self, kind: str | None, used_before: float | None) -> int:
        """Remove the rows of a kind, or not used since a time, or all; return how many."""
        gone = [row for row in self.rows(kind) if used_before is None or row.used < used_before]
        for row in gone:
            self.drop(row.digest)
        return len(gone)
