"""The packaging: what is installed is what is in the repository, once, under one name."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import superopt
from superopt._version import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOP = {"rules", "frontier", "codegen", "bench"}
"""Folders of the repository that install as superopt.<name>."""


def sources() -> dict[str, Path]:
    """Return every module of the repository by its path in an installation."""
    found = {}
    for folder in ("superopt", *sorted(TOP)):
        for path in (ROOT / folder).rglob("*.py"):
            relative = path.relative_to(ROOT)
            if "__pycache__" not in relative.parts and not (
                folder == "superopt" and relative.parts[1] in TOP  # the symlink
            ):
                found[str(Path("superopt", relative) if folder in TOP else relative)] = path
    return found


def copy_of_the_repository(folder: Path) -> Path:
    """Return a copy of the repository, with its links as links, without the files that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.decode().split("\0") if name and os.path.lexists(ROOT / name)]
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    return folder


def test_every_package_is_declared() -> None:
    declared = set(PROJECT["tool"]["setuptools"]["packages"])
    present = {".".join(Path(name).parent.parts) for name in sources()}
    assert declared == present


@pytest.mark.parametrize("name", sorted(TOP))
def test_the_links_are_links(name: str) -> None:
    link = ROOT / "superopt" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)


def test_every_requirement_is_pinned_once() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line]
    assert len(pins) == len(set(pins))
    required = [
        *PROJECT["project"]["dependencies"],
        *(one for extra in PROJECT["project"]["optional-dependencies"].values() for one in extra),
    ]
    for requirement in required:
        name = re.split(r"[\[>=;<! ]", requirement)[0].lower().replace("_", "-")
        assert name == "superopt" or name in pins, requirement
    assert {"torch==2.13.0", "triton==3.7.1"} <= set(lines)


def test_one_version_everywhere() -> None:
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert "version" in PROJECT["project"]["dynamic"]


def test_the_version_is_in_one_place_of_the_code() -> None:
    number = re.compile(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])")
    found = {name for name, path in sources().items() if number.search(path.read_text(encoding="utf-8"))}
    assert found == {"superopt/_version.py"}


def test_the_citation_is_of_its_format() -> None:
    import yaml

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["cff-version"] == "1.2.0"
    assert cited["license"] == PROJECT["project"]["license"]
    assert all("name" in author for author in cited["authors"])


def test_every_module_says_what_it_is() -> None:
    for name, path in sources().items():
        assert path.read_text().startswith('"""'), name


def test_public_names_exist_and_are_imported_lazily() -> None:
    code = "import sys, superopt\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(hasattr(superopt, name) for name in superopt.__all__)
    assert not hasattr(superopt, "nonsense")


@pytest.mark.slow
def test_wheel_and_sdist_hold_each_module_once(tmp_path: Path) -> None:
    repository = copy_of_the_repository(tmp_path / "repository")
    out = tmp_path / "dist"
    built = subprocess.run(  # the wheel is built from the sdist
        [sys.executable, "-m", "build", "--outdir", out, repository], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    [wheel], [sdist] = out.glob("*.whl"), out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    modules = [name for name in names if name.endswith(".py")]
    assert sorted(modules) == sorted(sources())
    assert {"superopt/py.typed", "superopt/codegen/cpp/runtime/vectors.hpp"} <= set(names)
    about = (".py", "py.typed", ".hpp", "data/workloads.graphs")
    assert all(name.endswith(about) for name in names if ".dist-info/" not in name), "no tests, no data"
    assert {name.partition("/")[0] for name in names} == {"superopt", f"superopt-{__version__}.dist-info"}
    assert f"superopt-{__version__}.dist-info/licenses/LICENSE" in names
    with tarfile.open(sdist) as archive:
        all_packed = {name.partition("/")[2] for name in archive.getnames()}
        packed = [name.partition("/")[2] for name in archive.getnames() if name.endswith(".py")]
    assert len(packed) == len(set(packed))
    assert {path.relative_to(ROOT).as_posix() for path in sources().values()} <= set(packed)
    needed = {"CHANGELOG.md", "SECURITY.md", "constraints.txt", "Makefile", "docs/conf.py", "tests/pages.py"}
    assert needed <= all_packed


@pytest.mark.slow
def test_an_installation_that_is_not_editable_works(tmp_path: Path) -> None:
    repository = copy_of_the_repository(tmp_path / "repository")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--no-deps", "--target", site, repository], check=True)
    code = (
        "import superopt, superopt.rules.axioms, superopt.frontier.engine, superopt.cli\n"
        f"assert superopt.rules.__file__ == {str(site / 'superopt' / 'rules' / '__init__.py')!r}\n"
        "raise SystemExit(superopt.cli.main(['list']))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {[str(site), *sys.path]!r}\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert "rmsnorm-linear" in ended.stdout
    assert (site / "bin" / "superopt").exists()
    assert not any((site / name).exists() for name in TOP)
