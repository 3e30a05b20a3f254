import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from superopt import driver
from superopt.ir import parse_graph

Run = Callable[..., Any]
Write = Callable[..., Path]

SOFTMAX_ROWS = """\
graph rows
axes m=4 k=8
in x: f32[m, k]
t1 = exp(x)
t2 = sum[k](t1)
t3 = div(t1, t2)
out y: f32[m, k] = t3
"""

FUNCTIONS = """\
import torch

def norm(x, g):
    print("called")
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * g

def with_default(x, scale=2.0, *, shift=1.0):
    return x * scale + shift

def many(*xs):
    return xs[0] + xs[1]

def keyword_only(x, *, w):
    return x * w

def raises(x):
    raise ValueError("no luck today")

def branches(x):
    if x.sum() > 0:
        return x
    return -x

def nothing(x):
    return None

def leaves(x):
    raise SystemExit(0)

def mismatch(x, w):
    return x @ w

def opaque(x):
    return torch.sort(x)[0]

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * self.weight

model = Scale()
"""


def test_a_graph_file(run: Run, write: Write) -> None:
    ran = run("search", write(SOFTMAX_ROWS, "rows.graph"), "--show", 1)
    assert ran.code == 0
    assert ran.out.startswith("rows: ")
    assert "#1  bound " in ran.out
    assert "#2" not in ran.out
    assert "# [m, k]" in ran.out
    assert "complete: no limit stopped anything" in ran.out


def test_json_is_all_of_stdout_and_its_graphs_parse(run: Run, write: Write) -> None:
    ran = run("search", write(SOFTMAX_ROWS, "rows.graph"), "--json")
    assert (ran.code, ran.err) == (0, "")
    result = json.loads(ran.out)
    assert result["schema"] == "superopt.search/1"
    assert result["complete"] is True
    [region] = result["regions"]
    assert any(found["is_original"] for found in region["found"])
    bounds = [found["bound"]["us"] for found in region["found"]]
    assert bounds == sorted(bounds)
    for found in region["found"]:
        parse_graph(found["graph"])
        assert found["verdict"]["equal"] is True


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        ("norm", "f32[4,8] f32[8]"),
        ("with_default", "f32[4,8]"),
        ("with_default", "f32[4,8] 3"),
        ("many", "f32[4,8] f32[8]"),
        ("model", "f16[4,8]"),
        ("Scale", "f16[4,8]"),
        ("norm", "f16[1000000,1000000] f16[1000000]"),
        ("with_default", "f32[0,8]"),
    ],
)
def test_functions_of_a_file(run: Run, write: Write, function: str, inputs: str) -> None:
    ran = run("search", f"{write(FUNCTIONS)}:{function}", "--inputs", inputs, "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["regions"]


def test_what_a_function_prints_goes_to_stderr(run: Run, write: Write) -> None:
    ran = run("search", f"{write(FUNCTIONS)}:norm", "--inputs", "f32[4,8] f32[8]", "--quiet")
    assert "called" not in ran.out
    assert "called" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["norm"], "norm(x, g) needs its inputs: give --inputs"),
        (["norm", "--size", "M=2"], "--size and --dtype are for named workloads"),
        (["norm", "--inputs", "f32[4,8]"], "norm takes (x, g) but got 1 input"),
        (["norm", "--inputs", "f32[4,8] f32[8] f32[8]"], "norm takes (x, g) but got 3 inputs"),
        (["norm", "--inputs", "f32[4,8] f99[8]"], "unknown dtype 'f99'"),
        (["norm", "--inputs", "f32[4,8] f32[8]", "--size", "M=2"], "leave out --size"),
        (["keyword_only", "--inputs", "f32[4]"], "keyword_only takes (x, w)"),
        (["raises", "--inputs", "f32[4]"], "no luck today"),
        (["branches", "--inputs", "f32[4]"], "branches"),
        (["leaves", "--inputs", "f32[4]"], "called sys.exit(0)"),
        (["mismatch", "--inputs", "f32[4,8] f32[4,8]"], "mismatch"),
        (["norm", "--seconds", "0"], "'0' is not a number of seconds above 0"),
        (["norm", "--seconds", "nan"], "is not a number of seconds above 0"),
        (["norm", "--workers", "0"], "'0' is not a whole number of at least 1"),
        (["norm", "--workers", "100000"], "is more than 1024"),
        (["norm", "--max-graphs", "0"], "'0' is not a whole number of at least 1"),
        (["norm", "--prune", "magic"], "invalid choice: 'magic'"),
        (["norm", "--resume"], "give --checkpoint DIR"),
        (["norm", "--checkpoint", "{file}"], "is a file; give a folder"),
        (["norm", "--sec", "3"], "unrecognized arguments"),
    ],
)
def test_bad_input_is_one_line(run: Run, write: Write, arguments: list[str], message: str) -> None:
    path = write(FUNCTIONS)
    function, *options = arguments
    ran = run("search", f"{path}:{function}", *(option.format(file=path) for option in options))
    assert message in ran.complaint()


@pytest.mark.parametrize("options", [["--inputs", "f32[4]"], ["--size", "M=3"], ["--dtype", "f16"]])
def test_a_graph_brings_its_own_inputs(run: Run, write: Write, options: list[str]) -> None:
    assert "leave out --inputs" in run("search", write(SOFTMAX_ROWS, "rows.graph"), *options).complaint()


@pytest.mark.parametrize("function", ["nothing", "opaque"])
def test_nothing_to_search_is_a_no(run: Run, write: Write, function: str) -> None:
    ran = run("search", f"{write(FUNCTIONS)}:{function}", "--inputs", "f32[8]")
    assert ran.code == 1
    assert ("not optimized: " in ran.out) == (function == "opaque")
    assert "nothing to search: " in ran.out
    assert ("computes no tensor" in ran.out) == (function == "nothing")


def test_an_interrupted_search_prints_its_best_and_exits_130(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = driver.search(parse_graph(SOFTMAX_ROWS))

    def interrupted(*_: Any, **__: Any) -> driver.Search:
        return driver.Search(whole.name, whole.program, whole.regions, whole.seconds, interrupted=True)

    monkeypatch.setattr(driver, "search", interrupted)
    ran = run("search", write(SOFTMAX_ROWS, "rows.graph"))
    assert ran.code == 130
    assert "#1  bound " in ran.out
    assert "interrupted: the above is the best so far" in ran.out


def test_an_interrupt_without_a_result_is_one_line(
    run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> driver.Search:
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "search", interrupted)
    ran = run("search", write(SOFTMAX_ROWS, "rows.graph"))
    assert (ran.code, ran.out, ran.err) == (130, "", "superopt: interrupted\n")


def test_checkpoint_and_resume(run: Run, write: Write, tmp_path: Path) -> None:
    graph, folder = write(SOFTMAX_ROWS, "rows.graph"), tmp_path / "saved"
    first = run("search", graph, "--checkpoint", folder, "--json")
    again = run("search", graph, "--checkpoint", folder, "--resume", "--json")
    assert first.code == again.code == 0
    graphs = [
        [found["graph"] for found in json.loads(ran.out)["regions"][0]["found"]] for ran in (first, again)
    ]
    assert graphs[0] == graphs[1]


def test_a_closed_pipe_is_quiet(write: Write) -> None:
    path = write(SOFTMAX_ROWS, "rows.graph")
    command = f"{sys.executable} -m superopt search {path} --quiet | head -1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert ended.stdout.startswith("rows: ")
    assert ended.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "superopt", "doctor"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 2
    assert ended.stderr == "superopt: error: cannot write the output: No space left on device\n"


def test_a_terminal_gets_tables_within_its_width(write: Write) -> None:
    screen = _on_terminal(["search", str(write(SOFTMAX_ROWS, "rows.graph")), "--show", "1"], COLUMNS="40")
    assert "\x1b[" in screen
    assert "──" in screen


def test_no_color_means_no_colour(write: Write) -> None:
    arguments = ["search", str(write(SOFTMAX_ROWS, "rows.graph")), "--quiet"]
    assert "\x1b[3" not in _on_terminal(arguments, NO_COLOR="1")


def test_ctrl_c_ends_within_seconds_and_gives_the_best_so_far() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "superopt", "search", "llama-layer"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    while "trace" in (line := process.stderr.readline()):  # a line comes every second
        pass
    assert "llama_layer" in line
    started = time.perf_counter()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted" in out
    assert time.perf_counter() - started < 20


def _on_terminal(arguments: list[str], **environment: str) -> str:
    """Return what a command writes to a terminal."""
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "superopt", *arguments],
        stdin=side,
        stdout=side,
        stderr=side,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    os.close(side)
    written = b""
    try:
        while chunk := os.read(main, 65536):
            written += chunk
    except OSError:  # Linux says so when the other side has closed
        pass
    os.close(main)
    assert process.wait(timeout=60) == 0, written
    return written.decode(errors="replace")
