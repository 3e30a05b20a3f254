"""Results as files: what is saved is loaded again; nothing in a file is believed, no code is run from it."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import superopt
from superopt import InputError, Optimized, OptimizeOptions
from superopt.candidates.codec import candidate_from_json, candidate_json
from superopt.result import result_from_json, result_json
from superopt.result.codec import read_result, write_json
from superopt.targets import config_json, pick_target
from superopt.verify.floats.report import DistributionReport, FloatReport


@pytest.fixture(scope="module")
def file(best: Optimized, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "best.json"
    best.save(path)
    return path


def changed(file: Path, tmp_path: Path, change) -> Path:
    data = json.loads(file.read_text(encoding="utf-8"))
    change(data)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def chosen(data: dict) -> dict:
    region = data["regions"][0]
    return next(one for one in region["candidates"] if one["id"] == region["chosen"])


def fate(data: dict) -> dict:
    return chosen(data)["fate"]


@pytest.mark.parametrize("version", [1, 4, "3", None])
def test_a_result_of_another_version_is_refused(file: Path, tmp_path: Path, version: object) -> None:
    said = f"version {version!r} is not known; this superopt reads version 3"
    with pytest.raises(InputError, match=said):
        superopt.load(changed(file, tmp_path, lambda data: data.update(version=version)))


@pytest.mark.parametrize("with_function", [True, False])
@pytest.mark.parametrize("shape", [(5, 64, 96), (9, 32, 40)])
def test_loaded_computes_the_same(best, random, file: Path, with_function: bool, shape) -> None:
    loaded = superopt.load(file, best.function if with_function else None)
    m, k, n = shape
    inputs = random((m, k), (k,), (k, n))
    assert loaded.winner == "superopt"
    assert loaded.sources == best.sources
    torch.testing.assert_close(loaded(*inputs), best.function(*inputs), rtol=1e-4, atol=1e-4)


def test_saved_again_it_is_the_same_file(file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    superopt.load(file).save(again)
    first, second = json.loads(file.read_text()), json.loads(again.read_text())
    for data in (first, second):
        data.pop("verdicts")  # they tell how long the proof took
    assert first == second


def test_explain_of_a_loaded_result(best, file: Path) -> None:
    assert [line for line in superopt.load(file).explain().splitlines() if line.startswith("region")] == [
        line for line in best.explain().splitlines() if line.startswith("region")
    ]


def test_a_structure_of_arguments_and_results(quick, random, in_use, tmp_path: Path) -> None:
    def function(pair: list[torch.Tensor], options: dict[str, float]) -> dict[str, object]:
        a, b = pair
        made = (a * options["scale"]) @ b
        return {"made": made, "both": (a.sum(-1), [made.exp()]), "none": None}

    inputs = (list(random((4, 8), (8, 6))), {"scale": 0.5})
    best = in_use(superopt.optimize(function, *inputs, options=quick))
    best.save(tmp_path / "best.json")
    found, expected = superopt.load(tmp_path / "best.json")(*inputs), function(*inputs)
    assert list(found) == list(expected)
    assert found["none"] is None
    torch.testing.assert_close(found["both"], expected["both"], rtol=1e-4, atol=1e-4)


def test_operators_outside_the_algebra_need_the_function(quick, random, tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cumprod(x.exp(), -1) * 2.0

    best = superopt.optimize(function, *random((4, 16)), options=quick)
    best.save(tmp_path / "best.json")
    with pytest.raises(InputError, match=r"operators of PyTorch \(aten.cumprod.*pass function="):
        superopt.load(tmp_path / "best.json")
    loaded = superopt.load(tmp_path / "best.json", function)
    torch.testing.assert_close(loaded(*random((4, 16))), function(*random((4, 16))))
    with pytest.raises(InputError, match="not the one that this result was made for"):
        superopt.load(tmp_path / "best.json", lambda x: torch.cumprod(x.exp(), -1) * 3.0)


def test_tensors_that_a_module_holds_need_the_function(quick, random, tmp_path: Path) -> None:
    module = torch.nn.Linear(16, 8)
    best = superopt.optimize(module, *random((4, 16)), options=quick)
    best.save(tmp_path / "best.json")
    with pytest.raises(InputError, match="holds tensors of its own"):
        superopt.load(tmp_path / "best.json")
    torch.testing.assert_close(
        superopt.load(tmp_path / "best.json", module)(*random((4, 16))), module(*random((4, 16)))
    )


def wrong_mugraph(data: dict) -> None:
    chosen(data)["mugraph"] = re.sub(r"\br?sqrt\(", "square(", chosen(data)["mugraph"])


def foreign_name(data: dict) -> None:
    for text in ("graph", "mugraph"):
        chosen(data)[text] = chosen(data)[text].replace("graph norm_linear", "graph x(){abort();}//", 1)


def config_of(data: dict) -> dict:
    return next(one for one in chosen(data)["configs"] if one)


def foreign_axis(data: dict) -> None:
    config_of(data)["tiles"].append(["elsewhere", 4])


def foreign_schedule(data: dict) -> None:
    config_of(data)["schedule"] = "static)\nabort();//"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(version=7), "version 7 is not known"),
        (lambda data: data.pop("regions"), "'regions' is missing"),
        (lambda data: data.update(superopt="report"), "is not a result of superopt"),
        (lambda data: data.update(winner="magic"), "the winner is 'magic'"),
        (lambda data: data.update(target="tpu"), "device 'tpu' is not known"),
        (lambda data: data.update(program="program p\nnonsense"), "the program cannot be read"),
        (lambda data: [one.update(id="1") for one in data["regions"][0]["candidates"]], "the same id"),
        (
            lambda data: [one.update(fate=fate(data)) for one in data["regions"][0]["candidates"]],
            "are chosen",
        ),
        (lambda data: chosen(data)["fate"].update(kind="lost"), "the kind of a fate is 'lost'"),
        (lambda data: data["regions"].pop(), "its regions are not those of its program"),
        (lambda data: chosen(data)["configs"].append(None), "configurations for"),
        (lambda data: chosen(data).pop("mugraph"), "no good 'mugraph'"),
        (lambda data: data.update(inputs=3), "damaged"),
        (lambda data: data.update(source="file.py:f"), "no good 'source'"),
        (wrong_mugraph, "computes something else"),
        (foreign_name, "is not a name"),
        (foreign_axis, "names the unknown axis 'elsewhere'"),
        (lambda data: config_of(data).update(tiles=[]), "does not fit its kernel"),
        (foreign_schedule, "schedule of a configuration is wrong"),
    ],
)
def test_a_file_is_not_believed(file: Path, tmp_path: Path, change, message: str) -> None:
    with pytest.raises(InputError, match=message):
        superopt.load(changed(file, tmp_path, change))


def test_sources_in_a_file_are_for_reading_only(best, random, file: Path, tmp_path: Path) -> None:
    path = changed(file, tmp_path, lambda data: chosen(data).update(sources=["abort();"]))
    loaded = superopt.load(path)
    assert loaded.sources == best.sources
    loaded(*random((5, 64), (64,), (64, 96)))


@pytest.mark.parametrize("name", ["median_us", "low_us", "high_us"])
def test_nothing_takes_no_time(file: Path, tmp_path: Path, name: str) -> None:
    """Before: speeds were divided by such times."""
    for part in (lambda data: next(iter(data["measurements"].values())), chosen):
        with pytest.raises(InputError, match=f"{name} is 0; a time that was measured is above 0"):
            superopt.load(changed(file, tmp_path, lambda data, part=part: part(data).update({name: 0})))


@pytest.mark.parametrize(
    "form",
    [
        {"shape": [2, 3], "strides": [1]},
        {"shape": [2**62, 2**62], "strides": [2**62, 1]},
        {"shape": [2], "strides": [2**70]},
    ],
)
def test_a_damaged_form_of_a_tensor(file: Path, tmp_path: Path, form: dict) -> None:
    with pytest.raises(InputError, match=r"an input is .*, which is no tensor"):
        superopt.load(changed(file, tmp_path, lambda data: data["inputs"][0].update(form)))


def test_a_file_that_is_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"deep.json.*: its lists and objects are nested too deeply"):
        superopt.load(path)


@pytest.mark.parametrize("number", [float("-inf"), float("nan"), 0.5])
def test_numbers_for_which_json_has_no_form(tmp_path: Path, random, number: float) -> None:
    """Before: a result with such an argument, or that a function returns, could not be saved."""

    def function(x: torch.Tensor, fill: float) -> tuple[torch.Tensor, float]:
        return x.masked_fill(x < 0, -1.0).exp(), fill

    options = OptimizeOptions(target="cpu", measure=False, graphs=1, cache=False)
    plan, (x,) = superopt.optimize(function, *random((4, 8)), number, options=options), random((4, 8))
    plan.save(tmp_path / "plan.json")
    assert "NaN" not in (tmp_path / "plan.json").read_text()
    loaded = superopt.load(tmp_path / "plan.json")
    found, returned = loaded(x, number)
    torch.testing.assert_close(found, function(x, number)[0])
    assert repr(returned) == repr(number) == repr(loaded.inputs[1])
    path = changed(tmp_path / "plan.json", tmp_path, lambda data: data["inputs"].append({"number": "1e999"}))
    with pytest.raises(InputError, match="damaged"):
        superopt.load(path)


def test_errors_beyond_all_bounds_are_saved(best: Optimized) -> None:
    report = DistributionReport("normal", 0.0, float("inf"), float("inf"))
    result = replace(best.result, floats=FloatReport("f32", 2.0, (report,)))
    data = json.loads(json.dumps(result_json(result), allow_nan=False))
    assert result_from_json(data).floats == result.floats


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"result"', "\0"])
def test_no_result_at_all(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError):
        superopt.load(path)
    with pytest.raises(InputError, match="does not exist"):
        superopt.load(tmp_path / "none.json")


def test_what_utf_8_does_not_hold_is_saved(best: Optimized, tmp_path: Path) -> None:
    """Before: the name of the user's file made saving fail after the race."""
    path, named = tmp_path / "best.json", {"file": os.fsdecode(b"caf\xe9.py"), "function": "größe"}
    write_json(result_json(replace(best.result, source=named)), path)
    assert read_result(path).source == named
    with pytest.raises(InputError, match="cannot write"):
        best.save(tmp_path / "\ud800.json")


@pytest.mark.parametrize("source", ["file.py:f", {"file": Path("file.py")}, {"file": math.nan}])
def test_a_source_that_no_file_holds_is_refused_at_once(random, source: object) -> None:
    with pytest.raises(InputError, match="give a dict of text and numbers"):
        superopt.optimize(torch.relu, *random((4, 8)), source=source)


def test_a_file_is_written_whole_or_not_at_all(best, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "best.json"
    path.write_text("before")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*best.json.*: No space left"):
        best.save(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="cannot write"):
        best.save(tmp_path / "no folder" / "best.json")


@pytest.mark.parametrize("target", ["cpu", "cuda:90"])
def test_configurations_survive_exactly(best: Optimized, target: str) -> None:
    place = pick_target(target)
    mugraph = best.regions[0].candidates[0].mugraph
    for config in place.configs(mugraph, 0):
        data = json.loads(json.dumps(config_json(config), sort_keys=True))
        assert place.config_from_json(data) == config


@pytest.mark.parametrize(
    "change",
    [
        {"num_warps": 3},
        {"num_warps": True},
        {"num_stages": -1},
        {"precision": "exact"},
        {"tiles": [["m"]]},
        {"tiles": [["m", "16"]]},
        {"tiles": {"m": 16}},
        {"color": "red"},
        {"whole": [1]},
    ],
)
def test_wrong_configurations(best: Optimized, change: dict) -> None:
    place = pick_target("cuda:90")
    config = place.default_configs(best.regions[0].candidates[0].mugraph)[0]
    with pytest.raises(InputError, match="configuration"):
        place.config_from_json({**config_json(config), **change})


def test_candidates_survive_exactly(best: Optimized) -> None:
    for candidate in best.regions[0].candidates:
        data = json.loads(json.dumps(candidate_json(candidate)))
        found = candidate_from_json(data, best.target)
        assert found.mugraph == candidate.mugraph
        assert found.configs == candidate.configs
        assert found.kernels == candidate.kernels
        assert candidate_json(found) == candidate_json(candidate)


def test_a_plan_survives(tmp_path: Path, random) -> None:
    options = OptimizeOptions(target="cpu", measure=False, graphs=2, cache=False)
    plan = superopt.optimize(lambda x: x.softmax(-1), *random((6, 32)), options=options)
    plan.save(tmp_path / "plan.json")
    loaded = superopt.load(tmp_path / "plan.json")
    assert loaded.winner is None
    assert loaded.speedup is None
    assert loaded.predicted_us == plan.predicted_us
    assert "nothing was measured" in loaded.explain()


def test_a_plan_has_names_of_any_script(tmp_path: Path, random) -> None:
    """Before: the file could not be read, and no kernel ran."""

    def scaled(x: torch.Tensor, γ: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * γ

    options = OptimizeOptions(target="cpu", measure=False, graphs=2, cache=False)
    plan = superopt.optimize(scaled, *random((6, 32), (32,)), options=options, name="3D größe")
    plan.save(tmp_path / "plan.json")
    loaded, inputs = superopt.load(tmp_path / "plan.json", scaled), random((6, 32), (32,))
    assert loaded.result.name == "x3D_gr__e"
    assert all("x3D_gr__e_0" in one.sources[0] for one in plan.regions[0].candidates if one.sources)
    torch.testing.assert_close(loaded(*inputs), scaled(*inputs))


def test_a_plan_without_its_function_takes_exponentials_less_their_maxima(tmp_path: Path, random) -> None:
    """Before: exponentials of 100 were infinite in fp32, and their quotients NaN."""
    options = OptimizeOptions(target="cpu", measure=False, graphs=2, cache=False)
    plan = superopt.optimize(lambda x: x.softmax(-1), *random((6, 32)), options=options)
    plan.save(tmp_path / "plan.json")
    loaded = superopt.load(tmp_path / "plan.json")
    for rows in (6, 9):
        x = torch.full((rows, 32), 100.0)
        torch.testing.assert_close(loaded(x), x.softmax(-1))
        with torch.autocast("cpu"):
            torch.testing.assert_close(loaded(x), x.softmax(-1))
        torch.testing.assert_close(loaded(x.requires_grad_()), x.softmax(-1).detach())
