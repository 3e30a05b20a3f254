"""The examples: every script runs, and the notebook prints what it shows.

`python tests/test_examples.py` writes the outputs of today into the notebook.
"""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pages import ROOT, steady

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "tour.ipynb"
SAID = {
    "llama_layer.py": "graph DecoderLayer",
    "own_function.py": "out: largest error",
    "llama_block.py": "largest difference from eager PyTorch",
    "training_step.py": "step 199: loss",
}
FUNCTIONS = {"rmsnorm_linear.py"}  # programs that the pages work on: nothing to run


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SAID, *FUNCTIONS}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "said"), SAID.items())
def test_an_example(name: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    assert said in ended.stdout


@pytest.mark.slow
def test_the_notebook_shows_what_happens() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    for cell, output in executed(notebook):
        stored = "".join("".join(one["text"]) for one in cell["outputs"])
        if "varies" not in cell["metadata"].get("tags", ()):
            assert steady(output) == steady(stored), "".join(cell["source"])


def executed(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the code cells with what they print, run in order in one namespace."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile("".join(cell["source"]), cell["id"], "exec"), scope)
            yield cell, printed.getvalue()


def test_the_notebook_is_small() -> None:
    assert NOTEBOOK.stat().st_size < 20_000


if __name__ == "__main__":
    tour = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for number, (one, text) in enumerate(executed(tour), 1):
        one["execution_count"] = number
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        one["outputs"] = [stream] if text else []
    NOTEBOOK.write_text(json.dumps(tour, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
