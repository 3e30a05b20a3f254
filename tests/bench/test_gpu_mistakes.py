"""Mistakes of who calls the GPU benchmark: each is one line, told at once."""

import json
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from superopt.bench import gpu
from superopt.bench.kernels.cases import Case
from superopt.bench.kernels.gpu_cases import CASES, plan_of
from superopt.bench.planned.loaded import Settings, check_device
from superopt.bench.plans import FOLDER, make_plan, write_plan
from superopt.errors import InputError


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("gpu", ["--json", "OUT/none/x.json"], "there is no folder"),
        ("gpu", ["--json", "OUT"], "is a folder; name a file in it"),
        ("gpu", [], "give --json OUT"),
        ("gpu", ["--json", "OUT/x.json", "--case", "decode-7"], "no case is of these names"),
        ("gpu", ["--json", "OUT/x.json", "--workloads", "mla,gqq"], "--workloads has no 'gqq'"),
        ("gpu", ["--json", "OUT/x.json", "--peers", "jax"], "--peers has no 'jax'"),
        ("gpu", ["--json", "OUT/x.json", "--minutes", "soon"], "'soon' is not a number from 0 up"),
        ("gpu", ["--dtype", "f17"], "--dtype has no 'f17'"),
        ("gpu", ["--kernel", "rmsnorm-linaer", "--profile"], "--kernel has no 'rmsnorm-linaer'"),
        ("gpu", ["--resume"], "give --json OUT"),
        ("plans", ["--device", "cuda:x"], "device 'cuda:x' is not known; valid are"),
        ("plans", ["--workloads", "nothing"], "--workloads has no 'nothing'"),
        ("plans", ["--case", "decode-7"], "no case is of these names"),
        ("plans", ["--out", "OUT/file/plans"], "cannot be made: Not a directory"),
        ("cpu", ["--json", "OUT/none/x.json"], "there is no folder"),
        ("cpu", ["--peers", "jax"], "--peers has no 'jax'"),
        ("cpu", ["--threads", "two"], "--threads is 'two'"),
        ("cpu", ["--seconds", "0"], "'0' is not above 0"),
        ("cpu", ["--resume"], "--resume goes on after what --json has"),
        ("models.command", ["--json", "OUT/none/x.json"], "there is no folder"),
        ("models.command", ["--cases", "gpt9"], "no model is named 'gpt9'"),
        ("models.command", ["--cases", "bert:decode"], "the models that decode are"),
        ("models.command", ["--width", "100"], "it is a multiple of 64"),
        ("models.command", ["--layers", "0"], "'0' is not a whole number of at least 1"),
        ("models.command", ["--nothing"], "unrecognized arguments"),
    ],
)
def test_a_mistake_is_one_line_and_told_at_once(
    module: str, arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if module.startswith("models"):
        pytest.importorskip("transformers")
    (tmp_path / "file").write_text("")
    run_main = import_module(f"superopt.bench.{module}").main
    before = time.monotonic()
    with pytest.raises(SystemExit) as end:
        run_main([one.replace("OUT", str(tmp_path)) for one in arguments])
    assert time.monotonic() - before < 20
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
    assert [place.name for place in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "arguments", [["--json", "OUT/x.json"], ["--kernel", "rmsnorm-linear", "--case", "decode-8", "--profile"]]
)
def test_a_device_that_is_not_here_is_told_at_once(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        gpu.main([one.replace("OUT", str(tmp_path)) for one in arguments])
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "are for cuda:90; no CUDA device is here" in errors
    assert not list(tmp_path.iterdir())


def test_another_device_needs_other_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    settings = Settings(FOLDER)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    if find_spec("triton") is None:
        pytest.skip("needs Triton")
    with pytest.raises(InputError, match=r"are for cuda:90; NVIDIA A100 is cuda:80: make plans .* cuda:80"):
        check_device(CASES, settings)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    check_device(CASES, settings)


def test_a_plan_that_is_no_plan_is_told(tmp_path: Path) -> None:
    plan_of(CASES[0], tmp_path, "f16").write_text("[]")
    with pytest.raises(InputError, match="it is damaged"):
        check_device(CASES, Settings(tmp_path))


# -- the whole, on the CPU


@pytest.mark.slow
def test_a_plan_is_made_without_a_gpu(tmp_path: Path) -> None:
    case = Case("rmsnorm", "decode", "decode-8", {"M": 8, "K": 128})
    data = make_plan(case, "f16", "cuda:90")
    write_plan(data, tmp_path / "plan.json")
    made = json.loads((tmp_path / "plan.json").read_text())
    assert made["winner"] is None
    assert made["regions"][0]["candidates"][0]["mugraph"]
