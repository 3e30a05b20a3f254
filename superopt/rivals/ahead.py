"""Ahead: PyTorch's compilers at work in a thread of their own, while ours are."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from typing import Self

import torch

from superopt.codegen.children import Children
from superopt.codegen.cpp.compile import compiler_ends
from superopt.codegen.errors import NoCompilerError
from superopt.funnel.state import State
from superopt.rivals.rivals import Function, load_compilers, products_of, rivals_of
from superopt.tune.background import Background

__all__ = ["Ahead"]


class Ahead:
    """The rivals of a program, made before their race; leaving the `with` block ends what is unfinished."""

    def __init__(self, *, known: bool) -> None:
        self._known = known  # whether the function is the original
        self.rivals: Mapping[str, Function] | None = None  # once they are made
        self._children = Children()
        self._context = copy_context()  # Inductor's settings belong to the context that set them
        self._loading = Background(lambda: self._context.run(load_compilers))
        self._making: Background[None] | None = None

    def __enter__(self) -> Self:
        self._loading.begin()
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    def begin(self, state: State) -> None:
        """Begin to make the rivals of a program, now that there are inputs for it; from now on `wait` waits.

        A GPU is not shared with first runs, and modes of this thread would not hold in another one.
        """
        if self._known and state.target.torch_device == "cpu" and not _has_modes():
            self._making = Background(
                lambda: self._context.copy().run(self._make, state, self._loading.result)
            )
            self._making.begin()

    def wait(self) -> None:
        """Wait until nothing is under way; what failed is made again, and says why, where it is to race."""
        with suppress(Exception):
            (self._making or self._loading).result()

    def end(self) -> None:
        """End what is under way."""
        self._children.close()
        for work in (self._making, self._loading):
            if work is not None:
                work.end()

    def _make(self, state: State, loaded: Callable[[], None]) -> None:
        loaded()
        with suppress(NoCompilerError):  # Inductor would wait for a compiler that hangs, without end
            compiler_ends(self._children)
        with torch.no_grad():
            self.rivals = rivals_of(
                state.function,
                state.typical,
                state.target,
                compiled=True,
                products=products_of(state.traced.program),
                tell=lambda message: None,
            )


def _has_modes() -> bool:
    """Whether this thread is in a mode of PyTorch's that would change what a function computes."""
    stacks = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return bool(stacks) or torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu")
