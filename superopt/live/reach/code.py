"""Code: the names that a code object uses: of modules that it imports, of globals, and of attributes."""

import dis
import functools
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import resolve_name
from itertools import dropwhile
from typing import Any

__all__ = ["identifiers_in", "imported_by", "words_for_globals"]

_IMPORT = dis.opmap["IMPORT_NAME"]
_IMPORTERS = frozenset({"modules", "import_module", "__import__"})  # take modules by texts
_TAKERS = frozenset({"globals", "eval", "exec"})  # take globals by texts
# Instructions that say nothing here, those between a taker and its text, and those that read the text.
_SILENT = frozenset({"CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL"})
_BETWEEN = frozenset({"CALL", "LOAD_ATTR", "LOAD_METHOD"})
_READING = frozenset({"CALL", "BINARY_SUBSCR"})


def imported_by(code: types.CodeType, places: Mapping[str, Any]) -> list[str]:
    """Return the modules, by name, that a code with these globals imports, parents first, or takes by texts.

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
    if not _IMPORTERS.isdisjoint(code.co_names):
        found |= dict.fromkeys(one for one in code.co_consts if isinstance(one, str))
        if "__name__" in code.co_names:
            found[str(places.get("__name__"))] = None
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


@functools.lru_cache(maxsize=4096)
def words_for_globals(code: types.CodeType) -> tuple[str, ...] | None:
    """Return the words of the texts by which a code takes globals, or None where it puts texts together."""
    if _TAKERS.isdisjoint(code.co_names):
        return ()
    found: list[str] = []
    steps = [one for one in dis.get_instructions(code) if one.opname not in _SILENT]
    for at, step in enumerate(steps):
        if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME") or step.argval not in _TAKERS:
            continue
        rest = list(dropwhile(lambda one: one.opname in _BETWEEN, steps[at + 1 :]))
        text = rest[0].argval
        reader = next(one for one in rest if one.opname != "LOAD_CONST")
        is_whole = reader.opname in _READING or reader.argrepr == "[]"
        if rest[0].opname != "LOAD_CONST" or not isinstance(text, str) or not is_whole:
            return None
        found += re.findall(r"[^\W\d]\w*", text)
    return tuple(found)


def identifiers_in(constants: Iterable[Any]) -> Iterator[str]:
    """Yield the texts among the constants of a code that may be names of attributes."""
    for constant in constants:
        if isinstance(constant, str) and constant.isidentifier():
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from identifiers_in(constant)


def _package(places: Mapping[str, Any]) -> str | None:
    package = places.get("__package__")
    if package is not None:
        return str(package)
    name = str(places.get("__name__", ""))
    return name if "__path__" in places else name.rpartition(".")[0]
