"""The pages show what really happens: every command in them runs, and prints what they show.

`python tests/test_readme.py` writes the outputs of today into README.md and docs/.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, blocks, refreshed, run, steady

WALKS = ROOT / "docs" / "extend"
"""Its pages change a copy of the repository: test_docs.py follows them."""

READ = tuple(page for page in PAGES if WALKS not in page.parents)
STEADY = [one for page in READ for one in blocks(page) if one.output and not one.varies]
QUICK = ("README",)


@pytest.mark.parametrize(
    "block",
    [pytest.param(one, marks=[pytest.mark.slow] * (one.page.stem not in QUICK)) for one in STEADY],
    ids=str,
)
def test_the_pages_show_what_happens(block: Block) -> None:
    code, output = run(block)
    assert code == block.code
    assert steady(output) == steady(block.output)


@pytest.mark.slow
@pytest.mark.parametrize("page", READ, ids=lambda page: page.stem)
def test_a_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    """Every block in order, in a folder that has nothing but the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for block in blocks(page):
        if block.kind == "file":
            (tmp_path / block.name).write_text(block.body)
            continue
        code, output = run(block, tmp_path)
        assert code == block.code or (block.varies and code in (0, 1)), (str(block), code, output)
        assert output.strip() or not block.output.strip(), block


@pytest.mark.parametrize("page", READ, ids=lambda page: page.stem)
def test_a_page_names_commands_and_options_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    reference = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for command in set(re.findall(r"`superopt ([a-z]+)", text)):
        assert f"\n## superopt {command}" in reference, command
    for option in set(re.findall(r"`(--[a-z-]+)", text)):
        assert f"`{option}" in reference, option


def test_no_block_goes_unread() -> None:
    for page in PAGES:
        fences = re.findall(r"^```(?:console|python|diff)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == len({block.line for block in blocks(page)}), page


if __name__ == "__main__":
    for one in READ:
        one.write_text(refreshed(one), encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "docs" / "generate.py"], check=True)
