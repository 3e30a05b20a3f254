"""The map of the house: every room has its paragraph, and every answer names a function that is there."""

import ast
import re
import sys
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
