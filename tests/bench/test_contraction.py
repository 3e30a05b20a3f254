"""The benchmark of contractions alone: what its records say, and which cases it knows."""

import platform

import pytest

from superopt.bench.contraction import CASES, Sizes, main, measure
from superopt.errors import InputError


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="a flag of x86 leaves out bf16")
@pytest.mark.parametrize("across", [False, True])
def test_a_record_has_all_contenders(across: bool) -> None:
    record = measure(Sizes(3, 64, 64, across), threads=1, seconds=0.01)
    assert set(record["measured"]) == set(record["gflops"]) == {"superopt", "superopt in fp32", "eager"}
    assert all(rate > 0 for rate in record["gflops"].values())


@pytest.mark.slow
def test_a_record_in_fp32_has_two_contenders() -> None:
    record = measure(Sizes(3, 64, 48, False), dtype="f32", threads=1, seconds=0.01)
    assert set(record["measured"]) == {"superopt", "eager"}


def test_a_case_says_its_sizes() -> None:
    assert Sizes.of("2048-m8") == Sizes(8, 2048, 2048, False)
    assert Sizes.of("1024x2816-m64-across") == Sizes(64, 1024, 2816, True)
    assert all(Sizes.of(one) for one in CASES)
    for text in ("2048", "2048-m0", "x2048-m8", "2048-m8-along"):
        with pytest.raises(InputError, match="no case"):
            Sizes.of(text)


def test_an_unknown_case_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--case", "2048-k9"])
    assert "2048-k9" in capsys.readouterr().err
    assert {"2048-m8", "2048-m8-across"} <= set(CASES)
