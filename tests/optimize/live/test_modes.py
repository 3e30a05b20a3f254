"""Where a program is called: under modes of PyTorch, on other devices, by threads."""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import superopt
from superopt import Optimized
from superopt.targets.tf32 import tf32_products

from .conftest import Watched, agree


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


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_call_like_the_latest_one_looks_no_further_but_under_modes(
    mixed: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    far: list[bool] = []
    slow = Optimized._call_anew
    monkeypatch.setattr(Optimized, "_call_anew", lambda *given: far.append(True) or slow(*given))

    def looks_further(*given: Any) -> bool:
        far.clear()
        mixed.best(*given)
        return bool(far)

    x, w = inputs()
    looked: list[bool] = []
    for _ in range(3):
        mixed.ours(x, w)
    assert not looks_further(x, w)
    assert looks_further(torch.randn(5, 8), w)  # another size
    mixed.ours(x, w)
    assert not looks_further(*inputs())
    assert looks_further(torch.randn(8, 4).T, w)  # other strides
    mixed.ours(x, w)
    with torch.autocast("cpu"):
        assert looks_further(x, w)
    with Recording():
        assert looks_further(x, w)
    with torch.device("cpu"):
        assert looks_further(x, w)
    with torch.autograd.forward_ad.dual_level():
        assert looks_further(x, w)
    torch.func.vmap(lambda one: [one, looked.append(looks_further(x, w))][0])(torch.zeros(2))
    assert looked == [True]
    with torch.enable_grad():
        assert looks_further(x.clone().requires_grad_(), w)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert looks_further(x, w)
    finally:
        torch.set_num_threads(threads)
    for _ in range(2):
        mixed.ours(x, w)
    assert not looks_further(x, w)


def test_a_program_that_pytorch_won_is_called_with_nothing_in_between(mixed: Watched) -> None:
    best = mixed.best
    lost = Optimized(
        best.function,
        replace(best.result, winner="eager"),
        best.traced,
        kernels={},
        options=best.options,
    )
    assert isinstance(lost, Optimized)
    assert lost.__call__ is best.function
    agree(lost(*inputs()), best.function(*inputs()))
    agree(lost(torch.randn(5, 8).double(), torch.ones(8, 8).double()).dtype, torch.float64)
    assert "PyTorch's program stays" in lost.explain()
    assert type(lost).__module__ == Optimized.__module__
    assert mixed.best.__call__ is not best.function  # of this program alone


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


def asks(x: Tensor) -> Tensor:
    return x.tanh() if torch.is_grad_enabled() else 3 * x.tanh()


ask = torch.is_grad_enabled


def asks_by_another_name(x: Tensor) -> Tensor:
    return x.tanh() if ask() else 3 * x.tanh()


def asks_for_inference(x: Tensor) -> Tensor:
    return x.tanh() if torch.is_inference_mode_enabled() else 3 * x.tanh()


def turns_gradients_off(x: Tensor) -> Tensor:
    with torch.no_grad():
        return 3 * x.tanh()


@pytest.mark.parametrize("function", [asks, asks_by_another_name, asks_for_inference])
def test_a_function_that_asks_for_the_mode_of_autograd(build, function) -> None:
    x = torch.randn(4, 8)
    watched = build(function, x)
    watched.ours(x)
    mode = torch.inference_mode if function is asks_for_inference else torch.enable_grad
    for _ in range(2):
        with mode():
            watched.theirs(x)
            watched.theirs(x)
        watched.ours(x)
        watched.ours(x)


LAYER = pytest.param(nn.TransformerEncoderLayer(8, 2).eval(), marks=pytest.mark.slow)  # a minute of search


@pytest.mark.parametrize("function", [torch.tanh, turns_gradients_off, LAYER])
def test_a_function_that_does_not_ask_for_the_mode_of_autograd(build, function) -> None:
    if isinstance(function, nn.Module):
        function.requires_grad_(False)  # PyTorch's own code asks, and computes the same
    x = torch.randn(4, 3, 8)
    watched = build(function, x)
    with torch.enable_grad():
        watched.ours(x)
    with torch.inference_mode():
        watched.ours(x)


def test_kernels_in_tf32_where_torch_takes_it_no_more(build) -> None:
    """Before: kernels went on in tf32."""
    built = build(lambda x, w: (x @ w).tanh(), *inputs())
    best = built.best
    fast = (SimpleNamespace(precision="tf32"),)
    regions = tuple(
        replace(region, candidates=tuple(replace(one, configs=fast) for one in region.candidates))
        for region in best.regions
    )
    result = replace(best.result, regions=regions)
    made = Optimized(best.function, result, best.traced, kernels=best._kernels, options=best.options)
    watched = Watched(made, built.kernels)
    for _ in range(2):
        with tf32_products(True):
            watched.ours(*inputs())
            watched.ours(*inputs())
        with tf32_products(False):
            watched.theirs(*inputs())


def turns_gradients_on(x: Tensor) -> Tensor:
    with torch.enable_grad():
        return 3 * x.tanh()


@torch.enable_grad()
def is_decorated(x: Tensor) -> Tensor:
    return 3 * x.tanh()


def asks_an_argument(x: Tensor) -> Tensor:
    return x.tanh() if x.requires_grad else 3 * x.tanh()


def asks_for_a_leaf(x: Tensor) -> Tensor:
    return 3 * x.tanh() if x.is_leaf else x.tanh()


def asks_for_a_graph(x: Tensor) -> Tensor:
    return 3 * x.tanh() if x.grad_fn is None else x.tanh()


def asks_for_a_gradient(x: Tensor) -> Tensor:
    return 3 * x.tanh() if x.grad is None else x.tanh() - x.grad


@pytest.mark.parametrize(
    "function", [turns_gradients_on, is_decorated, asks_an_argument, asks_for_a_leaf, asks_for_a_graph]
)
def test_a_function_that_asks_for_gradients_where_they_are_off(build, function, caplog) -> None:
    """Before: kernels computed, as for tensors that want none."""
    x, leaf = torch.randn(4, 8), torch.randn(4, 8, requires_grad=True)
    with torch.enable_grad():
        made = leaf * 2
    watched = build(function, x)
    for _ in range(2):
        watched.ours(x)
        for wants in (leaf, made):
            watched.theirs(wants)
            assert watched.best(wants).requires_grad == function(wants).requires_grad
    assert "something else for such tensors; the original function runs" in caplog.text


def test_a_gradient_that_a_function_reads_off_its_argument(build) -> None:
    x, leaf = torch.randn(4, 8), torch.randn(4, 8, requires_grad=True)
    leaf.grad = torch.randn(4, 8)
    watched = build(asks_for_a_gradient, x)
    watched.ours(x)
    watched.theirs(leaf)


def test_a_parameter_that_is_asked_whether_it_wants_gradients(build) -> None:
    """Before: the answer was not watched."""
    by = nn.Parameter(torch.randn(8))
    x = torch.randn(4, 8)
    watched = build(lambda x: (x * by).tanh() if by.requires_grad else (x + by).tanh(), x)
    watched.ours(x)
    by.requires_grad_(False)
    watched.theirs(x)
    by.requires_grad_(True)
    watched.ours(x)


def gradient_within(x: Tensor) -> Tensor:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad(y.tanh().sum(), y)[0]


def test_a_gradient_within_a_function_has_no_graph(build) -> None:
    watched = build(gradient_within, torch.randn(4, 8))
    for wants in (False, True):
        x = torch.randn(4, 8, requires_grad=wants)
        watched.ours(x)
        assert not watched.best(x).requires_grad


def test_a_function_without_arguments(build) -> None:
    """Before: it was computed in the same way under any mode."""
    a, b = inputs()
    watched = build(lambda: (a @ b).tanh())
    for _ in range(3):
        watched.ours()
    with torch.autocast("cpu", torch.bfloat16):
        assert watched.best().dtype == torch.bfloat16
    with Recording() as recording:
        watched.best()
    assert "aten.tanh.default" in recording.seen
    watched.ours()
