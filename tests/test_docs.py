"""The documentation: its walk-throughs work, its messages are real, its generated parts are of today."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, Block, blocks, run, steady

from superopt.cli import main
from superopt.errors import SuperoptError
from superopt.verify.floats.compare import DISTRIBUTIONS, DRAWS, FACTOR, FLOOR, ONLY_FINITE, SMALL_DRAWS

DOCS = ROOT / "docs"
WALKS = sorted((DOCS / "extend").glob("*.md"))


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    ended = subprocess.run([*command, DOCS, tmp_path], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "how-it-works.html").read_text(encoding="utf-8")
    assert 'src="_images/levels.svg"' in page
    assert not re.search(r'<(?:script|link|img)[^>]* (?:src|href)="(?:https?:)?//', page), (
        "it loads from elsewhere"
    )


def test_what_is_generated_is_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the pictures: for them, whole searches are made."""
    monkeypatch.syspath_prepend(DOCS)
    generate = importlib.import_module("generate")
    monkeypatch.setattr(generate, "_pictures", lambda: ())
    assert len(generate.generated()) > 5
    assert generate.main(["--check"]) == 0


@pytest.mark.slow
def test_all_that_is_generated_is_of_today() -> None:
    ended = subprocess.run([sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", WALKS, ids=lambda page: page.stem)
def test_a_walk_through_works(page: Path, tmp_path: Path) -> None:
    """In a copy of the repository, every block in order."""
    copy = copied(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(copy), "SUPEROPT_CACHE_DIR": str(tmp_path / "cache")}
    for block in blocks(page):
        follow(block, copy, environment)


def follow(block: Block, copy: Path, environment: dict[str, str]) -> None:
    if block.kind == "file":
        (copy / block.name).write_text(block.body, encoding="utf-8")
    elif block.kind == "diff":
        apply(block.body, copy)
    else:
        code, output = run(block, copy, environment)
        assert code == block.code or (block.varies and code == 1 and "optimize" in block.body), output
        if not block.varies:
            assert steady(output) == steady(block.output), str(block)


def copied(folder: Path) -> Path:
    """Return a copy of what is in the repository, links as links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    copy = folder / "superopt"
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, copy / name
        if not os.path.lexists(source) or name.startswith("bench/plans/"):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        else:
            target.write_bytes(source.read_bytes())
    return copy


def apply(patch: str, folder: Path) -> None:
    """Apply a patch whose hunks are found by their text alone, each at one place."""
    for part in re.split(r"^--- a/.*\n", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^@@\n", part, flags=re.MULTILINE)
        path = folder / head.strip().removeprefix("+++ b/")
        text = path.read_text(encoding="utf-8")
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            old, new = (
                "".join(line[1:] or "\n" for line in lines if line[0] in f" \n{sign}") for sign in "-+"
            )
            assert text.count(old) == 1, f"{path.name} has {text.count(old)} places like\n{old}"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


SAID = re.compile(
    r"^<!-- (said by|said in Python|logged):\s(.*?)\s?-->\n```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL
)
TROUBLE = DOCS / "troubleshooting.md"


@pytest.fixture
def trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the messages are about, and an environment that is put back."""
    for block in blocks(TROUBLE):
        (tmp_path / block.name).write_text(block.body, encoding="utf-8")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "bench" / "plans" / "rmsnorm.decode-1.json", tmp_path / "plan.json")
    monkeypatch.chdir(tmp_path)
    for name in ("PATH", "SUPEROPT_CACHE_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, str(tmp_path)))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.usefixtures("trouble")
@pytest.mark.parametrize(("how", "body", "message"), SAID.findall(TROUBLE.read_text(encoding="utf-8")))
def test_a_message_is_said(
    how: str, body: str, message: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    if how == "said by":
        program, *arguments = shlex.split(body)
        assert program == "superopt"
        main(arguments)
        captured = capsys.readouterr()
        said = captured.out + captured.err
    elif how == "logged":
        exec(body, {})
        said = caplog.text
    else:
        with pytest.raises(SuperoptError) as caught:
            exec(body, {})
        said = str(caught.value)
    pattern = ".*".join(map(re.escape, message.split("...")))
    assert re.search(pattern, " ".join(said.split()))


def test_all_messages_are_looked_at() -> None:
    text = TROUBLE.read_text(encoding="utf-8")
    assert len(SAID.findall(text)) == text.count("```text") > 15


def test_the_float_check_is_as_described() -> None:
    text = (DOCS / "guarantees.md").read_text(encoding="utf-8").partition("## Right in floats")[2]
    rows = re.findall(r"^\| ([\w -]+) \| (.*) \|$", text, re.MULTILINE)
    described = {name: meaning for name, meaning in rows if name != "inputs"}
    assert set(described) == set(DISTRIBUTIONS)
    assert {name for name in described if "only NaN and infinity count" in described[name]} == ONLY_FINITE
    assert f"over {DRAWS} draws, or over {SMALL_DRAWS} draws" in " ".join(text.split())
    assert f"**{FACTOR:g} times PyTorch's own, plus {FLOOR:g} units in the last place**" in " ".join(
        text.split()
    )


def test_a_patch_is_applied_at_its_one_place(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("one\ntwo\n\nthree\n")
    apply("--- a/a.py\n+++ b/a.py\n@@\n two\n+more\n \n-three\n", tmp_path)
    assert path.read_text() == "one\ntwo\nmore\n\n"
    with pytest.raises(AssertionError, match="0 places"):
        apply("--- a/a.py\n+++ b/a.py\n@@\n-three\n", tmp_path)


def refresh(page: Path, folder: Path) -> None:
    """Write the outputs of today into a walk-through."""
    copy = copied(folder)
    environment = {**os.environ, "PYTHONPATH": str(copy), "SUPEROPT_CACHE_DIR": str(folder / "cache")}
    text = page.read_text(encoding="utf-8")
    shift = 0
    for block in blocks(page):
        if block.kind in ("file", "diff"):
            follow(block, copy, environment)
            continue
        code, output = run(block, copy, environment)
        print(f"{block}: exit {code}")
        if block.varies:
            print(output)
        else:
            text = text[: block.start + shift] + output + text[block.end + shift :]
            shift += len(output) - (block.end - block.start)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    for one in WALKS:
        if one.stem in sys.argv[1:] or len(sys.argv) == 1:
            with tempfile.TemporaryDirectory() as scratch:
                refresh(one, Path(scratch))
