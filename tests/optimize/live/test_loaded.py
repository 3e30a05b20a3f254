"""Arguments by name, results of other classes, and programs saved and loaded."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import superopt
from superopt import InputError
from superopt.trace import trace

from .conftest import Watched, agree
from .test_changes import assigned, buffer, hook, number, one_number_in_place, weight
from .test_modes import Recording, inputs


def options(x: Tensor, w: Tensor | None = None, by: float = 2.0, *, add: float = 1.0) -> Tensor:
    return ((x if w is None else x @ w) * by + add).tanh()


def test_arguments_by_name_and_defaults(build) -> None:
    x, w = inputs()
    watched = build(options, x, w)
    watched.ours(x, w)
    watched.ours(x, w=w)
    watched.ours(x=x, w=w)
    watched.ours(x, w, 2.0)
    watched.ours(x, w=w, by=2.0, add=1.0)
    for given, named in [
        ((x,), {}),
        ((x, None), {}),
        ((x, w, 3.0), {}),
        ((x, w), {"by": 3.0}),
        ((x, w), {"add": 4.0}),
        ((x, w, 2), {}),
        ((x.double(), w.double()), {}),
        ((x[0], w), {}),
        ((x, w, torch.tensor(3.0)), {}),
    ]:
        watched.theirs(*given, **named)
    for given, named in [((), {}), ((x, w, 1.0, 2.0), {}), ((x, w), {"other": 1}), ((x, w), {"x": x})]:
        with pytest.raises(InputError):
            watched.best(*given, **named)
    full = build(options, x, w, 2.0)
    full.ours(x, w)
    full.ours(x, w, by=2.0)
    full.theirs(x, w, by=2)


def test_a_wrapper_has_parameters_of_its_own(build) -> None:
    def inner(x: Tensor, eps: float = 1e-6) -> Tensor:
        return (x * x).sum(-1) + eps

    @functools.wraps(inner)
    def other_default(x: Tensor, eps: float = 10.0) -> Tensor:
        return inner(x, eps)

    @functools.wraps(inner)
    def by_name(x: Tensor, *, scale: float = 2.0) -> Tensor:
        return inner(x) * scale

    @functools.wraps(inner)
    def hidden_default(*args: Any, **named: Any) -> Tensor:
        named.setdefault("eps", 10.0)
        return inner(*args, **named)

    x = torch.randn(4, 8)
    watched = build(other_default, x)
    watched.ours(x)
    watched.ours(x=x)
    watched.ours(x, 10.0)
    watched.theirs(x, 1e-6)
    watched = build(other_default, x, 1e-3)
    watched.ours(x, eps=1e-3)
    watched.theirs(x)
    watched = build(by_name, x)
    watched.ours(x, scale=2.0)
    watched.theirs(x, scale=3.0)
    watched = build(hidden_default, x)
    watched.ours(x=x)
    watched.theirs(x, eps=1e-6)
    plain = build(torch.no_grad()(inner), x)
    plain.ours(x=x, eps=1e-6)
    plain.theirs(x, 1e-3)
    given = build(torch.no_grad()(inner), x, 1e-6)
    given.ours(x)
    given.theirs(x, 1e-3)


def test_fewer_arguments_than_it_was_built_for_are_left_to_the_function(build) -> None:
    def added(*several: Tensor) -> Tensor:
        return sum(several, torch.zeros(8)).tanh()

    x, w = torch.randn(4, 8), torch.randn(4, 8)
    watched = build(added, x, w)
    watched.ours(x, w)
    watched.theirs(x)
    watched.theirs(x, w, x)


@dataclasses.dataclass
class Pair:
    first: Tensor
    second: list[Tensor]
    count: int = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    pair: Pair
    text: str = "none"


class Node:
    def __init__(self, held: Tensor) -> None:
        self.held = held


torch.utils._pytree.register_pytree_node(
    Node, lambda node: ([node.held], None), lambda children, context: Node(*children)
)


def test_results_of_other_classes(build) -> None:
    x, w = inputs()
    for make in (
        lambda a, b: Pair(a, [b]),
        lambda a, b: Frozen(Pair(a, [b], 4), "some"),
        lambda a, b: {"node": Node(a), "b": b},
    ):
        watched = build(lambda x, w, make=make: make((x @ w).tanh(), x.exp()), x, w)
        before = watched.runs()
        found, wanted = watched.best(x, w), watched.best.function(x, w)
        assert watched.runs() > before
        agree_fields(found, wanted)
        assert watched.best(x, w) is not found
        assert isinstance(watched.best.function(x, w), type(found))


def agree_fields(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if dataclasses.is_dataclass(found):
        for field in dataclasses.fields(found):
            agree_fields(getattr(found, field.name), getattr(wanted, field.name))
    elif isinstance(found, Node):
        agree_fields(found.held, wanted.held)
    elif isinstance(found, dict):
        for key in found:
            agree_fields(found[key], wanted[key])
    else:
        agree(found, wanted)


def test_results_that_hide_tensors_are_named() -> None:
    class Hidden:
        def __init__(self, held: Tensor) -> None:
            self.held = [held]

    x = torch.randn(4)
    with pytest.raises(superopt.errors.TraceError, match="returns a Hidden, which holds tensors"):
        trace(lambda x: Hidden(x * 2), x)
    with pytest.raises(superopt.errors.TraceError, match="returns a generator"):
        trace(lambda x: (x * by for by in (1, 2)), x)


def test_loaded_it_sees_the_same(gate, tmp_path: Path) -> None:
    module, watched, x = gate
    watched.best.save(tmp_path / "best.json")
    best = superopt.load(tmp_path / "best.json", module)
    again = Watched(best, [])
    for change in (weight, assigned, buffer, one_number_in_place, hook, number):
        change(module)
        again.computes(x)
        again.computes(torch.randn(3, 8))
    with torch.device("meta"):
        again.theirs(x)


def test_loaded_without_its_function_it_has_nothing_to_fall_back_to(build, tmp_path: Path) -> None:
    x, w = inputs()
    build(lambda x, w: (x @ w).tanh(), x, w).best.save(tmp_path / "best.json")
    best = superopt.load(tmp_path / "best.json")
    agree(best(x, w), (x @ w).tanh())
    with torch.device("meta"), Recording():
        agree(best(x, w), (x @ w).tanh())
    for given, named in [
        ((x.double(), w), {}),
        ((x,), {}),
        ((x, 2.0), {}),
        ((x[0], w), {}),
        ((x,), {"w": w}),
    ]:
        with pytest.raises(InputError):
            best(*given, **named)
