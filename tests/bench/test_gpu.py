"""The race on a GPU, as far as it goes without one: plans, cases, peers, and results that survive."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from superopt.bench import gpu
from superopt.bench.harness.records import geometric_means
from superopt.bench.harness.results import resumed
from superopt.bench.kernels.by_hand import hand_written
from superopt.bench.kernels.cases import Case, chosen
from superopt.bench.kernels.gpu_cases import CASES, case_named, of_suite, plan_of
from superopt.bench.planned import race
from superopt.bench.planned.loaded import Settings, load_case
from superopt.bench.plans import FOLDER
from superopt.errors import InputError
from superopt.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
ABSENT = ("egglog", "z3", "platformdirs", "psutil", "multiprocessing_logging")
WITHOUT = f"""
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import superopt.bench.planned.profile, superopt.bench.planned.race, superopt.bench.planned.warm
import superopt.funnel.funnel, superopt.rivals.final
sys.argv[0] = "bench.gpu"
runpy.run_module("bench.gpu", run_name="__main__")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark where nothing of the search can be imported."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


# -- cases and peers


def test_cases_are_named_once_and_the_most_telling_comes_first() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert names[0] == "rmsnorm-linear/decode-8"
    assert {case.workload for case in CASES} == set(WORKLOADS)
    assert {case.suite for case in CASES} == {"decode", "prefill"}
    assert [case.suite for case in CASES[:24]] == ["decode", "prefill"] * 12
    assert case_named("mla", "decode-1") in CASES
    assert case_named("mla", "decode-3") is None
    for name in ("gqa-decode", "mla", "qknorm-attention", "mqa-decode", "mha-decode"):
        for rows in (1, 8, 16):
            for suffix, length in (("", 4096), ("-t8192", 8192)):
                case = case_named(name, f"decode-{rows}{suffix}")
                assert case is not None
                assert case.sizes["T"] == length


def test_suites_are_parts() -> None:
    decode, prefill = of_suite("decode"), of_suite("prefill")
    assert len(decode) + len(prefill) == len(CASES)
    wanted = Namespace(workloads="mla", case="decode-16", dtype="f16")
    assert [case.name for case in chosen(wanted, CASES)] == ["mla/decode-16"]
    with pytest.raises(InputError, match="no case is of these names"):
        chosen(wanted, prefill)


SMALL: dict[str, dict[str, int]] = {
    "mha": {"B": 2, "H": 2, "S": 9, "D": 16},
    "gqa": {"B": 2, "H": 4, "G": 2, "S": 9, "D": 16},
    "mqa": {"B": 2, "H": 4, "S": 9, "D": 16},
    "mha-decode": {"B": 2, "H": 2, "T": 11, "D": 16},
    "gqa-decode": {"B": 2, "H": 6, "G": 2, "T": 11, "D": 16},
    "mqa-decode": {"B": 2, "H": 4, "T": 11, "D": 16},
    "qknorm-attention": {"B": 1, "H": 2, "S": 3, "T": 11, "D": 16},
    "mla": {"B": 2, "H": 4, "T": 11, "L": 16, "R": 8},
    "llama-layer": {"B": 1, "S": 6, "E": 32, "D": 8, "Q": 32, "P": 16, "N": 48},
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_what_is_written_by_hand_computes_the_same(name: str) -> None:
    torch.manual_seed(0)
    inputs = WORKLOADS[name].inputs(dtype="f32", device="cpu", **SMALL[name])
    inputs = tuple(one / 4 for one in inputs)
    wanted = WORKLOADS[name].function(*inputs)
    peers = hand_written(name)
    assert peers
    for peer in peers.values():
        torch.testing.assert_close(peer(*inputs), wanted, rtol=2e-4, atol=2e-5)


def test_only_attention_is_written_by_hand() -> None:
    assert set(SMALL) == {name for name in WORKLOADS if hand_written(name)}


# -- plans


def test_every_case_has_a_plan_and_all_are_small() -> None:
    missing = [case.name for case in CASES if not plan_of(case, FOLDER, "f16").exists()]
    assert not missing
    assert sum(place.stat().st_size for place in FOLDER.glob("*.json")) < 2 << 20


@pytest.mark.parametrize("name", ["rmsnorm-linear.decode-8", "gqa.prefill-2048"])
def test_plans_hold_nothing_of_the_machine_that_made_them(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text()
    plan = json.loads(text)
    assert list(plan) == sorted(plan)
    assert (plan["winner"], plan["device"], plan["versions"], plan["phases_ms"]) == (None, None, {}, {})
    for region in plan["regions"]:
        assert region["candidates"]
        assert all(one["sources"] == [] for one in region["candidates"])
        assert any(others for one in region["candidates"] for others in one["others"])


@pytest.mark.slow
def test_a_dry_run_needs_nothing_of_the_search() -> None:
    done = run(
        "--dry-run", "--trials", "6", "--case", "decode-8", "--workloads", "rmsnorm-linear,gqa-decode,mla"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("fine: 6 candidates") == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_a_run_of_all_cases_starts_without_the_search(tmp_path: Path) -> None:
    done = run("--suite", "all", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no CUDA device is here" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_finds_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[0]
    place = plan_of(case, tmp_path, "f16")
    plan = json.loads(plan_of(case, FOLDER, "f16").read_text())
    first = plan["regions"][0]["candidates"][0]
    wrong = re.sub(r" r?sqrt\(", " exp(", first["mugraph"])
    assert wrong != first["mugraph"]
    first["mugraph"] = wrong
    place.write_text(json.dumps(plan))
    settings = Settings(tmp_path, trials=1)
    assert gpu.dry_run([case], settings, check=False) == 1
    assert "is not equal to" in capsys.readouterr().out
    assert gpu.dry_run([CASES[1]], settings, check=False) == 1
    assert "has no plan" in capsys.readouterr().out


def test_candidates_come_before_their_other_configurations() -> None:
    case = case_named("rmsnorm-linear", "decode-8")
    assert case is not None
    few = load_case(case, Settings(FOLDER, trials=4))
    many = load_case(case, Settings(FOLDER, trials=40))
    names = [one.name for one in many.work[0].candidates]
    assert [one.name for one in few.work[0].candidates] == names[:4]
    assert len(names) == len(set(names))
    assert "as guess 2" in " ".join(names[4:])
    configs = {(one.mugraph, one.configs) for one in many.work[0].candidates}
    assert len(configs) == len(names)  # no configuration is tried twice


def test_a_time_is_refused_by_a_floor_without_what_a_cache_keeps() -> None:
    loaded = load_case(CASES[0], Settings(FOLDER, trials=4))
    chosen = [work.candidates[0] for work in loaded.work]
    floor, least = race._floor(loaded, chosen), race._floor(loaded, chosen, kept=True)
    [goal] = [work.goal for work in loaded.work]
    written = sum(2 * math.prod(goal.shape(one.port)) for one in goal.outputs)  # bytes of f16
    device = loaded.target.cost_device()
    assert floor - least == pytest.approx(written / (device.memory_gbs * 1e3))


def test_a_damaged_configuration_is_refused(tmp_path: Path) -> None:
    case = CASES[0]
    plan = json.loads(plan_of(case, FOLDER, "f16").read_text())
    first = plan["regions"][0]["candidates"][0]
    first["others"] = [[{"tiles": [["m", "import os"]]}] for _ in first["configs"]]
    plan_of(case, tmp_path, "f16").write_text(json.dumps(plan))
    with pytest.raises(InputError, match="tiles"):
        load_case(case, Settings(tmp_path, trials=40))


# -- results


def record(case: Case, ratio: float) -> dict[str, Any]:
    """Return a record as a race gives it."""
    return {
        "case": case.name,
        "suite": case.suite,
        "error": None,
        "ratio": ratio,
        "ratios": {"eager": ratio},
        "best_peer": "eager",
        "measured": {"superopt": {"median_us": 1.0}, "eager": {"median_us": ratio}},
        "floor_share": None,
        "chosen": [{"name": "graph 1", "configs": []}],
        "not_run": {},
    }


def test_losses_count_in_geometric_means() -> None:
    decode, prefill = of_suite("decode"), of_suite("prefill")
    lost = {**record(decode[2], 1.0), "ratio": None, "error": "it broke"}
    records = [record(decode[0], 2.0), record(decode[1], 0.5), lost, record(prefill[0], 4.0)]
    means = geometric_means(records, "suite")
    assert means["decode"]["best peer"] == {"mean": pytest.approx(1.0), "cases": 2}
    assert means["prefill"]["eager"] == {"mean": pytest.approx(4.0), "cases": 1}
    assert means["all"]["eager"]["cases"] == 3


@dataclass(frozen=True)
class Loaded:
    """A case that was not really loaded."""

    case: Case
    ready: tuple[str, ...] = ()


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace loading, compiling and racing; return the names of the cases that are raced."""
    raced: list[str] = []

    def run_case(one: Any, settings: Any, **options: Any) -> dict[str, Any]:
        raced.append(one.case.name)
        if one.case.name == os.environ.get("BREAKS_AT"):
            raise KeyboardInterrupt
        return record(one.case, 2.0)

    monkeypatch.setattr("superopt.bench.planned.loaded.check_device", lambda cases, settings: None)
    monkeypatch.setattr("superopt.bench.planned.loaded.load_case", lambda case, settings: Loaded(case))
    monkeypatch.setattr(
        "superopt.bench.planned.warm.warm", lambda loaded, settings, **options: (list(loaded), {})
    )
    monkeypatch.setattr("superopt.bench.planned.race.run_case", run_case)
    return raced


def test_a_run_that_is_interrupted_is_resumed(
    stubbed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    names = [case.name for case in of_suite("prefill")]
    monkeypatch.setenv("BREAKS_AT", names[2])
    command = ["--suite", "prefill", "--json", str(out)]
    assert gpu.main(command) == 0
    found = json.loads(out.read_text())
    assert list(found["cases"]) == names[:2]
    assert found["not_reached"] == names[2:]
    monkeypatch.delenv("BREAKS_AT")
    stubbed.clear()
    assert gpu.main([*command, "--resume"]) == 0
    assert stubbed == names[2:]
    assert list(json.loads(out.read_text())["cases"]) == names


def test_without_time_no_case_is_begun(stubbed: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert gpu.main(["--json", str(out), "--minutes", "0"]) == 1
    assert stubbed == []


SLOW = "torch.compile max-autotune-no-cudagraphs"


def test_the_first_cases_meet_max_autotune_and_resuming_goes_on_with_the_others(
    stubbed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: dict[str, tuple[str, ...]] = {}
    now = [0.0]
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])

    def warm(loaded: Any, settings: Any, *, slow: bool, **options: Any) -> Any:
        now[0] += 30
        ready = (SLOW,) if slow else ()
        return [replace(one, ready=ready if at else ()) for at, one in enumerate(loaded)], {}

    def run_case(one: Any, settings: Any, *, peers: tuple[str, ...], **options: Any) -> dict[str, Any]:
        now[0] += 8 if SLOW in peers else 1
        met[one.case.name] = peers
        absent = {} if SLOW in peers else {SLOW: race.OUT_OF_TIME}
        return {**record(one.case, 2.0), "not_run": absent}

    def warm_slow(loaded: Any, settings: Any, **options: Any) -> Any:
        now[0] += 30
        failed = {f"{loaded[0].case.name} {SLOW}": "RuntimeError: out of registers"}
        return [replace(one, ready=(SLOW,) if at > 1 else ()) for at, one in enumerate(loaded)], failed

    def race_again(one: Any, settings: Any, known: Any, **options: Any) -> dict[str, Any]:
        now[0] += 8
        return {**known, "not_run": {}, "again": True}

    monkeypatch.setattr("superopt.bench.planned.warm.warm", warm)
    monkeypatch.setattr("superopt.bench.planned.race.run_case", run_case)
    monkeypatch.setattr("superopt.bench.planned.warm.warm_slow", warm_slow)
    monkeypatch.setattr("superopt.bench.planned.race.race_again", race_again)
    out = tmp_path / "out.json"
    assert gpu.main(["--json", str(out), "--minutes", "8"]) == 0
    names = list(met)
    with_it = [at for at, name in enumerate(names) if SLOW in met[name]]
    assert with_it[0] == 1  # the first case's was not compiled in time
    assert {names[at].partition("/")[2].partition("-")[0] for at in with_it[:2]} == {"decode", "prefill"}
    assert 12 < len(with_it) < len(names)
    assert max(with_it) < len(names) / 2
    assert json.loads(out.read_text())["geometric_mean"]["prefill"]["eager"]["cases"] > 12
    late = [name for name in names if SLOW not in met[name]]
    assert gpu.main(["--json", str(out), "--minutes", "8", "--resume"]) == 0
    assert len(met) == len(CASES)
    found = json.loads(out.read_text())["cases"]
    again = [name for name, one in found.items() if one.get("again")]
    assert again
    assert set(again) <= set(late)
    assert found[names[0]]["not_run"] == {SLOW: "RuntimeError: out of registers"}


def test_a_case_that_breaks_does_not_end_the_others(
    stubbed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(one: Any, settings: Any, **options: Any) -> dict[str, Any]:
        if one.case == CASES[0]:
            raise RuntimeError("an illegal instruction\nmore")
        return record(one.case, 0.5)

    monkeypatch.setattr("superopt.bench.planned.race.run_case", breaks)
    out = tmp_path / "out.json"
    assert gpu.main(["--json", str(out), "--case", "decode-8"]) == 0
    found = json.loads(out.read_text())
    assert found["cases"][CASES[0].name]["error"] == "RuntimeError: an illegal instruction"
    assert len(found["cases"]) == sum(case.case == "decode-8" for case in CASES)


def test_a_case_without_a_plan_is_tried_again(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["--json", str(out), "--plans", str(tmp_path), "--workloads", "mla", "--case", "decode-8"]
    assert gpu.main(command) == 1
    assert "has no plan" in json.loads(out.read_text())["cases"]["mla/decode-8"]["error"]
    assert resumed(out)["cases"] == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 99, "cases": {}}'])
def test_a_file_that_is_no_result_is_not_resumed(text: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text(text)
    with pytest.raises(InputError, match="another --json"):
        resumed(out)
    assert out.read_text() == text


KILLED = """
import sys, time
from superopt.bench import gpu
from superopt.bench.planned import loaded, race, warm

class Loaded:
    ready = ()

    def __init__(self, case):
        self.case = case

def run_case(one, settings, **options):
    if one.case.name == sys.argv[2]:
        print("hangs", flush=True)
        time.sleep(60)
    return {"case": one.case.name, "suite": "decode", "ratio": None, "error": "a stub"}

loaded.check_device = lambda cases, settings: None
loaded.load_case = lambda case, settings: Loaded(case)
warm.warm = lambda loaded, settings, **options: (list(loaded), {})
race.run_case = run_case
gpu.main(["--suite", "decode", "--json", sys.argv[1]])
"""


@pytest.mark.slow
def test_what_was_measured_survives_a_kill(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    names = [case.name for case in of_suite("decode")]
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(out), names[3]], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "hangs\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert list(json.loads(out.read_text())["cases"]) == names[:3]
    assert [place.name for place in tmp_path.iterdir()] == ["out.json"]
