"""Imported: modules, and which of them are a library's; those too that a function imports while it runs."""

import dis
import functools
import sys
import sysconfig
import types
from collections.abc import Mapping
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import torch

__all__ = ["PLACES", "imported_by", "is_library", "is_library_module"]

PLACES = (str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"])
"""Where the code of PyTorch and of Python's own library lies."""

_LIBRARIES = frozenset({"torch", "numpy", "triton", "builtins", *sys.stdlib_module_names}) - {"__main__"}
_IMPORT = dis.opmap["IMPORT_NAME"]


@functools.cache
def is_library(module: str | None) -> bool:
    """Whether a module is a library's, such as PyTorch's; a user's module may have the same name."""
    if module is None or module.partition(".")[0] not in _LIBRARIES:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or "site-packages" in file or file.startswith(PLACES)


def is_library_module(value: Any) -> bool:
    """Whether a value is a module of a library."""
    return isinstance(value, types.ModuleType) and is_library(value.__name__)


def imported_by(code: types.CodeType, places: Mapping[str, Any]) -> list[str]:
    """Return the names of the modules that a code with these globals imports, parents before children.

    Modules that nobody has imported so far are left out: the code has not run to its import.
    """
    found: dict[str, None] = {}
    for level, name in _imports(code):
        try:
            full = resolve_name("." * level + name, _package(places))
        except ImportError:  # the code is in no package, so that this import fails
            continue
        parts = full.split(".")
        found |= dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return [name for name in found if name in sys.modules]


@functools.lru_cache(maxsize=4096)
def _imports(code: types.CodeType) -> tuple[tuple[int, str], ...]:
    """Return the imports of a code without those in the codes within it: the level and name of each."""
    if _IMPORT not in code.co_code[::2]:
        return ()
    found, level, last = [], 0, 0
    for instruction in dis.get_instructions(code):
        if instruction.opcode == dis.EXTENDED_ARG:
            continue
        if instruction.opcode == _IMPORT:
            found.append((level, instruction.argval))
        # Before each import the code puts the level on the stack, and then the names to import from it.
        level, last = last, instruction.argval if type(instruction.argval) is int else 0
    return tuple(found)


def _package(places: Mapping[str, Any]) -> str | None:
    package = places.get("__package__")
    if package is not None:
        return str(package)
    name = str(places.get("__name__", ""))
    return name if "__path__" in places else name.rpartition(".")[0]
