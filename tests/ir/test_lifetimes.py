"""Lifetimes: what is read for the last time, by which step."""

from superopt.lifetimes import last_reads


def test_each_step_ends_what_no_later_one_reads() -> None:
    assert last_reads([["a", "b"], ["b"], ["c", "a"]], staying=["c"]) == [[], ["b"], ["a"]]
    assert last_reads([], staying=[]) == []
