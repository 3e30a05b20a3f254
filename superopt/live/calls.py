"""Calls: what serves calls of a program that are like earlier ones."""

from collections.abc import Callable
from typing import Any, TypeVar

from superopt.codegen.forms import Ready

__all__ = ["Calls", "calling"]

_Program = TypeVar("_Program")


class Calls:
    """What serves calls of each form, while the function reads the same tensors."""

    __slots__ = ("latest", "ready")

    def __init__(self) -> None:
        self.ready: dict[object, Ready] = {}
        self.latest: Ready | None = None  # what served the latest call


def calling(kind: type[_Program], function: Callable[..., Any]) -> type[_Program]:
    """Return a class of programs whose calls are calls of a function, with nothing of ours in between."""
    own = {"__call__": staticmethod(function), "__doc__": kind.__doc__, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)
