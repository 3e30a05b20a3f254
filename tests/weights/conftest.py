"""What the tests of weights share: a cache of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from superopt.codegen.cpp import compile as cpp_compile


@pytest.fixture
def every_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps schedules that are estimated to be slow: so small programs say little about joined weights."""
    monkeypatch.setattr("superopt.schedule.search._FAR_TIMED", 100.0)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, kernels_folder: Path) -> Iterator[None]:
    """Leaves the user's cache alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(cpp_compile, "_folder", lambda: kernels_folder)
        yield
