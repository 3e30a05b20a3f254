"""How much memory is left in a container, where files that were read count as used."""

from pathlib import Path

import pytest

from superopt.cost import memory

MB = 10**6


def group(place: Path, *, limit: str, names: tuple[str, str], stat: str) -> None:
    """Write what the system says of a container that uses 7 MB."""
    place.mkdir(exist_ok=True)
    for name, text in zip((*names, "memory.stat"), (limit, f"{7 * MB}\n", stat), strict=True):
        (place / name).write_text(text)


def second(folder: Path, limit: str) -> None:
    stat = f"anon {MB}\nfile {6 * MB}\ninactive_anon 3\ninactive_file {5 * MB}\nactive_file {MB}\n"
    group(folder, limit=limit, names=("memory.max", "memory.current"), stat=stat)


def first(folder: Path, limit: str) -> None:
    stat = f"cache 1\ninactive_file 3\ntotal_inactive_file {5 * MB}\n"
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    group(folder / "memory", limit=limit, names=names, stat=stat)


@pytest.mark.parametrize("version", [first, second])
def test_files_that_nobody_reads_are_no_used_memory(
    version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    version(tmp_path, f"{8 * MB}\n")
    assert memory.available_bytes() == 6 * MB
    version(tmp_path, "max\n" if version is second else f"{2**63 - 4096}\n")
    assert memory.available_bytes() != 6 * MB
