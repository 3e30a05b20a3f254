"""The engines of several machines: the same bytes, limits, errors, and what is left when a worker is lost."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
from pages import ROOT
from spaces import SPACES, as_bytes

from superopt.errors import InputError
from superopt.frontier.engine import Limits, engines, explore
from superopt.frontier.engine.engines import launched, transport_named
from superopt.frontier.engine.history import History
from superopt.frontier.engine.transports.bulk import Member, Order, Start
from superopt.frontier.engine.watch import Watch
from superopt.frontier.interrupts import Ended

mpi = pytest.mark.skipif(not find_spec("mpi4py"), reason="mpi4py is not installed")
ray = pytest.mark.skipif(not find_spec("ray"), reason="ray is not installed")


class Bulk:
    """A transport whose workers exchange rows at each level, one after the other in this thread."""

    def __init__(self, space, history: History, watch: Watch, workers: int) -> None:
        self.history, self.watch, self.shared = history, watch, space.shared
        start = Start(space, history, watch.limits, watch.elapsed())
        import pickle

        self.members = [
            Member(pickle.loads(pickle.dumps(start)), at, workers, lambda: False) for at in range(workers)
        ]

    def explore_level(self):
        last = self.history.levels[-1].shares
        shares = last if self.shared and len(last) == len(self.members) else None
        rows = self.watch.compact_rows(self.history, len(self.members))
        order = Order(len(self.history.levels), rows, self.history.rows, self.history.bytes, shares)
        sent = [member.expand(order) for member in self.members]
        made = [member.finish([one[at] for one in sent]) for at, member in enumerate(self.members)]
        level = self.history.ended_level(made, 0.0)
        whys = [member.port.why for member in self.members if member.port.why]
        return level, whys[0] if whys else None

    def close(self, *, at_once: bool) -> None:
        self.members.clear()


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("name", SPACES)
def test_workers_that_exchange_rows_once_a_level_find_the_same(name: str, workers: int) -> None:
    one = explore(SPACES[name](), keep_arcs=True)
    several = explore(SPACES[name](), workers=workers, keep_arcs=True, transport=Bulk)
    assert as_bytes(several) == as_bytes(one)
    assert several.counts == one.counts


@pytest.mark.parametrize(("before", "after"), [(Bulk, None), (None, Bulk)], ids=["from bulk", "to bulk"])
def test_a_search_goes_on_with_another_engine(tmp_path: Path, before, after) -> None:
    whole = explore(SPACES["programs"]())
    place = tmp_path / "search.ckpt"
    explore(SPACES["programs"](), workers=2, limits=Limits(levels=2), checkpoint=place, transport=before)
    rest = explore(SPACES["programs"](), workers=3, checkpoint=place, resume=True, transport=after)
    assert as_bytes(rest) == as_bytes(whole)


def test_a_limit_of_rows_ends_a_bulk_search() -> None:
    found = explore(SPACES["programs"](), workers=2, limits=Limits(rows=500), transport=Bulk)
    assert found.stopped is not None
    assert "rows limit" in found.stopped
    assert len(found.rows) <= 500


def test_an_engine_that_is_none() -> None:
    with pytest.raises(InputError, match="no engine 'threads'"):
        transport_named("threads")


def test_mpi_outside_of_ranks(monkeypatch) -> None:
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="mpiexec"):
        transport_named("mpi")


def test_ranks_end_with_the_process_that_started_them(tmp_path: Path, monkeypatch) -> None:
    """Before: SIGTERM ended the command, and its ranks went on."""
    script, ended = tmp_path / "mpiexec", tmp_path / "ended"
    wait = "for i in $(seq 100); do sleep 0.1; done"
    script.write_text(f"#!/bin/sh\ntrap 'touch {ended}; exit 143' TERM\necho begun\n{wait}\n")
    script.chmod(0o755)

    def told_to_end(lines: Iterable[str]) -> bool:
        assert next(iter(lines)) == "begun\n"
        raise Ended(signal.SIGTERM)

    monkeypatch.setattr(engines, "mpiexec", lambda: str(script))
    monkeypatch.setattr(engines, "_passed_on", told_to_end)
    with pytest.raises(Ended):
        launched([sys.executable], 2)
    assert ended.exists()


PROGRAM = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
from superopt.frontier.engine.transports import mpi
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
import spaces
from superopt.frontier.engine import checkpoint, explore, Limits
checkpoint.PAUSE_SECONDS = checkpoint.TIME_SHARE = 1e-9
checkpoint.TIME_SHARE = 1e9
space = spaces.SPACES["programs"]()
kind = type(space)
usual = kind.expand
def expand(self, rows):
    if rank == 1 and {fault!r} and len(rows) > 30:
        {fault}
    return usual(self, rows)
kind.expand = expand
if rank:
    mpi.serve()
    sys.exit()
try:
    found = explore(space, workers=MPI.COMM_WORLD.size, transport=mpi.Mpi, **{arguments})
    print("digest", hash(spaces.as_bytes(found)), found.stopped, flush=True)
except ZeroDivisionError:
    print("raised", flush=True)
finally:
    mpi.leave()
"""


def run_ranks(
    tmp_path: Path, ranks: int, capfd, fault: str = "pass", **arguments: object
) -> tuple[int, str, str]:
    script = tmp_path / "ranks.py"
    shown = "{" + ", ".join(f"{key!r}: {value}" for key, value in arguments.items()) + "}"
    script.write_text(PROGRAM.format(tests=str(ROOT / "tests"), fault=fault, arguments=shown))
    code = launched([sys.executable, str(script)], ranks)
    out, err = capfd.readouterr()
    return code, out, err


@pytest.fixture
def same_hashes(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


@mpi
@pytest.mark.slow
@pytest.mark.usefixtures("same_hashes")
def test_ranks_of_mpi_find_the_same(tmp_path: Path, capfd) -> None:
    said = [run_ranks(tmp_path, ranks, capfd) for ranks in (1, 2, 3)]
    assert said[0][0] == 0
    assert said[0][1].startswith("digest")
    assert said[1] == said[2] == said[0]


@mpi
@pytest.mark.slow
@pytest.mark.usefixtures("same_hashes")
def test_an_error_in_a_rank_is_raised_in_rank_0(tmp_path: Path, capfd) -> None:
    code, out, _ = run_ranks(tmp_path, 2, capfd, fault="1 / 0")
    assert (code, out) == (0, "raised\n")


@mpi
@pytest.mark.slow
@pytest.mark.usefixtures("same_hashes")
def test_a_rank_that_dies_leaves_one_line_and_a_checkpoint(tmp_path: Path, capfd) -> None:
    whole = run_ranks(tmp_path, 2, capfd)[1]
    place = tmp_path / "search.ckpt"
    saved = f"__import__('pathlib').Path({str(place)!r})"
    code, out, err = run_ranks(
        tmp_path, 2, capfd, fault="os.kill(os.getpid(), signal.SIGKILL)", checkpoint=saved
    )
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "a rank of MPI was lost" in err
    assert place.exists()
    code, out, _ = run_ranks(tmp_path, 2, capfd, checkpoint=saved, resume=True)
    assert (code, out) == (0, whole)


@ray
@pytest.mark.slow
def test_actors_of_ray_find_the_same(tmp_path: Path) -> None:
    script = tmp_path / "actors.py"
    script.write_text(
        textwrap.dedent(
            """
            from superopt.frontier.engine import explore
            from superopt.frontier.engine.transports.rays import RayActors
            from spaces import SPACES, as_bytes
            for name in SPACES:
                one = explore(SPACES[name](), keep_arcs=True)
                for workers in (1, 2):
                    other = explore(SPACES[name](), keep_arcs=True, workers=workers, transport=RayActors)
                    assert as_bytes(one) == as_bytes(other)
            print("the same")
            """
        )
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    made = subprocess.run(
        [sys.executable, str(script)], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert made.stdout.endswith("the same\n"), made.stderr
