"""The audit of kernels that no device here can run: what it found last, and that it finds the same now."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from superopt.bench.gpu import main
from superopt.bench.kernels.gpu_cases import CASES, plan_of
from superopt.bench.planned.audit import EXCEPTIONS, FINDINGS, summary
from superopt.bench.plans import FOLDER
from superopt.candidates.codec import READ

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "bench" / "results" / "gpu-audit.json"
GOLDEN = Path(__file__).with_name("golden") / "gpu-audit.txt"

pytest.importorskip("triton")


def test_the_summary_of_the_last_audit(update_golden):
    found = summary(json.loads(RESULT.read_text())["cases"])
    if update_golden:
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def findings_of(first: int) -> set[tuple[str, str]]:
    """Return the cases, and what is wrong with any kernel of so many first candidates of each region."""
    cases = json.loads(RESULT.read_text())["cases"]
    return {
        (name, word)
        for name, case in cases.items()
        for region in case["regions"]
        for candidate in region[:first]
        for kernel in candidate["kernels"]
        for word in kernel["findings"]
    }


ALLOWED = {
    # The 16 parts of one row are multiplied and added up in registers; it is the slowest of five ways.
    ("matmul-matmul/decode-1", "vectors"),
    # Two warps multiply tiles of 64 x 64 in parts of the sum; wgmma needs four. It is the second of five.
    ("lora/decode-1", "old"),
}


def test_no_kernel_of_a_half_precision_program_multiplies_wider_numbers_or_without_matrix_instructions():
    never = {"wide", "library", "vectors", "old", "synchronous", "fails"}
    assert {one for one in findings_of(5) if one[1] in never} <= ALLOWED


def test_the_best_candidates_are_without_fault():
    cases = json.loads(RESULT.read_text())["cases"].items()
    found = {(name, word) for name, case in cases for one in case["regions"] for word in unexcused(one[0])}
    # The values' projection scales its weights in the loop, and has room for two stages beside them.
    assert found <= {("llama-layer/prefill-2048", "waits")}
    assert {word for _, word in findings_of(5)} <= set(FINDINGS)


def test_every_case_has_a_plan_that_this_version_reads():
    for case in CASES:
        assert json.loads(plan_of(case, FOLDER, "f16").read_text())["version"] in READ, case


def unexcused(candidate: dict[str, Any]) -> set[str]:
    """Return what is wrong with the kernels of a candidate, and has no reason."""
    return {
        word
        for one in candidate["kernels"]
        for word in one["findings"]
        if word not in one.get("exceptions", {})
    }


def test_a_kernel_is_excepted_only_for_its_arithmetic_or_as_an_alternative():
    counted: Counter[str] = Counter()
    cases = json.loads(RESULT.read_text())["cases"].values()
    for first, candidate in ((one[0], two) for case in cases for one in case["regions"] for two in one):
        us, least = (sum(one["predicted_us"] for one in some["kernels"]) for some in (candidate, first))
        for kernel in candidate["kernels"]:
            reasons = kernel.get("exceptions", {})
            assert set(reasons) <= {"instructions", "waits", "spills"} & set(kernel["findings"])
            counted.update(reasons.values())
            for word, reason in reasons.items():
                if reason == "arithmetic":
                    assert kernel["instructions_per_kib"] - kernel["arithmetic_per_kib"] <= 60.0
                else:
                    assert us > least
                    assert word not in unexcused(first)
    assert set(counted) == set(EXCEPTIONS)


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
    first["cases"][case]["kernels"] = "of another plan"
    out.write_text(json.dumps(first))
    main([*arguments, "--resume"])
    assert "compiling" in capsys.readouterr().err
    assert json.loads(out.read_text())["cases"][case]["kernels"] != "of another plan"


@pytest.mark.parametrize(
    "name", ["gated-mlp/prefill-2048", pytest.param("mla/decode-8", marks=pytest.mark.slow)]
)
def test_kernels_are_as_they_were(name, tmp_path):
    workload, case = name.split("/")
    out = tmp_path / "audit.json"
    code = main(["--audit", "--best", "1", "--workloads", workload, "--case", case, "--json", str(out)])
    document = json.loads(out.read_text())
    [[now]] = document["cases"][name]["regions"]
    before = json.loads(RESULT.read_text())["cases"][name]["regions"][0][0]
    assert [one["findings"] for one in now["kernels"]] == [one["findings"] for one in before["kernels"]]
    assert [one.get("matrix") for one in now["kernels"]] == [one.get("matrix") for one in before["kernels"]]
    assert code == int(any(one["findings"] for one in now["kernels"]))
