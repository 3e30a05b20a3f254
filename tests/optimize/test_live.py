"""An optimized program among changes: each call computes what its function computes at that moment.

The adversary changes whatever a function reads besides its arguments, or calls it where something other
than plain PyTorch looks on, and compares with the function itself.
"""

import collections
import dataclasses
import functools
import logging
import random as dice
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import superopt
from superopt import InputError, Optimized
from superopt.candidates import RegionCandidates
from superopt.candidates.schedules import schedules
from superopt.driver import search
from superopt.fate import Kind
from superopt.funnel.assembly import in_parts
from superopt.ir import Program, print_program
from superopt.optimizer import without_data
from superopt.result import Result
from superopt.result.codec import returned
from superopt.targets import pick_target
from superopt.trace import trace


class Counted:
    """A kernel that counts its runs."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.runs = kernel, 0
        self.inputs, self.outputs = kernel.inputs, kernel.outputs

    def __call__(self, **tensors: Tensor) -> dict[str, Tensor]:
        self.runs += 1
        return self.kernel(**tensors)

    def in_order(self, given: Any) -> Any:
        self.runs += 1
        return self.kernel.in_order(given)

    def prepared(self, given: Any) -> Any:
        run = self.kernel.prepared(given)

        def counted(given: Any) -> Any:
            self.runs += 1
            return run(given)

        return counted


class Watched:
    """An optimized program beside its function: `ours` and `theirs` compare, and say who computed."""

    def __init__(self, best: Optimized, kernels: list[Counted]) -> None:
        self.best, self.kernels = best, kernels

    def runs(self) -> int:
        return sum(kernel.runs for kernel in self.kernels)

    def computes(self, *inputs: Any, **named: Any) -> bool:
        """Compare with the function itself; return whether kernels of ours ran."""
        before = self.runs()
        found = self.best(*inputs, **named)
        after = self.runs()
        agree(found, self.best.function(*inputs, **named))
        return after > before

    def ours(self, *inputs: Any, **named: Any) -> None:
        assert self.computes(*inputs, **named)

    def theirs(self, *inputs: Any, **named: Any) -> None:
        assert not self.computes(*inputs, **named)


def agree(found: object, wanted: object) -> None:
    assert type(found) is type(wanted)
    for a, b in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        assert type(a) is type(b) or isinstance(a, Tensor)
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        else:
            assert a == b


@pytest.fixture(scope="module", autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def build(quick) -> Callable[..., Watched]:
    """Makes the program as written into kernels, without a race."""
    target, known = pick_target("cpu"), dict[str, list[RegionCandidates]]()

    def planned(program: Program) -> list[RegionCandidates]:
        plans = []
        for one in search(program, options=quick.search).regions:
            chosen = schedules(one.goal, one.found, target, graphs=1).candidates[0]
            plans.append(RegionCandidates(one.goal, (chosen.ended("choose", Kind.CHOSEN),)))
        return plans

    def built(function: Callable[..., Any], *inputs: Any) -> Watched:
        traced = trace(function, *inputs, live="cpu")
        text = print_program(traced.program)
        regions = known[text] = known.get(text) or planned(traced.program)
        mugraphs = {one.goal.name: one.chosen.mugraph for one in regions}
        kernels = {
            name: Counted(target.make(one, target.default_configs(one))) for name, one in mugraphs.items()
        }
        assert kernels
        best = Optimized(
            function,
            Result(
                traced.program,
                target,
                without_data(inputs),
                tuple(regions),
                quick.seed,
                "superopt",
                returns=returned(traced),
                holds=tuple(traced.constants),
            ),
            in_parts(traced, [one.goal for one in regions]),
            kernels=kernels,
            options=quick,
        )
        return Watched(best, list(kernels.values()))

    return built


class Gate(nn.Module):
    """A module with one of everything that may change."""

    shift: ClassVar[float] = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("table", torch.randn(8))
        self.register_buffer("heat", torch.tensor(1.5))
        self.scale = 2.0
        self.mode = "plain"
        self.parts = [0.25]

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.l(x)) * self.scale + self.table * self.heat
        if self.mode == "twice":
            y = y * 2
        return y.tanh() + self.shift * self.parts[0]


@pytest.fixture
def gate(build) -> tuple[nn.Module, Watched, Tensor]:
    torch.manual_seed(0)
    module = Gate().eval()
    x = torch.randn(4, 8)
    watched = build(module, x)
    watched.ours(x)
    watched.ours(x)
    return module, watched, x


# -- what a module holds


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
    assert len([line for line in caplog.messages if "the original computes" in line]) == 1


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


# -- what a function closes over

GLOBAL = 1.5


def helper(x: Tensor) -> Tensor:
    return x * GLOBAL


def test_a_global_and_a_function_of_it(build, monkeypatch) -> None:
    x = torch.randn(4, 8)
    watched = build(lambda x: helper(x).tanh(), x)
    watched.ours(x)
    monkeypatch.setitem(globals(), "GLOBAL", 4.0)
    watched.theirs(x)
    monkeypatch.setitem(globals(), "GLOBAL", 1.5)
    watched.ours(x)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1)
    watched.theirs(x)


def test_variables_of_a_closure(build) -> None:
    scale, table, heat, low = 2.0, torch.randn(8), torch.tensor(0.5), torch.tensor(float("-inf"))
    settings = types.SimpleNamespace(by=3.0, deep={"add": 1.0}, unused=1)

    def function(x: Tensor) -> Tensor:
        mask = torch.where(x > 0, 0.0, low)
        return (x * scale + table * heat + settings.by * settings.deep["add"] + mask).exp()

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    table = torch.randn(8)
    watched.ours(x)
    heat = torch.tensor(-3.0)
    watched.ours(x)
    heat.mul_(2)
    heat.data.add_(1)
    watched.ours(x)
    settings.unused = 2
    watched.ours(x)
    for change in (
        lambda: setattr(settings, "by", -1.0),
        lambda: settings.deep.update(add=4.0),
        lambda: low.fill_(-1.0),
    ):
        change()
        watched.theirs(x)
    settings.by, settings.deep["add"] = 3.0, 1.0
    low.data.fill_(float("-inf"))
    watched.ours(x)
    scale = 5.0
    watched.theirs(x)
    scale = 2.0
    watched.ours(x)


def test_numbers_read_off_a_tensor(build) -> None:
    steps, flag = torch.tensor([2, 3]), torch.tensor(True)

    def function(x: Tensor) -> Tensor:
        first, second = steps.tolist()
        return (x * first + second).exp() if flag else x

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    steps[1] = 5
    watched.theirs(x)
    steps.data[1] = 3
    watched.ours(x)
    flag.fill_(False)
    watched.theirs(x)


class Scaler:
    """A callable object that is no module."""

    __slots__ = ("by", "table")

    def __init__(self) -> None:
        self.by, self.table = 2.0, torch.randn(8)

    def method(self, x: Tensor) -> Tensor:
        return (x * self.by + self.table).tanh()

    def __call__(self, x: Tensor) -> Tensor:
        return self.method(x)

    @property
    def twice(self) -> float:
        return 2 * self.by


@pytest.mark.parametrize("how", ["object", "method", "partial", "closure", "default"])
def test_an_object_however_it_is_reached(build, how: str) -> None:
    one = Scaler()

    def closure(x: Tensor, by: Scaler = one) -> Tensor:
        return by(x)

    function = {
        "object": one,
        "method": one.method,
        "partial": functools.partial(lambda scaler, x: scaler.method(x), one),
        "closure": lambda x: one(x),
        "default": closure,
    }[how]
    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    one.table = torch.randn(8)
    watched.ours(x)
    one.by = 3.0
    watched.theirs(x)
    one.by = 2.0
    watched.ours(x)


def test_what_a_decorator_hides(build) -> None:
    scale = 2.0

    @torch.inference_mode()
    def function(x: Tensor) -> Tensor:
        return torch.matmul(x, x.t()) * scale

    x = torch.randn(8, 8)
    watched = build(function, x)
    watched.ours(x)
    scale = 3.0
    watched.theirs(x)


def test_a_property_and_names_made_of_texts(build) -> None:
    one = Scaler()
    names = types.SimpleNamespace(scale0=1.0, scale1=2.0)

    def function(x: Tensor) -> Tensor:
        for number in range(2):
            x = x * getattr(names, f"scale{number}") + one.twice
        return x

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    names.scale1 = 3.0
    watched.theirs(x)
    names.scale1 = 2.0
    watched.ours(x)
    one.by = 9.0
    watched.theirs(x)


class Finder:
    """An object that finds attributes under other names."""

    aliases: ClassVar[dict[str, str]] = {"by": "_amount"}

    def __init__(self) -> None:
        self._amount = 2.0

    def __getattr__(self, name: str) -> Any:
        return self.__dict__[type(self).aliases[name]]


def test_arrays_and_attributes_by_other_names(build) -> None:
    array, finder = np.array([2.0, 3.0]), Finder()

    @functools.cache
    def both() -> int:
        return 2

    x = torch.randn(4, 8)
    watched = build(lambda x: (x * float(array[0]) + finder.by).tanh() * both(), x)
    watched.ours(x)
    array[0] = 4.0
    watched.theirs(x)
    array[0] = 2.0
    watched.ours(x)
    finder._amount = 5.0
    watched.theirs(x)


class Number(float):
    """A number of a class of the user's."""


class Settings(dict[str, Any]):
    """A dict with attributes beside its items."""

    more = 1.0


class Held(collections.UserDict[str, float]):
    pass


def test_objects_that_are_more_than_their_attributes(build) -> None:
    number, settings, held = Number(2.0), Settings(by=1.5), Held(add=0.5)

    def function(x: Tensor) -> Tensor:
        return (x * number * settings["by"] + held["add"] * settings.more).tanh()

    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    settings.more = 3.0
    watched.theirs(x)
    settings.more = 1.0
    watched.ours(x)
    held["add"] = 2.0
    watched.theirs(x)
    held["add"] = 0.5
    watched.ours(x)
    number = Number(3.0)
    watched.theirs(x)
    number = Number(2.0)
    watched.ours(x)


def test_what_changes_at_each_call_ends_at_the_original(build) -> None:
    box = types.SimpleNamespace(at=0)
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * box.at).tanh(), x)
    watched.ours(x)
    for box.at in range(1, 200):
        watched.theirs(x)
    box.at = 0
    watched.ours(x)


# -- where it is called


@pytest.fixture(scope="module")
def mixed(build) -> Watched:
    torch.manual_seed(0)
    table = torch.randn(8)
    return build(lambda x, w: ((x @ w) + table).tanh(), *inputs())


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(4, 8), torch.randn(8, 8)


class Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_other_default_devices(mixed: Watched, device: str) -> None:
    with torch.device(device):
        mixed.computes(*inputs_on_cpu())
        with torch.device("cpu"):
            mixed.computes(*inputs_on_cpu())
    torch.set_default_device(device)
    try:
        mixed.computes(*inputs_on_cpu())
    finally:
        torch.set_default_device(None)
    mixed.ours(*inputs())


def inputs_on_cpu() -> tuple[Tensor, ...]:
    return tuple(torch.full(shape, 0.5, device="cpu") for shape in ((4, 8), (8, 8)))


def test_kernels_themselves_on_another_default_device(mixed: Watched) -> None:
    wanted = mixed.best.fused(*inputs())
    with torch.device("meta"):
        found = mixed.best.fused(*inputs_on_cpu())
    assert found.device.type == "cpu"
    agree(mixed.best.fused(*inputs()), wanted)


def test_another_default_dtype(build) -> None:
    x = torch.arange(32).reshape(4, 8)
    watched = build(lambda x: x.float() * (torch.ones(8) / 3), x)
    watched.ours(x)
    torch.set_default_dtype(torch.float64)
    try:
        watched.theirs(x)
    finally:
        torch.set_default_dtype(torch.float32)
    watched.ours(x)


def test_modes_that_look_on(mixed: Watched) -> None:
    with Recording() as recording:
        mixed.theirs(*inputs())
    assert "aten.tanh.default" in recording.seen
    with FlopCounterMode(display=False) as counter:
        mixed.best(*inputs())
    assert counter.get_total_flops() == 2 * 4 * 8 * 8
    mixed.ours(*inputs())


def test_a_function_mode(mixed: Watched) -> None:
    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            return made * 2 if func is torch.Tensor.tanh else made

    with Doubling():
        mixed.theirs(*inputs())
    mixed.ours(*inputs())


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mixed: Watched, mode: str) -> None:
    graph = make_fx(mixed.best, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs())
    assert any("tanh" in str(node.target) for node in graph.graph.nodes)
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    agree(graph(x, w), mixed.best.function(x, w))


def test_fake_tensors(mixed: Watched) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = [mode.from_tensor(one) for one in inputs()]
    assert isinstance(mixed.best(*fake), FakeTensor)
    with mode:
        assert isinstance(mixed.best(*fake), FakeTensor)
    mixed.ours(*inputs())


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_transforms(mixed: Watched) -> None:
    x, w = inputs()
    call, original = mixed.best, mixed.best.function
    many = torch.randn(3, 4, 8)
    agree(torch.func.vmap(lambda x: call(x, w))(many), torch.func.vmap(lambda x: original(x, w))(many))
    agree(torch.func.jvp(call, (x, w), (x, w)), torch.func.jvp(original, (x, w), (x, w)))
    agree(torch.func.grad(lambda x: call(x, w).sum())(x), torch.func.grad(lambda x: original(x, w).sum())(x))
    agree(torch.func.functionalize(call)(x, w), original(x, w))
    with torch.enable_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        found = torch.autograd.forward_ad.unpack_dual(call(dual, w))
        wanted = torch.autograd.forward_ad.unpack_dual(original(dual, w))
        agree(found.tangent, wanted.tangent)
    mixed.ours(*inputs())


def test_torch_compile_around_it(mixed: Watched) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: mixed.best(x, w) + 1, fullgraph=True, backend="eager")
    agree(compiled(*inputs()), mixed.best.function(*inputs()) + 1)
    agree(torch.compile(mixed.best, backend="eager")(*inputs()), mixed.best.function(*inputs()))
    exported = torch.export.export(_Calling(mixed.best), inputs())
    agree(exported.module()(*inputs()), mixed.best.function(*inputs()))
    mixed.ours(*inputs())


class _Calling(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, w: Tensor) -> Any:
        return self.function(x, w)


@pytest.mark.filterwarnings("ignore")
def test_jit_tracing(mixed: Watched) -> None:
    traced = torch.jit.trace(_Calling(mixed.best), inputs())
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    agree(traced(x, w), mixed.best.function(x, w))


@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("called_inside", [False, True])
def test_inference_mode(build, made_inside: bool, called_inside: bool) -> None:
    with torch.inference_mode(made_inside), torch.no_grad():
        module, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval(), torch.randn(4, 8)
        watched = build(module, x)
    with torch.inference_mode(called_inside), torch.no_grad():
        watched.ours(x)
        watched.ours(torch.randn(4, 8))
        module[0].weight = nn.Parameter(torch.randn(8, 8))
        watched.ours(x)
    with torch.inference_mode(not called_inside), torch.no_grad():
        watched.ours(x)
        if not (made_inside and called_inside):
            module[0].bias.data = torch.randn(8)
        watched.ours(x)


def test_optimized_in_inference_mode(quick) -> None:
    with torch.inference_mode():
        module, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval(), torch.randn(4, 8)
        best = superopt.optimize(module, x, options=quick)
        assert best.fused is not None
        agree(best.fused(x), module(x))
        agree(best(x), module(x))
    agree(best.fused(x), module(x))


def test_tensors_replaced_by_one_thread_and_read_by_others(gate) -> None:
    module, watched, x = gate
    weights = [nn.Parameter(torch.full((8, 8), 0.1 * number), requires_grad=False) for number in range(3)]
    results = []
    for one in weights:
        module.l.weight = one
        results.append(module(x))
    failed: list[str] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(100):
                found = watched.best(x)
                if not any(torch.allclose(found, one, rtol=1e-3, atol=1e-3) for one in results):
                    failed.append("neither")

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for turn in range(60):
        module.l.weight = weights[turn % 3]
    for worker in workers:
        worker.join()
    assert not failed
    watched.ours(x)


# -- arguments and results


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


# -- saved and loaded


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
