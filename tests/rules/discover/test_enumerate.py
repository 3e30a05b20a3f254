"""Enumeration in parts, and what is left out of the largest terms: the same terms, and the same rules."""

from pathlib import Path
from typing import NoReturn

import pytest

from superopt.clock import Clock
from superopt.errors import CheckpointError, InputError
from superopt.frontier.engine import Limits, explore
from superopt.rules.discover.discover import default_setting, discover
from superopt.rules.discover.search import enumerate as enumeration
from superopt.rules.discover.search.candidates import candidates_of
from superopt.rules.discover.search.congruence import Congruence
from superopt.rules.discover.search.enumerate import all_terms
from superopt.rules.discover.search.graphs import Graphs
from superopt.rules.discover.search.terms import Terms
from superopt.rules.discover.store import text_of_rules

NAMES = ("add", "relu", "transpose", "split_rows")


def in_parts(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let graphs be made from so many smaller ones at a time."""
    monkeypatch.setattr(enumeration, "_MANY", 1)
    monkeypatch.setattr(enumeration, "_PART", rows)


def terms_of(size: int) -> tuple[Terms, int]:
    return all_terms(default_setting(size, NAMES), size, explore, Clock())


@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_graphs_made_in_parts_are_all_graphs(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    whole, count = terms_of(2)
    in_parts(monkeypatch, rows)
    parts, made = terms_of(2)
    assert made == count
    assert (parts.code_of == whole.code_of).all()
    assert (parts.fingerprint_of == whole.fingerprint_of).all()


@pytest.mark.parametrize("workers", [1, 2])
def test_rules_of_graphs_made_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    whole = text_of_rules(discover(default_setting(2, NAMES), 2, explore))
    in_parts(monkeypatch, 100)
    found = discover(default_setting(2, NAMES), 2, lambda graphs: explore(graphs, workers=workers))
    assert text_of_rules(found) == whole


def test_a_part_goes_on_from_its_own_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_parts(monkeypatch, 4)
    labels = list[str]()

    def saved(graphs: Graphs, resume: bool = False):
        labels.append(graphs.label)
        return explore(graphs, checkpoint=tmp_path / graphs.label, resume=resume)

    whole, count = all_terms(default_setting(2, NAMES), 2, saved, Clock())
    assert len(set(labels)) == len(labels) > 4
    again, made = all_terms(default_setting(2, NAMES), 2, lambda graphs: saved(graphs, True), Clock())
    assert made == count
    assert (again.code_of == whole.code_of).all()


def test_a_search_that_a_limit_ends_makes_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts(monkeypatch, 20)
    with pytest.raises(InputError, match="rows limit"):
        all_terms(
            default_setting(2, NAMES), 2, lambda graphs: explore(graphs, limits=Limits(rows=30)), Clock()
        )


def test_terms_that_equal_no_candidate_are_not_needed() -> None:
    names = ("add", "matmul", "concat_cols", "split_cols")
    terms, _ = all_terms(default_setting(2, names), 2, explore, Clock())
    candidates = candidates_of(terms)
    every, few = Congruence(terms), Congruence(terms, 2, asked=candidates.lefts)
    for rule, _ in discover(default_setting(2, names), 2, explore).rules:
        for congruence in (every, few):
            congruence.apply(rule.left[0], rule.right[0])
    pairs = list(zip(candidates.lefts.tolist(), candidates.rights.tolist(), strict=True))
    answers = [every.joined(*pair) for pair in pairs]
    assert [few.joined(*pair) for pair in pairs] == answers
    assert True in answers


def test_a_discovery_goes_on_from_its_equalities(tmp_path: Path) -> None:
    setting, place = default_setting(2, NAMES), tmp_path / "equalities.json"
    whole = text_of_rules(discover(setting, 2, explore, saved=place))

    def never(graphs: Graphs) -> NoReturn:
        raise AssertionError("nothing is to be explored")

    assert text_of_rules(discover(setting, 2, never, saved=place, resume=True)) == whole
    with pytest.raises(CheckpointError, match="of another search"):
        discover(default_setting(2, NAMES, seed=1), 2, never, saved=place, resume=True)
    place.write_text("{}")
    with pytest.raises(CheckpointError, match="has no equalities"):
        discover(setting, 2, never, saved=place, resume=True)
