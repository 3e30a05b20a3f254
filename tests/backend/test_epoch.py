"""The epoch: graphs that Inductor has kept are found as long as what was decided of them holds."""

import pytest

from superopt.backend.cache import epoch, next_epoch
from superopt.cache import Cache


def test_an_epoch_stays_until_the_next_one() -> None:
    first = epoch()
    assert epoch() == first
    next_epoch()
    assert epoch() == first + 1


def test_a_cache_that_is_emptied_begins_another_epoch() -> None:
    """Else Inductor would go on with graphs whose decisions are gone, and nothing would be searched."""
    first = epoch()
    Cache.open().clear()
    assert epoch() != first  # but for one time in 2^48


def test_where_nothing_can_be_written_all_processes_have_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "put", lambda *given: None)
    Cache.open().clear()
    assert epoch() == epoch() == 0
