"""The engine against a plain breadth-first search, with any number of workers."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import few
from spaces import Walks, as_bytes, poor_keys, ring

from superopt.bench.programs import Programs
from superopt.errors import InputError
from superopt.frontier.engine import Limits, explore


def plain_search(space: Walks) -> tuple[dict[int, int], dict[int, tuple[int, ...]], set[tuple[int, ...]]]:
    """Level and smallest row of each node, and all arcs, with sets and one row at a time."""
    level_of = {row[0]: 0 for row in space.roots().tolist()}
    row_of = {node: min(tuple(row) for row in space.roots().tolist() if row[0] == node) for node in level_of}
    arcs = set()
    frontier, level = list(row_of.values()), 0
    while frontier:
        level += 1
        made = {
            tuple(row) for one in frontier for row in space.expand(np.array([one], dtype=np.int64)).tolist()
        }
        arcs |= made
        frontier = []
        for row in sorted(made):
            if row[0] not in level_of:
                level_of[row[0]], row_of[row[0]] = level, row
                frontier.append(row)
    return level_of, row_of, arcs


graphs = st.integers(1, 30).flatmap(
    lambda size: st.builds(
        Walks,
        edges=st.lists(st.tuples(st.integers(0, size), st.integers(0, size)), max_size=80).map(tuple),
        starts=st.lists(st.integers(0, size), max_size=3).map(tuple),
    )
)


def check_against_plain_search(space, found):
    level_of, row_of, arcs = plain_search(space)
    assert dict(zip(found.rows[:, 0].tolist(), found.level_of.tolist(), strict=True)) == level_of
    assert set(map(tuple, found.rows.tolist())) == set(row_of.values())
    places = list(zip(found.level_of.tolist(), map(tuple, found.keys.tolist()), strict=True))
    assert places == sorted(set(places))
    assert (found.keys == poor_keys(found.rows[:, 0])).all()
    assert set(map(tuple, found.arcs.tolist())) == arcs
    ordered = list(zip(found.arc_targets.tolist(), map(tuple, found.arcs.tolist()), strict=True))
    assert ordered == sorted(set(ordered))
    assert (found.rows[found.arc_targets, 0] == found.arcs[:, 0]).all()


@settings(deadline=None)
@given(graphs)
def test_random_graph_as_plain_search_finds_it(space):
    check_against_plain_search(space, explore(space, keep_arcs=True))


@settings(max_examples=8, deadline=None)
@given(graphs, st.integers(2, 3))
def test_random_graph_with_workers(space, workers):
    check_against_plain_search(space, explore(space, workers=workers, keep_arcs=True))


@settings(deadline=None)
@given(graphs)
def test_representatives_do_not_depend_on_arcs(space):
    with_arcs, without = explore(space, keep_arcs=True), explore(space)
    assert with_arcs.rows.tobytes() == without.rows.tobytes()
    assert with_arcs.level_of.tobytes() == without.level_of.tobytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_limits_stop_and_keep_the_best_so_far(workers):
    full = explore(ring(300))
    for limits, phrase in [
        (Limits(levels=3), "levels limit (3)"),
        (Limits(rows=20), "rows limit (20 rows)"),
        (Limits(bytes=2000), "bytes limit (2,000 bytes)"),
        (Limits(seconds=0), "seconds limit (0 s)"),
    ]:
        found = explore(ring(300), workers=workers, limits=limits)
        assert found.stopped == phrase
        assert 1 <= len(found.rows) < len(full.rows)
        whole = found.level_of < found.level_of.max()
        assert (found.rows[whole] == full.rows[: whole.sum()]).all()
    assert len(explore(ring(300), workers=workers, limits=Limits(rows=20)).rows) == 20
    assert explore(ring(300), workers=workers, limits=Limits(rows=10**6, seconds=60)).stopped is None


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("keep_arcs", few([False, True], True))
def test_seconds_limit_inside_a_level(workers, keep_arcs):
    space = Programs(variables=10, nodes=3)
    found = explore(space, workers=workers, limits=Limits(seconds=1), keep_arcs=keep_arcs)
    assert found.stopped == "seconds limit (1 s)"
    assert sum(stats.seconds for stats in found.levels) < 4  # all of level 3 takes a quarter of a minute
    assert not found.levels[-1].complete
    assert found.levels[-1].new == (found.level_of == len(found.levels) - 1).sum() > 0
    assert len(np.unique(found.keys, axis=0)) == len(found.keys)


def test_rows_limit_inside_a_level():
    found = explore(Programs(variables=4, nodes=5), limits=Limits(rows=5000), workers=2)
    assert found.stopped == "rows limit (5,000 rows)"
    assert len(found.rows) == 5000


@pytest.mark.parametrize("workers", [1, 2])
def test_no_roots(workers):
    found = explore(Walks(edges=((0, 1),), starts=()), workers=workers, keep_arcs=True)
    assert found.rows.shape == (0, 3)
    assert found.keys.shape == (0, 2)
    assert found.stopped is None


@pytest.mark.parametrize("workers", [1, 2])
def test_levels_are_reported_as_they_end(workers):
    reported = []
    found = explore(ring(100), workers=workers, on_level=reported.append)
    assert tuple(reported) == found.levels
    assert sum(stats.new for stats in reported) == len(found.rows)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"workers": 0}, "workers"), ({"workers": 1000}, "workers"), ({"resume": True}, "checkpoint")],
)
def test_wrong_arguments_are_named(arguments, word):
    with pytest.raises(InputError, match=word):
        explore(ring(10), **arguments)


@pytest.mark.parametrize("name", ["seconds", "rows", "bytes", "levels"])
def test_negative_limits_are_refused(name):
    with pytest.raises(InputError, match=name):
        Limits(**{name: -1})


@pytest.mark.parametrize(
    "arguments", [{"variables": 0}, {"nodes": 40}, {"operators": ("div",)}, {"operators": ()}]
)
def test_wrong_programs_are_refused(arguments):
    with pytest.raises(InputError, match="Programs"):
        Programs(**arguments)


@pytest.mark.parametrize("workers", [1, 2])
def test_space_of_the_wrong_shape_is_told_so(workers):
    space = ring(10)
    space.keys = lambda rows: np.zeros(len(rows), dtype=np.uint64)
    with pytest.raises(InputError, match=r"walks.keys gave uint64"):
        explore(space, workers=workers)


def test_programs_merge_by_the_identities_of_the_field():
    space = Programs(variables=3, nodes=3, operators=("add", "mul"))
    add, mul = (lambda a, b: 1 + (a << 5 | b)), (lambda a, b: 1 + (1 << 10 | a << 5 | b))
    programs = np.array(
        [
            [add(0, 1), mul(2, 3), 0],
            [mul(0, 1), add(2, 2), 0],
            [add(2, 2), mul(0, 1), 0],  # the same nodes in another order
            [add(0, 1), add(3, 2), 0],
            [add(1, 2), add(0, 3), 0],  # the same sum, but another first node
        ]
    )
    keys = [tuple(key) for key in space.keys(programs).tolist()]
    assert keys[1] == keys[2]
    assert len(set(keys)) == 4


def test_no_file_descriptor_stays_open():
    explore(ring(50), workers=2)
    before = len(list(Path("/proc/self/fd").iterdir()))
    explore(ring(50), workers=2)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("keep_arcs", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_limits_that_the_space_just_keeps_do_not_stop_it(workers, keep_arcs):
    full = explore(ring(300), keep_arcs=keep_arcs)
    limits = Limits(rows=len(full.rows) + 1, levels=len(full.levels), bytes=full.levels[-1].bytes + 1)
    found = explore(ring(300), workers=workers, limits=limits, keep_arcs=keep_arcs)
    assert found.stopped is None
    assert as_bytes(found) == as_bytes(full)
