"""The race on a CPU: its cases, what is kept, and one case from the search to the table."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from superopt.bench import cpu
from superopt.bench.harness.results import Results
from superopt.bench.kernels.cases import Case, chosen
from superopt.bench.kernels.cpu_cases import CASES, of_suite
from superopt.errors import InputError
from superopt.workloads import WORKLOADS


def record(case: Case, ratio: float) -> dict[str, Any]:
    return {
        "case": case.name,
        "suite": case.suite,
        "dtype": case.dtype,
        "ratio": ratio,
        "ratios": {"eager": ratio},
        "best_peer": "eager",
        "measured": {"superopt": {"median_us": 1.0}, "eager": {"median_us": ratio}},
        "returned_ratio": max(ratio, 1.0),
        "threads": {},
        "chosen": ["graph 1"],
    }


def test_every_workload_has_cases_in_all_dtypes() -> None:
    for dtype in ("f32", "bf16", "f16"):
        assert {case.workload for case in CASES if case.dtype == dtype} == set(WORKLOADS)
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert all(tensor.is_meta for tensor in case.inputs())


def test_suites() -> None:
    assert len(of_suite("quick")) == 8
    parts = [of_suite(suite) for suite in ("rows", "decode", "prefill", "squares")]
    assert sum(map(len, parts)) == len(of_suite("all")) == len(CASES)
    assert {case.sizes["M"] for case in parts[0]} == {1, 8, 64, 512}
    wanted = Namespace(workloads="gqa", case="s1024", dtype="bf16")
    assert [case.name for case in chosen(wanted, CASES)] == ["gqa/s1024/bf16"]
    with pytest.raises(InputError, match="no case is of these names"):
        chosen(wanted, of_suite("decode"))


def test_losses_count_and_what_is_returned_is_never_slower() -> None:
    one, two, _ = (case for case in CASES if case.suite == "squares" and case.case == "512")
    means = cpu.means([record(one, 0.5), record(two, 2.0), {**record(one, 1.0), "ratio": None}])
    assert means["all"]["best peer"] == {"mean": pytest.approx(1.0), "cases": 2}
    assert means["all"]["returned"]["mean"] == pytest.approx(2**0.5)
    assert means["f32"]["eager"]["mean"] == pytest.approx(0.5)
    assert means["squares"]["eager"]["cases"] == 2


def test_a_run_that_is_interrupted_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [case.name for case in of_suite("quick")]
    raced: list[str] = []
    stops = [names[2]]

    def measure(case: Case, settings: cpu.Settings) -> dict[str, Any]:
        raced.append(case.name)
        if case.name in stops:
            raise KeyboardInterrupt
        if case.name == names[1]:
            raise InputError("it is not finite\nmore")
        return record(case, 2.0)

    monkeypatch.setattr(cpu, "measure", measure)
    out = tmp_path / "out.json"
    command = ["--quick", "--json", str(out)]
    assert cpu.main(command) == 0
    found = json.loads(out.read_text())
    assert found["cases"][names[1]]["error"] == "InputError: it is not finite"
    assert found["not_reached"] == names[2:]
    stops.clear()
    raced.clear()
    assert cpu.main([*command, "--resume"]) == 0
    assert raced == names[2:]
    found = json.loads(out.read_text())
    assert list(found["cases"]) == names
    assert found["geometric_mean"]["all"]["best peer"]["cases"] == 7


def test_without_time_no_case_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "measure", lambda case, settings: pytest.fail("begun"))
    assert cpu.main(["--quick", "--minutes", "0"]) == 1


@pytest.mark.parametrize(
    "arguments",
    [["--threads", "two"], ["--threads", "0"], ["--seconds", "0"], ["--resume"], ["--case", "none"]],
)
def test_bad_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu.main(arguments)
    assert "error:" in capsys.readouterr().err


def test_what_eager_is_too_slow_for_is_left_out_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [case for case in CASES if case.name == "softmax/1024-m64/f32"]
    results = Results([case.name for case in cases], tmp_path / "out.json", {"cases": {}}, cpu.means)
    cpu.run_cases(cases, cpu.Settings(longest=0.0), results, minutes=5)
    found = results.records[cases[0].name]
    assert found["left_out"]
    assert found["ratio"] is None
    cpu.show_table({**results.document, "machine": {}})
    assert "left out, too slow: 1 of 1 cases: softmax/1024-m64/f32" in capsys.readouterr().out


@pytest.mark.slow
def test_a_case_from_the_search_to_the_table(tmp_path: Path) -> None:
    case = Case("gqa-decode", "decode", "small", {"B": 1, "H": 4, "G": 2, "T": 64, "D": 16}, "f32")
    settings = cpu.Settings(seconds=0.2, graphs=1, peers=(), threads=(1, 2), library=False)
    results = Results([case.name], tmp_path / "out.json", {"cases": {}, "machine": {}}, cpu.means)
    cpu.run_cases([case], settings, results, minutes=5)
    found = json.loads((tmp_path / "out.json").read_text())["cases"][case.name]
    assert found["ratio"] > 0, found
    assert set(found["ratios"]) == {"eager", "sdpa", "sdpa, heads as rows"}
    assert found["returned_ratio"] >= 1
    assert set(found["threads"]) == {"1", "2"}
    cpu.show_table(results.document)
