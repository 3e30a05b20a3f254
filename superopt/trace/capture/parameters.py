"""Parameters: what a function takes, by the function itself and not by one that it wraps."""

import inspect
import sysconfig
from pathlib import Path
from types import MethodType
from typing import Any

import torch

__all__ = ["parameters_of"]

_ANY = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})
_STANDARD = sysconfig.get_paths()["stdlib"]
_PASSING_ON = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))  # PyTorch's, and ours


def parameters_of(function: Any) -> tuple[inspect.Signature, bool]:
    """Return the parameters of a function, and whether it has their defaults; ValueError where nothing tells.

    A function that names its parameters has these, whatever it wraps. One that takes any arguments has the
    names of the function that it wraps. Its defaults may be others, unless it is a library's, as that of
    `torch.no_grad()`, which passes on what it is given.
    """
    called: Any = type(function).__call__ if callable(function) else None
    if inspect.isfunction(called):
        function = MethodType(called, function)
    plain, owner = function, None
    if isinstance(function, MethodType):
        plain, owner = function.__func__, function.__self__
    sure = True
    while True:
        found = _own(plain if owner is None else MethodType(plain, owner))
        inner = getattr(plain, "__wrapped__", None)
        if found is not None and (inner is None or not _takes_any(found)):
            return found, sure
        if inner is None:
            raise ValueError(f"no parameters are known of {function!r}")
        sure = sure and (found is None or _is_library(plain))
        plain, owner = inner, None if isinstance(inner, MethodType) else owner


def _own(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # a builtin
        return None


def _takes_any(form: inspect.Signature) -> bool:
    """Whether a function names no parameter, and takes some."""
    return bool(form.parameters) and {one.kind for one in form.parameters.values()} <= _ANY


def _is_library(function: Any) -> bool:
    """Whether a wrapper is PyTorch's, Python's or ours."""
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return file.startswith(_PASSING_ON) or (file.startswith(_STANDARD) and "site-packages" not in file)
