"""Results that keep what is made of weights: as plans, in files, and read again."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import superopt
from superopt import OptimizeOptions, SearchOptions
from superopt.cli import main
from superopt.errors import InputError
from superopt.export import export_module
from superopt.export.prepared import prepared_tensors
from superopt.result.codec import read_result
from superopt.weights.safetensors import read_tensors, tensors_as_bytes


class Score(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(64, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x).sum(-1)


def planned(
    module: nn.Module, weights: str = "default", x: Tensor | None = None, graphs: int = 2
) -> superopt.Optimized:
    options = OptimizeOptions(
        target="cpu",
        measure=False,
        cache=False,
        graphs=graphs,
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


def run_alone(place: Path, code: str) -> str:
    """Run code beside an exported module, where superopt cannot be imported."""
    lines = [
        "import sys",
        "sys.modules['superopt'] = None",
        "import torch",
        f"sys.path.insert(0, {str(place)!r})",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, "import kernel", code])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_is_made_once_is_exported_with_its_tensors(module: Score, file: Path, tmp_path: Path) -> None:
    weights, out = tmp_path / "weights.safetensors", tmp_path / "kernel.py"
    weights.write_bytes(tensors_as_bytes(module.state_dict()))
    assert main(["export", str(file), "-o", str(out), "--weights", str(weights)]) == 0
    x = torch.randn(8, 64)
    torch.save([x, module(x).detach()], tmp_path / "x.pt")
    code = (
        f"x, wanted = torch.load({str(tmp_path / 'x.pt')!r})",
        f"prepared = kernel.load_prepared({str(out.with_suffix('.safetensors'))!r})",
        "torch.testing.assert_close(kernel.Score(x, *prepared), wanted, rtol=1e-4, atol=1e-4)",
        "assert kernel.check() < 1",
    )
    run_alone(tmp_path, "\n".join(code))


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, outer, bias=outer == 32) for outer in (48, 32, 16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(x).view(-1, 3, 16).transpose(0, 1), self.k(x), self.v(x).relu()


@pytest.mark.usefixtures("every_schedule")
@pytest.mark.slow
def test_weights_side_by_side_are_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, place, x = Three().eval(), tmp_path / "three.json", torch.randn(256, 64)
    data = planned(module, x=x, graphs=16).to_json()
    place.write_text(json.dumps(data | {"winner": "superopt"}))
    result = read_result(place)
    [region] = result.regions
    one = next(one for one in region.candidates if "joined" in one.graph.sizes)
    (tmp_path / "kernel.py").write_text(export_module(result, candidate=one.id))
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(tensors_as_bytes(module.state_dict()))
    made = prepared_tensors(result, weights, candidate=one.id)
    (tmp_path / "made.safetensors").write_bytes(made)
    names = [port.name for port in one.run.inputs]
    [whole] = (output.port.name for output in one.parts.once.outputs)
    torch.save([x, [one.detach() for one in module(x)]], tmp_path / "x.pt")
    code = f"""
import inspect
x, wanted = torch.load({str(tmp_path / "x.pt")!r})
whole = kernel.load_prepared({str(tmp_path / "made.safetensors")!r})
known = {{"x": x, "k_bias": torch.tensor({module.k.bias.tolist()}), "{whole}": whole}}
found = kernel.Three(*[known[name] for name in {names}])
for one, other in zip(found, wanted):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
assert kernel.check() < 1
"""
    run_alone(tmp_path, code)


def test_weights_of_another_module_are_refused(module: Score, file: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    for tensors, message in (
        ({"l.weight": module.l.weight}, "has no weight 'l_bias'; it has l_weight"),
        ({"l.weight": module.l.weight.half(), "l.bias": module.l.bias}, r"'l_weight' is f16\[48, 64\]"),
        ({"l.weight": module.l.weight[:, 1:], "l.bias": module.l.bias}, r"'l_weight' is f32\[48, 63\]"),
        (
            {"l_weight": module.l.weight + 1, **module.state_dict()},
            "has 'l_weight' and 'l.weight'; 'l_weight' may be either of them",
        ),
    ):
        weights.write_bytes(tensors_as_bytes(tensors))
        with pytest.raises(InputError, match=message):
            prepared_tensors(read_result(file), weights)
    for broken in (b"", b"12345678", weights.read_bytes()[:-1], weights.read_bytes()[8:]):
        weights.write_bytes(broken)
        with pytest.raises(InputError, match="is not a safetensors file, or was cut short"):
            prepared_tensors(read_result(file), weights)
    with pytest.raises(InputError, match="cannot read"):
        prepared_tensors(read_result(file), tmp_path / "none")
    region = read_result(file).regions[0]
    live = next(one for one in region.candidates if not one.once)
    with pytest.raises(InputError, match="reads nothing that is made of weights once"):
        prepared_tensors(read_result(file), weights, candidate=live.id)


def test_names_that_meet_and_are_not_read_do_no_harm(module: Score, file: Path, tmp_path: Path) -> None:
    weights, others = tmp_path / "weights.safetensors", {"a.b": torch.ones(2), "a_b": torch.ones(3)}
    found = []
    for tensors in (module.state_dict(), {**others, **module.state_dict()}):
        weights.write_bytes(tensors_as_bytes(tensors))
        found.append(prepared_tensors(read_result(file), weights))
    assert found[0] == found[1]


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(-1)


def test_weights_whose_names_begin_with_a_digit_are_found(tmp_path: Path) -> None:
    """Before: a weight of `nn.Sequential` was looked for by a name that no file has."""
    module, weights = nn.Sequential(nn.Linear(64, 48), Sum()).eval(), tmp_path / "weights.safetensors"
    weights.write_bytes(tensors_as_bytes(module.state_dict()))
    (tmp_path / "made.safetensors").write_bytes(prepared_tensors(planned(module).result, weights))
    found = read_tensors(tmp_path / "made.safetensors").values()
    summed = module[0].weight.detach().sum(0)
    assert any(one.shape == summed.shape and torch.allclose(one, summed, atol=1e-5) for one in found)


def test_a_module_that_reads_the_weights_is_exported_as_before(file: Path) -> None:
    [region] = read_result(file).regions
    live = next(one for one in region.candidates if not one.once)
    assert "prepare" not in export_module(read_result(file), candidate=live.id)


def test_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    tensors = {
        "a.b": torch.randn(3, 5),
        "half": torch.randn(7).bfloat16(),
        "turned": torch.randn(4, 6).t(),
        "few": torch.tensor(3, dtype=torch.int8),
        "none": torch.empty(0, 3),
        "truth": torch.tensor([True, False]),
    }
    place = tmp_path / "some.safetensors"
    place.write_bytes(tensors_as_bytes(tensors))
    found = read_tensors(place)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_the_format_is_that_of_others(tmp_path: Path) -> None:
    """A length of eight bytes, a header that may have spaces behind it, and the numbers."""
    header = b'{"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  '
    place = tmp_path / "theirs.safetensors"
    place.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.5, -2))
    assert read_tensors(place)["x"].tolist() == [1.5, -2]
    ours = tensors_as_bytes({"x": torch.tensor([1.5, -2])})
    [length] = struct.unpack("<Q", ours[:8])
    assert length % 8 == 0
    assert json.loads(ours[8 : 8 + length]) == {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    assert ours[8 + length :] == struct.pack("<2f", 1.5, -2)


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
