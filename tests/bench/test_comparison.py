"""Results: read, merged, compared, drawn, and refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from superopt.bench.harness.comparison import compare_results
from superopt.bench.harness.launches import Launches, launched
from superopt.bench.harness.records import launch_record, merged, with_floor
from superopt.bench.harness.results import begin, read_results
from superopt.bench.pictures import draw
from superopt.bench.suites import SUITES
from superopt.errors import InputError
from superopt.tune.measure import Times

ROOT = Path(__file__).parents[2]
MACHINE = {"device": "a CPU", "cores": 2, "threads": 1, "torch": "2"}


def record(name: str, ours: float, baseline: float = 200.0, **more: Any) -> dict[str, Any]:
    """Return a record of one launch."""
    wave = [1 + at % 5 / 500 for at in range(60)]
    taken = {
        "superopt": Times([ours * one for one in wave]),
        "eager": Times([baseline * one for one in wave]),
    }
    return {"case": name, **launch_record(taken, "superopt", "eager"), **more}


def document(*records: dict[str, Any], suite: str = "functions", launches: int = 5) -> dict[str, Any]:
    """Return the document of several launches that agree."""
    several = {one["case"]: merged([one] * launches) if "measured" in one else one for one in records}
    return begin(suite, {}, MACHINE, several)


def test_what_became_slower_is_named() -> None:
    old = document(record("a", 100.0), record("b", 100.0), record("c", 100.0))
    new = document(record("a", 112.0), record("b", 101.0), record("c", 80.0))
    found = compare_results(old, new)
    assert [row.verdict for row in found.rows] == ["slower", "same", "faster"]
    assert found.regressions == ("a",)
    assert found.notes == ()
    assert compare_results(old, new, tolerance=0.2).regressions == ()


def test_a_slower_machine_is_no_regression() -> None:
    found = compare_results(document(record("a", 100.0)), document(record("a", 150.0, 300.0)))
    assert found.rows[0].verdict == "same"
    assert found.rows[0].baseline == "eager"


def test_another_program_is_compared_by_its_times() -> None:
    old, new = record("a", 100.0, program="x"), record("a", 150.0, 300.0, program="y")
    [row] = compare_results(document(old), document(new)).rows
    assert row.verdict == "slower"
    assert "another program" in row.note


def test_a_case_that_works_no_more_is_a_regression() -> None:
    broken = {"case": "a", "error": "RuntimeError: no"}
    found = compare_results(document(record("a", 100.0)), document(broken))
    assert found.rows[0].verdict == "broken"
    assert found.regressions == ("a",)
    assert compare_results(document(broken), document(record("a", 100.0))).regressions == ()


def test_notes() -> None:
    old, new = (
        document(record("a", 1.0), record("b", 1.0), launches=1),
        document(record("a", 1.0), launches=1),
    )
    new["machine"] = {**MACHINE, "torch": "3"}
    notes = "\n".join(compare_results(old, new).notes)
    assert "torch 2 and 3" in notes
    assert "only in the old result: b" in notes
    assert "--repeat" in notes


def test_results_that_do_not_fit_together() -> None:
    one = document(record("a", 1.0))
    with pytest.raises(InputError, match="different suites, functions and cpu"):
        compare_results(one, document(record("a", 1.0), suite="cpu"))
    for part, value in (("device", "another"), ("instructions", "AVX2")):
        other = {**one, "machine": {**MACHINE, part: value}}
        with pytest.raises(InputError, match=f"different machines \\({part}"):
            compare_results(one, other)
    assert compare_results(one, other, any_machine=True).notes
    with pytest.raises(InputError, match="no case in common"):
        compare_results(one, document(record("b", 1.0)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist"),
        ("{", "it is not JSON"),
        ("[]", "is not a result"),
        ('{"superopt": "bench", "version": 2}', "version 2 .* run the suite again"),
        ('{"superopt": "bench", "version": 3, "suite": "cpu", "machine": {}}', "'cases' is missing"),
        ('{"superopt":"bench","version":3,"suite":"cpu","machine":{},"cases":{"a":1}}', "no record"),
    ],
)
def test_files_that_are_no_results(text: str | None, said: str, tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    if text is not None:
        place.write_text(text)
    with pytest.raises(InputError, match=said):
        read_results(place)


def test_launches_are_merged() -> None:
    found = merged([record("a", 100.0), record("a", 104.0), record("a", 90.0)])
    assert found["measured"]["superopt"]["median_us"] == pytest.approx(100.4)
    assert [len(blocks) for blocks in found["blocks_us"].values()] == [3, 3]
    assert found["measured"]["eager"]["rounds"] == 180
    assert found["ratios"]["eager"] == pytest.approx(2.0)
    assert merged([record("a", 1.0), {"case": "a", "error": "no"}])["error"] == "no"


def test_launches_are_kept_until_all_are_in(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    documents = iter([document(record("a", us), launches=1) for us in (1.0, 2.0, 3.0)])

    def plan(count: int, *, late: bool = False) -> Launches:
        return Launches(count, float("-inf") if late else float("inf"), out, resume=True)

    first = list(launched(plan(3, late=True), lambda number: next(documents)))
    assert [one["launches"] for one in first] == [1]
    assert len(read_results(out)["by_launch"]) == 1
    rest = list(launched(plan(3), lambda number: next(documents)))
    assert [one["launches"] for one in rest] == [1, 2, 3]
    assert len(rest[-1]["cases"]["a"]["blocks_us"]["superopt"]) == 3
    assert "by_launch" not in read_results(out)


@pytest.mark.parametrize(("floor", "held"), [(None, True), (1.5, True), (2.5, False)])
def test_floors(floor: float | None, held: bool) -> None:
    found = with_floor(record("a", 100.0), floor)
    assert found["held"] is held
    assert found["speed"]["ratio"] == pytest.approx(2.0, rel=0.01)


@pytest.mark.slow
def test_results_of_earlier_runs_are_read_and_drawn(tmp_path: Path) -> None:
    places = sorted((ROOT / "bench" / "results").glob("*.json"))
    assert len(places) >= 6
    known = [read_results(place) for place in places]
    races = [one["suite"] not in ("graphs", "trials", "verdicts") for one in known]
    drawn = [(one, place.stem) for one, place, race in zip(known, places, races, strict=True) if race]
    for one, _ in drawn:
        for case in one["cases"].values():
            assert "error" in case or case["ours"] in case["measured"]
    written = draw([one for one, _ in drawn], [stem for _, stem in drawn], tmp_path / "pictures")
    assert {place.suffix for place in written} == {".png", ".svg"}
    assert all(place.stat().st_size > 5000 for place in written)


@pytest.mark.slow
def test_a_roofline_and_many_cases_are_drawn(tmp_path: Path) -> None:
    roofs = {"arithmetic_us": 20.0, "memory_us": 50.0, "cache_us": 10.0}
    records = [
        record(f"c{at}", 100.0 + at, workload=f"w{at % 7}", dtype="f32", roofs=roofs) for at in range(60)
    ]
    one = document(*records, suite="cpu", launches=1)
    written = draw([one], ["cpu"], tmp_path)
    assert {place.name for place in written} == {
        f"cpu-{kind}.{suffix}" for kind in ("speedups", "roofline") for suffix in ("png", "svg")
    }
    with pytest.raises(InputError, match="no case that can be drawn"):
        draw([document({"case": "a", "error": "no"}, suite="cpu")], ["cpu"], tmp_path)


def test_pictures_are_the_same_from_run_to_run(tmp_path: Path) -> None:
    one = document(record("a", 100.0))
    for name in ("first", "second"):
        draw([one], ["x"], tmp_path / name)
    for suffix in ("png", "svg"):
        first, second = (tmp_path / name / f"x-speedups.{suffix}" for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda one: one.name)
def test_suites_name_their_cases(suite: Any) -> None:
    few, all_names = suite.cases(True), suite.cases(False)
    assert few
    assert len(all_names) == len(set(all_names))
    command = suite.command(few, Path("out.json"), quick=True, minutes=None, resume=False)
    assert command[1:3] == ["-m", f"superopt.bench.{suite.name}"]
    assert "--resume" not in command
    json.dumps(command)
