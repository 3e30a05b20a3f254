"""Calls: what serves calls of a program that are like earlier ones."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from superopt.codegen.forms import Forms, Ready
from superopt.codegen.signature import form_of
from superopt.trace.capture.tape import repeats_of

__all__ = ["ArgumentForms", "Calls", "call_key", "calling"]

_Program = TypeVar("_Program")


class Calls:
    """What serves calls of each form, while the function reads the same tensors."""

    __slots__ = ("latest", "ready")

    def __init__(self) -> None:
        self.ready: dict[object, Ready] = {}
        self.latest: Ready | None = None  # what served the latest call


class ArgumentForms(Forms):
    """The forms of arguments, and which of them are one tensor; functions may compare them by `is`."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        self._repeats = repeats_of(tensors)

    def same(self, tensors: Sequence[Tensor]) -> bool:
        """Whether no form has changed, and no other arguments are one tensor."""
        # A guard never holds where one tensor comes twice, and none is made for such arguments.
        return self.alike(*tensors) or (repeats_of(tensors) == self._repeats and self._same_here(tensors))


def call_key(inputs: Sequence[Tensor], threads: int) -> object:
    """Return what must agree for the preparation of another call to serve these arguments."""
    return threads, form_of(inputs), repeats_of(inputs)


def calling(kind: type[_Program], function: Callable[..., Any]) -> type[_Program]:
    """Return a class of programs whose calls are calls of a function, with nothing of ours in between."""
    own = {"__call__": staticmethod(function), "__doc__": kind.__doc__, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)
