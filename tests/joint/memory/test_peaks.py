"""Peaks: what a step holds at once is counted, and nothing that holds more than Inductor's step is kept."""

import operator
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from quick import few
from torch import Tensor, fx

from superopt.backend.decision import Ledger
from superopt.backend.joint import partition
from superopt.backend.joint.limits import changed
from superopt.backend.joint.memory import choice
from superopt.backend.joint.memory.choice import JointGraph
from superopt.backend.joint.memory.peak import peak_bytes
from superopt.backend.joint.scaled import leaves_scaled
from superopt.backend.joint.step import Step, inputs_of, race
from superopt.backend.region_plan import REGION
from superopt.rivals.inductor import alone, compiled_by_inductor
from superopt.targets import pick_target

from .test_kept import Seen, attention

KIB = 1 << 10


def test_what_is_held_at_once_counts() -> None:
    def held() -> Tensor:
        first = torch.empty(64 * KIB)
        second = torch.empty(32 * KIB)
        del first
        return second.add_(torch.empty(16 * KIB).sum())

    assert 4 * 96 * KIB <= (peak_bytes(held) or 0) < 4 * 97 * KIB
    assert peak_bytes(lambda: None) == 0


def test_nothing_is_counted_beside_another_profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert peak_bytes(lambda: torch.empty(9)) is None


def test_a_boxed_call_frees_what_it_reads_no_more() -> None:
    def chain(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (((x @ x) @ w) @ x.new_ones(8, 8),)

    given = torch.randn(512, 512), torch.randn(512, 8)
    module = torch.fx.experimental.proxy_tensor.make_fx(chain)(*given)
    code = {
        boxed: alone(lambda boxed=boxed: compiled_by_inductor(module, given, {}, boxed=boxed))  # type: ignore[misc]
        for boxed in (False, True)
    }
    peaks = []
    for boxed in (False, True):

        def call(boxed: bool = boxed) -> None:
            made = [one.clone() for one in given]
            code[boxed](made) if boxed else code[boxed](*made)
            assert bool(made) is not boxed

        call()
        peaks.append(peak_bytes(call) or 0)
    assert peaks[1] <= peaks[0]


def test_a_backward_pass_writes_over_what_is_donated() -> None:
    """Before: Inductor's steps were said to hold more than they do."""
    module = fx.symbolic_trace(lambda x, y: (x.exp() + y,))
    given = torch.randn(256, 256), torch.randn(256, 256)
    donated = alone(lambda: compiled_by_inductor(module, given, {}, boxed=True, donated=[1]))
    kept = alone(lambda: compiled_by_inductor(module, given, {}, boxed=True))
    for code, size in ((donated, 0), (kept, given[0].nbytes)):
        code([one.clone() for one in given])
        first, last = (one.clone() for one in given)
        boxed = [first, last]
        assert peak_bytes(lambda code=code, boxed=boxed: code(boxed)) == size  # type: ignore[misc]
        assert torch.equal(first, given[0])


class Held:
    """A step that holds so many bytes."""

    def __init__(self, peak: int | None) -> None:
        self.peak = peak

    def peak_bytes(self) -> int | None:
        return self.peak


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Ledger, "left_s", 60.0)
    with changed(kept_bytes=1, step_budget_s=0.0):
        yield


@pytest.mark.parametrize("memory", few(["balanced", 2 * 64 * 64], "balanced"))
@pytest.mark.parametrize(("ours", "taken"), [(90, True), (100, True), (101, False), (None, True)])
def test_more_memory_than_inductors_is_dropped(
    memory: str | int, ours: int | None, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: only speed was compared, and steps under autocast held 1.2 times Inductor's memory."""
    steps = iter([Held(100), *[Held(ours)] * 9])
    monkeypatch.setattr(Step, "of", lambda *told: next(steps))
    monkeypatch.setattr(partition, "race", lambda *told: 1.0)
    monkeypatch.setattr(choice, "MORE_TIME", 10.0)  # so that some choice is expected to be fast enough
    seen = Seen(attention, memory, torch.randn(64, 4), torch.randn(4, 12))
    assert any(one.taken for one in seen.ledger.decisions) == taken


def test_where_time_ends_before_a_race_the_graphs_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: a budget that compiled Inductor's step, and no other, left the memory as it was."""
    left = [60.0]

    def of(*told: object) -> Held:
        left[0] = -1.0
        return Held(100)

    monkeypatch.setattr(Ledger, "left_s", property(lambda ledger: left[0]))
    monkeypatch.setattr(Step, "of", of)
    seen = Seen(attention, 2 * 64 * 64, torch.randn(64, 4), torch.randn(4, 12))
    assert any(one.taken for one in seen.ledger.decisions)


def test_gradients_that_leave_are_no_activations() -> None:
    graph = fx.Graph()
    by = graph.placeholder("tangents_1")
    call = graph.call_function(REGION, ("", []))
    leaving, read, kept = (graph.call_function(operator.getitem, (call, at)) for at in range(3))
    mul = torch.ops.aten.mul.Tensor
    scaled, other = (graph.call_function(mul, (one, by)) for one in (leaving, read))
    further = graph.call_function(torch.ops.aten.neg.default, (other,))
    graph.output((scaled, further, kept))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(() if node is by else 1 << 18)
    assert [leaves_scaled(one) for one in (leaving, read, kept, by)] == [True, False, False, False]
    with torch._functorch.config.patch(donated_buffer=False):
        assert not leaves_scaled(leaving)
    leaving.meta["val"] = torch.empty(8)
    assert not leaves_scaled(leaving)


@pytest.mark.slow
def test_a_step_frees_what_its_backward_pass_has_read() -> None:
    """Before: all that was kept was held until the end of the backward pass."""
    seen = Seen(attention, "fast", torch.randn(256, 8), torch.randn(8, 24))
    module = fx.GraphModule(torch.nn.Module(), seen.graph)
    joint = JointGraph.of(module, {"num_fwd_outputs": 1}, pick_target("cpu"))
    inputs = inputs_of(module)
    step = alone(lambda: Step.of(joint.split(None), inputs, {}))
    step()
    assert 0 < (step.peak_bytes() or 0) < 4 * 4 * 256 * 256
    assert alone(lambda: race(step, step, pick_target("cpu"))) > 0
