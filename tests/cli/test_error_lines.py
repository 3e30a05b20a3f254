"""Errors of others are told in one line."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from superopt.cli.rulesets import _program
from superopt.codegen.cpp.compile import _words
from superopt.errors import InputError, first_line, kind_and_line

LONG = "n" * 300  # longer than the name of a file can be


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb", "a"),
        ("\n  \n b\nc", "b"),
        ("\x1b[96mThis is\x1b[0m step \x1b[1;31m1\x1b[m\nmore", "This is step 1"),
        ("\x1b[0m\n", "ValueError"),
        ("", "ValueError"),
        ("x[96m]", "x[96m]"),
    ],
)
def test_the_first_line_has_no_colours(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line
    assert kind_and_line(ValueError(text)) == (line if line == "ValueError" else f"ValueError: {line}")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), "'/x/y': Permission denied"),
        (OSError(errno.ENAMETOOLONG, "File name too long", b"/x"), "b'/x': File name too long"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("two\nlines"), "two lines"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: OSError, line: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(arguments: Any) -> int:
        raise error

    monkeypatch.setattr("superopt.cli.commands.workloads._run", refused)
    assert run("list").complaint() == line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["search", "softmax", "--size", "M=99999999999999999999"], "--size: M is larger than any tensor"),
        (["search", "softmax", "--size", f"M={'9' * 5000}"], "--size: M is larger than any tensor can be"),
        (["search", "softmax", "--size", "M=4000000000", "N=4000000000"], "x as f16[4000000000,4000000000]"),
        (["search", "softmax", "--checkpoint", f"{LONG}/x"], "File name too long"),
        (["rules", "discover", "-o", "r.json", "--size", "1", "--checkpoint", __file__], "give a folder"),
        (["cache", "import", LONG], "File name too long"),
        (["bench", "plot", __file__, "-o", LONG], "test_error_lines.py"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_no_file_or_tensor_can_be_is_one_line(
    arguments: list[str], said: str, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "cache"))
    assert said in run(*arguments).complaint()


def test_leading_zeros_of_a_size_do_not_count(run: Callable[..., Any]) -> None:
    assert run("search", "softmax", "--size", f"M={'0' * 5000}2", "N=4", "--quiet").code == 0


@pytest.mark.parametrize("name", [LONG, f"{LONG}/{LONG}"])
def test_doctor_names_a_cache_folder_that_cannot_be(
    name: str, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / name))
    ran = run("doctor")
    assert ran.err == ""
    assert "cache folder" in ran.out


def test_a_program_in_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        _program(str(file))
    file.write_text("a[m,k]: \n  relu(a)", encoding="utf-8")
    assert _program(str(file)) == ("a[m,k]: relu(a)", [])
    assert _program(LONG) == (LONG, [])


def test_a_compiler_with_many_arguments_is_no_path(tmp_path: Path) -> None:
    assert _words(f"g++ {'-DSOMETHING=1 ' * 400}") == ["g++", *["-DSOMETHING=1"] * 400]
    assert _words(os.fspath(tmp_path)) == [str(tmp_path)]
