import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from superopt._version import __version__
from superopt.cli.entry import make_parser
from superopt.cli.parser import Parser, subcommands
from superopt.workloads import WORKLOADS

Run = Callable[..., Any]
HEAVY = ("torch", "triton", "egglog", "z3", "numpy", "rich")


def test_version(run: Run) -> None:
    ran = run("--version")
    assert (ran.code, ran.out) == (0, f"superopt {__version__}\n")


def _commands(parser: argparse.ArgumentParser, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in subcommands(parser).items():
        yield from _commands(inner, *path, name)


def test_every_command_has_help_within_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = list(_commands(make_parser()))
    assert ("rules", "discover") in commands
    for columns in (80, 300):
        monkeypatch.setenv("COLUMNS", str(columns))
        for command in commands:
            ran = run(*command, "--help")
            assert (ran.code, ran.err) == (0, "")
            assert ran.out.startswith(" ".join(["usage: superopt", *command]))
            assert [line for line in ran.out.splitlines() if len(line) > min(columns, 100)] == []


def test_help_fills_paragraphs_and_keeps_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    parser = Parser(
        prog="p",
        description="one two three " * 4,
        epilog="examples:\n  p a  " + "b" * 40 + "\n\nWords\nof one.",
    )
    text = parser.format_help()
    assert "\none two three one two three one two\nthree one two three\n" in text
    assert text.endswith("examples:\n  p a  " + "b" * 40 + "\n\nWords of one.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serch"], "there is no command 'serch'; did you mean search?"),
        (["xyzzy"], "there is no command 'xyzzy' (see superopt --help)"),
        (["cache", "lst"], "there is no action 'lst'; did you mean list?"),
        (["optimize", "x", "--preset", "ful"], "did you mean full?"),
        (
            ["optimize", "x", "--secnds", "3"],
            "--secnds 3; did you mean --seconds? (see superopt optimize --help)",
        ),
        (["list", "lama-layer"], "did you mean llama-layer?"),
        (["search"], "the following arguments are required: TARGET"),
        (["list", "--jsn"], "unrecognized arguments: --jsn; did you mean --json?"),
        (["search", "no-such-workload"], "no workload is named 'no-such-workload'"),
        (["search", "rmsnorm", "--size", "Q=3"], "--size Q: rmsnorm has no such size; it has M, K"),
        (["search", "rmsnorm", "--size", "self=3"], "rmsnorm has no such size"),
        (["search", "rmsnorm", "--size", "dtype=3"], "rmsnorm has no such size"),
        (["search", "rmsnorm", "--size", "M"], "write NAME=SIZE"),
        (["search", "rmsnorm", "--size", "M=-3"], "write NAME=SIZE"),
        (["search", "rmsnorm", "--size", "M=3", "M=4"], "M is given twice"),
        (["search", "rmsnorm", "--dtype", "f12"], "unknown dtype 'f12'"),
        (["search", "rmsnorm", "--dtype", "i64"], "dtype 'i64' is not one of"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    assert message in run(*arguments).complaint()


def test_list(run: Run) -> None:
    ran = run("list")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == list(WORKLOADS)
    assert max(map(len, lines)) <= 100
    shown = " ".join(ran.out.split())
    assert "x[M,K] g[K] w[K,N]" in run("list", "rmsnorm-linear").out
    for one in WORKLOADS.values():
        assert one.summary in shown
    named = {one["name"] for one in json.loads(run("list", "--json").out)["workloads"]}
    assert named == set(WORKLOADS)


@pytest.mark.parametrize("group", [[], ["rules"], ["cache"], ["bench"]])
def test_a_command_that_has_others_shows_them_alone(run: Run, group: list[str]) -> None:
    ran = run(*group)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == run(*group, "--help").out


COMPLETED = {
    "superopt se": {"search"},
    "superopt search rmsnorm-l": {"rmsnorm-linear"},
    "superopt optimize --no": {"--no-torch-compile"},
    "superopt cache e": {"export"},
    "superopt cache clear --k": {"--kind"},
    "superopt search rmsnorm --zz": set(),
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(run: Run) -> None:
    script = run("completion", "bash").out
    for words, expected in COMPLETED.items():
        typed = words.split()
        call = f"COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _superopt; echo ${{COMPREPLY[@]}}"
        ended = subprocess.run(
            ["bash", "-c", f"{script}\n{call}"], capture_output=True, text=True, check=True
        )
        assert (set(ended.stdout.split()), ended.stderr) == (expected, "")


def test_fish_completes(run: Run, tmp_path: Path) -> None:
    script = run("completion", "fish").out
    assert "-l no-torch-compile" in script
    fish = shutil.which("fish")
    if fish is not None:
        (tmp_path / "script").write_text(script)
        for words, expected in COMPLETED.items():
            command = f"source {tmp_path / 'script'}; complete -C '{words}'"
            ended = subprocess.run([fish, "-c", command], capture_output=True, text=True, check=True)
            assert set(ended.stdout.split()) == expected


def test_zsh_completes_whether_or_not_its_completion_is_on(run: Run, tmp_path: Path) -> None:
    script = run("completion", "zsh").out
    assert script.index("compinit -i") < script.index("bashcompinit") < script.index("complete -o default")
    zsh = shutil.which("zsh")
    if zsh is not None:
        (tmp_path / "script").write_text(script)
        for before in ("", "autoload -Uz compinit && compinit -i -D; "):
            command = f"{before}source {tmp_path / 'script'}; print ${{_comps[superopt]}}"
            ended = subprocess.run([zsh, "-f", "-c", command], capture_output=True, text=True, check=True)
            assert "_superopt" in ended.stdout
            assert ended.stderr == ""


def test_rules_check(run: Run) -> None:
    assert run("rules", "check").code == 0
    assert json.loads(run("rules", "check", "--json").out)


def started(code: str) -> tuple[float, set[str]]:
    """Return the processor's seconds of a start with some code, and what of the heavy it imports."""
    command = (
        "import sys, time\n"
        f"{code}\n"
        f"print(time.process_time(), *({set(HEAVY)!r} & sys.modules.keys()), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    took, *imported = ended.stderr.split()
    return float(took), set(imported)


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("import superopt", 0.8),
        ("from superopt.cli import main; main(['list'])", 2.5),
        pytest.param("from superopt.cli import main; main(['--help'])", 2.5, marks=pytest.mark.slow),
        ("from superopt.cli import main; main(['doctor'])", 2.5),
    ],
)
def test_starting_is_quick_and_imports_nothing_heavy(code: str, limit: float) -> None:
    """The limit is in starts that import numpy, which take longer on a slower machine, too."""
    took, theirs = [], []
    for _ in range(3):  # the best of three: the machine may be busy
        seconds, imported = started(code)
        assert not imported
        took.append(seconds)
        theirs.append(started("import numpy")[0])
    assert min(took) < limit * min(theirs)


def test_a_closed_stdout_is_no_traceback() -> None:
    command = f"{sys.executable} -m superopt list >&-"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "Traceback" not in ended.stderr


def test_an_ascii_terminal_is_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from superopt.cli import main; import sys; print(end=''); main(['doctor'])"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert b"Traceback" not in ended.stderr


def test_ctrl_c_before_anything_is_one_line() -> None:
    code = (
        "import superopt.cli.commands.workloads as w, superopt.cli\n"
        "def stop(arguments): raise KeyboardInterrupt\n"
        "w._run = stop\n"
        "raise SystemExit(superopt.cli.main(['list']))\n"
    )
    began = time.perf_counter()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "superopt: interrupted\n")
    assert time.perf_counter() - began < 30
