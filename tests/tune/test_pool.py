"""The pool: commands that work, fail, hang or crash, and what is left of them."""

import json
import os
import resource
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from superopt.codegen.children import Children, LateError, LostError, Server, exit_text
from superopt.errors import InputError
from superopt.tune.first_runs import FirstRuns
from superopt.tune.pool import JobResult, Worker, compile_all


@dataclass(frozen=True)
class CommandJob:
    """Runs a command that reads a JSON request; makes the JSON object that is its last line."""

    name: str
    command: tuple[str, ...]
    request: dict[str, Any] = field(default_factory=dict)

    def run(self, worker: Worker, limit_seconds: float) -> dict[str, Any]:
        done = worker.children.run(self.command, text=json.dumps(self.request), limit_seconds=limit_seconds)
        if done.code:
            last = ["no message", *done.errors.splitlines()][-1]
            raise LostError(f"{exit_text(done.code)}: {last}")
        if not done.output:
            raise LostError("it answered nothing")
        return json.loads(done.output.splitlines()[-1])


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


GOOD = script("import json, sys; print('noise'); print(json.dumps({'got': json.load(sys.stdin)['n']}))")

SERVER = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    what = request["do"]
    if what == "abort": os.abort()
    if what == "exit": print("last words", file=sys.stderr); sys.exit(3)
    if what == "hang": time.sleep(60)
    if what == "garbage": print("} no {", flush=True); continue
    print(json.dumps({"size": len(request.get("text", "")), "pid": os.getpid()}), flush=True)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_outcomes_come_in_order_and_are_told_as_they_end() -> None:
    told: list[str] = []
    jobs = [CommandJob(f"j{n}", GOOD, {"n": n}) for n in range(6)]
    found = compile_all(jobs, workers=3, limit_seconds=30.0, on_done=lambda one: told.append(one.name))
    assert [one.name for one in found] == [job.name for job in jobs]
    assert [one.made for one in found] == [{"got": n} for n in range(6)]
    assert sorted(told) == sorted(job.name for job in jobs)
    assert all(one.failure is None and one.seconds > 0 for one in found)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("import os; os.abort()", "ended by SIGABRT: no message"),
        ("import sys; print('a\\nwhy', file=sys.stderr); sys.exit(2)", "exit code 2: why"),
        ("import time; time.sleep(60)", "not done within 2 s"),
    ],
)
def test_a_failure_is_one_line_and_the_rest_goes_on(code: str, failure: str) -> None:
    jobs = [CommandJob("bad", script(code)), CommandJob("good", GOOD, {"n": 1})]
    bad, good = compile_all(jobs, workers=1, limit_seconds=2.0)
    assert bad.made is None
    assert bad.failure == failure
    assert good.made == {"got": 1}


def test_a_command_that_is_missing() -> None:
    [found] = compile_all([CommandJob("none", ("/no/such/command",))], workers=1, limit_seconds=1.0)
    assert "No such file" in (found.failure or "")


def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    [found] = compile_all([CommandJob("parent", script(code))], workers=1, limit_seconds=1.5)
    assert found.failure == "not done within 1.5 s"
    pid = int(note.read_text())
    assert wait_for(lambda: not is_alive(pid))


def test_an_interrupt_ends_all_children(tmp_path: Path) -> None:
    def sleeper(name: str) -> CommandJob:
        path = str(tmp_path / name)
        return CommandJob(
            name, script(f"import os, time; open({path!r}, 'w').write(str(os.getpid())); time.sleep(60)")
        )

    def interrupt(result: JobResult) -> None:
        assert result.name == "good"
        assert wait_for(lambda: (tmp_path / "a").exists() and (tmp_path / "a").read_text() != "")
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compile_all(
            [CommandJob("good", GOOD, {"n": 0}), sleeper("a"), sleeper("b")],
            workers=2,
            limit_seconds=60.0,
            on_done=interrupt,
        )
    assert time.monotonic() - start < 30.0
    pids = [int(path.read_text()) for path in tmp_path.iterdir() if path.read_text()]
    assert pids
    assert all(not is_alive(pid) for pid in pids)


def test_wrong_settings() -> None:
    with pytest.raises(InputError, match="workers is 0"):
        compile_all([], workers=0, limit_seconds=1.0)
    with pytest.raises(InputError, match="limit_seconds is 0"):
        compile_all([], workers=1, limit_seconds=0)
    assert compile_all([], workers=1, limit_seconds=1.0) == ()


def test_a_fault_of_ours_is_raised() -> None:
    class Broken:
        name = "broken"

        def run(self, worker: Worker, limit_seconds: float) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_all([Broken()], workers=1, limit_seconds=1.0)


@pytest.mark.parametrize("endless", [float("inf"), 1e300, 1e10])
def test_a_limit_without_end_is_no_limit(endless: float) -> None:
    """Before: OverflowError."""
    [found] = compile_all([CommandJob("good", GOOD, {"n": 5})], workers=1, limit_seconds=endless)
    assert found.made == {"got": 5}
    with Children() as children:
        server = Server(script(SERVER), children)
        assert server.ask({"do": "work"}, limit_seconds=endless)["size"] == 0
        server.close()
    with FirstRuns(1, "cpu", endless) as first_runs:
        first_runs._idle.put(first_runs._fresh.pop())
        busy = first_runs._worker(endless)
        threading.Timer(0.1, lambda: first_runs._idle.put(busy)).start()
        assert first_runs._worker(endless) is busy


def test_a_server_answers_many_and_is_replaced_when_it_fails() -> None:
    with Children() as children:
        server = Server(script(SERVER), children)
        first = server.ask({"do": "work"}, limit_seconds=10.0)
        large = server.ask({"do": "work", "text": "x" * 500_000}, limit_seconds=10.0)
        assert large == {"size": 500_000, "pid": first["pid"]}
        for what, message in (
            ("abort", "ended by SIGABRT"),
            ("exit", "exit code 3: last words"),
            ("garbage", "no JSON object"),
        ):
            with pytest.raises(LostError, match=message):
                server.ask({"do": what}, limit_seconds=10.0)
        with pytest.raises(LateError, match=r"not done within 0\.2 s"):
            server.ask({"do": "hang"}, limit_seconds=0.2)
        last = server.ask({"do": "work"}, limit_seconds=10.0)
        assert last["pid"] != first["pid"]
        assert server.starts == 5
        server.close()
        assert not is_alive(last["pid"])


def test_a_server_answers_a_process_with_many_open_files() -> None:
    """Before: a wait for the 1,024th file raised ValueError."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    try:
        with ExitStack() as held, Children() as children:
            for _ in range(1100):
                held.enter_context(Path(os.devnull).open())
            server = Server(script(SERVER), children)
            assert server.ask({"do": "work", "text": "x" * 500_000}, limit_seconds=10.0)["size"] == 500_000
            server.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_server_that_never_gets_ready() -> None:
    with Children() as children:
        server = Server(script("import time; time.sleep(60)"), children, start_seconds=0.3)
        with pytest.raises(LateError):
            server.ask({}, limit_seconds=10.0)
        server.close()


def test_children_that_were_closed_start_no_more() -> None:
    children = Children()
    children.close()
    with pytest.raises(LostError, match="stopped"):
        children.run(GOOD, limit_seconds=1.0)


def test_a_server_ends_when_its_owner_does(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import os\n"
        "from superopt.codegen.children import Children, Server\n"
        f"server = Server({script(SERVER)!r}, Children())\n"
        "pid = server.ask({'do': 'work'}, limit_seconds=10.0)['pid']\n"
        f"open({str(note)!r}, 'w').write(str(pid))\n"
        "os._exit(0)\n"  # no clean-up at all
    )
    [found] = compile_all([CommandJob("owner", (sys.executable, "-c", code))], workers=1, limit_seconds=30.0)
    assert found.failure is not None  # it answers nothing
    pid = int(note.read_text())
    assert wait_for(lambda: not is_alive(pid))


def test_triton_kernels_share_a_compiling_process() -> None:
    pytest.importorskip("triton")
    from superopt.codegen.triton import CompileReport, TritonMuGraph
    from superopt.ir import parse_mugraph
    from superopt.tune.pool import TritonJob

    golden = Path(__file__).parents[1] / "triton" / "golden"
    mugraph = parse_mugraph((golden / "rmsnorm_linear.txt").read_text())
    source = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes)
    jobs = [TritonJob(name, source) for name in "ab"]
    found = compile_all(jobs, workers=1, limit_seconds=120.0)
    assert all(isinstance(one.made, CompileReport) for one in found)
    assert found[1].seconds < found[0].seconds


def test_the_report_of_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import json, os; print(json.dumps({'x': os.environ.get('SUPEROPT_X')}))"
    monkeypatch.setenv("SUPEROPT_X", "1")
    with Children() as children:
        inherited = children.run(script(code), limit_seconds=10.0)
        given = children.run(script(code), limit_seconds=10.0, environment={"PATH": os.environ["PATH"]})
    assert [json.loads(one.output)["x"] for one in (inherited, given)] == ["1", None]
