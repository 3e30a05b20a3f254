"""Gradients: whether a function is another one for tensors that want gradients, even where these are off.

The tensors of a run want none. A function tells those that do by what it asks of them, and by its results
where it turns gradients on itself: what it makes of such tensors has a graph then.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from superopt.trace.capture.devices import META, asked_by_library

__all__ = ["Gradients"]

_ASKED = frozenset({Tensor.requires_grad, Tensor.is_leaf, Tensor.grad_fn, Tensor.grad})
_PARTING = frozenset({"detach", "detach_"})  # operators whose results have no graph


class Gradients:
    """What one run does with gradients; tensors are known by their positions on the tape."""

    def __init__(self) -> None:
        self._are_asked_for = False  # by a user's code, of an argument or of what is made of it
        self._made: set[int] = set()  # by operators
        self._followed: set[int] = set()  # those with a graph, if what the function is given wants gradients

    def hear(self, function: Any, args: tuple[Any, ...]) -> None:
        """Note a call by which a user's code may ask whether a tensor wants gradients."""
        is_attribute = getattr(function, "__name__", "") == "__get__"
        if is_attribute and function.__self__ in _ASKED and args[0].device == META and not asked_by_library():
            self._are_asked_for = True

    def record(self, operator: Any, reads: Iterable[int], makes: Iterable[int]) -> None:
        """Note what an operator makes of what."""
        made = set(makes)
        has_graph = torch.is_grad_enabled() and getattr(operator, "_opname", "") not in _PARTING
        if has_graph and any(one in self._followed or one not in self._made for one in reads):
            self._followed |= made
        self._made |= made

    def matter(self, results: Iterable[int]) -> bool:
        """Whether a function with these results is another one for tensors that want gradients."""
        return self._are_asked_for or not self._followed.isdisjoint(results)
