"""Graphs: what a folder holds, which of it is drawn, and what becomes of graphs that crash, hang or err."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from superopt.bench.graphs import command
from superopt.bench.graphs.captured import captured
from superopt.bench.graphs.command import main, table
from superopt.bench.graphs.folder import drawn, graphs_of, read_tensors
from superopt.bench.graphs.launch import launched
from superopt.bench.graphs.measure import _judged
from superopt.bench.graphs.request import Request
from superopt.bench.harness.command import check_names
from superopt.errors import InputError

META = """
raise RuntimeError("what is said of tensors must not be run")

class Program_weight_tensor_meta_x:
    name = "x"
    shape = [4, 8]
    dtype = "torch.float32"
    device = "cuda:0"
    mean = float('nan')
    std = 1.5
    data = None

class Program_weight_tensor_meta_variance:
    name = "variance"
    shape = [8]
    dtype = "torch.float32"
    mean = 3000.0
    std = 500.0
    data = None
    min_val = 0

class Program_weight_tensor_meta_steps:
    name = "steps"
    shape = [3]
    dtype = "torch.int64"
    data = [1, 2, 3]

class Program_weight_tensor_meta_s0:
    name = "s0"
    shape = []
    dtype = "torch.int64"
    data = [4]
"""

MODEL = """
import torch

class GraphModule(torch.nn.Module):
    def forward(self, s0: torch.SymInt, x: torch.Tensor, variance: torch.Tensor, steps: torch.Tensor):
        y = x.reshape(s0, 8) / (variance + 1e-5).sqrt()
        return (y @ torch.ones(8, 8, device=torch.device(type="cuda", index=0)).softmax(-1), steps + 1)
"""


def graph(folder: Path, name: str, model: str = MODEL) -> Path:
    place = folder / name
    place.mkdir(parents=True)
    (place / "model.py").write_text(model)
    (place / "weight_meta.py").write_text(META)
    return place


def test_families_are_drawn_in_turn(tmp_path: Path) -> None:
    names = [f"a/{i}" for i in range(9)] + [f"b/{i}/deep" for i in range(2)]
    for name in names:
        graph(tmp_path, name)
    assert graphs_of(tmp_path) == sorted(names)
    order = drawn(names, 3)
    assert sorted(order) == sorted(names)
    assert [name[0] for name in order] == list("ababaaaaaaa")
    assert order == drawn(names, 3)
    assert order != drawn(names, 4)


def test_a_folder_without_graphs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(SystemExit) as ended:
            main([str(folder)])
        assert ended.value.code == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_what_is_tuned_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph(tmp_path, "a/b")
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--tune", "1"])
    assert "give --seconds as well" in capsys.readouterr().err


def test_of_many_graphs_an_error_names_those_that_may_be_meant() -> None:
    many = [f"timm/net_{i}" for i in range(2000)]
    with pytest.raises(InputError, match="timm/net_77, ") as told:
        check_names("--only", ["timm/net77"], many)
    assert "and 1995 more" in str(told.value)
    assert len(str(told.value)) < 200
    with pytest.raises(InputError, match=r"there are a, b$"):
        check_names("--only", ["c"], ["a", "b"])


@pytest.mark.slow
def test_a_graph_is_timed_again_once_its_queue_is_worked_off(tmp_path: Path) -> None:
    graph(tmp_path, "a/b")
    out = tmp_path / "out.json"
    assert (
        main([str(tmp_path), "--seconds", "0.1", "--budget", "1", "--tune", "0.5", "--json", str(out)]) == 0
    )
    [found] = json.loads(out.read_text())["cases"].values()
    assert found["tuned"]["ratio"] > 0
    assert found["control"] > 0
    assert 0 < found["captured_us"] < 1e6
    assert "again" not in found["measured"]
    assert found["tuned"]["taken"] <= found["regions"]


def test_tensors_are_read_as_data_and_made(tmp_path: Path) -> None:
    place = graph(tmp_path, "a/b")
    assert [meta.bytes for meta in read_tensors(place)] == [128, 32, 24, 8]
    module, inputs = captured(place, "cpu", 0)
    s0, x, variance, steps = inputs
    assert s0 == 4
    assert steps.tolist() == [1, 2, 3]
    assert x.shape == (4, 8)
    assert 0.5 <= float(variance.min()) <= float(variance.max()) <= 1.5
    again = captured(place, "cpu", 0)[1]
    assert torch.equal(x, again[1])
    assert not torch.equal(x, captured(place, "cpu", 1)[1][1])
    assert [one.shape for one in module(*inputs)] == [(4, 8), (3,)]


@pytest.mark.parametrize("name", ["variance", "L_self_modules_1_buffers_running_var_"])
def test_variances_are_drawn_positive(tmp_path: Path, name: str) -> None:
    """A variance is known by its least number, or by the name that modules have for it."""
    place = graph(tmp_path, "a/b", MODEL.replace("variance", name))
    least = "min_val = 0.25" if name == "variance" else ""
    (place / "weight_meta.py").write_text(META.replace("variance", name).replace("min_val = 0", least))
    variance = captured(place, "cpu", 0)[1][2]
    assert 0.5 <= float(variance.min()) <= float(variance.max()) <= 1.5


def test_an_input_that_no_file_names_is_told(tmp_path: Path) -> None:
    place = graph(tmp_path, "a/b", MODEL.replace("steps:", "other:"))
    with pytest.raises(InputError, match="no file says what the input other is"):
        captured(place, "cpu", 0)


def test_errors_are_judged_by_eagers_own() -> None:
    exact = torch.randn(8, 8, dtype=torch.float64)
    eager = exact.float()
    assert _judged([exact], [eager], [eager])[:2] == (pytest.approx(0.0, abs=0.1), None)
    ratio, why, _ = _judged([exact], [eager], [eager + 1e-3])
    assert ratio > 1
    assert why is not None
    assert _judged([exact], [eager], [eager.where(eager != eager[0, 0], torch.nan)])[0] > 1
    assert _judged([exact], [eager], [eager.half()])[1] == "other shapes or dtypes"
    ratio, why, _ = _judged([exact], [eager + 0.5], [eager + 0.5])  # eager's own result tells nothing
    assert ratio <= 1
    assert why is not None


def test_the_table_counts_families() -> None:
    def row(name: str, **more: Any) -> dict[str, Any]:
        return {"family": name, "regions": 2, "taken": 1, "faults": [], "result": "right", **more}

    crashed = {"family": "b", "result": "crash", "why": "SIGSEGV"}
    timed = row("a", ratio=1.2, ratios={"eager": 1.5, "inductor": 1.2})
    lines = table([timed, row("a", result="wrong"), crashed, row("b", result="unusable")]).splitlines()
    assert lines[2] == "| a | 2 | 2 | 2 | 2 | 4 | 2 | 1 | 0 | 1 | 0 | 1 | 1.20 | 1.20 |"
    assert lines[3] == "| b | 2 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |  |  |"
    assert len(lines) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "limit", "result", "why"),
    [
        ("pass", 5.0, "right", None),
        ("import os; os.abort()", 5.0, "crash", "SIGABRT"),
        ("import os; os._exit(3)", 5.0, "crash", "exit code 3"),
        ("import time; time.sleep(600)", 0.3, "time", "more than 0.3 minutes"),
        ("raise ValueError('not here')", 5.0, "unusable", "not here"),
        ("torch.empty(1 << 38).fill_(0)", 5.0, "memory", "memory"),
    ],
)
def test_whatever_a_graph_does_is_a_row(
    line: str, limit: float, result: str, why: str | None, tmp_path: Path
) -> None:
    place = graph(tmp_path, "a/b", MODEL.replace("        y =", f"        {line}\n        y ="))
    caches = {name: str(tmp_path / name) for name in ("SUPEROPT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    found = launched(Request(str(place), way="algebra"), limit, caches)
    assert found["result"] == result, found
    assert why is None or why in found["why"]
    if result == "right":
        assert found["regions"] == found["taken"] == 1


def test_resume_tries_again_what_was_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = tmp_path / "graphs", tmp_path / "out.json"
    for name in ("right", "late", "failed"):
        (folder / "family" / name).mkdir(parents=True)
        (folder / "family" / name / "model.py").write_text(MODEL)
        (folder / "family" / name / "weight_meta.py").write_text(META)
    results = {"right": "right", "late": "time", "failed": "failed"}
    tried: list[str] = []

    def launch(request: Request, minutes: float, environment: Any) -> dict[str, Any]:
        tried.append(Path(request.graph).name)
        return {"result": results[tried[-1]], "why": None, "regions": 1, "taken": 1, "faults": []}

    monkeypatch.setattr(command, "launched", launch)
    arguments = [str(folder), "--way", "algebra", "--json", str(out)]
    assert main([*arguments, "--limit", "3"]) == 1
    assert sorted(tried) == ["failed", "late", "right"]
    tried.clear()
    results.update(late="right", failed="right")
    assert main([*arguments, "--limit", "5", "--resume"]) == 0
    assert sorted(tried) == ["failed", "late"]
    tried.clear()
    with pytest.raises(SystemExit):
        main([*arguments, "--seed", "7", "--resume"])
    assert not tried
