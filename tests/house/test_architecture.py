"""The map of the house: every room has its paragraph, and every answer names a function that is there."""

import ast
import re
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import house

sys.path.remove(str(ROOT / "docs"))

PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
ANSWERS = re.findall(r"\[`([\w.]+)`\]\(([^)]+\.py)\)", TEXT)


def defined(path: Path) -> set[str]:
    """Return the functions of a module, those of its classes as CLASS.FUNCTION."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_at_least_ten_questions_are_answered() -> None:
    assert len(ANSWERS) >= 10


@pytest.mark.parametrize(("name", "place"), ANSWERS, ids=[name for name, _ in ANSWERS])
def test_an_answer_is_a_function_that_is_there(name: str, place: str) -> None:
    assert name in defined((PAGE.parent / place).resolve())


def test_every_room_has_a_paragraph() -> None:
    assert set(re.findall(r"\*\*`(\w+)`\*\*", TEXT)) == set(house.rooms())


def test_the_rooms_stand_in_one_direction() -> None:
    known = house.imports()
    order = house.from_above(known)
    for name, others in known.items():
        assert all(order.index(name) < order.index(other) for other in others)


def test_type_checkers_imports_do_not_count(tmp_path: Path) -> None:
    module = tmp_path / "a.py"
    module.write_text(
        "from typing import TYPE_CHECKING\n"
        "from superopt import ir\n"
        "if TYPE_CHECKING:\n    from superopt.cost import Device\n"
        "def f():\n    from superopt.tune.measure import Times\n"
    )
    assert set(house.imported(module)) == {"ir", "tune"}


@pytest.mark.parametrize("page", ["docs/index.rst", "CONTRIBUTING.md"])
def test_the_page_can_be_found(page: str) -> None:
    assert "architecture" in (ROOT / page).read_text(encoding="utf-8")


# -- files and folders


def tracked() -> list[Path]:
    """Return the files that a person wrote: no golden files, no plans, no results of measurements."""
    folders = ("superopt", "rules", "frontier", "codegen", "bench", "tests", "docs", "examples")
    made = {"golden", "plans", "results", "pictures", "__pycache__"}
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return [path for path in found if not made & set(path.relative_to(ROOT).parts)]


def test_no_file_is_longer_than_a_person_reads() -> None:
    sources = [path for path in tracked() if path.suffix in {".py", ".hpp"}]
    assert [path.name for path in sources if path.read_text(encoding="utf-8").count("\n") > 450] == []


def test_no_folder_has_more_than_fifteen_files() -> None:
    counts = Counter(path.parent.relative_to(ROOT) for path in tracked())
    assert [str(folder) for folder, count in counts.items() if count > 15] == []


def test_no_files_import_each_other_in_a_circle() -> None:
    sorter = TopologicalSorter(house.files())
    sorter.prepare()  # raises CycleError with the files of a circle


def test_a_circle_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    from superopt import b\n")
    (tmp_path / "b.py").write_text("from superopt.a import f\n")
    with pytest.raises(CycleError):
        TopologicalSorter(house.files(tmp_path)).prepare()
