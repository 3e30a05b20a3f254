"""`superopt report` and `superopt export`: what they write, and what they refuse."""

import subprocess
import sys
from pathlib import Path

import pytest

from superopt.cli import main


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A saved plan."""
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPEROPT_CACHE_DIR", str(folder / "cache"))
        path = folder / "plan.json"
        sizes = ["--size", "M=4", "N=64", "--dtype", "f32"]
        code = main(["optimize", "softmax", *sizes, "--device", "cpu", "--plan", "--quiet", "-o", str(path)])
    assert code == 0
    return path


def test_report(saved: Path, tmp_path: Path, capsys) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(saved), "--html", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert "softmax" in page.read_text(encoding="utf-8")
    assert main(["report", str(saved)]) == 0
    assert saved.with_suffix(".html").read_bytes() == page.read_bytes()


def test_report_opens_a_browser(saved: Path, tmp_path: Path, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = tmp_path / "page.html"
    assert main(["report", str(saved), "--html", str(page), "--open"]) == 0
    assert opened == [page.as_uri()]


def test_export(saved: Path, tmp_path: Path, capsys) -> None:
    module = tmp_path / "softmax.py"
    assert main(["export", str(saved), "-o", str(module)]) == 0
    assert capsys.readouterr().out.strip() == str(module)
    assert main(["export", str(saved), "--region", "1"]) == 0
    assert capsys.readouterr().out == module.read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, "-I", str(module)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "nothing.json"], "'nothing.json' does not exist"),
        (["report", __file__], "is not JSON"),
        (["export", "{saved}", "--region", "4"], "there is no region 4"),
        (["export", "{saved}", "--candidate", "x"], "has no candidate 'x'"),
        (["export", "{saved}", "--region", "0"], "'0' is not a whole number of at least 1"),
        (["export", "{saved}", "-o", "{saved}"], "is what it is made from"),
        (["report", "{saved}", "--html", "{saved}"], "is what it is made from"),
        (["report", "{saved}", "--html", "/no/such/folder/page.html"], "No such file or directory"),
    ],
)
def test_refused(saved: Path, arguments: list[str], said: str, capsys) -> None:
    before = saved.read_bytes()
    assert main([one.format(saved=saved) if one == "{saved}" else one for one in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.glob(".*")] == []
