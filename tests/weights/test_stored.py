"""What was made of weights is read from a file by other processes, for the same numbers and no others."""

import gc
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import superopt
from superopt.errors import InputError
from superopt.trace import trace
from superopt.weights import kept, stored
from superopt.weights.division import divided
from superopt.weights.kept import Kept
from superopt.weights.packed import packed
from superopt.weights.safetensors import TensorFile, tensors_as_bytes, write_tensors

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what other tests keep and have read."""
    monkeypatch.setattr(kept, "_all_kept", type(kept._all_kept)())
    monkeypatch.setattr(stored, "_places", {})


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l, self.d = nn.Linear(128, 256), nn.Linear(256, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.l(x).relu())


def program(module: nn.Module) -> tuple[Kept, list[Tensor]]:
    """Return what a program keeps of a module in panels, and its weights."""
    traced = trace(module, torch.randn(4, 128))
    [node] = traced.program.nodes
    made = packed(node.graph, "frozen")
    assert made is not None
    found = Kept(divided(*made).once)
    return found, [traced.constants[name] for name in found.sources]


def module() -> Mlp:
    torch.manual_seed(0)
    return Mlp().eval().requires_grad_(False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Writes what a program keeps, and forgets the program."""
    one, given = program(module())
    one.of(given)
    place = tmp_path / "prepared.safetensors"
    assert superopt.save_prepared(place) == 2
    del one, given
    gc.collect()
    return place


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Counts what is made."""
    found: list[object] = []
    make = kept.made_once

    def noted(*given: object) -> object:
        found.append(given)
        return make(*given)

    monkeypatch.setattr(kept, "made_once", noted)
    return found


def test_the_same_weights_are_read_and_not_made(file: Path, made: list[object]) -> None:
    assert superopt.load_prepared(file) == 2
    one, given = program(module())
    found = one.of(given) or ()
    assert not made
    assert len(found) == 2
    for tensor, maker in zip(found, one._makers, strict=True):
        named = {port.name: given[at] for port, at in zip(maker.graph.inputs, maker.places, strict=True)}
        assert torch.equal(tensor, kept.made_once(maker.graph, named)[0])


def test_what_is_read_is_made_again_once_a_weight_changes(file: Path, made: list[object]) -> None:
    superopt.load_prepared(file)
    one, given = program(module())
    one.of(given)
    given[0].mul_(2)
    found = one.of(given) or ()
    assert len(made) == 1
    other, again = program(module())
    for tensor, wanted, factor in zip(found, other.of(again) or (), (2, 1), strict=True):
        assert torch.equal(tensor, wanted * factor)


@pytest.mark.parametrize("change", [lambda w: w[3].add_(1), lambda w: w.data[0, 0].neg_()])
def test_other_weights_are_not_found(file: Path, made: list[object], change) -> None:
    superopt.load_prepared(file)
    other = module()
    change(other.l.weight)
    one, given = program(other)
    assert one.of(given) is not None
    assert len(made) == 1


def test_without_a_file_everything_is_made(file: Path, made: list[object]) -> None:
    one, given = program(module())
    assert one.of(given) is not None
    assert len(made) == 2


def test_a_damaged_tensor_is_made_again(file: Path, made: list[object], caplog) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    superopt.load_prepared(file)
    one, given = program(module())
    with caplog.at_level(logging.WARNING, "superopt"):
        assert one.of(given) is not None
    assert len(made) == 1
    assert "is damaged" in caplog.text


def test_a_tensor_of_another_shape_is_made_again(file: Path, made: list[object]) -> None:
    known = TensorFile(file)
    tensors = {name: known.tensor(name)[:1].contiguous() for name in known.names}
    write_tensors(file, tensors, {name: stored.digest(one) for name, one in tensors.items()})
    superopt.load_prepared(file)
    one, given = program(module())
    assert one.of(given) is not None
    assert len(made) == 2


def test_other_files_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "model.safetensors"
    place.write_bytes(tensors_as_bytes({"l.weight": torch.randn(3)}))
    with pytest.raises(InputError, match=r"not written by superopt\.save_prepared"):
        superopt.load_prepared(place)
    with pytest.raises(InputError, match="cannot read"):
        superopt.load_prepared(tmp_path / "none")
    with pytest.raises(InputError, match="cannot write"):
        superopt.save_prepared(tmp_path / "none" / "file")


SCRIPT = """
import sys, torch
import superopt
from superopt.weights import kept
from torch import nn

class Score(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(64, 48)
    def forward(self, x):
        return self.l(x).sum(-1)

torch.set_grad_enabled(False)
torch.manual_seed(0)
module, x, place, made = Score().eval(), torch.randn(8, 64), sys.argv[1], []
make = kept.made_once
kept.made_once = lambda *given: made.append(1) or make(*given)
if sys.argv[2] == "load":
    superopt.load_prepared(place)
options = superopt.OptimizeOptions(target="cpu", measure=False, cache=False, graphs=2)
plan = superopt.optimize(module, x, options=options)
data = plan.to_json() | {"winner": "superopt"}
open(place + ".json", "w").write(__import__("json").dumps(data))
best = superopt.load(place + ".json", module)
torch.testing.assert_close(best(x), module(x), rtol=1e-4, atol=1e-4)
if sys.argv[2] == "save":
    superopt.save_prepared(place)
print(len(made))
"""


@pytest.mark.slow
def test_another_process_makes_nothing(tmp_path: Path) -> None:
    place, counts = str(tmp_path / "score.safetensors"), []
    for how in ("save", "load"):
        command = [sys.executable, "-c", SCRIPT, place, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
        counts.append(int(done.stdout.split()[-1]))
    assert counts[0] > 0
    assert counts[1] == 0
