"""Factored: results that are multiples of a number, and those that are none."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from superopt.backend.joint.chunks.factored import factored
from superopt.trace import trace
from superopt.trace.run import run_graph

X, T = torch.randn(4, 6), torch.tensor(-3.0)
Function = Callable[[Tensor, Tensor], object]
MULTIPLES: dict[str, tuple[Function, int]] = {
    "a product": (lambda x, t: (x * t, x.sum()), 1),
    "a sum of products": (lambda x, t: ((x * t + t).sum(0), (x * t) @ x.t()), 2),
    "a quotient": (lambda x, t: ((t - x * t) / (x * x + 1), x.exp()), 1),
    "chosen": (lambda x, t: (torch.where(x > 0, t, 0.0) * x, x), 1),
    "a part": (lambda x, t: (-(x * t)[1], x.sum()), 1),
}
OTHERS: dict[str, Function] = {
    "a square": lambda x, t: x * t * t,
    "a sum with something else": lambda x, t: x + t,
    "an exponential": lambda x, t: (x * t).exp(),
    "a divisor": lambda x, t: x / t,
    "a comparison": lambda x, t: (x > t) * x,
    "a maximum": lambda x, t: (x * t).amax(0),
    "a ratio": lambda x, t: (x * t) / (t + t),
    "an absolute value": lambda x, t: (x * t).abs(),
}


@pytest.mark.parametrize("name", MULTIPLES)
def test_results_are_multiplied_afterwards(name: str) -> None:
    function, count = MULTIPLES[name]
    traced = trace(function, X, T)
    found = factored(traced.graph, traced.input_names[1])
    assert found is not None
    without, names = found
    assert len(names) == count
    given = dict(zip(traced.input_names, (X, T), strict=True))
    wanted = run_graph(traced.graph, given)
    made = run_graph(without, {port.name: given[port.name] for port in without.inputs})
    for result, tensor in made.items():
        torch.testing.assert_close(tensor * T.double() if result in names else tensor, wanted[result])


@pytest.mark.parametrize("name", OTHERS)
def test_other_results_are_refused(name: str) -> None:
    traced = trace(OTHERS[name], X, T)
    assert factored(traced.graph, traced.input_names[1]) is None
