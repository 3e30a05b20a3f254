"""The benchmark of reductions: how links are throttled, and what its summary counts."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from superopt.bench.shard import __main__ as bench
from superopt.bench.shard import nodes
from superopt.errors import InputError
from superopt.shard.machine import parse_machine


def refused(command: str) -> None:
    raise InputError(f"links cannot be throttled here: {command}: refused")


def test_the_transport_is_delayed_where_namespaces_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nodes, "_run", refused)
    with ExitStack() as stack:
        kind, found = bench._nodes(stack, (1, 2, 80, 160), "auto")
        assert kind == "delays"
        assert [node.environment["SHARD_NODE"] for node in found] == ["0", "1"]
        assert Path(found[0].environment["LD_PRELOAD"].split()[0]).exists()
    assert "the transport is delayed instead" in capsys.readouterr().err
    with ExitStack() as stack, pytest.raises(InputError, match="cannot be throttled"):
        bench._nodes(stack, (1, 2, 80, 160), "namespaces")


def row(own: tuple[int, ...], speedup: float, rank: int, asked: int, seconds: float) -> dict[str, object]:
    return {
        "machine": "2x4",
        "asked": ["some placement"] * asked,
        "counts": (2, 4),
        "own": own,
        "bytes": 1 << 20,
        "speedup": speedup,
        "speedup_of_simulated": speedup,
        "speedup_of_top_10": min(speedup, 1.2),
        "rank_of_best": rank,
        "all_reduce_s": seconds,
        "best_s": seconds / speedup,
    }


def test_reductions_inside_one_level_are_counted_apart() -> None:
    rows = [row((0, 1), 1.5, 3, 2, 3.0), row((0, 1), 1.01, 30, 1, 2.0), row((1,), 1.0, 0, 5, 0.5)]
    found = bench.summary(rows)
    assert (found["reductions"], found["across_levels"]) == (3, 2)
    assert found["share_that_beats_all_reduce.all"] == pytest.approx(1 / 3)
    assert found["share_that_beats_all_reduce.across_levels"] == 0.5  # by 2% or more
    assert found["share_of_placements_that_beat_all_reduce.across_levels"] == pytest.approx(2 / 3)
    assert found["mean_speedup.across_levels"] == pytest.approx((1.5 * 1.01) ** 0.5)
    assert found["mean_speedup_of_those.across_levels"] == pytest.approx(1.5)
    assert found["share_with_best_in_top_10"] == 0.5  # one program is thirtieth,
    assert found["share_with_as_fast_in_top_10"] == 0.5  # and the other is 1.25 times as fast as all ten


@pytest.mark.slow
def test_delayed_links_are_as_slow_as_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text(json.dumps({"machines": {}, "reductions": [], "scale": []}))
    command = ["--machines", "2x2", "--links", "delays", "--mbit", "80", "--turns", "2", "--minutes", "0.01"]
    assert bench.main([*command, "--json", str(out), "--resume"]) == 0
    (found,) = json.loads(out.read_text())["machines"]["2x2"]
    assert found["links"] == "delays"
    node, gpu = parse_machine(found["measured"]).levels
    assert 0.4 * 10e6 < node.bytes_per_s < 1.5 * 10e6  # 80 Mbit/s
    assert gpu.bytes_per_s > 4 * node.bytes_per_s
