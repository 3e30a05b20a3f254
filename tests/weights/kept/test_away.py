"""Weights that calls no longer read: they go to a file, and whoever reads them gets what they hold."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from superopt.ir import parse_graph
from superopt.weights import away
from superopt.weights.away import Behind, bytes_away, put_away
from superopt.weights.division import Divided, divided
from superopt.weights.kept import Kept, bytes_kept
from superopt.weights.sources import Sources
from superopt.weights.stored import digest

from ..folding import FOLDED


def fresh(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(64, 48).to(dtype), requires_grad=dtype.is_floating_point)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
@pytest.mark.parametrize("turned", [False, True])
def test_the_numbers_stay_what_they_are(dtype: torch.dtype, turned: bool) -> None:
    one = fresh(dtype)
    if turned:
        one.data = one.data.t().contiguous().t()
    kept, before = one.clone(), (one.stride(), one.data_ptr(), one._version)
    assert put_away(one) is not None
    assert (one.stride(), one._version) == (before[0], before[2])
    assert one.data_ptr() != before[1]
    assert torch.equal(one, kept)
    one.mul_(2)
    one[3, 5] = 7
    assert torch.equal(one, (kept * 2).index_put((torch.tensor(3), torch.tensor(5)), kept.new_tensor(7)))


SHARED: dict[str, Callable[[Tensor], object]] = {
    "a view": lambda one: one[3],
    "an alias": lambda one: one.detach(),
    "another parameter": lambda one: nn.Parameter(one.detach()),
    "its data": lambda one: one.data,
    "its memory": lambda one: one.untyped_storage(),
    "numpy by DLPack": lambda one: np.from_dlpack(one.detach()),
}


@pytest.mark.parametrize("share", SHARED.values(), ids=list(SHARED))
def test_what_others_use_as_well_stays(share: Callable[[Tensor], object]) -> None:
    one = fresh()
    other, place = share(one), one.data_ptr()
    assert put_away(one) is None
    assert one.data_ptr() == place
    del other
    gc.collect()
    assert put_away(one) is not None


LENT: dict[str, Callable[[Tensor], object]] = {
    "numpy": lambda one: one.numpy(),
    "numpy for a while": lambda one: one.numpy().sum(),
    "numpy, of an alias": lambda one: one.detach().numpy(),
    "numpy, of a part": lambda one: np.asarray(one[2:]),
    "numpy by DLPack": np.from_dlpack,
    "another tensor by DLPack": torch.from_dlpack,
    "other processes": lambda one: one.share_memory_(),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("lend", LENT.values(), ids=list(LENT))
def test_what_others_may_use_stays(lend: Callable[[Tensor], object]) -> None:
    """Before: arrays whose base is the weight itself read memory that was given back."""
    one = torch.randn(64, 48)
    other = lend(one)
    place = one.data_ptr()
    assert put_away(one) is None
    assert one.data_ptr() == place
    del other


def mapped(path: Path) -> Tensor:
    path.write_bytes(bytes(4 * 64 * 48))
    return torch.from_file(str(path), size=64 * 48)


GIVEN: dict[str, Callable[[Path], Tensor]] = {
    "numpy": lambda path: torch.from_numpy(np.ones((64, 48))),
    "numpy by DLPack": lambda path: torch.from_dlpack(np.ones((64, 48))),
    "a buffer": lambda path: torch.frombuffer(bytearray(64 * 48), dtype=torch.uint8),
    "a file": mapped,
}


@pytest.mark.parametrize("give", GIVEN.values(), ids=list(GIVEN))
def test_memory_that_pytorch_did_not_allocate_stays(give: Callable[[Path], Tensor], tmp_path: Path) -> None:
    one = give(tmp_path / "numbers")
    place = one.data_ptr()
    assert put_away(one) is None
    assert one.data_ptr() == place


def test_what_is_only_looked_at_goes() -> None:
    one = fresh()
    sources = Sources([one])
    digest(one)
    assert put_away(one) is None  # the sources have an alias
    del sources
    assert put_away(one) is not None


@pytest.mark.parametrize("part", [torch.randn(8, 8)[2:], torch.randn(8, 8)[:, 1:], torch.empty(0)])
def test_parts_of_other_tensors_stay(part: Tensor) -> None:
    assert put_away(part) is None


def test_without_a_folder_weights_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "file" / "none"))
    one = fresh()
    place = one.data_ptr()
    assert put_away(one) is None
    assert one.data_ptr() == place


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "new"))
    one = fresh()
    assert put_away(one) is not None
    assert list((tmp_path / "new").iterdir()) == []


def parts(text: str = FOLDED) -> Divided:
    return divided(parse_graph(text), (3,))


def test_only_large_weights_that_no_call_reads_go() -> None:
    assert [port.name for port in parts().unread] == ["w"]
    assert parts().unread_bytes == 4 * 512 * 256
    small = FOLDED.replace("k=512", "k=64")
    assert parts(small).unread == ()
    read = FOLDED.replace("out y", "t5 = contract[k](x, w)\nt6 = add(t4, t5)\nout y").replace(
        "= t4", "= t6", 1
    )
    read = read.replace("t4 = t6", "t4 =").replace("out y: f32[m, n] = t4", "out y: f32[m, n] = t6")
    assert parts(read).unread == ()


@torch.no_grad()
def test_weights_go_after_some_calls_and_changes_are_seen() -> None:
    gc.collect()
    kept, before, away = Kept(parts().once, ["w"]), bytes_kept(), bytes_away()
    g, w = nn.Parameter(torch.rand(512)), nn.Parameter(torch.randn(256, 512))
    place = w.data_ptr()
    for _ in range(20):
        kept.of([g, w])
    assert w.data_ptr() == place  # as long as kernels are tried, weights stay

    kept.give_up_with(lambda why: None)
    for turn in range(1, 20):  # the calls of a race do not count
        [made] = kept.of([g, w]) or ()
        assert (w.data_ptr() == place) is (turn < 8)
        torch.testing.assert_close(made, g * w)
    assert (bytes_kept() - before, bytes_away() - away) == (w.nbytes, w.nbytes)
    changes: list[Callable[[], object]] = [
        lambda: w.mul_(3),
        lambda: w.data.mul_(3),
        lambda: setattr(w, "data", torch.randn(256, 512)),
        lambda: g.add_(1),
        lambda: w.data[2, 3].fill_(50),
    ]
    for change in changes:
        change()
        for _ in range(9):
            [made] = kept.of([g, w]) or ()
            torch.testing.assert_close(made, g * w)
    del kept
    gc.collect()
    assert bytes_kept() == before


SCRIPT = """
import json, sys, torch
from torch import nn
from superopt.ir import parse_graph
from superopt.weights.division import divided
from superopt.weights.kept import Kept

def held():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Anonymous:", "SwapPss:")))

torch.set_grad_enabled(False)
text = sys.argv[1].replace("k=512 n=256", "k=4096 n=4096")
kept = Kept(divided(parse_graph(text), (3,)).once, ["w"])
kept.give_up_with(lambda why: None)
start = held()
g, w = nn.Parameter(torch.rand(4096)), nn.Parameter(torch.randn(4096, 4096))
before = held() - start
for _ in range(20):
    kept.of([g, w])
print(json.dumps([before, held() - start]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux to tell")
def test_frozen_memory_is_that_of_the_original() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, FOLDED], capture_output=True, text=True, check=True, timeout=120
    )
    before, after = json.loads(done.stdout.splitlines()[-1])
    assert before >= 4 * 4096 * 4096
    assert after <= 1.05 * before


def test_what_is_written_to_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    one = fresh()
    place, twice = one.data_ptr(), (one * 2).detach()
    move = away._moved

    def moved(tensor: Tensor) -> tuple[Tensor, Tensor]:
        found = move(tensor)
        with torch.no_grad():
            one.mul_(2)
        return found

    monkeypatch.setattr(away, "_moved", moved)
    assert put_away(one) is None
    assert one.data_ptr() == place
    assert torch.equal(one, twice)


def end_late(weight: Tensor, behind: Behind, number: float) -> None:
    """End a write that another thread began before a weight was put away."""
    torch.empty(0).set_(behind.memory).fill_(number)
    torch._C._autograd._unsafe_set_version_counter((weight,), (weight._version + 1,))


@torch.no_grad()
@pytest.mark.parametrize("ends", ["at once", "later", "before another"])
def test_writes_that_began_before_are_not_lost(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(tensor: Tensor) -> Behind | None:
        behind = put_away(tensor)
        if behind and ends == "at once":
            end_late(tensor, behind, 5)
        return behind

    monkeypatch.setattr("superopt.weights.kept.put_away", put)
    kept = Kept(parts().once, ["w"])
    kept.give_up_with(lambda why: None)
    g, w = nn.Parameter(torch.rand(512)), nn.Parameter(torch.randn(256, 512))
    place, told = w.data_ptr(), 5.0
    for _ in range(9):
        kept.of([g, w])
    assert w.data_ptr() != place
    if ends != "at once":
        end_late(w, kept.made[0].behind[0], 5)
    if ends == "before another":
        w.fill_(6)
        told = 6.0
    for _ in range(10):
        [made] = kept.of([g, w]) or ()
        assert torch.equal(w, torch.full_like(w, told))
        torch.testing.assert_close(made, g * told * torch.ones_like(w))
