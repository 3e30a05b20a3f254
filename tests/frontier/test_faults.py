"""What goes wrong from outside: killed workers, Ctrl-C, exceptions, damaged and foreign checkpoints."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from quick import few
from spaces import as_bytes

from superopt.bench.programs import Programs
from superopt.errors import CheckpointError, InputError
from superopt.frontier.engine import Limits, checkpoint, explore


def small(**changes) -> Programs:
    return Programs(**{"variables": 2, "nodes": 3, "points": 2} | changes)


@dataclass(frozen=True)
class Sabotaged(Programs):
    """Programs whose expansion does something bad in a worker at the last level, a number of times."""

    flags: Path = Path()
    deed: str = "kill"
    times: int = 1

    def expand(self, rows):
        if np.count_nonzero(rows[0]) == self.nodes - 1:
            if self.deed == "raise":
                raise ZeroDivisionError("seven apples, no friends")
            for number in range(self.times):
                try:
                    (self.flags / str(number)).touch(exist_ok=False)
                except FileExistsError:
                    continue
                if self.deed == "log":
                    logging.getLogger("superopt.test").warning("seen in worker %d", os.getpid())
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().expand(rows)


def sabotaged(tmp_path, **changes) -> Sabotaged:
    return Sabotaged(**{"variables": 2, "nodes": 3, "points": 2, "flags": tmp_path} | changes)


@pytest.mark.parametrize("keep_arcs", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_killed_worker_costs_nothing_but_time(tmp_path, times, keep_arcs):
    undisturbed = explore(small(), keep_arcs=keep_arcs)
    found = explore(sabotaged(tmp_path, times=times), workers=2, keep_arcs=keep_arcs)
    assert len(list(tmp_path.iterdir())) == times
    assert found.stopped is None
    assert as_bytes(found) == as_bytes(undisturbed)
    assert found.counts == undisturbed.counts


def test_worker_killed_from_outside_in_mid_level():
    space = Programs(variables=4, nodes=4, points=1, operators=("add", "mul"))
    killer = []

    def kill_one(stats):
        if stats.level == 3:
            victim = psutil.Process().children()[0]
            # From a process of its own, a moment later, in the middle of level 4.
            killer.append(subprocess.Popen(["/bin/sh", "-c", f"sleep 0.1; kill -9 {victim.pid}"]))

    found = explore(space, workers=2, on_level=kill_one)
    assert killer[0].wait() == 0
    assert found.stopped is None
    assert as_bytes(found) == as_bytes(explore(space))


def test_worker_that_always_dies_ends_the_search_with_the_best_so_far(tmp_path):
    full = explore(small())
    found = explore(sabotaged(tmp_path, times=100), workers=2)
    assert "killed by signal 9" in found.stopped
    assert "3 times on level 3" in found.stopped
    assert len(found.rows) == np.count_nonzero(full.level_of < 3)
    assert (found.rows == full.rows[full.level_of < 3]).all()


@pytest.mark.parametrize("workers", [1, 2])
def test_exception_of_the_space_is_raised_as_it_was(tmp_path, workers):
    before = set(psutil.Process().children())
    with pytest.raises(ZeroDivisionError, match="seven apples") as caught:
        explore(sabotaged(tmp_path, deed="raise"), workers=workers)
    if workers > 1:
        assert "in expand" in str(caught.value.__cause__)
        assert "test_faults.py" in str(caught.value.__cause__)
    assert not set(psutil.Process().children()) - before


def test_log_records_of_workers_reach_the_handlers_of_the_parent(tmp_path):
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append((os.getpid(), record.getMessage()))

    logger, handler = logging.getLogger("superopt"), Keep()
    logger.addHandler(handler)
    try:
        explore(sabotaged(tmp_path, deed="log"), workers=2)
        assert logger.handlers == [handler]
    finally:
        logger.removeHandler(handler)
    assert len(records) == 1
    where, text = records[0]
    assert where == os.getpid()
    assert text.startswith("seen in worker")
    assert not text.endswith(str(os.getpid()))


SEARCH = """
import os, sys, time
from superopt.frontier.engine import explore
from superopt.bench.programs import Programs

def show(stats):
    print("level", stats.level, flush=True)

found = explore(Programs(variables=4, nodes=6), workers=int(sys.argv[1]), on_level=show)
print("stopped:", found.stopped, "rows:", len(found.rows), flush=True)
"""


@pytest.fixture
def start_search():
    """Start searches in processes of their own, which end with the test whatever becomes of it."""
    started: list[subprocess.Popen] = []

    def start(workers: int) -> tuple[subprocess.Popen, list[psutil.Process]]:
        started.append(begin_search(workers))
        return started[-1], psutil.Process(started[-1].pid).children()

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def begin_search(workers: int) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", SEARCH, str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.stdout.readline().strip() != "level 3":
        assert process.poll() is None, process.stderr.read()
    time.sleep(0.2)
    return process


def gone(names: set[Path], within_seconds: float = 60.0) -> bool:
    """Whether these names vanish: other tests, at work beside this one, have names for a while only."""
    end = time.monotonic() + within_seconds
    while names & set(Path("/dev/shm").iterdir()):
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


@pytest.mark.parametrize(
    ("workers", "to_group"), few([(1, True), (1, False), (2, True), (2, False)], (1, False), (2, True))
)
def test_ctrl_c_ends_within_a_second_with_the_best_so_far(start_search, workers, to_group):
    names = set(Path("/dev/shm").iterdir())
    process, children = start_search(workers)
    assert len(children) == (workers if workers > 1 else 0)
    began = time.monotonic()
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    seconds = time.monotonic() - began
    assert process.returncode == 0, err
    assert err == ""
    assert "stopped: interrupted rows: " in out
    assert int(out.rsplit(" ", 1)[1]) > 1000
    assert not any(child.is_running() for child in children)
    assert gone(set(Path("/dev/shm").iterdir()) - names)
    assert seconds < 3  # less than one on a machine with nothing else to do


def test_workers_end_when_the_parent_is_killed(start_search):
    process, children = start_search(2)
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    _, alive = psutil.wait_procs(children, timeout=3)
    assert not alive


@pytest.mark.parametrize("keep_arcs", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_resumed_search_gives_what_an_undisturbed_one_gives(tmp_path, workers, keep_arcs):
    path = tmp_path / "search.npz"
    full = explore(small(), keep_arcs=keep_arcs)
    for limits in (Limits(levels=1), Limits(levels=2), Limits(rows=len(full.rows) - 5)):
        resume = path.exists()
        stopped = explore(
            small(), workers=workers, limits=limits, checkpoint=path, resume=resume, keep_arcs=keep_arcs
        )
        assert stopped.stopped is not None
    found = explore(small(), workers=3 - workers, checkpoint=path, resume=True, keep_arcs=keep_arcs)
    assert as_bytes(found) == as_bytes(full)
    assert found.counts == full.counts
    again = explore(small(), workers=workers, checkpoint=path, resume=True, keep_arcs=keep_arcs)
    assert as_bytes(again) == as_bytes(full)
    assert list(tmp_path.iterdir()) == [path]


def test_unusable_checkpoints_are_refused_in_one_line_with_a_remedy(tmp_path):
    path = tmp_path / "search.npz"
    explore(small(), checkpoint=path)
    good, whole = path.read_bytes(), as_bytes(explore(small()))

    def refused(match, space=None, **options):
        with pytest.raises(CheckpointError, match=match) as caught:
            explore(space or small(), checkpoint=path, resume=True, **options)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    refused("another search", small(seed=1))
    refused("keep_arcs=False", keep_arcs=True)
    for cut in (0, 10, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        refused("damaged")
    for at in range(100, len(good) - 1, len(good) // 40):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        with contextlib.suppress(CheckpointError):
            # A byte that means nothing, such as padding, need not be noticed.
            assert as_bytes(explore(small(), checkpoint=path, resume=True)) == whole
    path.write_text("not a checkpoint at all")
    refused("damaged")
    path.unlink()
    refused("without resume")
    explore(small(), checkpoint=path)
    rewrite_header(path, version=checkpoint.VERSION + 1)
    refused(f"format version {checkpoint.VERSION + 1}")


def rewrite_header(path: Path, **changes) -> None:
    with np.load(path) as parts:
        arrays = dict(parts)
    header = json.loads(bytes(arrays["header"])) | changes
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def test_checkpoint_that_lies_about_its_levels_is_refused(tmp_path):
    path = tmp_path / "search.npz"
    explore(small(), checkpoint=path)
    with np.load(path) as parts:
        levels = json.loads(bytes(parts["header"]))["levels"]
    for wrong in ([], levels[:-2], None, [{}], levels[::-1]):
        rewrite_header(path, levels=wrong)
        with pytest.raises(CheckpointError, match="damaged"):
            explore(small(), checkpoint=path, resume=True)


def test_checkpoint_in_a_place_that_takes_none(tmp_path, monkeypatch, caplog):
    with pytest.raises(InputError, match="folder"):
        explore(small(), checkpoint=tmp_path)
    with pytest.raises(InputError, match="make it first"):
        explore(small(), checkpoint=tmp_path / "nowhere" / "search.npz")

    def full_disk(*arguments, **options):
        raise OSError(28, "No space left on device")

    full = explore(small())
    monkeypatch.setattr(checkpoint.np, "savez", full_disk)
    monkeypatch.setattr(checkpoint, "PAUSE_SECONDS", 0.0)
    found = explore(small(), checkpoint=tmp_path / "search.npz")
    assert as_bytes(found) == as_bytes(full)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "No space left" in warned[0].getMessage()
    assert not list(tmp_path.iterdir())


def test_checkpoint_in_a_read_only_folder(caplog):
    found = explore(small(), checkpoint=Path("/proc/self/search.npz"))
    assert found.stopped is None
    assert "the search goes on without" in caplog.text
