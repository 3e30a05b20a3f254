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
    found = read_options({**given, "inductor": {"max_autotune": True}})
    assert found == BackendOptions(5.0, "full", Path("r.json"), False, False, {"max_autotune": True})


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
        {"inductor": "max_autotune"},
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


def test_wrong_options_reach_the_user_of_torch_compile() -> None:
    compiled = torch.compile(torch.nn.Linear(2, 2), backend="superopt", options={"speed": 11})
    with pytest.raises(Exception, match="no option 'speed'; valid are budget_s"):
        compiled(torch.ones(1, 2))


def test_mode_and_options_together_are_torchs_own_error() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)either mode or options"):
        torch.compile(torch.nn.Linear(2, 2), backend="superopt", mode="max-autotune", options={"budget_s": 1})
