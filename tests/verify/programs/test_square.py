"""Square tensors: axes of one size that sit in another order are other axes."""

from collections.abc import Callable
from random import Random

import pytest
import torch
from torch import Tensor

from superopt import equivalent

_Program = Callable[[Tensor, Tensor], Tensor]

_DIFFERENT: dict[str, tuple[_Program, _Program]] = {
    "a trace": (lambda x, y: (x @ y).trace(), lambda x, y: (x @ y.T).trace()),
    "a sum": (lambda x, y: (x @ y).sum(), lambda x, y: (x.T @ y).sum()),
    "a sum of products": (lambda x, y: (x * y).sum(), lambda x, y: (x * y.T).sum()),
    "a diagonal": (lambda x, y: (x @ y).diagonal(), lambda x, y: (x @ y.T).diagonal()),
    "a maximum": (lambda x, y: (x + y).amax(), lambda x, y: (x + y.T).amax()),
    "sums of rows": (lambda x, y: (x @ y).sum(0), lambda x, y: (x @ y.T).sum(0)),
    "a call": (lambda x, y: (x @ y).cumsum(0).sum(), lambda x, y: (x @ y.T).cumsum(0).sum()),
}
_EQUAL: dict[str, tuple[_Program, _Program]] = {
    "a turned trace": (lambda x, y: (x @ y).trace(), lambda x, y: (y @ x).trace()),
    "a trace as a sum": (lambda x, y: (x @ y).trace(), lambda x, y: (x * y.T).sum()),
    "a turned sum": (lambda x, y: (x * y.T).sum(), lambda x, y: (x.T * y).sum()),
    "both turned": (lambda x, y: (x @ y).sum(), lambda x, y: (y.T @ x.T).sum()),
}


@pytest.mark.parametrize("name", _DIFFERENT)
def test_another_order_of_axes_is_another_program(name: str) -> None:
    f, g = _DIFFERENT[name]
    assert not equivalent(f, g, torch.randn(4, 4), torch.randn(4, 4), floats=False).equal
    assert equivalent(f, g, torch.randn(4, 4), torch.randn(4, 4)).different


@pytest.mark.parametrize("name", _EQUAL)
def test_turned_programs_are_equal(name: str) -> None:
    f, g = _EQUAL[name]
    assert equivalent(f, g, torch.randn(4, 4), torch.randn(4, 4)).equal


_ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(), "trace": lambda x: x.trace(), "rows": lambda x: x.sum(0),
    "diagonal": lambda x: x.diagonal(), "maximum": lambda x: x.amax(), "whole": lambda x: x,
}  # fmt: skip
_JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda x, y: x @ y, "*": lambda x, y: x * y, "+": lambda x, y: x + y,
}  # fmt: skip


def _chain(leaves: list[tuple[int, bool]], joins: list[str], end: str) -> Callable[..., Tensor]:
    def program(*inputs: Tensor) -> Tensor:
        read = [inputs[at].T if turned else inputs[at] for at, turned in leaves]
        made = read[0]
        for join, other in zip(joins, read[1:], strict=True):
            made = _JOINS[join](made, other)
        return _ENDS[end](made)

    return program


@pytest.mark.parametrize("seed", range(3))
def test_algebra_of_square_tensors_is_never_wrong(seed: int) -> None:
    """Chains with one or two transposes changed: a fourth of them were called equal before."""
    random = Random(seed)
    for _ in range(12):
        leaves = [(random.randrange(3), random.random() < 0.5) for _ in range(random.randrange(2, 4))]
        joins = [random.choice("@@*+") for _ in leaves[1:]]
        changed = {random.randrange(len(leaves)), random.randrange(len(leaves))}
        others = [(at, turned != (place in changed)) for place, (at, turned) in enumerate(leaves)]
        end = random.choice([*_ENDS])
        f, g = _chain(leaves, joins, end), _chain(others, joins, end)
        inputs = [torch.randn(4, 4, dtype=torch.float64) for _ in range(3)]
        same = torch.allclose(f(*inputs), g(*inputs))
        verdict = equivalent(f, g, *inputs, floats=False)
        assert verdict.unknown or verdict.equal == same, (leaves, others, joins, end)
