"""The glossary: each word is defined once, is in use, and the page can be found."""

import ast
import re
from pathlib import Path

import pytest
from pages import PAGES, ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\| (?!word \|)([^|]+?) \| ([^|]+) \|$", re.MULTILINE)
DEFINED = ROW.findall(GLOSSARY.read_text(encoding="utf-8"))
WORDS = [word for word, _ in DEFINED]


def docstrings(path: Path) -> list[str]:
    """Return every docstring of a module, also those after an assignment."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


@pytest.fixture(scope="module")
def prose() -> str:
    """All docstrings of the package and all other pages."""
    folders = ("superopt", "rules", "frontier", "codegen", "bench")
    modules = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    pages = [page.read_text(encoding="utf-8") for page in PAGES if page != GLOSSARY]
    return "\n".join([*pages, *(text for path in modules for text in docstrings(path))])


def test_each_word_is_defined_once_and_in_a_sentence() -> None:
    assert len(WORDS) == len(set(WORDS))
    assert len(WORDS) > 30
    for word, meaning in DEFINED:
        assert meaning.endswith("."), word
        assert meaning[0].isupper(), word


@pytest.mark.parametrize("word", WORDS)
def test_each_word_is_in_use(word: str, prose: str) -> None:
    assert re.search(rf"\b{re.escape(word)}(s|es)?\b", prose, re.IGNORECASE)


def test_words_stand_in_order_within_their_theme() -> None:
    for theme in GLOSSARY.read_text(encoding="utf-8").split("\n## ")[1:]:
        words = [word.lower() for word, _ in ROW.findall(theme)]
        assert words == sorted(words)


@pytest.mark.parametrize("page", ["docs/index.rst", "CONTRIBUTING.md"])
def test_the_page_can_be_found(page: str) -> None:
    assert "glossary" in (ROOT / page).read_text(encoding="utf-8")
