import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = ["golden/*"] if find_spec("triton") else ["*"]


class Interpreter:
    """A process that runs kernels in Triton's interpreter."""

    def __init__(self):
        self.process = None

    def ask(self, action, **request):
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("runner.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            )
        self.process.stdin.write(json.dumps({"action": action, **request}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "failed" not in answer, answer["failed"]
        return answer

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()


@pytest.fixture
def sources_of():
    """Return the sources of a golden muGraph's kernels, in the default configurations."""
    from superopt.codegen.triton import TritonMuGraph
    from superopt.ir import parse_mugraph

    def sources(name):
        text = Path(__file__).with_name("golden").joinpath(f"{name}.txt").read_text()
        mugraph = parse_mugraph(text)
        built = TritonMuGraph(mugraph)
        return [built.source(at, mugraph.graph.sizes) for at in range(len(mugraph.kernels))]

    return sources


@pytest.fixture
def source_of(sources_of):
    """Return the source of a golden muGraph's first kernel, in the default configuration."""
    return lambda name: sources_of(name)[0]


@pytest.fixture(scope="session")
def interpreter():
    running = Interpreter()
    yield running
    running.close()


@pytest.fixture
def agrees(interpreter):
    """Ask for an action, and check that the kernels' error is about eager's or below."""

    def check(action, **request):
        answer = interpreter.ask(action, **request)
        allowed = 2 * answer["eager"] + 4 * answer["rounding"]
        assert answer["error"] <= allowed, f"error {answer['error']:.3g}, allowed {allowed:.3g}"
        return answer

    return check
