import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from superopt.cache import Cache, Key, key_of

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, which is not made yet; the user's own is out of reach."""
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the warnings of superopt so far."""
    caplog.set_level(logging.WARNING, "superopt")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("superopt")]


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test be told of a fault, as each process is once."""
    monkeypatch.setattr(sys.modules[Cache.__module__], "_TOLD", set())


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of a user whom permissions bind: root is nobody meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            path.chmod(0o755)
            os.chown(path, NOBODY, NOBODY)
            os.seteuid(NOBODY)
            try:
                yield path
            finally:
                os.seteuid(0)
        else:
            yield path
        path.chmod(0o755)


@pytest.fixture
def plan_key() -> Callable[..., Key]:
    """Make keys that differ in one part."""

    def make(number: int = 0, **parts: object) -> Key:
        given = {
            "program": f"axes m={number}\n",
            "device": "cpu",
            "options": {"seed": 0},
            "superopt": "1",
            "torch": "2",
            "compiler": "3",
        }
        return key_of("plan", **{**given, **parts})

    return make
