"""Tensors that several kernels make of the same weights are kept once, and each kernel sees changes."""

import gc
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor, nn

from superopt.ir import Graph
from superopt.trace import trace
from superopt.weights.away import bytes_away
from superopt.weights.division import divided
from superopt.weights.kept import Kept, bytes_kept, made_once
from superopt.weights.packed import packed
from superopt.weights.shared import all_of


class Mlp(nn.Module):
    """Two matrices of 2 MiB each."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.d = nn.Linear(512, 1024), nn.Linear(1024, 512)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.l(x).relu())


def kept(module: Mlp, rows: int) -> tuple[Kept, list[Tensor]]:
    """Return what a program for so many rows keeps, and the weights that this is made of."""
    traced = trace(module, torch.randn(rows, 512))
    [node] = traced.program.nodes
    made = packed(node.graph, "frozen")
    assert made is not None
    parts = divided(*made)
    found = Kept(parts.once, [port.name for port in parts.unread])
    return found, [traced.constants[name] for name in found.sources]


def test_a_prefill_and_a_decode_keep_one_copy() -> None:
    gc.collect()
    before, away = bytes_kept(), bytes_away()
    module, ends = Mlp().eval().requires_grad_(False), list[str]()
    programs = [kept(module, rows) for rows in (1, 40)]
    for one, _ in programs:
        one.give_up_with(ends.append)
    weights = (module.l.weight, module.d.weight)
    size = sum(one.nbytes for one in weights)
    for turn in range(60):
        found = [one.of(given) or () for one, given in programs]
        for made, again, weight in zip(*found, weights, strict=True):
            assert made is again
            panels = made.flatten(1, -2).transpose(1, 2)
            torch.testing.assert_close(panels.reshape(weight.shape), weight)
        if turn in (20, 21, 40):
            module.l.weight.mul_(-2)
            module.d.weight.data[3, 5] = turn
    assert not ends
    assert bytes_kept() - before == bytes_away() - away == size
    del programs, one, found, made, again, panels
    gc.collect()
    assert bytes_kept() == before


def test_many_layers_rest_without_being_given_up() -> None:
    layers, ends = [Mlp().eval().requires_grad_(False) for _ in range(6)], list[str]()
    programs = [(kept(layers[0], rows)[0], [kept(one, rows)[1] for one in layers]) for rows in (1, 40)]
    for one, _ in programs:
        one.give_up_with(ends.append)
    for _ in range(30):
        for one, weights in programs:
            for given in weights:
                assert one.of(given) is not None
    assert not ends


def test_other_weights_are_made_apart() -> None:
    programs = [kept(Mlp().eval().requires_grad_(False), 1) for _ in range(2)]
    first, second = (one.of(given) or () for one, given in programs)
    assert first
    assert not any(torch.equal(made, again) for made, again in zip(first, second, strict=True))


def test_a_write_while_a_tensor_is_made_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Mlp().eval().requires_grad_(False)
    one, given = kept(module, 1)

    def interrupted(once: Graph, tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        found = made_once(once, tensors)
        module.l.weight.mul_(2)  # as another thread may do
        return found

    monkeypatch.setattr("superopt.weights.kept.made_once", interrupted)
    one.of(given)
    monkeypatch.undo()
    for program, weights in ((one, given), kept(module, 40)):
        made, _ = program.of(weights) or ()
        torch.testing.assert_close(made.transpose(1, 2).reshape(1024, 512), module.l.weight)


def test_what_another_thread_adds_meanwhile_ends_no_walk() -> None:
    """Before: a call of a kernel failed with an error of Python's where another thread compiled one."""

    class Growing(dict[int, str]):
        """A collection to which something is added as soon as it is walked through for the first time."""

        def __iter__(self) -> Iterator[int]:
            for one in super().__iter__():
                self.setdefault(len(self) % 3, "more")
                yield one

    assert all_of(Growing({0: "one"})) == [0, 1, 2]
