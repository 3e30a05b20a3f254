"""`superopt bench`: one's own functions measured, two results compared, drawn, and every mistake named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from superopt.bench.functions.declared import declared_in
from superopt.cli.bench import run as benchrun
from superopt.cli.userfile import run_file

MINE = """
from superopt.bench import case


def slow(x):
    return x.exp().exp().exp().exp()


@case(inputs="f32[64,64]", against=slow, optimize=False, floor=0.01)
def fast(x):
    return x.exp()


@case(inputs="f32[4]", against=[slow], optimize=False)
def broken(x):
    raise ValueError("not today")
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a file of one's own once, for all that look at what comes of it."""
    from superopt.cli import main

    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(MINE)
    command = ["bench", "run", str(folder / "mine.py"), "--seconds", "0.05", "--threads", "1"]
    code = main([*command, "--repeat", "2", "--json", str(folder / "out.json")])
    return {"code": code, "folder": folder, "document": json.loads((folder / "out.json").read_text())}


def test_functions_of_a_file_are_measured(measured: dict[str, Any]) -> None:
    document = measured["document"]
    assert measured["code"] == 1  # one is broken
    assert document["suite"] == "functions"
    assert document["machine"]["threads"] == 1
    assert document["settings"]["launches"] == 2
    assert "by_launch" not in document
    fast = document["cases"]["fast"]
    assert [len(blocks) for blocks in fast["blocks_us"].values()] == [2, 2]
    assert set(fast["measured"]) == {"fast", "slow"}
    assert fast["held"]
    assert document["cases"]["broken"]["error"].endswith("not today")


def test_what_was_measured_is_compared(
    measured: dict[str, Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    old = measured["folder"] / "out.json"
    ran = run("bench", "compare", old, old)
    assert ran.code == 0
    assert "fast" in ran.out
    slower = json.loads(old.read_text())
    fast = slower["cases"]["fast"]
    fast["blocks_us"]["fast"] = [[2 * us for us in blocks] for blocks in fast["blocks_us"]["fast"]]
    new = tmp_path / "new.json"
    new.write_text(json.dumps(slower))
    ran = run("bench", "compare", old, new, "--json")
    assert ran.code == 1
    said = json.loads(ran.out)
    assert said["regressions"] == ["fast"]
    assert said["cases"][0]["change"] == pytest.approx(2.0, rel=0.2)
    assert run("bench", "compare", old, new, "--tolerance", "0.99").code in (0, 1)


def test_it_is_drawn(measured: dict[str, Any], run: Callable[..., Any], tmp_path: Path) -> None:
    ran = run("bench", "plot", measured["folder"] / "out.json", "-o", tmp_path / "pictures")
    assert ran.code == 0
    assert [Path(line).name for line in ran.out.splitlines()] == ["out-speedups.png", "out-speedups.svg"]
    ran = run("bench", "plot", measured["folder"] / "out.json", "-o", measured["folder"] / "mine.py")
    assert "is a file; give a folder" in ran.complaint()


def test_without_matplotlib_one_line_says_so(
    measured: dict[str, Any], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run("bench", "plot", measured["folder"] / "out.json")
    assert ran.complaint() == 'pictures need matplotlib: pip install "superopt[bench]"'


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\n", "has no benchmark: decorate a function"),
        ("import nothing_of_this_name\n", "nothing_of_this_name"),
        ("def f(:\n", "syntax error"),
        ("@case(inputs=3)\ndef f(x): pass\n", "f: inputs is 3; give a text"),
        ('@case(inputs="f32[4")\ndef f(x): pass\n', "f: inputs 'f32[4': a bracket is not closed"),
        ('@case(inputs="f32[4]", against="fastest")\ndef f(x): pass\n', "against has 'fastest'; give eager"),
        ('@case(inputs="f32[4]", against=[])\ndef f(x): pass\n', "against is empty"),
        ('@case(inputs="f32[4]", optimize=False)\ndef f(x): pass\n', "give against= another function"),
        ('@case(inputs="f32[4]", floor=-1)\ndef f(x): pass\n', "floor is -1; give a number above 0"),
    ],
)
def test_bad_files(source: str, said: str, run: Callable[..., Any], write: Callable[..., Path]) -> None:
    path = write(f"from superopt.bench import case\n{source}")
    assert said in run("bench", "run", path).complaint()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "cpus"], "did you mean cpu?"),
        (["run", "nothing.py"], "does not exist"),
        (["run", "cpu", "--resume"], "--resume goes on after what --json has"),
        (["run", "cpu", "--threads", "1"], "are for your own file"),
        (["run", "cpu", "--filter", "nothing*"], "matches no case"),
        (["run", "frontier", "--minutes", "3"], "neither --minutes nor --resume"),
        (["run", "cpu", "--json", "/nowhere/out.json"], "there is no folder"),
        (["run", "cpu", "--repeat", "0"], "at least 1"),
        (["compare", "a.json", "b.json"], "does not exist"),
        (["compare", "a.json", "b.json", "--tolerance", "5"], "5% is 0.05"),
        (["plot", __file__], "it is not JSON"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str, run: Callable[..., Any]) -> None:
    assert said in run("bench", *arguments).complaint()


def test_a_suite_is_run_by_its_module(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def ran(command: list[str]) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr("superopt.bench.suites.run_suite", ran)
    out = tmp_path / "out.json"
    assert (
        run("bench", "run", "cpu", "--filter", "softmax/2048-m8/*", "--json", out, "--minutes", 2).code == 0
    )
    [command] = commands
    assert command[1:3] == ["-m", "superopt.bench.cpu"]
    assert command[command.index("--case") + 1] == "softmax/2048-m8/f32,softmax/2048-m8/bf16"
    assert command[command.index("--json") + 1] == str(out)


def test_launches_of_a_suite_are_merged(
    run: Callable[..., Any], measured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(command: list[str]) -> int:
        Path(command[command.index("--json") + 1]).write_text(json.dumps(measured["document"]))
        return 0

    monkeypatch.setattr("superopt.bench.suites.run_suite", ran)
    out = tmp_path / "out.json"
    assert run("bench", "run", "search", "--quick", "--repeat", "3", "--json", out).code == 0
    found = json.loads(out.read_text())
    assert found["launches"] == 3
    assert len(found["cases"]["fast"]["blocks_us"]["fast"]) == 6
    assert [place.name for place in tmp_path.iterdir()] == ["out.json"]


def test_an_interrupted_run_keeps_its_launches_and_goes_on(
    run: Callable[..., Any], measured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    launched: list[int] = []

    def launch(request: Any, command: Any) -> dict[str, Any]:
        launched.append(len(launched))
        if len(launched) == 2:
            raise KeyboardInterrupt
        cases = {name: measured["document"]["cases"][name] for name in request.names}
        return {**measured["document"], "cases": cases}

    monkeypatch.setattr("superopt.bench.functions.launch.run_launch", launch)
    out = tmp_path / "out.json"
    command = ("bench", "run", path, "--repeat", "3", "--filter", "fast", "--json", out)
    assert run(*command).code == 130
    assert len(json.loads(out.read_text())["by_launch"]) == 1
    assert run(*command, "--resume").code == 0
    assert len(launched) == 4  # two more than the two of the first
    assert json.loads(out.read_text())["settings"]["launches"] == 3


def test_a_case_below_its_floor_fails(
    run: Callable[..., Any],
    measured: dict[str, Any],
    write: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write(MINE.replace("floor=0.01", "floor=1000"))
    known = {**measured["document"], "cases": {"fast": measured["document"]["cases"]["fast"]}}
    monkeypatch.setattr("superopt.bench.functions.launch.run_launch", lambda request, command: known)
    ran = run("bench", "run", path, "--filter", "fast", "--repeat", "1")
    assert ran.code == 1
    assert "fast: below its floor of 1000" in ran.out


def test_the_floors_are_benchmarks_of_a_file() -> None:
    found = declared_in(run_file(benchrun._file_of("floors")))
    assert len(found) >= 4
    assert all(one.floor for one in found)


@pytest.mark.slow
def test_what_superopt_makes_of_a_function_is_measured(
    run: Callable[..., Any], write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(
        "from superopt.bench import case\n"
        '@case(inputs="f32[8,256]", against="eager")\n'
        "def norm(x):\n"
        "    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()\n"
    )
    out = tmp_path / "out.json"
    ran = run("bench", "run", path, "--repeat", "2", "--seconds", "0.1", "--threads", "1", "--json", out)
    assert ran.code == 0, ran.out
    norm = json.loads(out.read_text())["cases"]["norm"]
    assert set(norm["measured"]) == {"superopt", "eager"}
    assert len(norm["program"]) == 16
    assert len(norm["blocks_us"]["superopt"]) == 2
