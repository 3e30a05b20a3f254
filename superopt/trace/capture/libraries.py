"""Libraries: which modules are a library's, and not a user's own."""

import sys
import sysconfig
import types
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["PLACES", "is_library", "is_library_module"]

PLACES = (str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"])
"""Where the code of PyTorch and of Python's own library lies."""

_LIBRARIES = frozenset({"torch", "numpy", "triton", "builtins", *sys.stdlib_module_names}) - {"__main__"}


@cache
def is_library(module: str | None) -> bool:
    """Whether a module is a library's, such as PyTorch's; a user's module may have the same name."""
    if module is None or module.partition(".")[0] not in _LIBRARIES:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or "site-packages" in file or file.startswith(PLACES)


def is_library_module(value: Any) -> bool:
    """Whether a value is a module of a library."""
    return isinstance(value, types.ModuleType) and is_library(value.__name__)
