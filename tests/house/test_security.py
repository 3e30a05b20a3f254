"""What SECURITY.md says: where code is run, that files are data, and whom the folders belong to."""

import ast
import functools
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from superopt.cache import Cache
from superopt.codegen.cpp.compile import _folder

ROOT = Path(__file__).parents[2]
FOLDERS = ("superopt", "rules", "frontier", "codegen", "bench")

RUNS_CODE = {
    "superopt/cli/userfile.py",  # the file that a user names
    "bench/graphs/captured.py",  # a graph of the folder that a user names, in a process of its own
    "codegen/triton/run/launch.py",  # a kernel's source, written by us
}
PICKLES = {
    "frontier/engine/transports/forked.py",  # errors, from our own workers over our own pipes
    "frontier/engine/transports/rays.py",  # a space, from the program to actors that it started
}


NAMED = re.compile(r"\b(exec|eval|__import__|system|loads?|shell)\b")
"""What the text of a file has where one of the calls is made that the tests below look for."""


@functools.cache
def calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """Return the calls of files that name what is looked for: the file, what is called, and the call.

    What is called is `name` or `module.name`.
    """
    found = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if not any(parent.is_symlink() for parent in path.parents):
                text = path.read_text(encoding="utf-8")
                nodes = ast.walk(ast.parse(text)) if NAMED.search(text) else ()
                found += [(name, _called(one), one) for one in nodes if isinstance(one, ast.Call)]
    return tuple(found)


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(module), name):
            return f"{module}.{name}"
    return ""  # of none of the names below


def callers(*names: str) -> set[str]:
    """Return the files that call something by one of some names."""
    return {file for file, called, _ in calls() if called in names}


def test_code_is_run_in_three_places_only() -> None:
    assert callers("exec", "eval", "__import__", "os.system") == RUNS_CODE


def test_nothing_is_unpickled_from_a_file() -> None:
    assert callers("pickle.load", "pickle.loads", "marshal.loads", "torch.load", "yaml.load") == PICKLES
    for file, called, call in calls():
        if called in ("np.load", "numpy.load"):
            refused = [one for one in call.keywords if one.arg == "allow_pickle"]
            assert refused, file
            assert ast.unparse(refused[0].value) == "False", file


def test_no_command_goes_through_a_shell() -> None:
    for file, _, call in calls():
        assert not any(one.arg == "shell" for one in call.keywords), file


@pytest.mark.skipif(os.name != "posix", reason="modes of folders")
@pytest.mark.parametrize("make", [lambda: Cache.open().close(), _folder], ids=["cache", "kernels"])
def test_folders_are_for_their_owner_alone(
    make: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        make()
    finally:
        os.umask(before)
    for folder in (one for one in (tmp_path / "cache").rglob("*") if one.is_dir()):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
