"""Names: one variable for each tensor, axis and value of an exported module, none taken twice."""

import builtins
import keyword
import re
from collections.abc import Iterable, Sequence

from superopt.codegen.triton.expression import HELPERS

__all__ = ["Names", "function_name", "plain_text", "tuple_text", "wrapped"]

_MODULE = (
    "F", "Path", "SIZES", "TensorDescriptor", "_expect", "array", "arranged", "check", "ctypes", "device",
    "dtype", "functools", "json", "launch", "load_prepared", "main", "make_inputs", "masked_sum", "math",
    "os", "prepare", "reference", "seed", "shutil", "sizes", "subprocess", "sys", "tempfile", "tl", "torch",
    "triton",
)  # fmt: skip
_PYTHON = (*dir(builtins), *keyword.kwlist, *keyword.softkwlist)
_CHECKING = (
    "error", "expected", "finite", "found", "inputs", "name", "ok", "one", "other", "scale", "tolerance",
    "verdict", "worst",
)  # fmt: skip
"""The variables of `check`, which calls the function."""
_NO_FUNCTION = frozenset((*_MODULE, *_PYTHON, *_CHECKING, *HELPERS))


def function_name(text: str) -> str:
    """Return a name for the function of a module, near to a given one, that means nothing else there."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "program"
    is_free = plain.isidentifier() and plain not in _NO_FUNCTION
    return plain if is_free else f"program_{plain}"


class Names:
    """Variables of one function; `used` are the other names that mean something in it."""

    def __init__(self, taken: Iterable[str] = (), *, used: Iterable[str] | None = None) -> None:
        used = (*_MODULE, *_PYTHON) if used is None else used
        self._taken = {*keyword.kwlist, *used, *taken}

    def take(self, wanted: str) -> str:
        """Return a free name: the wanted one, if nothing has it yet."""
        name = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def plain_text(text: str) -> str:
    """Return a text without characters that could end a comment or a string."""
    return " ".join(re.sub(r"[^A-Za-z0-9 _.,:;+()\[\]/=*-]", " ", text).split())


def tuple_text(items: Sequence[str]) -> str:
    """Return items as a tuple."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def wrapped(items: Iterable[str]) -> list[str]:
    """Return items, indented and each followed by a comma, in lines of about 100 characters."""
    indent = " " * 4
    lines = [indent]
    for item in items:
        if len(lines[-1]) + len(item) > 100 and lines[-1] != indent:
            lines.append(indent)
        lines[-1] += f"{item}, "
    return [line.rstrip() for line in lines if line != indent]
