"""torch.compile with regions taken: the ways in which models are run, and what may go wrong."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import superopt
from superopt.backend import cut, graphpass, region_plan, region_race
from superopt.backend.decision import Decision
from superopt.errors import InputError, SuperoptError
from superopt.ir import parse_graph
from superopt.rivals import inductor
from superopt.targets.cpu import CpuTarget

from .conftest import Host, close
from .modules import WIDTH, Attention, Gated, Mlp, Norm, Residual


def block() -> nn.Module:
    """Return a small transformer block."""
    torch.manual_seed(0)
    attention = Residual(Attention(causal=True, whole=True, grouped=False), Norm("rms"))
    return nn.Sequential(attention, Residual(Gated(F.silu, merged=False), Norm("rms")))


def data(length: int = 5) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(length))


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch compute what kernels would, which needs no compiler."""
    monkeypatch.setattr(region_plan.RegionPlan, "by_kernels", lambda self, known: self.by_torch(known))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.usefixtures("by_torch")
def test_without_gradients(
    mode: Callable[[], Any], taken: list[Decision], warnings_logged: pytest.LogCaptureFixture
) -> None:
    module, x, host = block(), data(), Host()
    with mode():
        close(torch.compile(module, backend=host, fullgraph=True)(x), module(x))
    assert host.calls == 2
    told = [one.message for one in warnings_logged.records if one.name == "superopt"]
    [line] = told
    assert re.fullmatch(r"graph 1, inference: 2 regions, 2 taken, 0 searched in \d\.\d s", line)


def test_kernels_compute_a_block_forward_and_backward(
    taken: list[Decision], warnings_logged: pytest.LogCaptureFixture
) -> None:
    module, x, host = nn.Sequential(Residual(Mlp(torch.relu, bias=False), None)), data(), Host()
    compiled = torch.compile(module, backend=host)
    close(compiled(x), module(x))
    made = torch.autograd.grad(compiled(x).sum(), list(module.parameters()))
    wanted = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    for a, b in zip(made, wanted, strict=True):
        close(a, b)
    assert host.calls >= 2
    assert not [one for one in warnings_logged.records if "from now on" in one.message]


@pytest.mark.usefixtures("by_torch")
def test_a_copy_of_a_result_is_a_copy(taken: list[Decision]) -> None:
    def twice(x: Tensor, w: Tensor) -> Any:
        y = torch.softmax(x @ w, -1)
        return y, y.clone(), y.t(), y.t().clone()

    x, w, host = torch.randn(32, 64), torch.randn(64, 32), Host()
    with torch.no_grad():
        found = torch.compile(twice, backend=host)(x, w)
        close(found, twice(x, w))
    assert host.calls == 1
    assert len({one.data_ptr() for one in found}) == 3
    assert found[0].data_ptr() == found[2].data_ptr()


@pytest.mark.usefixtures("by_torch")
def test_other_lengths_do_not_recompile(taken: list[Decision]) -> None:
    module, host = block(), Host()
    compiled = torch.compile(module, backend=host, dynamic=True)
    with torch.no_grad():
        for length in (5, 7, 9, 12, 31):
            close(compiled(data(length)), module(data(length)))
    assert len(host.graphs) == 1
    assert host.calls > 0


@pytest.mark.slow
def test_kernels_compute_attention_of_any_length(
    taken: list[Decision], warnings_logged: pytest.LogCaptureFixture
) -> None:
    module, host = block(), Host()
    compiled = torch.compile(module, backend=host, dynamic=True)
    with torch.no_grad():
        for length in (5, 9, 33):
            close(compiled(data(length)), module(data(length)))
    assert len(host.graphs) == 1
    assert any("attention" in one.operators for one in taken)
    assert not [one for one in warnings_logged.records if "from now on" in one.message]


@pytest.mark.usefixtures("by_torch")
def test_autocast(taken: list[Decision]) -> None:
    module, x, host = block(), data(), Host()
    compiled = torch.compile(module, backend=host)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled(x), module(x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    assert host.calls > 0


@pytest.mark.usefixtures("by_torch")
def test_graph_breaks_mutation_and_views(taken: list[Decision]) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Mlp(F.silu, bias=True)
            self.register_buffer("seen", torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            made = self.inner(x)
            self.seen += made.mean((0, 1)).detach()
            torch._dynamo.graph_break()
            made = self.inner(made) * self.seen
            return made, made.transpose(0, 1)[1:]

    first, second, host = Counting(), Counting(), Host()
    second.load_state_dict(first.state_dict())
    compiled = torch.compile(first, backend=host)
    with torch.no_grad():
        for length in (5, 5):
            for a, b in zip(compiled(data(length)), second(data(length)), strict=True):
                close(a, b)
    close(first.seen, second.seen)
    assert len(host.graphs) == 2
    assert host.calls == 2


@pytest.mark.usefixtures("by_torch")
def test_an_exported_module(taken: list[Decision]) -> None:
    module, x, host = block().eval(), data(), Host()
    exported = torch.export.export(module, (x,)).module()
    with torch.no_grad():
        close(torch.compile(exported, backend=host)(x), module(x))
    assert host.calls > 0


def test_a_pass_that_fails_leaves_the_graph(
    monkeypatch: pytest.MonkeyPatch, warnings_logged: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(cut, "kinds_of", broken)
    module, x, host = block(), data(), Host()
    close(torch.compile(module, backend=host)(x), module(x))
    assert [one.message for one in warnings_logged.records if "left to Inductor" in one.message] == [
        "a graph is left to Inductor: ZeroDivisionError: no such luck"
    ] * len(host.graphs)


@pytest.mark.parametrize("error", [SuperoptError("too hard"), MemoryError(), RuntimeError("compiler gone")])
def test_a_region_that_fails_is_left_with_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, warnings_logged: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any, **named: Any) -> Any:
        raise error

    monkeypatch.setattr(region_race, "candidates_of", broken)
    monkeypatch.setattr(inductor, "as_in_a_graph", lambda module, inputs, patches: module)
    monkeypatch.setattr(region_race, "_TOO_SHORT_US", 0.0)
    monkeypatch.setattr(region_race, "_NO_ROOM", 0.0)
    module, x, host = Mlp(F.silu, bias=False), data(), Host()
    with torch.no_grad():
        close(torch.compile(module, backend=host)(x), module(x))
    lines = [one.message for one in warnings_logged.records if one.levelname == "WARNING"]
    assert len(lines) == 1
    assert type(error).__name__ in lines[0]
    [decision] = host.ledger.decisions
    assert not decision.taken
    assert decision.why.startswith("failed")


@pytest.mark.parametrize("place", ["Opponents", "candidates_of"])
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (torch.OutOfMemoryError("no room"), "out of memory: no room"),
        (OSError("disk"), "failed: OSError: disk"),
    ],
)
def test_what_fails_while_a_region_is_tried(
    place: str,
    error: Exception,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    warnings_logged: pytest.LogCaptureFixture,
) -> None:
    def broken(*arguments: Any, **named: Any) -> Any:
        raise error

    monkeypatch.setattr(inductor, "as_in_a_graph", lambda module, inputs, patches: module)
    monkeypatch.setattr(region_race, place, broken)
    monkeypatch.setattr(region_race, "_TOO_SHORT_US", 0.0)
    monkeypatch.setattr(region_race, "_NO_ROOM", 0.0)
    module, x, host = Mlp(F.silu, bias=False), data(), Host()
    with torch.no_grad():
        close(torch.compile(module, backend=host)(x), module(x))
    assert [one.why for one in host.ledger.decisions] == [why]
    assert len([one for one in warnings_logged.records if one.levelname == "WARNING"]) == 1


def test_an_interrupt_ends_the_compilation_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(region_race, "_TOO_SHORT_US", 0.0)
    monkeypatch.setattr(region_race, "_NO_ROOM", 0.0)
    monkeypatch.setattr(inductor, "as_in_a_graph", lambda module, inputs, patches: module)
    module, x, host = Mlp(F.silu, bias=False), data(), Host()
    monkeypatch.setattr(region_race, "candidates_of", interrupted)
    compiled = torch.compile(module, backend=host)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        compiled(x)
    assert not host.ledger.known
    assert not host.ledger.decisions
    torch._dynamo.reset()
    again = Host(budget_s=0.0)
    with torch.no_grad():
        close(torch.compile(module, backend=again)(x), module(x))
    assert again.ledger.decisions


def test_kernels_that_cannot_be_made_are_computed_by_torch(
    taken: list[Decision], monkeypatch: pytest.MonkeyPatch, warnings_logged: pytest.LogCaptureFixture
) -> None:
    def broken(self: region_plan.RegionPlan) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(region_plan.RegionPlan, "make", broken)
    monkeypatch.setattr(region_plan, "_PLANS", {})
    module, host = Mlp(F.silu, bias=False), Host()
    compiled = torch.compile(module, backend=host)
    with torch.no_grad():
        for _ in range(2):
            close(compiled(data()), module(data()))
    assert [one.message for one in warnings_logged.records if one.levelname == "WARNING"] == [
        "region: computed by torch from now on: no compiler"
    ]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (InputError("'x' is a Strange on cpu"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("no such symbol"), False),
    ],
)
def test_only_what_no_call_can_do_without_ends_a_plan(
    error: Exception, passes: bool, warnings_logged: pytest.LogCaptureFixture
) -> None:
    """Before: torch computed all later calls after one that a kernel could not serve."""
    goal = parse_graph("graph twice\naxes m=4\nin x: f32[m]\nt1 = add(x, x)\nout y: f32[m] = t1\n")
    calls: list[Tensor] = []

    def computed(known: dict[str, Tensor]) -> dict[str, Tensor]:
        calls.append(known["x"])
        if len(calls) in (2, 3):
            raise error
        return {"y": known["x"] * 2}

    operators: Any = computed
    plan, x = region_plan.RegionPlan.of_operators(goal, "cpu", operators), torch.randn(4)
    for _ in range(5):
        close(plan([x])[0], x * 2)
    assert len(calls) == (5 if passes else 2)
    [line] = [one.message for one in warnings_logged.records if one.levelname == "WARNING"]
    when = "where its kernels cannot" if passes else "from now on"
    assert line.startswith(f"twice: computed by torch {when}: ")


class Counted(nn.Parameter):
    """A parameter of a class that sees each operator of PyTorch's that is called with it."""

    seen = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen += 1
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("alone", [True, False])
def test_kernels_read_tensors_of_other_classes(alone: bool) -> None:
    """Before: torch computed the region in each call, as kernels take PyTorch's own tensors only."""
    goal = parse_graph("graph twice\naxes m=4\nin x: f32[m]\nt1 = add(x, x)\nout y: f32[m] = t1\n")
    given: list[type] = []

    class Kernel:
        inputs, outputs = ("x",), ("y",)

        def in_order(self, tensors: Any) -> list[Tensor]:
            given.append(type(tensors[0]))
            return [tensors[0] * 2]

        def prepared(self, tensors: Any) -> Callable[[Any], list[Tensor]]:
            return self.in_order

    operators: Any = lambda known: {"y": Kernel().in_order([known["x"]])[0]}  # noqa: E731
    plan = region_plan.RegionPlan.of_operators(goal, "cpu", operators)
    plan._only = Kernel() if alone else None
    x = Counted(torch.arange(4.0), requires_grad=False)
    Counted.seen = 0
    for _ in range(2):
        [made] = plan([x])
        assert type(made) is Tensor
        assert made.tolist() == [0, 2, 4, 6]
    assert given == [Tensor, Tensor]
    assert not Counted.seen


def test_without_time_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(region_race, "candidates_of")
    module, x, host = block(), data(), Host(budget_s=0.0)
    with torch.no_grad():
        close(torch.compile(module, backend=host)(x), module(x))
    assert {one.why for one in host.ledger.decisions} == {"no time: 0 of 0 s of the budget are left"}


def test_a_report_that_cannot_be_written_is_one_line(
    tmp_path: Path, warnings_logged: pytest.LogCaptureFixture
) -> None:
    host = Host(budget_s=0.0, report=tmp_path / "missing" / "report.json")
    with torch.no_grad():
        close(torch.compile(block(), backend=host)(data()), block()(data()))
    lines = [one.message for one in warnings_logged.records if one.levelname == "WARNING"]
    assert len(lines) == 1
    assert lines[0].startswith("no report was written: cannot write")


def test_a_region_that_cannot_be_called_stays(
    taken: list[Decision], monkeypatch: pytest.MonkeyPatch, warnings_logged: pytest.LogCaptureFixture
) -> None:
    def broken(*unused: Any) -> Any:
        raise RuntimeError("no fake")

    monkeypatch.setattr(graphpass, "add_call", broken)
    module, host = block(), Host()
    with torch.no_grad():
        close(torch.compile(module, backend=host)(data()), module(data()))
    assert host.calls == 0
    assert any("left to Inductor: RuntimeError: no fake" in one.message for one in warnings_logged.records)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.usefixtures("by_torch")
def test_nothing_is_searched_for_empty_tensors(rows: int, taken: list[Decision]) -> None:
    module, x, host = Mlp(F.silu, bias=False), torch.ones(rows, WIDTH), Host()
    with torch.no_grad():
        close(torch.compile(module, backend=host)(x), module(x))
    assert host.calls == (rows > 0)
    assert [one.why for one in host.ledger.decisions] == ["a test" if rows else "it has an empty tensor"]


@pytest.mark.parametrize("cpp_wrapper", [True, False])
@pytest.mark.usefixtures("by_torch")
def test_no_region_is_taken_where_inductors_code_is_all_cpp(cpp_wrapper: bool, taken: list[Decision]) -> None:
    module, host = Mlp(F.silu, bias=False), Host()
    with torch.no_grad(), torch._inductor.config.patch(cpp_wrapper=cpp_wrapper):
        close(torch.compile(module, backend=host)(data()), module(data()))
    assert host.calls == (not cpp_wrapper)
    [decision] = host.ledger.decisions
    assert decision.why == (
        "Inductor's cpp_wrapper makes wrong code of a call of a plan" if cpp_wrapper else "a test"
    )


def take_all(self: Any, known: Decision, raced: Any, plan: str) -> Decision:
    """Take a region, whatever a race on a busy machine says."""
    return replace(known, taken=True, plan=plan, why="a test")


@pytest.mark.usefixtures("quick_kernels")
def test_a_search_is_kept_for_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole way by Inductor: search, race, report; then again from the cache, and explained."""
    monkeypatch.setattr(region_race.RegionRace, "_decide", take_all)
    monkeypatch.setattr(region_race, "_TOO_SHORT_US", 0.0)
    monkeypatch.setattr(region_race, "_NO_ROOM", 0.0)
    monkeypatch.setattr(region_race, "WIN", 0.0)
    monkeypatch.setattr("superopt.backend.options._GRAPHS", {"quick": 1})  # few kernels, for speed
    monkeypatch.setattr(CpuTarget, "builders", lambda self, size: 1)  # one process for their first runs
    module, x = Residual(Mlp(torch.relu, bias=False), None), data()
    reports = [tmp_path / "1.json", tmp_path / "2.json"]
    for path in reports:
        torch._dynamo.reset()
        options = {"budget_s": 60, "report": str(path)}
        with torch.no_grad():
            close(torch.compile(module, backend="superopt", options=options)(x), module(x))
    first, second = (json.loads(path.read_text()) for path in reports)
    assert [first["searched"], second["searched"]] == [1, 0]
    for report in (first, second):
        [found] = report["regions"]
        assert found["taken"]
        assert found["operators"] == "mm x2, relu, add"
        assert "equal" in found["verdict"]
    assert second["regions"][0]["recalled"]
    with torch.no_grad():
        text = superopt.explain(module, x)
    assert text.startswith("1 regions in 1 graphs, 1 taken, 0 searched")
    assert "(from the cache)" in text
