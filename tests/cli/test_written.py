"""`superopt report` and `superopt export`: what they write, and what they refuse."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from superopt.cli import main
from superopt.cli.writing import check_place
from superopt.errors import InputError
from superopt.result import read_result

LONG = "n" * 300


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
        (["report", ""], "Is a directory"),
        (["report", "."], "Is a directory"),
        (["report", "/"], "Is a directory"),
        (["report", "{saved}", "--html", ""], "cannot write '': it is a folder"),
        (["export", "{saved}", "--region", "4"], "there is no region 4"),
        (["export", "{saved}", "--candidate", "x"], "has no candidate 'x'"),
        (["export", "{saved}", "--region", "0"], "'0' is not a whole number of at least 1"),
        (["export", "{saved}", "-o", "{saved}"], "is what it is made from"),
        (["report", "{saved}", "--html", "{saved}"], "is what it is made from"),
        (["report", "{saved}", "--html", "/no/such/folder/page.html"], "there is no folder '/no/such"),
        (["report", "{saved}", "--html", LONG], "File name too long"),
        (["export", "{saved}", "-o", "."], "cannot write '.': it is a folder"),
        (["export", "{saved}", "-o", ".", "--weights", "{saved}"], "cannot write '.': it is a folder"),
        (["export", "{saved}", "-o", "a.safetensors", "--weights", "b"], "name a .py file"),
        (["export", "{saved}", "-o", LONG], "File name too long"),
        (["tune", "."], "Is a directory"),
        (["tune", ""], "Is a directory"),
        (["tune", LONG], "File name too long"),
        (["tune", "{saved}", "-o", "."], "cannot write '.': it is a folder"),
        (["tune", "{saved}", "-o", ""], "cannot write '': it is a folder"),
        (["optimize", "softmax", "-o", ""], "cannot write '': it is a folder"),
        (["bench", "run", "cpu", "--json", ""], "cannot write '': it is a folder"),
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


PROGRAM = "import torch\n\n\ndef double(x):\n    return x * 2\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["optimize", "{own}:double", "--inputs", "f32[4]", "--plan", "-o", "{own}"],
        ["optimize", "{own}:double", "--inputs", "f32[4]", "--plan", "-o", "{link}"],
        ["tune", "{saved}", "--function", "{own}:double", "-o", "{own}"],
        ["tune", "{saved}", "-o", "{saved}"],
        ["shard", "{own}:double", "--inputs", "f32[4]", "--mesh", "x=2", "-o", "{own}"],
        ["shard", "{own}:double", "--inputs", "f32[4]", "--mesh", "x=2", "--html", "{own}"],
        ["bench", "run", "{own}", "--json", "{own}"],
        ["export", "{saved}", "-o", "{own}", "--weights", "{own}"],
        ["export", "{saved}", "-o", "model.py", "--weights", "model.safetensors"],
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-2]}",
)
def test_what_a_user_wrote_is_never_written_over(
    saved: Path, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    own, link, weights = tmp_path / "own.py", tmp_path / "link.py", tmp_path / "model.safetensors"
    own.write_text(PROGRAM)
    link.symlink_to(own)
    weights.write_bytes(b"weights")
    before = saved.read_bytes()
    assert main([one.format(saved=saved, own=own, link=link) for one in arguments]) == 2
    said = capsys.readouterr().err
    assert "is what it is made from; name another file to write to" in said
    assert said.count("\n") == 1
    assert (own.read_text(), weights.read_bytes(), saved.read_bytes()) == (PROGRAM, b"weights", before)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_module_goes_into_a_pipe(saved: Path, tmp_path: Path, capsys) -> None:
    place = tmp_path / "pipe"
    os.mkfifo(place)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(place.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    assert main(["export", str(saved), "-o", str(place)]) == 0
    reader.join(10)
    assert "import torch" in read[0]
    assert place.is_fifo()


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "missing" / "file")
    for text, said in (
        (str(tmp_path), "it is a folder"),
        (str(tmp_path / "no" / "file"), "there is no folder"),
        (str(tmp_path / "link"), "there is no folder"),
    ):
        with pytest.raises(InputError, match=said):
            check_place(text)
    assert check_place(os.devnull) == Path(os.devnull)  # although no file can be put beside it
    monkeypatch.setattr(os, "access", lambda *given: False)
    for place in (Path(os.devnull), tmp_path / "new"):
        with pytest.raises(InputError, match=r"takes nothing|nothing can be written"):
            check_place(str(place))


def test_a_program_in_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    own, plan = tmp_path / os.fsdecode(b"caf\xe9.py"), tmp_path / "plan.json"
    own.write_text(PROGRAM)
    given = ["--inputs", "f32[4]", "--plan", "--device", "cpu", "--quiet", "-o", str(plan)]
    assert main(["optimize", f"{own}:double", *given]) == 0
    assert read_result(plan).source == {"file": str(own), "function": "double"}
    assert main(["report", str(plan)]) == 0
