"""The counts of searches of convolutions: what is found is counted by its kind, and written down."""

import json
from pathlib import Path

import pytest

from superopt.bench.conv import derived
from superopt.bench.conv.derived import main


def test_counts_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "counts.json"
    assert main(["images", "--json", str(place)]) == 0
    head, line, *_ = capsys.readouterr().out.splitlines()
    [row] = json.loads(place.read_text())["rows"]
    assert head.split()[1:8] == ["e-nodes", "tensors", "ways", "graphs", "moved", "parts", "corrected"]
    assert line.split()[:8] == [
        "images", *(str(row[name]) for name in ("e_nodes", "tensors", "ways", "graphs", "moved", "parts")),
        str(row["corrected"]),
    ]  # fmt: skip
    assert row["complete"]
    assert row["corrected"] == 2
    assert row["moved"] >= 1


def test_unknown_programs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["conv9x9"])
    assert "NAME has no 'conv9x9'" in capsys.readouterr().err


@pytest.mark.slow
def test_forms_are_raced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "_RACE_S", 0.01)
    monkeypatch.setattr(derived, "_RACED", 1)
    place = tmp_path / "times.json"
    assert main(["--race", "images", "--json", str(place)]) == 0
    times = json.loads(place.read_text())["median_us"]
    assert {"eager", "direct 1", "moved 1", "corrected 1"} <= times.keys()
    assert all(us > 0 for us in times.values())
    assert "us  corrected 1" in capsys.readouterr().out
