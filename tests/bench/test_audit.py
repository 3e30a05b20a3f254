"""The audit of kernels that no device here can run: what it found last, and that it finds the same now."""

import json
from pathlib import Path
from typing import Any

import pytest

from superopt.bench.gpu import main
from superopt.bench.kernels.gpu_cases import CASES, case_named, plan_of
from superopt.bench.planned.audit import EXCEPTIONS, FINDINGS, summary
from superopt.bench.planned.loaded import Settings, load_case
from superopt.bench.plans import FOLDER
from superopt.bench.plans import main as mend
from superopt.candidates.codec import READ

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "audit"
GOLDEN = Path(__file__).with_name("golden")
AUDITS = ("f16-sm90", "bf16-sm90", "f16-sm80")

pytest.importorskip("triton")


def cases_of(name: str) -> dict[str, Any]:
    """Return the cases of the last audit of a dtype on a device."""
    return json.loads((RESULTS / f"{name}.json").read_text())["cases"]


def kernels_of(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the kernels of the best candidates, each with the name of its case."""
    return [
        (case, kernel)
        for case, record in cases_of(name).items()
        for region in record["regions"]
        for candidate in region
        for kernel in candidate["kernels"]
    ]


@pytest.mark.parametrize("name", AUDITS)
def test_the_summary_of_the_last_audit(name, update_golden):
    found = summary(cases_of(name))
    golden = GOLDEN / f"audit-{name}.txt"
    if update_golden:
        golden.write_text(found)
    assert found == golden.read_text()


@pytest.mark.parametrize("name", AUDITS)
def test_no_kernel_has_a_fault_but_for_the_arithmetic_that_the_program_asks_for(name):
    assert set(cases_of(name)) == {case.name for case in CASES}
    for case, kernel in kernels_of(name):
        reasons = kernel.get("exceptions", {})
        assert set(kernel["findings"]) <= set(FINDINGS)
        assert [word for word in kernel["findings"] if word not in reasons] == [], case
        assert set(reasons) <= {"instructions"}
        assert set(reasons.values()) <= set(EXCEPTIONS)
        if reasons:
            assert kernel["instructions_per_kib"] - kernel["arithmetic_per_kib"] <= 60.0


def test_on_an_h100_products_of_many_rows_are_wgmma_and_no_copy_of_mla_is_waited_for():
    for case, kernel in (one for name in AUDITS[:2] for one in kernels_of(name)):
        if case.startswith("mla") and kernel.get("loop_matrix"):
            assert not kernel["loads"], case
            assert kernel["copies"] or kernel["tensor_copies"], case
        if "prefill" in case and kernel.get("matrix"):
            tiles = kernel["tiles"].values()
            few = sum(tile >= 64 for tile in tiles) < 2  # a side that wgmma has no shape for
            assert few or all(one.startswith("wgmma") for one in kernel["matrix"]), (case, kernel["matrix"])
            assert kernel["tensor_copies"] or kernel["stages"] >= 3, case


@pytest.mark.parametrize("name", AUDITS)
def test_kernels_of_few_rows_ask_for_enough_memory_ahead(name):
    """A multiprocessor needs some 40 KB on the way to be kept busy by the memory."""
    for case, record in cases_of(name).items():
        best = [one for region in record["regions"] for one in region[0]["kernels"] if "in_flight_kib" in one]
        if "decode" in case and best:
            assert max(one["in_flight_kib"] for one in best) >= 40, case


def test_every_case_has_a_plan_that_this_version_reads():
    for case in CASES:
        assert json.loads(plan_of(case, FOLDER, "f16").read_text())["version"] in READ, case


@pytest.mark.slow
def test_an_audit_goes_on_after_what_it_has(tmp_path, capsys):
    out = tmp_path / "audit.json"
    arguments = ["--audit", "--best", "1", "--workloads", "rmsnorm", "--case", "decode-8", "--json", str(out)]
    main(arguments)
    first = json.loads(out.read_text())
    assert "compiling" in capsys.readouterr().err
    [case] = first["cases"]
    first["cases"]["another"] = {"regions": []}
    out.write_text(json.dumps(first))
    main([*arguments, "--resume"])
    assert "compiling" not in capsys.readouterr().err
    assert json.loads(out.read_text())["cases"] == first["cases"]
    [[[kernel]]] = [[one["kernels"] for one in region] for region in first["cases"][case]["regions"]]
    mark, kernel["mark"] = kernel["mark"], "of another kernel"
    out.write_text(json.dumps(first))
    main([*arguments, "--resume"])
    assert "compiling" in capsys.readouterr().err
    assert json.loads(out.read_text())["cases"][case]["regions"][0][0]["kernels"][0]["mark"] == mark


@pytest.mark.parametrize(
    "name", ["gated-mlp/prefill-2048", pytest.param("mla/decode-8", marks=pytest.mark.slow)]
)
def test_kernels_are_as_they_were(name, tmp_path):
    workload, case = name.split("/")
    out = tmp_path / "audit.json"
    code = main(["--audit", "--best", "1", "--workloads", workload, "--case", case, "--json", str(out)])
    document = json.loads(out.read_text())
    [[now]] = document["cases"][name]["regions"]
    before = cases_of(AUDITS[0])[name]["regions"][0][0]
    assert [one["findings"] for one in now["kernels"]] == [one["findings"] for one in before["kernels"]]
    assert [one.get("matrix") for one in now["kernels"]] == [one.get("matrix") for one in before["kernels"]]
    assert code == int(any(set(one["findings"]) - set(one.get("exceptions", ())) for one in now["kernels"]))


@pytest.mark.slow
def test_faulty_kernels_get_other_configurations_or_their_candidates_go(tmp_path, capsys):
    plans, out = tmp_path / "plans", tmp_path / "audit.json"
    plans.mkdir()
    case = case_named("rmsnorm", "decode-8")
    place = plan_of(case, plans, "f16")
    data = json.loads(plan_of(case, FOLDER, "f16").read_text())
    [region] = data["regions"]
    sound, second = region["candidates"][:2]
    too_large = {"num_warps": 1, "tiles": [[axis, 4096] for axis, _ in sound["configs"][0]["tiles"]]}
    second["configs"] = [too_large, *second["configs"][1:]]
    region["candidates"] = [sound, second]
    place.write_text(json.dumps(data))
    assert main(["--audit", "--workloads", "rmsnorm", "--case", "decode-8", "--plans", str(plans)]) == 1
    arguments = ["--workloads", "rmsnorm", "--case", "decode-8", "--out", str(plans), "--mend", str(out)]
    assert mend(arguments) == 0
    capsys.readouterr()
    after = json.loads(place.read_text())["regions"][0]["candidates"]
    assert too_large not in [config for one in after for config in one["configs"]]
    assert after[0]["fate"]["kind"] == "chosen"
    assert mend(arguments) == 0
    assert "compiling" not in capsys.readouterr().err
    assert json.loads(place.read_text())["regions"][0]["candidates"] == after


@pytest.mark.slow
def test_another_dtype_and_another_device_share_a_plan(tmp_path, capsys):
    arguments = ["--audit", "--best", "1", "--workloads", "rmsnorm", "--case", "decode-8"]
    assert main([*arguments, "--dtype", "bf16"]) == 0
    assert main([*arguments, "--device", "a100"]) == 0
    assert "for cuda:80" in capsys.readouterr().err
    settings = Settings(FOLDER, "bf16", 2)
    loaded = load_case(case_named("rmsnorm", "decode-8"), settings)
    assert {port.dtype for work in loaded.work for port in work.goal.inputs} == {"bf16"}
