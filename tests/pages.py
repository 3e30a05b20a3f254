"""Pages: the blocks of README.md and docs/, each with what it says to do and the output that it promises.

    ```console             each line after `$ ` is run; what follows is its output
    ```python              is run, and the ```text after it is its output
    ```diff                is applied to a copy of the repository

A comment before a block says more: after `<!-- output varies -->` the output is not compared; after
`<!-- file: NAME -->` the block is written to that file; after `<!-- exit 1 -->` the command must end so.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "blocks", "refreshed", "run", "steady"]

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_BLOCK = re.compile(
    r"(?:<!-- (?P<says>[^>]*) -->\n+)?"
    r"^```(?P<kind>console|python|diff)\n(?P<body>.*?)^```\n(?:\n```text\n(?P<text>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_CHANGING = re.compile(
    r"\d+\.\d+(?= m?s\b)"  # times
    r"|(?<=\d )\d+\.\d$"  # the last column of the table of levels, also a time
    r"|\d(\.\d+)?e-\d+|-?\d+\.\d{5,}"  # floats, whose last digits depend on the machine
)
# Candidates, duplicates and what was never made count work, which may change where results do not.
_LEVEL = re.compile(r"^(\d+ [\d,]+) [\d,]+ ([\d,]+) [\d,]+ [\d.]+$")
_PRUNED = re.compile(r"^pruned: .*")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page: something to do, and the output that the page promises."""

    page: Path
    line: int  # of the page, where the block begins
    kind: str  # console, python, diff, file
    body: str  # a command, a program, a patch, the text of a file
    output: str
    start: int  # the place of the output in the page
    end: int
    name: str = ""  # the name of the file, where the block is one
    varies: bool = False
    code: int = 0

    def __str__(self) -> str:
        return f"{self.page.stem}:{self.line}"

    @property
    def command(self) -> list[str]:
        """The command that runs the block."""
        if self.kind == "python":
            return [sys.executable, "-c", self.body]
        program, *arguments = shlex.split(self.body)
        assert program in ("superopt", "python"), self.body
        return [sys.executable, *(["-m", "superopt"] if program == "superopt" else []), *arguments]


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """Return the blocks of a page, in order; a console block with several commands is as many."""
    text = page.read_text(encoding="utf-8") if text is None else text
    return [block for match in _BLOCK.finditer(text) for block in _parts(page, match)]


def _parts(page: Path, match: re.Match[str]) -> Iterator[Block]:
    says = match["says"] or ""
    line = match.string.count("\n", 0, match.start()) + 1
    varies, name = "output varies" in says, ""
    code = int(found[1]) if (found := re.search(r"exit (\d+)", says)) else 0
    if found := re.fullmatch(r"file: (\S+)", says):
        yield Block(page, line, "file", match["body"], "", 0, 0, name=found[1])
    elif match["kind"] == "console":
        commands = list(re.finditer(r"^\$ (.*)\n", match["body"], re.MULTILINE))
        ends = [command.start() for command in commands[1:]] + [len(match["body"])]
        for command, end in zip(commands, ends, strict=True):
            first = match.start("body")
            output = match["body"][command.end() : end]
            start, stop = first + command.end(), first + end
            yield Block(page, line, "console", command[1], output, start, stop, "", varies, code)
    else:
        output, start, end = match["text"] or "", match.start("text"), match.end("text")
        yield Block(page, line, match["kind"], match["body"], output, start, end, name, varies, code)


def run(block: Block, folder: Path = ROOT, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and the output of a block, run in a folder."""
    ended = subprocess.run(
        block.command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=600
    )
    return ended.returncode, ended.stdout


def steady(text: str) -> list[str]:
    """Return the lines without the numbers that differ from run to run and from machine to machine."""
    found = []
    for line in text.splitlines():
        plain = _PRUNED.sub("pruned", _LEVEL.sub(r"\1 _ \2 _ _", " ".join(line.split())))
        found.append(_CHANGING.sub("_", plain))
    return found


def refreshed(page: Path) -> str:
    """Return a page with the outputs of today, where they can be compared."""
    text = page.read_text(encoding="utf-8")
    for one in reversed(blocks(page, text)):
        if one.output and not one.varies:
            text = text[: one.start] + run(one)[1] + text[one.end :]
    return text
