"""Other processes: what one decided serves the next, and programs that fork or start workers go on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from superopt.cache import Cache

PROGRAM = """
import json, logging, sys
import torch
from torch import nn
from superopt.backend import graphpass, region_race
from dataclasses import replace

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
torch.set_num_threads(1)
torch.manual_seed(0)
judged = lambda self, known, raced, plan: replace(known, taken=True, plan=plan, why="a test")
region_race.RegionRace._decide = judged
region_race.WIN = region_race._NO_ROOM = region_race._TOO_SHORT_US = 0.0
passes = []
plain = graphpass.RegionPass._run
graphpass.RegionPass._run = lambda self, *given: (passes.append(self.ledger), plain(self, *given))
module = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
compiled = torch.compile(module, backend="superopt", options={"budget_s": 60, **json.loads(sys.argv[1])})


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        with torch.no_grad():
            return compiled(torch.full((3, 16), float(at)))


if __name__ == "__main__":
    x = torch.randn(3, 16)
    with torch.no_grad():
        error = float((compiled(x) - module(x)).abs().max())
    if "workers" in sys.argv:
        rows = list(torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context=sys.argv[3]))
        with torch.no_grad():
            wanted = [module(torch.full((3, 16), float(at))) for at in range(4)]
        error = max(error, *(float((a[0] - b).abs().max()) for a, b in zip(rows, wanted)))
    print(json.dumps([len(passes), sum(one.searched for one in passes), error]))
"""


def run(tmp_path: Path, *arguments: str) -> tuple[list[float], str]:
    """Return what the program prints, and what it logs."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    places = {
        "SUPEROPT_CACHE_DIR": str(tmp_path / "superopt"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_a_second_process_searches_nothing(tmp_path: Path) -> None:
    passes, searched, error = run(tmp_path, "{}")[0]
    assert (passes, searched) == (1, 1)
    assert error < 1e-5
    (passes, searched, error), logged = run(tmp_path, "{}")
    assert (passes, searched) == (0, 0)  # Inductor kept the whole graph, our calls in it
    assert error < 1e-5
    assert "computed by torch" not in logged
    report = json.dumps({"report": str(tmp_path / "report.json")})
    (passes, searched, error), logged = run(tmp_path, report)
    assert (passes, searched) == (1, 0)  # decided anew, from what was kept
    assert error < 1e-5
    assert json.loads((tmp_path / "report.json").read_text())["regions"][0]["recalled"]
    Cache.open(tmp_path / "superopt").clear()
    passes, searched, error = run(tmp_path, "{}")[0]
    assert (passes, searched) == (1, 1)  # Inductor's graph has plans of which nothing is known any more
    assert error < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(tmp_path: Path, method: str) -> None:
    (_, _, error), logged = run(tmp_path, "{}", "workers", method)
    assert error < 1e-5
    assert "computed by torch" not in logged
