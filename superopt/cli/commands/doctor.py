"""`superopt doctor`: what this machine has, what is missing, and the remedy for each.

Nothing heavy is imported: versions come from package metadata.
"""

import argparse
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from superopt._version import __version__
from superopt.cli.screen import Table, Text, print_blocks, print_json

__all__ = ["Check", "add_command", "examine"]

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; a remedy is given only where something is missing."""

    name: str
    ok: bool
    found: str
    required: bool = True
    remedy: str = ""

    @property
    def status(self) -> str:
        """The word that stands in the table."""
        return "ok" if self.ok else "missing" if self.required else "none"


@dataclass(frozen=True, slots=True)
class _Package:
    name: str
    minimum: str
    purpose: str
    required: bool = True


PACKAGES = (
    _Package("torch", "2.11", "tracing"),
    _Package("egglog", "13.1", "pruning"),
    _Package("z3-solver", "4.13", "proofs of the axioms"),
    _Package("numpy", "1.26", "the search"),
    _Package("rich", "13", "output"),
    _Package("platformdirs", "4", "cache"),
    _Package("multiprocessing-logging", "0.3.4", "logs of workers", required=sys.platform == "linux"),
    _Package("triton", "3.6", "GPU kernels", required=False),
)
"""The same minimum versions as in pyproject.toml; a test compares them."""


def add_command(commands: Any) -> None:
    """Add `superopt doctor`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="what this machine has and what is missing",
        description="Shows what this machine has, what is missing, and the remedy for each.",
        epilog="Exit code 1 if something required is missing.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def examine() -> tuple[Check, ...]:
    """Return every check, required ones first."""
    checks = [_python(), *map(_package, PACKAGES), _compiler(), _gpu(), _workers(), _memory(), _cache()]
    return tuple(sorted(checks, key=lambda check: not check.required))


def _run(arguments: argparse.Namespace) -> int:
    checks = examine()
    ok = all(check.ok for check in checks if check.required)
    if arguments.json:
        print_json(
            {
                "schema": "superopt.doctor/1",
                "version": __version__,
                "platform": platform.platform(),
                "ok": ok,
                "checks": [{**asdict(check), "status": check.status} for check in checks],
            }
        )
        return 0 if ok else 1
    rows = tuple((check.status, check.name, check.found) for check in checks)
    remedies = [check for check in checks if check.remedy]
    print_blocks(
        [
            Text(f"superopt {__version__} on {platform.platform()}", "bold"),
            Table(("status", "what", "found"), rows),
            *(
                Text(f"{check.name}: {check.remedy}", "red" if check.required else "yellow")
                for check in remedies
            ),
            Text("Everything required is here." if ok else "Something required is missing.", "bold"),
        ]
    )
    return 0 if ok else 1


def _python() -> Check:
    found = f"{platform.python_version()} ({platform.python_implementation()})"
    ok = sys.version_info >= (3, 11)
    return Check("python", ok, found, remedy="" if ok else "use Python 3.11 or newer")


def _package(package: _Package) -> Check:
    from importlib import metadata

    wanted = f'pip install "{package.name}>={package.minimum}"'
    try:
        version = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        found = f"not installed: no {package.purpose}"
        return Check(package.name, False, found, package.required, wanted)
    ok = _numbers(version) >= _numbers(package.minimum)
    return Check(
        package.name,
        ok,
        version if ok else f"{version}, older than {package.minimum}",
        package.required,
        "" if ok else wanted,
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, enough to compare releases."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _compiler() -> Check:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        program, *arguments = (name or "").split() or [""]  # as in CXX="ccache g++"
        path = shutil.which(program) if program else None
        if path:
            return Check("C++ compiler", True, " ".join((path, *arguments)), required=False)
    remedy = "install g++ or clang++, or name one in CXX; only kernels for the CPU need it"
    return Check("C++ compiler", False, "none on the PATH", False, remedy)


def _gpu() -> Check:
    for device, name in (("/dev/nvidiactl", "NVIDIA driver present"), ("/dev/kfd", "AMD driver present")):
        if os.path.exists(device):
            return Check("GPU", True, name, required=False)
    return Check("GPU", False, "no driver; searching and verifying need none", required=False)


def _workers() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not hasattr(os, "fork"):
        return Check("workers", False, f"{cores} cores, no fork: one worker only", required=False)
    found = f"{cores} cores"
    shared = Path("/dev/shm")
    if os.path.isdir(shared):
        free = shutil.disk_usage(shared).free
        found += f", {free / _GIB:.1f} GiB of shared memory"
        if free < _GIB // 8:
            remedy = "give it at least 128 MiB of /dev/shm (docker: --shm-size), or use --workers 1"
            return Check("workers", False, found, False, remedy)
    return Check("workers", True, found, required=False)


def _memory() -> Check:
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return Check("memory", True, "unknown", required=False)
    ok = size >= 2 * _GIB
    remedy = "" if ok else "searches of large programs may need 2 GiB"
    return Check("memory", ok, f"{size / _GIB:.1f} GiB", False, remedy)


def _cache() -> Check:
    from superopt.cache import cache_folder

    try:
        folder = cache_folder()
    except ImportError:
        return Check("cache folder", False, "unknown without platformdirs", False, "install platformdirs")
    except OSError as error:
        return Check("cache folder", False, str(error), False, "name a folder in SUPEROPT_CACHE_DIR")
    existing = folder
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    ok = os.path.isdir(existing) and os.access(existing, os.W_OK)
    remedy = "" if ok else f"make {existing} a writable folder, or name one in SUPEROPT_CACHE_DIR"
    return Check("cache folder", ok, str(folder), False, remedy)
