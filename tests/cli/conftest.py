import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from superopt.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    def complaint(self) -> str:
        """Return the one line of an error, after checking that there is nothing else."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.startswith("superopt: error: ")
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith("\n")
        return self.err.removeprefix("superopt: error: ").rstrip("\n")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command line in this process."""

    def call(*arguments: object) -> Ran:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a user's file; loading it leaves no trace in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(source: str, name: str = "user.py") -> Path:
        path = tmp_path / name
        path.write_text(source, encoding="utf-8")
        return path

    return call
