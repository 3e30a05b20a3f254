"""Changes of a module's tensors, and changes that make it another program."""

import copy
import logging
import random as dice
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from superopt import Optimized
from superopt.errors import TraceError
from superopt.trace import trace

from .conftest import Gate, agree


def weight(module: nn.Module) -> None:
    module.l.weight = nn.Parameter(torch.randn(8, 8))


def weight_data(module: nn.Module) -> None:
    module.l.weight.data = torch.randn(8, 8)


def weight_in_place(module: nn.Module) -> None:
    module.l.weight.add_(1)


def weight_data_in_place(module: nn.Module) -> None:
    module.l.weight.data.mul_(2)


def optimizer_step(module: nn.Module) -> None:
    with torch.enable_grad():
        step = torch.optim.SGD(module.parameters(), 0.1)
        module(torch.randn(4, 8)).sum().backward()
        step.step()


def loaded(module: nn.Module) -> None:
    module.load_state_dict({name: torch.randn_like(one) for name, one in module.state_dict().items()})


def assigned(module: nn.Module) -> None:
    state = {name: torch.randn_like(one) for name, one in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


def buffer(module: nn.Module) -> None:
    module.table = torch.randn(8)


def one_number(module: nn.Module) -> None:
    module.heat = torch.tensor(-2.0)


def one_number_in_place(module: nn.Module) -> None:
    module.heat.fill_(7)


def another_layer(module: nn.Module) -> None:
    module.l = nn.Linear(8, 8)


def no_gradients_wanted(module: nn.Module) -> None:
    module.requires_grad_(False)


REBOUND = [
    weight, weight_data, weight_in_place, weight_data_in_place, optimizer_step, loaded, assigned, buffer,
    one_number, one_number_in_place, another_layer, no_gradients_wanted,
]  # fmt: skip


def training(module: nn.Module) -> None:
    module.drop.p = 1.0
    module.train()


def hook(module: nn.Module) -> None:
    module.l.register_forward_hook(lambda module, args, result: result + 1)


def pre_hook(module: nn.Module) -> None:
    module.l.register_forward_pre_hook(lambda module, args: (args[0] * 3,))


def number(module: nn.Module) -> None:
    module.scale = 3.0


def text(module: nn.Module) -> None:
    module.mode = "twice"


def item_of_a_list(module: nn.Module) -> None:
    module.parts[0] = 4.0


def own_forward(module: nn.Module) -> None:
    module.l.forward = lambda x: x * 2


def another_kind_of_layer(module: nn.Module) -> None:
    module.l = nn.ReLU()


def number_for_a_tensor(module: nn.Module) -> None:
    module.scale = torch.tensor(3.0)


def no_bias(module: nn.Module) -> None:
    module.l.bias = None


def another_shape(module: nn.Module) -> None:
    module.l.bias.data = torch.randn(1)


def another_dtype(module: nn.Module) -> None:
    module.table.data = torch.randn(8, dtype=torch.float64)


def parametrized(module: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(module.l)


def another_class(module: nn.Module) -> None:
    module.__class__ = type("Other", (Gate,), {"forward": lambda self, x: self.l(x)})


def constant_of_the_class(module: nn.Module) -> None:
    type(module).shift = 9.0


OTHER = [
    training, hook, pre_hook, number, text, item_of_a_list, own_forward, another_kind_of_layer,
    number_for_a_tensor, no_bias, another_shape, another_dtype, parametrized, another_class,
    constant_of_the_class,
]  # fmt: skip


@pytest.mark.parametrize("change", REBOUND)
def test_other_tensors_are_read(gate, change: Callable[[nn.Module], None]) -> None:
    module, watched, x = gate
    change(module)
    watched.ours(x)
    watched.ours(x)
    watched.ours(torch.randn(3, 8))


@pytest.mark.parametrize("change", OTHER)
def test_another_program_is_the_originals(gate, caplog, change: Callable[[nn.Module], None]) -> None:
    module, watched, x = gate
    try:
        with caplog.at_level(logging.INFO, "superopt"):
            change(module)
            watched.theirs(x)
            watched.theirs(x)
            watched.theirs(torch.randn(3, 8))
    finally:
        Gate.shift = 0.5
    assert len([line for line in caplog.messages if "the original function runs" in line]) == 1


def test_transposed_in_its_memory(gate) -> None:
    module, watched, x = gate
    module.l.weight.data = module.l.weight.data.t()
    watched.computes(x)
    watched.computes(x)


def test_there_and_back(gate) -> None:
    module, watched, x = gate
    for _ in range(3):
        module.train()
        module.drop.p = 1.0
        watched.theirs(x)
        module.eval()
        watched.computes(x)
        module.drop.p = 0.5
        watched.ours(x)
    handle = module.l.register_forward_hook(lambda module, args, result: result * 2)
    watched.theirs(x)
    handle.remove()
    watched.ours(x)


def test_shared_and_no_longer(build) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).tanh())

    module, x = Tied(), torch.randn(4, 8)
    watched = build(module, x)
    watched.ours(x)
    module.b.weight = nn.Parameter(torch.randn(8, 8))
    watched.computes(x)
    module.a.weight = module.b.weight
    watched.ours(x)


@pytest.mark.parametrize("seed", range(4))
def test_random_changes(gate, seed: int) -> None:
    module, watched, x = gate
    chance = dice.Random(seed)
    torch.manual_seed(seed)
    changes = [*REBOUND, number, text, item_of_a_list, hook, pre_hook, training, nn.Module.eval]
    try:
        for _ in range(40):
            if not isinstance(module.l, nn.Linear):
                module.l = nn.Linear(8, 8)
            chance.choice(changes)(module)
            for _ in range(chance.randrange(3)):
                watched.computes(x if chance.random() < 0.7 else torch.randn(chance.randrange(2, 7), 8))
    finally:
        Gate.shift = 0.5


def test_parameters_for_one_call(gate) -> None:
    module, watched, x = gate

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return watched.best(x) + 1

    outer = Outer()
    other = {name: torch.randn_like(one) for name, one in outer.named_parameters()}
    before = watched.runs()
    found = torch.func.functional_call(outer, other, (x,))
    assert watched.runs() > before
    agree(
        found,
        torch.func.functional_call(module, {n.removeprefix("inner."): t for n, t in other.items()}, (x,)) + 1,
    )
    watched.ours(x)


def test_a_device_without_data(gate) -> None:
    module, watched, x = gate
    module.to("meta")
    with pytest.raises(RuntimeError):
        module(x)
    with pytest.raises(RuntimeError):
        watched.best(x)
    watched.theirs(x.to("meta"))


def test_one_tensor_as_two_arguments(build) -> None:
    def one_or_two(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).tanh() * (2 if a is b else 1)

    x, y = torch.randn(4, 8), torch.randn(4, 8)
    watched = build(one_or_two, x, y)
    for _ in range(2):
        watched.ours(x, y)
        watched.theirs(x, x)
        watched.theirs(y, y)
    with pytest.raises(TraceError, match="a and b are one tensor"):
        trace(one_or_two, x, x)


def test_one_tensor_as_two_arguments_of_a_function_that_does_not_look(build) -> None:
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    watched = build(lambda a, b: (a * b).tanh(), x, x)
    for _ in range(2):
        watched.ours(x, y)
        watched.ours(x, x)
    nested = build(lambda pair, by: (pair[0] * pair[1]).tanh() * by, (x, x), 2)
    nested.ours((x, x), 2)
    nested.ours((x, y), 2)


def test_hooks_that_come_after_torch_compile_has_won(build) -> None:
    """Before: code of torch.compile computed, which does not look for hooks again."""
    module, x, runs = Gate().eval(), torch.randn(4, 8), list[Tensor]()
    as_it_was = copy.deepcopy(module)

    def compiled(x: Tensor) -> Tensor:
        runs.append(x)
        return as_it_was(x)

    built = build(module, x).best
    won = replace(built.result, winner="torch.compile")
    best = Optimized(module, won, built.traced, kernels={}, options=built.options, compiled=compiled)
    of_all = nn.modules.module.register_module_forward_hook
    for count, register in enumerate(
        (
            lambda: module.l.register_forward_hook(lambda module, args, result: result * 2),
            lambda: module.register_forward_pre_hook(lambda module, args: args[0] + 1),
            lambda: of_all(lambda module, args, result: result - 1),
        ),
        1,
    ):
        agree(best(x), module(x))
        assert len(runs) == count
        handle = register()
        agree(best(x), module(x))
        assert len(runs) == count
        handle.remove()
