"""Real processes: a helper ends with its program, however that ends, and what it found is everybody's."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from superopt.backend.deferred.priority import descendants
from superopt.backend.deferred.queue import defer, pending_items
from superopt.backend.region import Region
from superopt.cache import Cache

from .conftest import ledger

HELPER = """
import sys
from dataclasses import replace
from superopt.backend import region_race
from superopt.backend.deferred import helper

region_race.RegionRace._decide = lambda self, known, raced, plan, call_us=0.0: replace(
    known, taken=True, plan=plan, why="a test"
)
region_race.WIN = region_race._NO_ROOM = region_race._TOO_SHORT_US = 0.0
helper.lower_priority = lambda: None  # else a busy machine would never get to it
if {stuck}:
    import subprocess, tempfile, time
    def stuck(self):
        held = tempfile.TemporaryDirectory(dir={folder!r})
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        print(held.name)
        time.sleep(1000)
    region_race.RegionRace.measure_rivals = stuck
if __name__ == "__main__":
    helper.main()
"""
PROGRAM = """
import json, os, sys, time
import torch
from superopt.backend import graphpass
from superopt.backend.deferred import live

live.COMMAND = (sys.executable, "-P", sys.argv[1])
live._GRACE_S, live._LOOK_S, live._WHOLE_LOOK_S = 0.1, 0.1, 0.1
torch.set_num_threads(1)
torch.manual_seed(0)
replaced = []
plain = graphpass.RegionPass._run
def run(self, graph, warm_up):
    plain(self, graph, warm_up)
    replaced.append(sum(node.target is graphpass.REGION for node in graph.nodes))
graphpass.RegionPass._run = run
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 8))
compiled = torch.compile(model, backend="superopt", options={"budget_s": 0, "tune": "background"})
x = torch.randn(4, 8)
end = time.monotonic() + float(sys.argv[2])
errors, helpers = [], set()
with torch.no_grad():
    expected = model(x)
    while time.monotonic() < end and 1 not in replaced and not os.path.exists("end"):
        errors.append(float((compiled(x) - expected).abs().max()))
        if live._WATCH._helper is not None:
            helpers.add(live._WATCH._helper.pid)
        print("step", *helpers, flush=True)
        time.sleep(0.05)
    for _ in range(3):
        errors.append(float((compiled(x) - expected).abs().max()))
print(json.dumps({"replaced": replaced, "error": max(errors), "helpers": len(helpers)}), flush=True)
"""


class Place:
    """A folder with caches of its own, and the programs that run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "superopt"
        self.running: list[subprocess.Popen[str]] = []
        (folder / "program.py").write_text(PROGRAM)
        (folder / "compiling").mkdir()

    def start(self, *, seconds: float = 150.0, stuck: bool = False) -> "subprocess.Popen[str]":
        helper = self.folder / "helper.py"
        helper.write_text(HELPER.format(stuck=stuck, folder=str(self.folder / "compiling")))
        environment = {
            **os.environ,
            "SUPEROPT_CACHE_DIR": str(self.cache),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "SUPEROPT_TUNE": "background",
        }
        process = subprocess.Popen(
            [sys.executable, str(self.folder / "program.py"), str(helper), str(seconds)],
            env=environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    for process in found.running:
        with contextlib.suppress(OSError):
            process.kill()
        process.communicate()


def ended(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Return what a program says at its end."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def until(fact: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Return a fact as soon as it is one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = fact()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come about")


def alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def helper_at_work(process: "subprocess.Popen[str]", place: Place) -> tuple[int, list[int]]:
    """Return the helper of a program and all that it started, once it is at work."""
    assert process.stdout is not None
    for line in process.stdout:
        if len(line.split()) > 1:
            helper = int(line.split()[1])
            until(lambda: any((place.folder / "compiling").iterdir()), 120.0)
            return helper, until(partial(descendants, helper))
    raise AssertionError(f"no helper was started: {process.stderr and process.stderr.read()}")


@pytest.mark.slow
def test_better_kernels_are_taken_up_in_the_running_program(place: Place) -> None:
    found = ended(place.start())
    assert found["replaced"][0] == 0
    assert found["replaced"][-1] == 1
    assert found["error"] < 1e-5
    assert found["helpers"] == 1
    assert not list(place.cache.glob("tuning-*"))
    again = ended(place.start(seconds=1.0))  # the next start has them at once
    assert again["replaced"][:1] in ([], [1])  # Inductor kept the graph, or the pass saw it
    assert again["helpers"] == 0


@pytest.mark.slow
def test_of_two_programs_one_tunes_and_both_profit(place: Place) -> None:
    both = [place.start(), place.start()]
    found = [ended(one) for one in both]
    assert all(one["error"] < 1e-5 for one in found)
    assert all(one["replaced"][-1] == 1 for one in found)
    assert sum(one["helpers"] for one in found) >= 1
    with Cache.open(place.cache) as cache:
        assert not cache.records("pending")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, None])
def test_a_helper_ends_with_its_program(how: signal.Signals | None, place: Place) -> None:
    shared = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()
    process = place.start(stuck=True, seconds=300.0)
    helper, started = helper_at_work(process, place)
    if how is not None:
        process.send_signal(how)
    else:
        (place.folder / "end").touch()
    process.communicate(timeout=120)
    until(lambda: not alive(helper) and not any(map(alive, started)))
    assert not list(place.cache.glob("tuning-*"))
    assert not list((place.folder / "compiling").iterdir())
    if shared:
        assert not {one for one in Path("/dev/shm").iterdir() if "superopt" in one.name} - shared
    with Cache.open(place.cache) as cache:
        [(_, record)] = cache.records("pending")
    assert record.data["begun"] == 0  # it waits as before


@pytest.mark.slow
def test_a_helper_that_is_killed_lets_go_and_the_region_waits(place: Place) -> None:
    process = place.start(stuck=True, seconds=300.0)
    helper, started = helper_at_work(process, place)
    os.kill(helper, signal.SIGKILL)
    until(lambda: not alive(helper))
    with Cache.open(place.cache) as cache:
        [(_, record)] = cache.records("pending")
    assert record.data["begun"] == 1
    assert process.poll() is None  # the program goes on
    for one in started:
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)


def tune(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", "-m", "superopt", "tune", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)


def test_nothing_pending_is_said() -> None:
    process = tune("--pending", "--minutes", "1")
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert output == "nothing is pending: no budget left a region of torch.compile undone\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a PLAN that superopt optimize -o wrote, or --pending"),
        (("plan.json", "--pending"), "--pending takes no plan"),
        (("--pending", "-o", "x.json"), "--pending takes no out"),
        (("plan.json", "--minutes", "3"), "--minutes goes with --pending"),
        (("--pending", "--minutes", "0"), "'0' is not a number of minutes"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    process = tune(*arguments)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert output == ""
    assert len(errors.splitlines()) == 1
    assert message in errors


@pytest.mark.slow
def test_the_command_works_the_queue_off(region: Region) -> None:
    defer(region, 5.0, ledger())
    process = tune("--pending", "--json")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    found = json.loads(output)
    assert found["pending"] == 0
    assert [one["done"] for one in found["regions"]] == [True]
    assert pending_items() == []


@pytest.mark.slow
def test_an_interrupted_command_leaves_nothing_half_done(region: Region, tmp_path: Path) -> None:
    defer(region, 5.0, ledger())
    [item] = pending_items()
    process = tune("--pending", start_new_session=True)
    until(lambda: [one.begun for one in pending_items()] == [1])
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "superopt: interrupted"
    assert pending_items() == [item]
    assert not list((tmp_path / "superopt").glob("**/tmp*"))


@pytest.mark.slow
def test_a_second_command_says_who_tunes(region: Region) -> None:
    from superopt.backend.deferred.lock import tuning

    defer(region, 5.0, ledger())
    with tuning():
        process = tune("--pending")
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert f"process {os.getpid()} works the queue off" in errors
    assert len(pending_items()) == 1
