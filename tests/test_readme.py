"""The README shows what really happens: every command in it runs, and prints what it shows.

`python tests/test_readme.py` writes the outputs of today into it.
"""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"

_CONSOLE = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```\n")
_PYTHON = re.compile(r"```python\n(?P<code>(?:.*\n)*?)```\n\n```text\n(?P<output>(?:.*\n)*?)```\n")
_CHANGING = re.compile(
    r"\d+\.\d+(?= m?s\b)"  # times
    r"|(?<=\d )\d+\.\d$"  # the last column of the table of levels, also a time
    r"|\d(\.\d+)?e-\d+|-?\d+\.\d{5,}"  # floats, whose last digits depend on the machine
)


@dataclass(frozen=True, slots=True)
class Block:
    """What the README says to run, and what it says comes out."""

    command: tuple[str, ...]
    output: str
    start: int  # of the output in the README
    end: int


def blocks(text: str) -> list[Block]:
    found = []
    for match in _CONSOLE.finditer(text):
        program, *arguments = shlex.split(match["command"])
        assert program == "superopt", program
        command = (sys.executable, "-m", "superopt", *arguments)
        found.append(Block(command, match["output"], match.start("output"), match.end("output")))
    for match in _PYTHON.finditer(text):
        command = (sys.executable, "-c", match["code"])
        found.append(Block(command, match["output"], match.start("output"), match.end("output")))
    return sorted(found, key=lambda block: block.start)


def run(block: Block) -> tuple[int, str]:
    ended = subprocess.run(block.command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=300)
    return ended.returncode, ended.stdout


def steady(text: str) -> list[str]:
    """Return the lines without what differs from run to run and from machine to machine."""
    return [_CHANGING.sub("_", " ".join(line.split())) for line in text.splitlines()]


@pytest.mark.parametrize(
    "block", blocks(README.read_text(encoding="utf-8")), ids=lambda block: block.command[-1][:20]
)
def test_the_readme_shows_what_happens(block: Block) -> None:
    code, output = run(block)
    assert code == (1 if any("wrong" in word for word in block.command) else 0)
    assert steady(output) == steady(block.output)


def test_the_readme_has_no_other_commands() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(blocks(text)) == text.count("```console") + text.count("```python")
    help_text = subprocess.run(
        [sys.executable, "-m", "superopt", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in set(re.findall(r"`superopt (\w+)", text)):
        assert re.search(rf"^ +{command} ", help_text, re.MULTILINE), command
    search_help = subprocess.run(
        [sys.executable, "-m", "superopt", "search", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in set(re.findall(r"`(--[a-z-]+)", text)):
        assert option in search_help, option


if __name__ == "__main__":
    readme = README.read_text(encoding="utf-8")
    for one in reversed(blocks(readme)):
        readme = readme[: one.start] + run(one)[1] + readme[one.end :]
    README.write_text(readme, encoding="utf-8")
