"""What SECURITY.md says: where code is run, that files are data, and whom the folders belong to."""

import ast
import os
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


def sources() -> list[tuple[str, ast.Module]]:
    found = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if not any(parent.is_symlink() for parent in path.parents):
                found.append((name, ast.parse(path.read_text(encoding="utf-8"))))
    return found


def calls(tree: ast.Module, names: set[str]) -> set[str]:
    """Return which of some names are called, as `name(...)` or, with a dot, as `module.name(...)`."""
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return called & names


def test_code_is_run_in_three_places_only() -> None:
    found = {name for name, tree in sources() if calls(tree, {"exec", "eval", "__import__", "os.system"})}
    assert found == RUNS_CODE


def test_nothing_is_unpickled_from_a_file() -> None:
    names = {"pickle.load", "pickle.loads", "marshal.loads", "torch.load", "yaml.load"}
    assert {name for name, tree in sources() if calls(tree, names)} == PICKLES
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
                refused = [one for one in node.keywords if one.arg == "allow_pickle"]
                assert refused, name
                assert ast.unparse(refused[0].value) == "False", name


def test_no_command_goes_through_a_shell() -> None:
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                assert not any(one.arg == "shell" for one in node.keywords), name


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
