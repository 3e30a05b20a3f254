"""Passes of the user's own over the graph that superopt's pass sees too."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, CustomInferenceAwareGraphPass

from superopt.backend import entry
from superopt.backend.decision import Ledger
from superopt.backend.graphpass import RegionPass, watched_of
from superopt.backend.options import BackendOptions
from superopt.funnel.warm_up import WarmUp
from superopt.rivals.inductor import PASS

from .conftest import close


def to_cosine(graph: fx.Graph) -> None:
    """Make every sine a cosine."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default


class Named(CustomGraphPass):
    """A pass with a name of its own."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def __call__(self, graph: fx.Graph) -> None:
        to_cosine(graph)

    def uuid(self) -> str | None:
        return self.name


class Aware(CustomInferenceAwareGraphPass):
    """A pass that is told whether there is a backward pass."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def __call__(self, graph: fx.Graph, is_inference: bool) -> None:
        self.told.append(is_inference)

    def uuid(self) -> str:
        return "aware"


OPTIONS = {"budget_s": 0}


@pytest.mark.parametrize("given", [to_cosine, Named("cosine"), [Named("cosine")]])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_pass_of_the_users_runs_first(
    given: Any, everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    plain = RegionPass._run

    def run(self: RegionPass, graph: fx.Graph, warm_up: WarmUp) -> None:
        seen.append([node.target for node in graph.nodes if "aten" in str(node.target)])
        plain(self, graph, warm_up)

    monkeypatch.setattr(RegionPass, "_run", run)
    x = torch.randn(3, 4)
    options = {**OPTIONS, "inductor": {"fx_graph_cache": False, **({} if everywhere else {PASS: given})}}
    with torch.no_grad(), torch._inductor.config.patch({PASS: given} if everywhere else {}):
        close(torch.compile(lambda one: one.sin() + 1, backend="superopt", options=options)(x), x.cos() + 1)
    assert seen == [[torch.ops.aten.cos.default, torch.ops.aten.add.Tensor]]


def test_what_inductor_keeps_depends_on_the_users_passes() -> None:
    def key(*before: Any) -> bytes | None:
        return RegionPass(Ledger(BackendOptions()), before).uuid()

    assert key(Named("a")) == key(Named("a"))
    assert len({key(), key(Named("a")), key(Named("b")), key(Named("a"), Named("b"))}) == 4
    for nameless in (Named(None), to_cosine):
        assert key(nameless) is None
        assert key(Named("a"), nameless) is None


@pytest.mark.slow
def test_a_pass_that_asks_is_told_of_the_backward_pass() -> None:
    aware = Aware()
    x = torch.randn(3, 4, requires_grad=True)
    options = {**OPTIONS, "inductor": {"fx_graph_cache": False, PASS: aware}}
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            made = torch.compile(lambda one: one.sin() + 1, backend="superopt", options=options)(x)
    made.sum().backward()
    assert aware.told == [True, False, False]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Let Inductor leave graphs as they are; return the settings that it is given."""
    given: list[Mapping[str, Any]] = []

    def host(module: fx.GraphModule, inputs: Any, patches: Mapping[str, Any]) -> Callable[..., Any]:
        given.append(patches)
        return module.forward

    monkeypatch.setattr(entry, "with_inductor", host)
    return given


def test_a_pass_that_another_graph_is_under_is_not_run_twice(given: list[Mapping[str, Any]]) -> None:
    """Inductor's settings are everyone's: while one thread compiles, another finds our pass there."""
    ours = RegionPass(Ledger(BackendOptions()))
    with torch._inductor.config.patch({PASS: [ours, to_cosine]}):
        entry.compile_graph(fx.symbolic_trace(lambda x: x.sin()), [])
    assert given[0][PASS].before == (to_cosine,)


def test_a_pass_knows_which_inputs_can_be_watched(given: list[Mapping[str, Any]]) -> None:
    module = torch.nn.Linear(4, 4).eval()
    module.weight.share_memory_()  # type: ignore[no-untyped-call]
    keys = set()
    for own in (module, torch.nn.Linear(4, 4).eval()):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(own, backend="superopt", options=OPTIONS)(torch.randn(2, 4))
        keys.add(given[-1][PASS].uuid())
    shared, plain = (one[PASS].watched for one in given)
    assert sorted(shared) == [False, True, True]
    assert plain == (True, True, True)
    assert len(keys) == 2, "what Inductor keeps of one graph is not for the other"


class Seen(torch.nn.Parameter):
    """A parameter of a class that computes otherwise, as far as anybody knows."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_parameter_of_another_class_is_not_watched() -> None:
    """Before: kernels were raced that keep what is made of it, which nobody may keep."""
    plain, other = torch.nn.Parameter(torch.ones(2)), Seen(torch.ones(2))
    assert watched_of([plain, other, torch.ones(2), 3]) == (True, False, True, True)
