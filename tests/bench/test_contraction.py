"""The benchmark of contractions alone: what its records say, and which cases it knows."""

import platform

import pytest

from superopt.bench.contraction import CASES, main, measure


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="a flag of x86 leaves out bf16")
@pytest.mark.parametrize("across", [False, True])
def test_a_record_has_all_contenders(across: bool) -> None:
    record = measure(3, 64, across=across, threads=1, seconds=0.01)
    assert set(record["measured"]) == set(record["gflops"]) == {"superopt", "superopt in fp32", "eager"}
    assert all(rate > 0 for rate in record["gflops"].values())


def test_an_unknown_case_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--case", "2048-m9"])
    assert "2048-m9" in capsys.readouterr().err
    assert {"2048-m8", "2048-m8-across"} <= set(CASES)
