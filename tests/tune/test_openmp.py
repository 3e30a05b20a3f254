"""A race in another thread is run under the conditions of this one: no more threads of OpenMP than cores."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from superopt.rivals.inductor import alone
from superopt.tune.openmp import release_threads

TASKS = Path("/proc/self/task")


def threads_of_process() -> int:
    return len(list(TASKS.iterdir()))


@pytest.fixture
def two_threads() -> Iterator[int]:
    """Return how many threads this process has with one that waits for this thread's next parallel loop."""
    if not TASKS.exists():
        pytest.skip("no list of threads")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    product()
    yield threads_of_process()
    torch.set_num_threads(before)


def product() -> torch.Tensor:
    """Make a product that is large enough for two threads."""
    x = torch.ones(256, 256)
    return x @ x


def test_threads_that_wait_are_let_go_and_come_back(two_threads: int) -> None:
    release_threads()
    assert threads_of_process() == two_threads - 1
    assert product()[0, 0] == 256
    assert threads_of_process() == two_threads
    release_threads()
    release_threads()  # nothing is left to let go
    assert torch.get_num_threads() == 2


def test_a_race_in_another_thread_has_the_cores_for_itself(two_threads: int) -> None:
    def race() -> int:
        product()
        return threads_of_process()

    assert alone(race) == two_threads + 1  # the race's and its helper came, this thread's helper went
