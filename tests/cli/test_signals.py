"""Signals: whenever a command is ended, it says one line, and leaves no process and no file behind."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

NORM = "x f32"
FILE = """
import torch

def norm(x, g, w):
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g) @ w
"""
BACKEND = """
from superopt.frontier.interrupts import ending_signals, Ended

def norm(x, g, w):
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g) @ w

try:
    with ending_signals():
        import torch
        from superopt.cli.scratch import own_scratch
        with own_scratch(), torch.no_grad():
            inputs = torch.randn(8, 256), torch.randn(256), torch.randn(256, 256)
            torch.compile(norm, backend="superopt")(*inputs)
        print("done", flush=True)  # from here on a signal does what it does to any program of Python
except KeyboardInterrupt:
    raise SystemExit(130)
except Ended as end:
    raise SystemExit(128 + end.number)
"""
INPUTS = ["--inputs", "f32[8,256] f32[256] f32[256,256]", "--seconds", "1"]
COMMANDS = {
    "search": ["-m", "superopt", "search", "llama-layer", "--workers", "2"],
    "optimize": ["-m", "superopt", "optimize", "norm.py:norm", *INPUTS, "-o", "result.json", "--fresh"],
    "backend": ["backend.py"],
}
LONGEST_S = {"search": 4.0, "optimize": 25.0, "backend": 15.0}
# A signal that comes just before a wait begins in C is seen only when it ends: one of 60 s would hang.
WAIT = "[time.sleep(0.05) for _ in range(1200)]"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


_PYTHONS = ("psm_", "sem.", "torch_")  # names that Python and PyTorch give


def _shared() -> set[str]:
    """Return the names in shared memory that no process uses: those that are used have an owner."""
    before, used = _names(), set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            used |= set(re.findall(r"/dev/shm/(\S+)", maps.read_text()))
    return (before & _names()) - used  # what other tests make or delete meanwhile is none of them


def _names() -> set[str]:
    return {one.name for one in Path("/dev/shm").iterdir() if one.name.startswith(_PYTHONS)}


class Place:
    """A folder for one process with its own cache and temporary files, and a mark by which it is known."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir()
        self.mark = uuid.uuid4().hex
        self.shared = _shared()
        (folder / "norm.py").write_text(FILE)
        (folder / "backend.py").write_text(BACKEND)

    def start(self, command: list[str], **more: str) -> "subprocess.Popen[str]":
        environment = {
            **os.environ,
            "SUPEROPT_CACHE_DIR": str(self.folder / "cache"),
            "TMPDIR": str(self.temporary),
            "MARK_OF_A_TEST": self.mark,
            **more,
        }
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def processes(self) -> list[str]:
        """Return what still runs of what was started here."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z":
                        found.append((entry / "cmdline").read_text().replace("\0", " ")[:200])
            except OSError:
                continue
        return found

    def left(self) -> list[str]:
        """Return the temporary files; what PyTorch keeps from run to run does not count."""
        kept = ("torchinductor_",)
        files = [one.name for one in self.temporary.iterdir() if not one.name.startswith(kept)]
        return files + sorted(_shared() - self.shared)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for _ in range(3):
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if made.mark.encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


def ended(place: Place, name: str, number: signal.Signals, after: float) -> str:
    """Send a signal to a command after some seconds; return a fault, or nothing where it ended well."""
    process = place.start(COMMANDS[name])
    time.sleep(after)
    try:
        if number == signal.SIGINT:  # as Ctrl-C does: to all that the terminal has
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    except ProcessLookupError:
        pass
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"{name} went on 60 s after {number.name} at {after:.2f} s"
    what = f"{name}, {number.name} after {after:.2f} s, code {process.returncode}: {err[-1500:]}"
    starts = after < 1.5 and process.returncode in (-number, 1) and "superopt" not in out
    over = name == "backend" and out == "done\n" and process.returncode in (-number, 1)
    if process.returncode not in (CODES[number], 0, 1) and not starts and not over:
        return f"another code: {what}"
    if "Traceback" in err and not starts and not over:
        return f"a traceback: {what}"
    said = any(word in out + err for word in ("nterrupted", "ended by"))
    if process.returncode == CODES[number] and name == "optimize" and not said:
        return f"nothing said: {what}"
    for _ in range(20):
        if not place.processes():
            break
        time.sleep(0.1)
    if running := place.processes():
        return f"still running: {running}: {what}"
    if files := place.left():
        return f"left behind: {files}: {what}"
    return ""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize(
    "number",
    CODES,
    ids=lambda number: number.name,
)
@pytest.mark.slow
def test_optimize_ends_while_it_compiles(place: Place, number: signal.Signals) -> None:
    process = place.start(COMMANDS["optimize"])
    deadline = time.monotonic() + 120
    while not any("cc1plus" in one for one in place.processes()) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == CODES[number], err
    assert "Traceback" not in err
    assert not place.processes()
    assert place.left() == []
    if not (place.folder / "result.json").exists():
        assert out == ""
    else:  # something was made before: it is measured, or not there
        assert '"interrupted": true' in (place.folder / "result.json").read_text()


def test_ctrl_c_while_the_command_line_is_imported(place: Place) -> None:
    """Where exec() of a text is interrupted, Python would end itself by the signal, whatever is caught."""
    (place.folder / "own.py").write_text(
        "import builtins, time\n"
        "usual = builtins.__import__\n"
        "def slow(name, *more):\n"
        "    if name == 'superopt.cli':\n"
        f"        exec('print(1, flush=True); {WAIT}')\n"
        "    return usual(name, *more)\n"
        "builtins.__import__ = slow\n"
        "from superopt.__main__ import main\n"
        "raise SystemExit(main())\n"
    )
    process = place.start(["own.py"])
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "superopt: interrupted\n")


def _amid_an_import(place: Place, before: str = "") -> "subprocess.Popen[str]":
    """Return a process with a scratch folder that did something before, and now imports a module."""
    (place.folder / "slow.py").write_text(f"import time\nprint('importing', flush=True)\n{WAIT}\n")
    (place.folder / "own.py").write_text(
        "from superopt.cli.scratch import own_scratch\n"
        "from superopt.frontier.interrupts import ending_signals\n"
        "with ending_signals(), own_scratch():\n" + indent(f"{before}import slow\n", "    ")
    )
    process = place.start(["own.py"])
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    return process


@pytest.mark.parametrize("number", list(CODES), ids=lambda number: number.name)
def test_an_import_that_is_ended_leaves_no_scratch(place: Place, number: signal.Signals) -> None:
    process = _amid_an_import(place)
    assert len(place.left()) == 1
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    said = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert (process.returncode, err) == (CODES[number], f"superopt: {said}\n")
    assert place.left() == []


def test_an_import_that_is_ended_leaves_no_process(place: Place) -> None:
    """Other threads go on until the process is gone, and a compiler that is killed may be tried again."""
    process = _amid_an_import(
        place,
        "import threading\n"
        "from superopt.codegen.children import Children, LostError\n"
        "children = Children()\n"
        "def again():\n"
        "    while True:\n"
        "        try:\n"
        "            children.run(['sleep', '60'], limit_seconds=60)\n"
        "        except LostError:\n"
        "            return\n"
        "for _ in range(4):\n"
        "    threading.Thread(target=again, daemon=True).start()\n",
    )
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == CODES[signal.SIGTERM]
    assert not place.processes()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize("name", COMMANDS)
def test_no_moment_leaves_anything_behind(place: Place, name: str) -> None:
    draw = random.Random()
    seed = draw.randrange(10**9)
    draw.seed(seed)
    faults = []
    for _ in range(17):
        number = draw.choice(list(CODES))
        if fault := ended(place, name, number, draw.uniform(0.0, LONGEST_S[name])):
            faults.append(fault)
            break
    assert not faults, (seed, faults)
