"""The file of rules is the same, byte for byte, for all engines and any number of workers."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pages import ROOT

_NAMES = "relu,transpose,concat_rows,split_rows"


def discovered(folder: Path, engine: str, workers: int, *more: str) -> bytes:
    """Return the file that the command line writes in a process of its own."""
    place = folder / f"{engine}-{workers}{len(more)}.json"
    command = [sys.executable, "-m", "superopt", "rules", "discover", "--operators", _NAMES]
    command += ["--engine", engine, "--workers", str(workers), "-o", str(place), *more]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    made = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return place.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("mpi4py"), reason="mpi4py is not installed")
def test_ranks_of_mpi_write_the_same_file(tmp_path: Path) -> None:
    one = discovered(tmp_path, "processes", 1)
    assert [discovered(tmp_path, "mpi", ranks) for ranks in (1, 2, 3)] == [one] * 3


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("mpi4py"), reason="mpi4py is not installed")
def test_processes_go_on_where_ranks_have_ended(tmp_path: Path) -> None:
    saved = ("--checkpoint", str(tmp_path / "saved"))
    one = discovered(tmp_path, "mpi", 2, *saved)
    (tmp_path / "saved" / "equalities-2.json").unlink()
    assert discovered(tmp_path, "processes", 2, *saved, "--resume") == one


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("ray"), reason="ray is not installed")
def test_actors_of_ray_write_the_same_file(tmp_path: Path) -> None:
    assert discovered(tmp_path, "ray", 2) == discovered(tmp_path, "processes", 1)
