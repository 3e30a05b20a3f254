"""Reduction programs: their number, their exact semantics, and the times that the simulator gives them."""

from collections import Counter

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.frontier.engine import explore
from superopt.shard.machine import parse_machine
from superopt.shard.placements import grid_of
from superopt.shard.reductions import (
    Program,
    ReductionSpace,
    Step,
    applied,
    goal_state,
    moves,
    programs,
    start_state,
    summed,
)
from superopt.shard.simulate import Reduction, all_reduce, best_program, ranked_programs

SCATTER_FIRST = (
    Step("reduce-scatter", 1, 2),
    Step("all-reduce", 0, 1),
    Step("all-gather", 1, 2),
)


def ended(program: Program, counts: tuple[int, ...]) -> bool:
    state = start_state(counts)
    for step in program:
        after = applied(state, counts, step)
        if after is None:
            return False
        state = after
    return bool((state == goal_state(counts)).all())


def test_numbers_of_programs_on_two_levels_are_as_published() -> None:
    assert Counter(map(len, programs(2))) == {1: 1, 2: 4, 3: 19, 4: 27, 5: 10}


def test_one_level_has_three_programs() -> None:
    assert [[step.collective for step in program] for program in programs(1)] == [
        ["all-reduce"],
        ["reduce", "broadcast"],
        ["reduce-scatter", "all-gather"],
    ]


@pytest.mark.parametrize("counts", [(2, 2), (2, 4), (3, 2), (4, 3)])
def test_programs_hold_at_other_sizes(counts: tuple[int, ...]) -> None:
    for program in programs(2):
        assert ended(program, counts)
        assert summed(program, counts)


@pytest.mark.parametrize(
    "program",
    [
        (Step("all-reduce", 1, 2),),  # nothing crosses nodes
        (Step("all-reduce", 0, 1),),
        (Step("all-reduce", 0, 1, masters=True), Step("broadcast", 1, 2)),  # the others' parts are lost
        (Step("all-reduce", 1, 2), Step("all-reduce", 0, 2)),  # counted twice
        (Step("reduce-scatter", 1, 2), Step("all-gather", 1, 2)),
        (Step("reduce", 0, 2), Step("broadcast", 1, 2)),
    ],
)
def test_wrong_programs_are_found_both_ways(program: Program) -> None:
    assert not ended(program, (2, 4))
    assert not summed(program, (2, 4))


def test_every_move_is_right_in_numbers() -> None:
    """A program reaches the goal by its states exactly where random numbers add up."""
    counts = (2, 2)
    for first, state in moves(start_state(counts), counts):
        for second, after in moves(state, counts):
            goal = bool((after == goal_state(counts)).all())
            assert summed((first, second), counts) == goal, (first, second)


def test_engine_finds_the_same_states_with_more_workers() -> None:
    one, two = (explore(ReductionSpace((2, 2)), workers=count) for count in (1, 2))
    assert (one.rows == two.rows).all()
    assert len(np.unique(one.rows, axis=0)) == len(one.rows) == 40


def test_ring_takes_the_time_of_its_bytes() -> None:
    grid = grid_of(parse_machine("gpu=4 @ 100 GB/s 0 us"))
    size = 4e9
    assert Reduction(grid, (0,)).seconds(all_reduce(1), size) == pytest.approx(2 * 3 / 4 * size / 100e9)


def test_groups_that_share_a_link_wait_for_each_other() -> None:
    shared = grid_of(parse_machine("node=2 @ 10 GB/s 0 us, gpu=4 @ 1000 GB/s 0 us"))
    own = grid_of(parse_machine("node=2 @ 10 GB/s 0 us own, gpu=4 @ 1000 GB/s 0 us"))
    taken = [Reduction(grid, (0,)).seconds(all_reduce(1), 1e9) for grid in (shared, own)]
    assert taken[0] == pytest.approx(4 * taken[1])


def test_every_step_begins_once() -> None:
    quick, slow = (
        Reduction(grid_of(parse_machine(f"node=2 @ 1 GB/s, gpu=4 @ 10 GB/s, device 1 GB{begin}")), (0, 1))
        for begin in ("", " 1 ms")
    )
    for program, steps in ((all_reduce(2), 1), (SCATTER_FIRST, 3)):
        assert slow.seconds(program, 1e6) - quick.seconds(program, 1e6) == pytest.approx(steps * 1e-3)


def test_slow_links_between_nodes_are_used_for_a_share_only() -> None:
    """The ring of one all-reduce crosses the slow link once, so scattering first wins where nodes' links are
    not shared, or where latency counts."""
    grid = grid_of(parse_machine("node=2 @ 10 GB/s own, gpu=4 @ 200 GB/s"))
    ranked = ranked_programs(grid, (0, 1), 1e9)
    assert ranked[0].program == SCATTER_FIRST
    alone = Reduction(grid, (0, 1)).seconds(all_reduce(2), 1e9)
    assert alone > 1.5 * ranked[0].seconds


def test_small_tensors_need_few_rounds() -> None:
    grid = grid_of(parse_machine("node=8 @ 10 GB/s 50 us, gpu=8 @ 200 GB/s 1 us"))
    small, large = (best_program(grid, (0, 1), size).seconds for size in (8, 1e9))
    assert small < 2 * 3 * 51e-6 + 2 * 3 * 1e-6
    assert large > 100 * small


def test_levels_whose_programs_are_too_many_are_one_line() -> None:
    with pytest.raises(InputError, match="the nearest choice that works: 4 levels") as error:
        programs(6)
    assert "\n" not in str(error.value)
    assert programs(3)
