"""Domain: the numbers that a function accepts, where it fails on others; drawn inputs keep to them.

A loss may take probabilities only, and a factorization matrices of one kind. The examples that a user gives
are surely of that kind: so where the function fails on what was drawn, the numbers in the examples' range are
kept, and each other one becomes the example's at its place. The range is as wide as the function allows.

A running variance is never negative. Where a program takes only roots or logarithms of an input, what is
drawn for it is made positive: else a layer behind it would be NaN everywhere, and nothing would be compared.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from superopt.errors import InputError, kind_and_line
from superopt.ir import Graph, Program, Region, Step
from superopt.trace.traced import Traced
from superopt.verify.floats.compare import sample
from superopt.verify.floats.memory import laid_out

__all__ = ["TRIED", "Domain", "domain_of", "failure", "positive_domain"]

Function: TypeAlias = Callable[..., Any]

TRIED = ("normal", "sparse", "small integers", "huge")  # distributions on which a function must not fail
_LEAST, _MOST = (-inf, -1.0, 0.0), (inf, 1.0, 0.0)  # limits of the functions that there are, the widest first

_ROOTS = frozenset({"sqrt", "rsqrt", "log", "log2"})
_MOVES = frozenset({"rename", "select"})


@dataclass(frozen=True, slots=True)
class Domain:
    """Examples, and between which numbers each tensor of them may differ from its example."""

    examples: tuple[Any, ...]
    limits: tuple[tuple[float, float], ...]  # the limits of each leaf of the examples
    positive: frozenset[int] = frozenset()  # leaves of which the magnitude is taken

    def keep(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return inputs with what lies outside the limits replaced by the examples' numbers."""
        leaves, tree = tree_flatten(tuple(inputs))
        examples = tree_flatten(self.examples)[0]
        made = []
        for at, (leaf, example, (least, most)) in enumerate(zip(leaves, examples, self.limits, strict=True)):
            if at in self.positive:
                made.append(laid_out(leaf.abs(), leaf))
            elif (least, most) == (-inf, inf):
                made.append(leaf)
            elif least > most:
                made.append(example)
            else:
                within = torch.where((leaf >= least) & (leaf <= most), leaf, example)
                made.append(laid_out(within, leaf))
        kept: tuple[Any, ...] = tree_unflatten(made, tree)
        return kept

    def keeping(self, function: Function) -> Function:
        """Return the function of any inputs, which keep to the domain first."""
        return lambda *inputs: function(*self.keep(inputs))


def failure(function: Function, inputs: Sequence[Any]) -> Exception | None:
    """Return what a function raises on some inputs, or None."""
    try:
        with torch.no_grad():
            function(*inputs)
    except Exception as error:  # a function of the user's may raise anything
        return error
    return None


def domain_of(function: Function, examples: tuple[Any, ...], *, seed: int) -> Domain:
    """Return the domain of a function around its examples, or raise InputError where it fails on them."""
    error = failure(function, examples)
    if error is not None:
        raise InputError(f"the function fails on its inputs: {kind_and_line(error)}") from error
    leaves = tree_flatten(examples)[0]
    drawn = [at for at, leaf in enumerate(leaves) if _is_drawn(leaf)]
    domain = Domain(
        examples, tuple(_range(leaf) if at in drawn else (-inf, inf) for at, leaf in enumerate(leaves))
    )
    if not _holds(function, domain, seed):
        only = tuple((inf, -inf) if at in drawn else (-inf, inf) for at in range(len(leaves)))
        return replace(domain, limits=only)
    for at in drawn:
        domain = next(
            (wide for wide in _wider(domain, at, _LEAST, 0) if _holds(function, wide, seed)), domain
        )
        domain = next((wide for wide in _wider(domain, at, _MOST, 1) if _holds(function, wide, seed)), domain)
    return domain


def positive_domain(traced: Traced, examples: tuple[Any, ...]) -> Domain | None:
    """Return the domain of a program that takes only roots or logarithms of some inputs, else None."""
    leaves = tree_flatten(examples)[0]
    tensors = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    positive = frozenset(
        at
        for at, name in zip(tensors, traced.input_names, strict=True)
        if _is_drawn(leaves[at]) and _only_rooted(traced.program, name)
    )
    return Domain(examples, ((-inf, inf),) * len(leaves), positive) if positive else None


def _only_rooted(program: Program, name: str) -> bool:
    """Whether each reader of a program's input takes a root or a logarithm of it."""
    readers = [node for node in program.nodes if name in node.inputs]
    if name in program.outputs or not readers:
        return False
    return all(
        isinstance(node, Region)
        and _rooted(node.graph, [port.name for port in node.graph.inputs].index(name))
        for node in readers
    )


def _rooted(graph: Graph, value: int) -> bool:
    """Whether all that is done with a value is to take roots or logarithms, perhaps of it and a constant."""
    users = [(made, step) for made, step in graph.numbered if value in step.inputs]
    if not users or any(output.value == value for output in graph.outputs):
        return False
    return all(
        step.op in _ROOTS
        or (step.op in _MOVES and _rooted(graph, made))
        or (step.op == "add" and _adds_nothing_negative(graph, step, value) and _rooted(graph, made))
        for made, step in users
    )


def _adds_nothing_negative(graph: Graph, step: Step, value: int) -> bool:
    others = [graph.constant(other) for other in step.inputs if other != value]
    return all(constant is not None and constant >= 0 for constant in others)


def _is_drawn(leaf: Any) -> bool:
    """Return whether a leaf is a tensor that is drawn anew, and that can be compared with numbers."""
    return isinstance(leaf, Tensor) and leaf.dtype.is_floating_point and leaf.dtype.itemsize > 1


def _range(tensor: Tensor) -> tuple[float, float]:
    finite = tensor[tensor.isfinite()]
    return (float(finite.min()), float(finite.max())) if finite.numel() else (inf, -inf)


def _wider(domain: Domain, at: int, limits: Sequence[float], side: int) -> Iterator[Domain]:
    """Yield domains in which a tensor has another limit on one side, that leaves more room than its own."""
    own = domain.limits[at]
    for limit in limits:
        if own[0] <= own[1] and (limit < own[0] if side == 0 else limit > own[1]):
            found = (limit, own[1]) if side == 0 else (own[0], limit)
            yield replace(domain, limits=(*domain.limits[:at], found, *domain.limits[at + 1 :]))


def _holds(function: Function, domain: Domain, seed: int) -> bool:
    """Return whether a function accepts all drawn inputs once they are kept to a domain."""
    draws = (sample(name, domain.examples, seed=seed) for name in TRIED)
    return all(failure(function, domain.keep(drawn)) is None for drawn in draws)
