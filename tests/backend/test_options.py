"""The options of the backend, and the entry point that torch finds it by."""

from pathlib import Path
from typing import Any

import pytest
import torch

from superopt.backend.options import BackendOptions, read_options
from superopt.errors import InputError


def test_defaults_and_all_options() -> None:
    assert read_options(None) == BackendOptions()
    given = {"budget_s": 5, "preset": "full", "report": "r.json", "verify": False, "cache": False}
    found = read_options({**given, "retry": True, "inductor": {"max_autotune": True}})
    assert found == BackendOptions(5.0, "full", Path("r.json"), False, False, True, {"max_autotune": True})


def test_options_of_inductor() -> None:
    given = {
        "max-autotune": True,
        "cpp.threads": 2,
        "compile_threads": None,
        "triton.descriptive_names": False,
    }
    assert read_options({"inductor": given}).inductor == {
        name.replace("-", "_"): value for name, value in given.items()
    }


@pytest.mark.parametrize(
    "given",
    [
        {"budget": 5},
        {"budget_s": "5"},
        {"budget_s": -1},
        {"budget_s": True},
        {"budget_s": float("nan")},
        {"preset": "fast"},
        {"report": 3},
        {"verify": "yes"},
        {"cache": 1},
        {"retry": "yes"},
        {"inductor": "max_autotune"},
        {"memory": "small"},
        {"memory": 0},
        {"memory": True},
        {"memory": 1.5},
    ],
)
def test_wrong_options_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(given))):
        read_options(given)


def test_an_unknown_option_lists_all() -> None:
    with pytest.raises(InputError) as error:
        read_options({"speed": 11})
    assert all(name in str(error.value) for name in ("'speed'", "budget_s", "preset", "report", "verify"))


def test_torch_finds_the_backend() -> None:
    assert "superopt" in torch.compiler.list_backends()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"bugdet_s": 1},
            "the superopt backend has no option 'bugdet_s' (did you mean 'budget_s'?); valid are",
        ),
        (
            {"bugdet_s": 1, "speed": 11},
            "the superopt backend has no options 'bugdet_s' (did you mean 'budget_s'?), 'speed'; valid are",
        ),
        ("quick", "options is 'quick'; it is a dict of budget_s, preset, report"),
        ({"preset": ["quick"]}, "preset is ['quick']; it is how widely to tune: quick or full"),
        ({"speed": 11}, "the superopt backend has no option 'speed'; valid are budget_s, preset, report"),
        ({"budget_s": "all"}, "budget_s is 'all'; it is seconds of search"),
        ({"inductor": {"max_autotun": True}}, "inductor: Inductor has no option 'max_autotun' (did you mean"),
        (
            {"inductor": {"max_autotun": True, "zzzzz": 1}},
            "inductor: Inductor has no options 'max_autotun' (did you mean 'max_autotune'?), 'zzzzz'; torch",
        ),
        ({"inductor": {"max_autotune": "banana"}}, "inductor: max_autotune is 'banana'; it is of type bool"),
        ({"inductor": {"max-autotune": 1}}, "inductor: max-autotune is 1; it is of type bool"),
        ({"inductor": {"cpp.threads": 1.5}}, "inductor: cpp.threads is 1.5; it is of type int"),
    ],
)
def test_wrong_options_reach_the_user_as_they_are(options: Any, said: str) -> None:
    compiled = torch.compile(torch.nn.Linear(2, 2), backend="superopt", options=options)
    with pytest.raises(InputError) as error:
        compiled(torch.ones(1, 2))
    assert str(error.value).startswith(said)


def test_an_unknown_mode_lists_all() -> None:
    compiled = torch.compile(torch.nn.Linear(2, 2), backend="superopt", mode="fastest")
    with pytest.raises(InputError, match=r"mode is 'fastest'; it is one of default, .*reduce-overhead"):
        compiled(torch.ones(1, 2))


def test_mode_and_options_together_are_torchs_own_error() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)either mode or options"):
        torch.compile(torch.nn.Linear(2, 2), backend="superopt", mode="max-autotune", options={"budget_s": 1})
