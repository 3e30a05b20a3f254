"""Results that keep what is made of weights: as plans, in files, and read again."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import superopt
from superopt import OptimizeOptions, SearchOptions
from superopt.errors import InputError
from superopt.export import export_module
from superopt.result.codec import read_result


class Score(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(64, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x).sum(-1)


def planned(module: nn.Module, weights: str = "default", x: Tensor | None = None) -> superopt.Optimized:
    options = OptimizeOptions(
        target="cpu",
        measure=False,
        cache=False,
        graphs=2,
        weights=weights,
        search=SearchOptions(max_graphs=4),
    )
    return superopt.optimize(module, torch.randn(8, 64) if x is None else x, options=options)


@pytest.fixture(scope="module")
def module() -> Score:
    torch.manual_seed(0)
    return Score().eval()


@pytest.fixture
def file(module: Score, tmp_path: Path) -> Path:
    """Writes the plan as if it had won."""
    place = tmp_path / "score.json"
    data = planned(module).to_json()
    data["winner"] = "superopt"
    place.write_text(json.dumps(data))
    return place


def test_a_plan_says_what_is_made_once(module: Score) -> None:
    found = planned(module)
    [region] = found.regions
    assert region.chosen is not None
    assert region.chosen.once
    assert (
        "made of weights once: 2 tensors of 260 bytes; a call reads 260 bytes of weights" in found.explain()
    )
    [data] = found.to_json()["regions"]
    assert data["weights"] == {"read_before": 4 * (64 * 48 + 48), "read_after": 260, "kept": 260, "away": 0}


def test_a_plan_with_live_weights_makes_nothing(module: Score) -> None:
    [region] = planned(module, "live").regions
    assert all(one.once == () for one in region.candidates)


def test_some_candidates_do_without(module: Score) -> None:
    [region] = planned(module).regions
    assert {bool(one.once) for one in region.candidates} == {True, False}


@torch.no_grad()
def test_a_file_is_read_and_sees_changes(module: Score, file: Path) -> None:
    best, x = superopt.load(file, module), torch.randn(8, 64)
    for _ in range(2):
        torch.testing.assert_close(best(x), module(x), rtol=1e-4, atol=1e-4)
        module.l.weight.data.mul_(-2)
    module.l.weight.data[5, 6] = 1000
    torch.testing.assert_close(best(x), module(x), rtol=1e-4, atol=1e-4)


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.rand(512))
        self.l = nn.Linear(512, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.g)


@torch.no_grad()
def test_frozen_weights_go_to_a_file_and_changes_are_seen(tmp_path: Path) -> None:
    module, x, place = Gain().eval(), torch.randn(8, 512), tmp_path / "gain.json"
    plan = planned(module, "frozen", x)
    assert "; weights of 512 KiB go to a file" in plan.explain()
    data = plan.to_json()
    assert data["regions"][0]["weights"]["away"] == 4 * 512 * 256
    place.write_text(json.dumps(data | {"winner": "superopt"}))
    best, address = superopt.load(place, module), module.l.weight.data_ptr()
    del plan
    for turn in range(20):
        torch.testing.assert_close(best(x), module(x), rtol=1e-3, atol=1e-3)
        assert turn or module.l.weight.data_ptr() == address
    assert module.l.weight.data_ptr() != address
    for change in (
        lambda: module.l.weight.mul_(-2),
        lambda: module.load_state_dict({name: one + 1 for name, one in module.state_dict().items()}),
        lambda: setattr(module.l, "weight", nn.Parameter(torch.randn(256, 512))),
    ):
        change()
        for _ in range(20):
            torch.testing.assert_close(best(x), module(x), rtol=1e-3, atol=1e-3)


def test_a_module_has_nothing_that_is_made_once(file: Path) -> None:
    result = read_result(file)
    [region] = result.regions
    with pytest.raises(InputError, match="made of weights once"):
        export_module(result)
    live = next(one for one in region.candidates if not one.once)
    assert "def " in export_module(result, candidate=live.id)


def test_a_file_of_version_2_is_read(file: Path) -> None:
    data = json.loads(file.read_text())
    data["version"] = 2
    for region in data["regions"]:
        region["candidates"] = [one for one in region["candidates"] if not one.pop("once")]
        region["chosen"] = None
    file.write_text(json.dumps(data))
    assert all(not one.once for region in read_result(file).regions for one in region.candidates)


@pytest.mark.parametrize("once", [[0], [99], [3, 3], ["3"], [True], 3, [4, 3]])
def test_what_cannot_be_made_once_is_refused(file: Path, once: object) -> None:
    data = json.loads(file.read_text())
    for region in data["regions"]:
        for one in region["candidates"]:
            one["once"] = once
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"made once|no good 'once'"):
        read_result(file)


def test_kernels_of_another_part_are_refused(module: Score, file: Path) -> None:
    data = json.loads(file.read_text())
    for region in data["regions"]:
        for one in region["candidates"]:
            one["graph"] = one["graph"].replace("sum[n](l_weight)", "max[n](l_weight)")
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match="computes something else"):
        superopt.load(file, module)
