"""A graph that eager PyTorch runs faster stays uncompiled; only one whose calls leave no trace is raced."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from superopt.backend import entry
from superopt.backend.cache import graph_key, next_epoch
from superopt.backend.checks import uncompiled
from superopt.backend.checks.needs import held_bytes, least_seconds
from superopt.backend.checks.uncompiled import EagerGraph
from superopt.backend.decision import Ledger
from superopt.backend.entry import explain
from superopt.backend.options import BackendOptions
from superopt.targets import pick_target
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead

MODULE = torch.nn.Linear(4, 4)


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let graphs be raced at all."""
    monkeypatch.setenv("SUPEROPT_TUNE", "later")


def graph_of(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> tuple[Any, Any]:
    """Return what torch.compile hands to a backend."""
    found: list[Any] = []

    def backend(module: fx.GraphModule, values: Any, **unused: Any) -> Any:
        found[:] = [module, values]
        return module.forward

    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    return found[0], found[1]


def made(function: Callable[..., Any], *inputs: Any, **options: Any) -> EagerGraph | None:
    module, values = graph_of(function, *inputs)
    ledger = Ledger(BackendOptions(**options))
    return EagerGraph.of(module, values, ledger, graph_key(module, values, ledger.options))


def race(monkeypatch: pytest.MonkeyPatch, speed: float, *, sure: bool = True) -> list[Any]:
    """Let each race end with such a speed of eager PyTorch; return the list of races."""
    races: list[Any] = []

    def confirm(pair: Any, first: str, second: str, inputs: Any, **unused: Any) -> HeadToHead:
        results = [pair[label]() for label in (first, second)]
        races.append(results)
        winner, loser = (first, second) if speed > 1 else (second, first)
        times = dict.fromkeys((first, second), Measurement(1.0, 1.0, 1.0, 100))
        return HeadToHead(winner, loser, max(speed, 1 / speed), 1.0, sure, times)

    monkeypatch.setattr(uncompiled, "confirm", confirm)
    monkeypatch.setattr(uncompiled, "_seconds_of", lambda call: 1e-6)
    return races


def unchanged(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """Let Inductor leave graphs as they are; return those that it was given."""
    given: list[fx.GraphModule] = []

    def with_inductor(module: fx.GraphModule, *unused: Any) -> Any:
        given.append(module)
        return module.forward

    monkeypatch.setattr(entry, "with_inductor", with_inductor)
    return given


@pytest.mark.parametrize(
    ("seconds", "speed", "stays"), [(1e-6, 1.08, False), (1e-6, 1.2, True), (1e-3, 1.02, True)]
)
def test_a_short_graph_has_to_win_by_more(
    seconds: float, speed: float, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: a concatenation that won by 7% in its race made a program 6% slower."""
    races = race(monkeypatch, speed)
    monkeypatch.setattr(uncompiled, "_seconds_of", lambda call: seconds)
    found = made(torch.sin, torch.randn(4))
    assert found is not None
    assert found.is_faster(torch.sin, 100.0) == stays
    assert len(races) == 1


def writes(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


def writes_through_a_view(x: torch.Tensor) -> torch.Tensor:
    x[1:].view(-1).zero_()
    return x.exp()


@pytest.mark.parametrize(
    ("speed", "sure", "faster"), [(1.5, True, True), (0.9, True, False), (1.01, False, False)]
)
def test_the_race_decides(monkeypatch: pytest.MonkeyPatch, speed: float, sure: bool, faster: bool) -> None:
    races = race(monkeypatch, speed, sure=sure)
    own = made(torch.exp, torch.ones(3, 4))
    assert own is not None
    assert own.is_faster(torch.exp, 10.0) is faster
    assert len(races) == 1
    assert bool(own.ledger.uncompiled) is faster
    again = made(torch.exp, torch.ones(3, 4))
    assert again is not None
    assert again.is_known_faster() is faster
    assert again.is_faster(torch.exp, 10.0) is faster
    assert len(races) == 1, "what is known is not raced again"


def test_a_verdict_holds_for_what_was_raced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    race(monkeypatch, 1.5)
    own = made(torch.exp, torch.ones(3, 4))
    assert own is not None
    assert own.is_faster(torch.exp, 10.0)
    others = {
        "another size": made(torch.exp, torch.ones(3, 5)),
        "other strides": made(torch.exp, torch.ones(4, 3).t()),
        "another function": made(torch.sin, torch.ones(3, 4)),
        "other weights": made(torch.exp, torch.ones(3, 4), weights="frozen"),
        "without the cache": made(torch.exp, torch.ones(3, 4), cache=False),
        "looks again": made(torch.exp, torch.ones(3, 4), retry=True),
    }
    assert [name for name, one in others.items() if one is None or one.speed is not None] == []
    assert own.speed == 1.5
    next_epoch()
    assert own.speed is None, "better kernels may win now"


def test_a_slow_call_is_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    races = race(monkeypatch, 1.5)
    own = made(torch.exp, torch.ones(3, 4))
    assert own is not None
    monkeypatch.setattr(uncompiled, "_seconds_of", lambda call: 1.0)
    assert not own.is_faster(torch.exp, 10.0)
    assert races == []


def test_views_and_what_is_read_no_more_take_no_memory() -> None:
    module, _ = graph_of(lambda x: ((x.exp() + 1).view(-1)[3:].neg() * 2).sum() + x[0], torch.ones(100, 10))
    assert held_bytes(module.graph) == 2 * 4000


def test_a_graph_that_needs_much_memory_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: only copies of the inputs had to fit, whatever was computed of them."""
    races = race(monkeypatch, 1.5)
    for free, count in ((64 << 20, 1), (8 << 20, 0)):
        own = made(lambda x: (x[:, None] * x).exp().sum(), torch.ones(1024), cache=False)
        assert own is not None
        monkeypatch.setattr(uncompiled, "available_bytes", lambda free=free: free)
        own.is_faster(lambda x: x, 10.0)
        assert len(races) == count
        races.clear()


def test_a_graph_that_takes_long_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: it ran once whatever that took, before anybody looked at the time."""
    races, x = race(monkeypatch, 1.5), torch.ones(64, 1024)
    for compiling_s, count in ((100.0, 1), (1e-6, 0)):
        own = made(lambda x: x @ x.t(), x, cache=False)
        assert own is not None
        if not count:
            monkeypatch.setattr(uncompiled, "_copied", lambda tensor: pytest.fail("it was run"))
        own.is_faster(lambda x: x @ x.t(), compiling_s)
        assert len(races) == count
        races.clear()
    device = pick_target("cpu").cost_device()
    rate = max([device.vector_flops, *device.matrix_flops.values()])
    assert own is not None
    assert least_seconds(own.module, own.inputs, device) >= 2 * 64 * 64 * 1024 / rate


def writes_uncounted(x: torch.Tensor) -> torch.Tensor:
    x.data.mul_(2)
    return x.sum()


def writes_statistics(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.batch_norm(torch.randn(5, 4), x[0], x[1], training=True)


@pytest.mark.parametrize("function", [writes, writes_through_a_view, writes_uncounted, writes_statistics])
def test_what_writes_to_an_input_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    races = race(monkeypatch, 1.5)
    given = torch.arange(12.0).reshape(3, 4)
    module, values = graph_of(function, given.clone())
    given = values[0].clone()
    ledger = Ledger(BackendOptions())
    own = EagerGraph.of(module, values, ledger, graph_key(module, values, ledger.options))
    assert own is not None
    assert not own.is_faster(lambda *inputs: pytest.fail("it was called"), 10.0)
    assert races == []
    assert torch.equal(values[0], given)


def test_random_numbers_are_drawn_as_without_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    race(monkeypatch, 0.9)
    own = made(torch.rand_like, torch.ones(3, 4))
    assert own is not None
    before = torch.get_rng_state()
    own.is_faster(torch.rand_like, 10.0)
    assert torch.equal(torch.get_rng_state(), before)


@torch.library.custom_op("superopt_test::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    """Leave a trace that no schema tells of."""
    return x.clone()


@noted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_only_a_plain_graph_on_a_cpu_is_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.ones(3, 4)
    assert made(torch.exp, one) is not None
    assert made(lambda x: torch.nn.functional.gelu(x @ x.t()).softmax(-1), one) is not None
    assert made(lambda x: torch.ops.aten.mul.Tensor(x, x), one) is not None
    assert made(lambda x: torch.ops.superopt_test.noted(x), one) is None
    assert made(torch.exp, one, budget_s=0.0) is None
    module, values = graph_of(torch.exp, one)
    ledger = Ledger(BackendOptions())
    key = graph_key(module, values, ledger.options)
    for other in (torch.ones(3, 4, device="meta"), one.to_sparse(), None):
        assert EagerGraph.of(module, [other], ledger, key) is None
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert EagerGraph.of(module, values, ledger, key) is None


def test_a_fault_leaves_the_compiled_graph() -> None:
    own = made(torch.exp, torch.ones(3, 4))
    assert own is not None

    def broken(*inputs: Any) -> Any:
        raise RuntimeError("no such memory")

    assert not own.is_faster(broken, 10.0)


def under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return x @ x


def failing(*unused: Any) -> None:
    raise RuntimeError("no such memory")


def test_a_graph_that_fails_under_autocast_leaves_it() -> None:
    """Before: the program was left as if it were under autocast."""
    own = made(under_autocast, torch.ones(4, 4))
    assert own is not None
    [product] = own.module.graph.find_nodes(op="call_function", target=operator.matmul)
    product.target = failing
    own.module.recompile()
    assert not own.is_faster(under_autocast, 10.0)
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


def test_a_race_under_autocast_leaves_no_casts() -> None:
    """PyTorch keeps what it casts of weights until the outermost autocast ends."""
    x, w = torch.ones(4, 4), torch.nn.Parameter(torch.eye(4))

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            return x @ w

    own = made(product, x, w)
    assert own is not None
    own.is_faster(product, 10.0)
    w.data.mul_(2)
    assert torch.equal(product(x, w).float(), 2 * x)


def test_a_program_runs_uncompiled_and_its_next_start_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    races, compiled = race(monkeypatch, 1.5), unchanged(monkeypatch)
    x = torch.randn(3, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 0).sin()

    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            assert torch.equal(torch.compile(function, backend="superopt")(x), function(x))
        assert (len(compiled), len(races)) == (1, 1)
    with torch.no_grad():
        assert "1.50 times the speed of compiled code" in explain(function, x)
    torch._dynamo.reset()
    y = x.clone().requires_grad_()
    torch.compile(function, backend="superopt")(y).sum().backward()
    assert y.grad is not None
    assert (len(compiled), len(races)) == (3, 1), "a step of training is compiled"


@pytest.mark.slow
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_it_runs_in_each_mode_and_at_changing_sizes(monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    races = race(monkeypatch, 1.5)
    program = torch.compile(MODULE, backend="superopt")
    with mode():
        for rows in (2, 3, 5, 1, 0):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(program(x), MODULE(x))
    assert races


def test_a_graph_for_all_sizes_is_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: who was faster with two rows ran with any number of them."""
    races, compiled = race(monkeypatch, 1.5), unchanged(monkeypatch)
    program = torch.compile(MODULE, backend="superopt")
    with torch.no_grad():
        for rows in (2, 3, 5, 7, 9):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(program(x), MODULE(x))
    assert (len(compiled), len(races)) == (2, 1), "once for the first size, and once for all others"
    torch._dynamo.reset()
    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        program(x)
    assert (len(compiled), len(races)) == (3, 1)


def test_one_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_TUNE", "off")
    races, compiled = race(monkeypatch, 1.5), unchanged(monkeypatch)
    with torch.no_grad():
        torch.compile(torch.exp, backend="superopt")(torch.ones(3, 4))
    assert (len(compiled), races) == (1, [])
