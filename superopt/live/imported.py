"""Imported: the modules that a function imports while it runs, which no global of its own names."""

import dis
import functools
import sys
import types
from collections.abc import Mapping
from importlib.util import resolve_name
from typing import Any

__all__ = ["imported_by"]

_IMPORT = dis.opmap["IMPORT_NAME"]


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
