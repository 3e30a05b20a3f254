import json
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from superopt.cli.commands import doctor

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]


def test_everything_required_is_here(run: Run) -> None:
    ran = run("doctor", "--json")
    result = json.loads(ran.out)
    assert result["ok"] is True
    assert ran.code == 0
    assert {"python", "torch", "C++ compiler", "GPU", "workers", "memory", "cache folder"} <= {
        check["name"] for check in result["checks"]
    }


def test_what_is_missing_has_a_remedy_and_the_answer_is_no(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "egglog":
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "torch" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    ran = run("doctor")
    assert ran.code == 1
    assert 'egglog: pip install "egglog>=' in ran.out
    assert "1.0, older than 2.11" in ran.out
    assert "Something required is missing." in ran.out


def test_a_cache_that_cannot_be_written(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.delenv("SUPEROPT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setenv("HOME", str(tmp_path))
    [check] = [check for check in doctor.examine() if check.name == "cache folder"]
    assert not check.ok
    assert "SUPEROPT_CACHE_DIR" in check.remedy


def test_minimum_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        requirement.partition(";")[0].strip()
        for requirement in (*project["dependencies"], *project["optional-dependencies"]["triton"])
    }
    assert {f"{package.name}>={package.minimum}" for package in doctor.PACKAGES} == declared
