"""Models: the peers that are raced, and what a case says of those that are not."""

import argparse
import copy
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from superopt.bench.models import case, command, modules, training
from superopt.bench.models.case import Case, child
from superopt.bench.models.int8 import with_int8_weights, with_whole_weights
from superopt.bench.models.memory import Peaks, peaks_of
from superopt.bench.models.peers import PEERS, peers_of
from superopt.errors import InputError
from superopt.funnel import warm_up

A, B, C = 1, 2, 3  # addresses


NOWHERE = str(Path(tempfile.gettempdir()) / "superopt-none")  # where stubs of compilers keep nothing


def options(**changed: Any) -> argparse.Namespace:
    told = {"peers": "", "train": False, "preset": "quick", "budget": None, "child": "timed", "seconds": 0.05}
    sizes = {
        "width": 64,
        "layers": 1,
        "tokens": 8,
        "context": 8,
        "folder": NOWHERE,
        "caches": None,
        "tune": None,
    }
    return argparse.Namespace(**{"weights": "default", **told, **sizes, **changed})


def test_all_peers_or_some_are_asked_for() -> None:
    assert peers_of(options()) == []
    assert peers_of(options(peers="all")) == list(PEERS)
    assert peers_of(options(peers="openvino, freezing")) == ["openvino", "freezing"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"peers": "tvm"}, "--peers has no 'tvm'"), ({"peers": "all", "train": True}, "for inference")],
)
def test_other_peers_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        peers_of(options(**changed))


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all compilers return the model, and two peers work or fail."""

    def broken(model: Any) -> Any:
        raise ImportError("No module named 'broken'")

    def late(model: Any) -> Any:
        def program(**inputs: Any) -> Any:
            raise RuntimeError("no kernel for conv2d")

        return program

    monkeypatch.setattr(torch, "compile", lambda model, **unused: model)
    monkeypatch.setattr(warm_up, "prepare_machine", lambda: None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", NOWHERE)
    peers = {"good": lambda model: model, "broken": broken, "late": late}
    monkeypatch.setattr(case, "PEERS", peers)
    monkeypatch.setattr(case, "peers_of", lambda options: list(peers) if options.peers else [])


@pytest.mark.usefixtures("uncompiled")
def test_a_peer_that_fails_is_left_out_with_its_reason() -> None:
    record = child(Case("resnet"), options(peers="all"))
    assert list(record["measured"]) == ["eager", "inductor", "good", "superopt"]
    assert record["absent"] == {
        "broken": "ImportError: No module named 'broken'",
        "late": "RuntimeError: no kernel for conv2d",
    }


@pytest.mark.usefixtures("uncompiled")
def test_without_peers_none_is_absent() -> None:
    record = child(Case("resnet"), options())
    assert list(record["measured"]) == ["eager", "inductor", "superopt"]
    assert "absent" not in record
    assert record["weights"]["times"] >= 1.0
    assert record["weights"]["bytes"] > 1000


@pytest.mark.usefixtures("uncompiled")
def test_the_policy_for_weights_reaches_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def compile_model(model: Any, **settings: Any) -> Any:
        told.append(settings.get("options"))
        return model

    monkeypatch.setattr(torch, "compile", compile_model)
    child(Case("resnet"), options(weights="frozen"))
    assert {"preset": "quick", "weights": "frozen"} in told


@pytest.mark.usefixtures("uncompiled")
def test_a_step_at_once_and_a_tuned_one_run_in_one_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deferred work is worked off once the first one is compiled, and before the second one is."""
    did: list[Any] = []

    def compile_model(model: Any, *, backend: str = "inductor", options: Any = None, **unused: Any) -> Any:
        def program(*given: Any, **named: Any) -> Any:
            if backend == "superopt" and options not in did:
                did.append(options)
            return model(*given, **named)

        return program

    monkeypatch.setattr(torch, "compile", compile_model)
    monkeypatch.setattr(case, "_worked_off", lambda minutes: did.append(minutes) or 7.0)
    kept = os.environ.get("SUPEROPT_CACHE_DIR")
    record = child(Case("resnet"), options(tune=2.0, peers="all"))
    assert os.environ.get("SUPEROPT_CACHE_DIR") == kept  # what is compiled later goes where it should
    first, minutes, second = did
    assert minutes == 2.0
    assert first != second  # of equal options Dynamo makes one program
    assert second == first | {"tune": "later"}
    assert set(record["measured"]) == {"eager", "inductor", "good", "superopt"}
    assert set(record["tuned"]["measured"]) == set(record["measured"])
    for name in ("eager", "inductor", "good"):
        assert record["tuned"]["measured"][name] == record["measured"][name]
    assert record["tuned"]["measured"]["superopt"] != record["measured"]["superopt"]
    assert record["tuned"]["tune_s"] == 7.0
    assert {"speedup", "ratios", "regions"} <= set(record["tuned"])


def test_the_projections_of_an_int8_model_have_eight_bits() -> None:
    model, step = case._built(Case("resnet:int8"), options())
    kinds = {type(one).__name__ for one in model.modules()}
    assert "Int8Linear" in kinds
    assert "Linear" not in kinds
    with torch.no_grad():
        assert bool(step(model)().isfinite().all())


@torch.no_grad()
def test_the_model_that_torchao_rounds_has_the_same_numbers() -> None:
    model = with_int8_weights(
        torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Linear(48, 8, bias=False))
    )
    x = torch.randn(3, 64)
    wanted, whole = model(x), with_whole_weights(copy.deepcopy(model))
    assert {type(one) for one in whole} == {torch.nn.Linear}
    torch.testing.assert_close(whole(x), wanted)
    with pytest.raises(InputError, match="no weights of eight bits"):
        with_whole_weights(whole)


def timed(speedup: float, eager: float, **more: Any) -> dict[str, Any]:
    return {"speedup": speedup, "ratios": {"eager": eager, "inductor": speedup}, **more}


def test_means_are_over_the_better_of_two_at_once_and_tuned() -> None:
    records = {
        "bert": timed(2.0, 0.5, tuned=timed(4.0, 1.0)),
        "llama:decode": timed(8.0, 9.0),
        "vit": {"error": "it failed"},
    }
    everything, tuned, decodes = command._means(records)
    assert everything == (
        "all: 4.000 times Inductor in the geometric mean of 2 cases,"
        " 2.000 times the better of eager and Inductor, least 0.50"
    )
    assert tuned.startswith("all, tuned: 4.000 times")
    assert "1.000 times the better" in tuned
    assert decodes.startswith("prefill and decode: 8.000 times")


def test_a_line_tells_of_peers() -> None:
    us = {"eager": 3.0, "inductor": 2.0, "superopt": 1.0, "freezing": 1.5}
    both = {"superopt": 4.0, "inductor": 2.0}
    record = {
        "measured": {name: {"median_us": one} for name, one in us.items()},
        "cold_s": both,
        "warm_s": both,
        "flops": 0.5,
        "bytes": 0.25,
        "speedup": 2.0,
        "absent": {"openvino": "No module named 'openvino'"},
    }
    own, raced, absent = command._line("bert", record).splitlines()
    assert own.split()[:5] == ["bert", "3.0", "2.0", "1.0", "2.00"]
    assert raced.strip() == "freezing 1.5"
    assert absent.strip() == "no openvino: No module named 'openvino'"


def test_a_case_may_say_its_tokens() -> None:
    assert Case("bert:512:bf16").tokens == 512
    assert Case("bert").tokens is None
    for text in ("bert:0", "bert:many"):
        with pytest.raises(InputError, match="is neither"):
            Case(text)


def test_the_tokens_of_a_case_are_those_of_its_model() -> None:
    read: list[Any] = []

    def program(**inputs: Any) -> tuple[Any]:
        read.append(next(iter(inputs.values())))
        return (None,)

    for text in ("convnext:64", "convnext", "resnet:16"):
        _, step = case._built(Case(text), options())
        step(program)()
    assert [list(one.shape[2:]) for one in read] == [[128, 128], [128, 128], [64, 64]]


@pytest.mark.parametrize(
    ("starts", "expected"), [(0, ["timed"]), (1, ["inductor", "superopt", "inductor", "timed"])]
)
def test_without_starts_a_case_takes_one_process(
    monkeypatch: pytest.MonkeyPatch, starts: int, expected: list[str]
) -> None:
    ran: list[str] = []
    us = {"eager": 3.0, "inductor": 2.0, "superopt": 1.5}
    record = {
        "measured": {name: {"median_us": one} for name, one in us.items()},
        "compile_s": 1.0,
        "speedup": 1.33,
        "flops": 0.5,
        "bytes": 0.25,
    }

    def in_process(case: Case, kind: str, *unused: Any, **more: Any) -> dict[str, Any]:
        ran.append(kind)
        return dict(record)

    monkeypatch.setattr(command, "_in_process", in_process)
    found = command._measured(Case("bert"), options(starts=starts, tune=None))
    assert ran == expected
    assert command._line("bert", found).split()[:5] == ["bert", "3.0", "2.0", "1.5", "1.33"]


@pytest.mark.parametrize(
    ("starts", "first", "again"),
    [
        (0, ["frozen in bert", "live in live", "frozen in bert"], ["frozen in bert"]),
        # With starts, Inductor's are among them.
        (1, ["live in live", *["frozen in bert"] * 4], ["frozen in bert"] * 4),
    ],
)
def test_each_policy_decides_once_with_caches_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, starts: int, first: list[str], again: list[str]
) -> None:
    ran: list[str] = []

    def in_process(case: Case, kind: str, folder: Path, by: str, told: Any, **more: Any) -> dict[str, Any]:
        ran.append(f"{told.weights} in {folder.name}")
        return {"compile_s": 1.0, **({"regions": told.weights} if kind == "superopt" else {})}

    monkeypatch.setattr(command, "_in_process", in_process)
    asked = options(starts=starts, tune=None, peers="live,freezing", weights="frozen", caches=tmp_path)
    for expected in (first, again):
        ran.clear()
        found = command._measured(Case("bert"), asked)
        assert ran == expected
        assert found["regions"] == "frozen"
        assert found["policies"] == {"live": {"regions": "live"}}


@pytest.mark.usefixtures("uncompiled")
def test_each_policy_is_compiled_with_its_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    def compile_model(model: Any, *, options: Any = None, **settings: Any) -> Any:
        def program(*given: Any, **named: Any) -> Any:
            if settings.get("backend"):
                seen.setdefault(options["weights"], os.environ["SUPEROPT_CACHE_DIR"])
            return model(*given, **named)

        return program

    monkeypatch.setattr(torch, "compile", compile_model)
    monkeypatch.setattr(case, "peers_of", lambda options: ["live", "default"])
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "kept"))
    record = child(Case("resnet"), options(weights="frozen", folder=str(tmp_path)))
    own = {name: str(tmp_path / name / "kept") for name in ("live", "default")}
    assert seen == {"frozen": str(tmp_path / "kept"), **own}
    assert set(own) < set(record["measured"])
    assert os.environ["SUPEROPT_CACHE_DIR"] == str(tmp_path / "kept")


def test_the_table_has_ten_families() -> None:
    cases = [Case(text) for text in command.TABLE]
    assert len({one.model for one in cases}) == 10
    assert {one.tokens for one in cases} == {64, 128, 512, None}
    assert {one.dtype for one in cases} == {"fp32", "bf16"}
    assert len({one.text for one in cases}) == len(cases) == 68


def test_peers_are_told_beside_the_step_that_they_raced() -> None:
    """With deferred work they race once, when it is done."""
    us = {"eager": 3.0, "inductor": 2.0, "superopt": 1.5}
    later = {**us, "superopt": 1.0, "openvino": 1.25}
    ratios = {"eager": 3.0, "inductor": 2.0, "openvino": 1.25}
    both = {"superopt": 4.0, "inductor": 2.0}
    record = {
        "speedup": 1.33,
        "ratios": {"eager": 2.0, "inductor": 1.33},
        "measured": {name: {"median_us": one} for name, one in us.items()},
        "cold_s": both,
        "warm_s": both,
        "flops": 0.5,
        "bytes": 0.25,
        "tuned": {
            "speedup": 2.0,
            "ratios": ratios,
            "measured": {name: {"median_us": one} for name, one in later.items()},
        },
    }
    assert "openvino 1.2, superopt tuned 1.0" in command._line("bert", record)
    assert "all, tuned: 1.250 times openvino, ahead in 1 of 1" in command._means({"bert": record})


def test_a_gradient_that_is_nan_is_no_small_error() -> None:
    """Before: it counted only where it was that of the first parameter."""
    model = torch.nn.Linear(4, 2)

    def program() -> torch.Tensor:
        return (model.weight.sum() + model.bias.sum() * float("nan")).float()

    step = training._Step(model, program, {}, half=False)
    assert step.error([torch.ones(2, 4), torch.ones(2)]) == math.inf


@pytest.mark.slow
def test_each_program_that_is_trained_is_compiled_for_itself() -> None:
    """Dynamo keeps what it compiles by the code of a function, and takes it for equal settings again."""
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    for count in (1, 2):
        program = training._program(training._loss_of(torch.nn.Linear(4, 4)), None)
        program(input=torch.rand(2, 4)).backward()
        assert counters["stats"]["unique_graphs"] == count


@pytest.mark.parametrize(
    ("changes", "whole", "passing"),
    [
        ([], 0, 0),
        ([(A, 8), (B, 4), (A, -8), (C, 2)], 12, 8),
        ([(A, 8), (A, -8), (A, 4), (B, 6), (B, -6)], 10, 8),  # memory that is used again
        ([(A, -8), (B, 4)], 0, 0),  # what was there before
    ],
)
def test_peaks_of_changes(changes: list[tuple[int, int]], whole: int, passing: int) -> None:
    assert Peaks.of(changes) == Peaks(whole, passing)


def test_what_a_step_leaves_is_no_activation() -> None:
    kept: list[torch.Tensor] = []

    def step() -> None:
        passing = torch.ones(1 << 20)
        kept.append(torch.ones(1 << 18))
        del passing
        torch.ones(1 << 19)

    found = peaks_of(step, kept.clear)
    assert (found.whole, found.passing) == (5 << 20, 4 << 20)


def test_random_modules_go_on_where_they_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[tuple[int, str | int]] = []

    def judge(seed: int, memory: str | int, *, half: bool) -> tuple[list[str], str]:
        seeds.append((seed, memory))
        return ["in chunks"], "seed 29 is wrong" if (seed, memory) == (29, "fast") else ""

    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(modules, "judge", judge)
    told = {"modules": 30, "json": tmp_path / "out.json", "minutes": 0.0}
    assert modules.measure_modules(argparse.Namespace(**told, resume=False)) == 1
    assert "--resume goes on" in capsys.readouterr().out
    told["minutes"] = 1.0
    assert modules.measure_modules(argparse.Namespace(**told, resume=True)) == 1
    assert "fast: 30 of 30 random modules, 30 changed, 30 in chunks, 1 wrong" in capsys.readouterr().out
    count = len(seeds)
    assert count == len(set(seeds)) == 90
    modules.measure_modules(argparse.Namespace(**told, resume=True))
    assert len(seeds) == count
