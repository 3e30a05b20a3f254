"""The simulation of many workers: its parts add up, and each assumption counts where it should."""

from pathlib import Path

import pytest

from superopt.bench.pictures import draw
from superopt.bench.scaling.simulation import Assumptions, Rates, simulated

RATES = Rates(candidates_per_second=1e6, candidates_per_state=4.0, growth=10.0, bytes_per_candidate=80)
MACHINES = Assumptions()


@pytest.mark.parametrize("workers", [1, 2, 16, 1000])
def test_the_parts_add_up(workers: int) -> None:
    found = simulated(RATES, workers, 1e9, MACHINES)
    parts = sum(found[name] for name in ("work", "skew", "exchange", "barrier"))
    assert found["seconds"] == pytest.approx(parts)
    assert found["work"] == pytest.approx(4e9 / 1e6 / workers)


def test_one_worker_sends_nothing() -> None:
    found = simulated(RATES, 1, 1e9, MACHINES)
    assert found["skew"] == found["exchange"] == found["barrier"] == 0


def test_more_workers_are_faster_until_barriers_count() -> None:
    large = [simulated(RATES, workers, 1e10, MACHINES)["seconds"] for workers in (1, 2, 16, 100, 1000)]
    assert large == sorted(large, reverse=True)
    small = [simulated(RATES, workers, 1e3, MACHINES) for workers in (1, 1000)]
    assert small[1]["barrier"] > small[0]["work"] / 1000
    assert small[1]["seconds"] > small[0]["seconds"] / 100


def test_a_slow_network_costs() -> None:
    slow = Assumptions(node_bytes_per_second=1e8)
    fast, slower = (simulated(RATES, 64, 1e9, one)["exchange"] for one in (MACHINES, slow))
    assert slower == pytest.approx(12.5 * fast)


@pytest.mark.slow
def test_the_engines_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    levels = [{"busy_seconds": [0.5, 0.4], "seconds": 0.6}, {"busy_seconds": [2.0, 1.9], "seconds": 2.1}]
    case = {
        "candidates": 1_000_000,
        "states": 250_000,
        "rows_per_second": 4e5,
        "all_seconds": [2.4, 2.5, 2.6],
        "speedup": 1.6,
        "beside_work_seconds": 0.2,
        "exchanged_bytes": 1 << 24,
        "levels": levels,
    }
    document = {
        "suite": "scaling",
        "machine": {"device": "a machine", "threads": 2},
        "settings": {"workers": 2},
        "cases": {name: {"case": name, **case} for name in ("serial", "processes", "mpi")},
        "simulated": [
            {"workers": count, **simulated(RATES, count, 1e10, MACHINES)} for count in (1, 16, 1000)
        ],
    }
    drawn = draw([document], ["scaling"], tmp_path)
    assert [path.name for path in drawn] == ["scaling-engines.png", "scaling-engines.svg"]
    picture = drawn[1].read_text()
    assert all(text in picture for text in ("1.60 times serial", "at most 16 MiB", "mpi, worker 2", "skew"))
