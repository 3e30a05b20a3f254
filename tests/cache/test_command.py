import argparse
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from superopt.cache import Cache, Key, Record
from superopt.cli import main
from superopt.cli.commands.cache import parse_age

Keys = Callable[..., Key]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], folder: Path) -> Run:
    """Run `superopt cache` in this process."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["cache", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def filled(folder: Path, plan_key: Keys) -> Path:
    with Cache.open() as cache:
        for number in range(3):
            cache.put(plan_key(number), Record({"number": number}, label=f"plan {number}"))
    return folder


def test_list(run: Run, filled: Path, plan_key: Keys) -> None:
    code, out, err = run("list")
    header, *rows = out.splitlines()
    assert (code, err) == (0, "")
    assert header.split() == ["kind", "key", "name", "device", "made", "used", "KiB"]
    assert [row.split()[1] for row in rows] == [plan_key(number).digest[:12] for number in (2, 1, 0)]
    assert run("list", "--kind", "search")[:2] == (0, f"the cache is empty: {filled / 'cache-1.db'}\n")


def test_list_as_json(run: Run, filled: Path, plan_key: Keys) -> None:
    code, out, _ = run("list", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "superopt.cache/1"
    assert found["entries"] == {"search": 0, "plan": 3, "measurement": 0, "result": 0, "pending": 0}
    assert found["records"][0]["parts"] == plan_key(2).parts


def test_info(run: Run, filled: Path) -> None:
    code, out, _ = run("info")
    assert code == 0
    assert str(filled / "cache-1.db") in out
    assert "plan records         3" in out
    code, out, _ = run("info", "--json")
    assert (code, json.loads(out)["fault"]) == (0, None)


def test_export_clear_import(run: Run, filled: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    assert run("export", file) == (0, f"3 records exported to {file}\n", "")
    assert run("clear", "--older-than", "1d") == (0, "0 records removed\n", "")
    assert run("clear", "--kind", "measurement") == (0, "0 records removed\n", "")
    assert run("clear") == (0, "3 records removed\n", "")
    assert run("import", file)[:2] == (0, "3 records imported, new or newer than those here\n")
    assert json.loads(run("import", file, "--json")[1])["imported"] == 0
    assert json.loads(run("export", file, "--json")[1])["exported"] == 3
    assert json.loads(run("clear", "--json")[1])["removed"] == 3


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_the_cache_is_not_exported_onto_itself(run: Run, filled: Path, tmp_path: Path, suffix: str) -> None:
    file, link = filled / f"cache-1.db{suffix}", tmp_path / "link"
    link.symlink_to(file)
    for place in (file, link):
        code, out, err = run("export", place)
        assert (code, out) == (2, "")
        assert err == f"superopt: error: {str(place)!r} is the cache itself; name another file to write to\n"
    with Cache.open() as cache:
        assert len(cache.entries()) == 3
    assert run("export", filled / "other.jsonl")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["remove"], "there is no action 'remove'"),
        (["list", "--kind", "plans"], "--kind"),
        (["clear", "--older-than", "soon"], "'soon' is not an age"),
        (["import"], "FILE"),
        (["import", "missing.jsonl"], "'missing.jsonl' is not there"),
        (["export", "missing/folder/x.jsonl"], "cannot write"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("superopt: error: ")
    assert message in err


def test_a_foreign_file_is_one_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello\nworld\n")
    assert run("import", file) == (
        2,
        "",
        f"superopt: error: {file}: it is no export of the cache (superopt cache export FILE)\n",
    )


def test_a_cache_that_cannot_be_used(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "export.jsonl"
    assert run("export", file)[0] == 0
    caplog.set_level(logging.CRITICAL, "superopt")
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(file / "x"))
    code, out, _ = run("list")
    assert code == 1
    assert out.startswith("the cache cannot be used: ")
    assert run("info")[0] == 1
    assert json.loads(run("info", "--json")[1])["fault"]
    for arguments in (["import", file], ["export", tmp_path / "other.jsonl"]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("superopt: error: ")
    assert run("clear")[:2] == (1, "0 records removed\n")
    assert not (tmp_path / "other.jsonl").exists()


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("45s", timedelta(seconds=45)),
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("2w", timedelta(days=14)),
        ("0s", timedelta(0)),
    ],
)
def test_ages(text: str, age: timedelta) -> None:
    assert parse_age(text) == age


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5d", "1 d", "30y", "9999999w", "٣d"])
def test_no_ages(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not an age"):
        parse_age(text)
