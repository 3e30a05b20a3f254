"""Gradients: whether a function does something else for tensors that require gradients, even under no_grad.

A function is traced on tensors that require none. It can tell tensors that do in two ways: its code asks for
an attribute of autograd, or it turns gradients on itself, so that its results have a graph.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from superopt.trace.capture.devices import META, asked_by_library

__all__ = ["Gradients"]

_AUTOGRAD_ATTRIBUTES = frozenset({Tensor.requires_grad, Tensor.is_leaf, Tensor.grad_fn, Tensor.grad})
_DETACHING = frozenset({"detach", "detach_"})  # operators whose results have no graph


class Gradients:
    """What one run does with gradients; tensors are known by their positions on the tape."""

    def __init__(self) -> None:
        self._code_asks = False  # whether the user's code read an attribute of autograd
        self._made: set[int] = set()  # tensors that operators made
        self._with_graph: set[int] = set()  # tensors with a graph, if the inputs require gradients

    def note_question(self, function: Any, args: tuple[Any, ...]) -> None:
        """Note a call by which the user's code may ask whether a tensor requires gradients."""
        is_attribute = getattr(function, "__name__", "") == "__get__"
        asks = is_attribute and function.__self__ in _AUTOGRAD_ATTRIBUTES
        if asks and args[0].device == META and not asked_by_library():
            self._code_asks = True

    def record(self, operator: Any, reads: Iterable[int], makes: Iterable[int]) -> None:
        """Note which tensors an operator reads and which it makes."""
        made = set(makes)
        keeps_graph = torch.is_grad_enabled() and getattr(operator, "_opname", "") not in _DETACHING
        if keeps_graph and any(one in self._with_graph or one not in self._made for one in reads):
            self._with_graph |= made
        self._made |= made

    def decide(self, results: Iterable[int]) -> bool:
        """Whether a function with these results does something else for tensors that require gradients."""
        return self._code_asks or not self._with_graph.isdisjoint(results)
