"""This computer as a device: measured once, kept where it can be, and never in the way."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from superopt.cost import Device, device_of, estimate, host_device
from superopt.cost import host as module
from superopt.cost.host import FILE_NAME
from superopt.errors import InputError
from superopt.ir import parse_mugraph

RATES = module._Rates(20.0, 50.0, 1e11, 2e11)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder that is not made yet; nothing known from before."""
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "cache"))
    module._host_device.cache_clear()
    yield tmp_path / "cache"
    module._host_device.cache_clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread counts that were measured so far; the rates are given."""
    counts: list[int] = []

    def measure(threads: int, cache_bytes: int) -> module._Rates:
        counts.append(threads)
        return RATES

    monkeypatch.setattr(module, "_measure", measure)
    return counts


def forget() -> None:
    """Do as another process would."""
    module._host_device.cache_clear()


def test_measured_rates_are_plausible(folder: Path) -> None:
    import torch

    before = torch.get_num_threads()
    device = host_device()
    assert torch.get_num_threads() == before
    assert device.kind == "cpu"
    assert 1 <= device.cores <= (os.cpu_count() or 1)
    assert 0.05 < device.memory_gbs < 5000
    assert device.memory_gbs <= device.l2_gbs
    assert 1e8 < device.vector_flops < 1e15
    assert 1e6 < device.exp_per_s < device.vector_flops
    assert device.shared_bytes >= 4 << 10
    assert (folder / FILE_NAME).exists()
    mugraph = parse_mugraph(
        "graph g\naxes m=64\nin x: f32[m]\nkernel grid[m]\n  t0 = exp(x)\nout o: f32[m] = t0\n"
    )
    assert 0 < estimate(mugraph, device).us < device.launch_us  # no thread but one has work


def test_measured_once(folder: Path, measured: list[int]) -> None:
    first = host_device()
    assert host_device() is first
    forget()
    assert host_device() == first == device_of("cpu")
    assert len(measured) == 1
    kept = json.loads((folder / FILE_NAME).read_text())
    assert kept["version"] == 2
    assert [sorted(rates) for rates in kept["hosts"].values()] == [
        ["bf16_flops", "l2_gbs", "memory_gbs", "vector_flops"]
    ]


@pytest.mark.parametrize(("measured_flops", "expected"), [(2e11, 2e11), (1e10, 1e11)])
def test_products_of_bf16_have_their_own_rate_but_are_never_slower_than_in_fp32(
    folder: Path, monkeypatch: pytest.MonkeyPatch, measured_flops: float, expected: float
) -> None:
    monkeypatch.setattr(module, "_measure", lambda *given: module._Rates(20.0, 50.0, 1e11, measured_flops))
    flops = host_device().matrix_flops
    assert flops["bf16"] == expected
    assert flops["f16"] == flops["tf32"] == 1e11


def test_bf16_is_not_timed_where_no_instruction_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a product took a second, longer than all else."""
    monkeypatch.setattr(module, "_multiplies_bf16", lambda: False)
    rates = module._measure(1, 1 << 20)
    assert rates.bf16_flops == rates.vector_flops


def test_thread_counts_are_kept_side_by_side(
    folder: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 4)
    assert [host_device(threads).cores for threads in (1, 2, None, 64)] == [1, 2, 4, 4]
    forget()
    assert [host_device(threads).cores for threads in (2, 1, 4)] == [2, 1, 4]
    assert measured == [1, 2, 4]
    assert len(json.loads((folder / FILE_NAME).read_text())["hosts"]) == 3


def test_renewed_rates_are_the_better_ones(
    folder: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    host_device()
    monkeypatch.setattr(module, "_measure", lambda *given: module._Rates(30.0, 40.0, 5e10, 1e11))
    renewed = host_device(renew=True)
    assert (renewed.memory_gbs, renewed.l2_gbs, renewed.vector_flops) == (30.0, 50.0, 1e11)
    forget()
    assert host_device() == renewed


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": 2}', '{"version": 2, "hosts": []}', '{"version": 1, "hosts": {}}', "\x00",
     "[" * 100_000],
)  # fmt: skip
def test_damaged_files_are_replaced(folder: Path, measured: list[int], text: str) -> None:
    folder.mkdir()
    (folder / FILE_NAME).write_text(text)
    device = host_device()
    forget()
    assert host_device() == device
    assert len(measured) == 1


@pytest.mark.parametrize("value", [0, -1.0, "fast", None, float("nan"), float("inf"), [1]])
def test_numbers_that_cannot_be_are_measured_again(folder: Path, measured: list[int], value: object) -> None:
    host_device()
    path = folder / FILE_NAME
    kept = json.loads(path.read_text())
    for rates in kept["hosts"].values():
        rates["memory_gbs"] = value
    path.write_text(json.dumps(kept))
    forget()
    assert host_device().memory_gbs == RATES.memory_gbs
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written_is_no_fault(folder: Path, measured: list[int]) -> None:
    folder.write_text("a file where the folder should be")
    device = host_device()
    forget()
    assert host_device() == device
    assert len(measured) == 2
    assert folder.read_text() == "a file where the folder should be"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_read_only_folder_is_no_fault(
    folder: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    folder.chmod(0o500)

    def refuse(*given: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    if os.geteuid() == 0:  # whom permissions do not bind
        monkeypatch.setattr(module, "replace_text", refuse)
    assert isinstance(host_device(), Device)
    assert list(folder.iterdir()) == []


def test_a_user_without_a_home_is_no_fault(measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise OSError("no home")

    monkeypatch.setattr(module, "cache_folder", nowhere)
    forget()
    assert isinstance(host_device(), Device)
    forget()


def test_a_failed_replacement_leaves_nothing_behind(
    folder: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Path, "replace", fail)
    host_device()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("threads", [0, -2])
def test_thread_counts_below_one(threads: int) -> None:
    with pytest.raises(InputError, match=f"threads is {threads}"):
        host_device(threads)


def test_the_package_needs_no_torch() -> None:
    code = (
        "import sys, superopt.cost as cost\n"
        "cost.device_of('h200')\n"
        "assert not {'torch', 'triton', 'z3', 'egglog'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
