"""Regions that keep what is made of weights: for each layer its own, and never of weights as they were."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from superopt.backend import budget
from superopt.backend.decision import Decision, Ledger
from superopt.backend.region import Region
from superopt.backend.region_plan import RegionPlan, kept_plan
from superopt.backend.region_plan import plan_of as read
from superopt.candidates import RegionCandidates
from superopt.candidates.schedules import schedules
from superopt.driver import SearchOptions, search
from superopt.errors import InputError
from superopt.fate import Kind
from superopt.targets import pick_target
from superopt.weights.kept import KeptKernel

from .conftest import Host, troubles

pytestmark = pytest.mark.usefixtures("quick_kernels")


def close(found: Tensor, wanted: Tensor) -> None:
    """Compare results of several layers, each of which adds sums over 48 numbers."""
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


class Scores(nn.Module):
    """Layers whose projections are summed, one after the other, each with an operator that is no algebra."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 48) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for one in self.layers:
            x = x + one(x).sum(-1, keepdim=True).sort(0).values
        return x


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take every region, by the best graph of a search; return the plans as they are made."""
    target, made = pick_target("cpu"), list[str]()

    def choose(region: Region, ledger: Ledger) -> Decision:
        weights = ledger.options.weights
        found = search(region.traced.program, options=SearchOptions(weights=weights, max_graphs=4)).regions
        parts = []
        for one in found:
            ways = schedules(one.goal, one.found, target, graphs=16, weights=weights).candidates
            best = next((way for way in ways if "joined" in way.graph.sizes), ways[0])
            parts.append(RegionCandidates(one.goal, (best.ended("choose", Kind.CHOSEN),)))
        chosen = {one.goal.name: one.chosen for one in parts if one.chosen is not None}
        plan = kept_plan(RegionPlan(region.goal, target.name, chosen))
        read(plan).prove()
        made.append(plan)
        return Decision("", "", True, "a test", plan=plan)

    monkeypatch.setattr(budget, "known_decision", choose)
    return made


def kept(plan: str) -> list[KeptKernel]:
    kernels = [one.kernel for one in read(plan)._kernels or ()]
    return [one for one in kernels if isinstance(one, KeptKernel)]


@pytest.fixture
def compiled(plans: list[str]) -> tuple[Scores, Callable[[Tensor], Tensor], Tensor]:
    torch.manual_seed(0)
    module, host = Scores().eval(), Host()
    run = torch.compile(module, backend=host)
    x = torch.randn(8, 32)
    with torch.no_grad():
        for _ in range(9):
            close(run(x), module(x))
    assert host.calls == 3
    return module, run, x


@pytest.mark.slow
@torch.no_grad()
def test_layers_of_one_plan_keep_their_own(compiled, plans, warnings_logged) -> None:
    module, run, x = compiled
    assert len(set(plans)) == 2  # the first layer reads the input as it comes
    [kernel] = kept(plans[-1])
    assert len(kernel.kept._made) == 2
    close(run(-x), module(-x))
    assert not troubles(warnings_logged)


CHANGES: list[Callable[[Scores], object]] = [
    lambda module: module.layers[0].weight.mul_(2),
    lambda module: module.layers[1].weight.data.mul_(2),
    lambda module: module.layers[0].weight.data[3, 5].fill_(100),
    lambda module: setattr(module.layers[0].weight, "data", torch.randn(48, 32)),
    lambda module: setattr(module.layers[1], "weight", nn.Parameter(torch.randn(48, 32))),
    lambda module: module.load_state_dict({k: v * 3 for k, v in module.state_dict().items()}),
    lambda module: module.load_state_dict({k: v * 3 for k, v in module.state_dict().items()}, assign=True),
    lambda module: module.layers[0].bias.detach().numpy().fill(7),
]
_QUICK = (1, 4, 6, 7)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(one, id=str(at), marks=[] if at in _QUICK else [pytest.mark.slow])
        for at, one in enumerate(CHANGES)
    ],
)
@torch.no_grad()
def test_a_change_is_seen(compiled, change: Callable[[Scores], object]) -> None:
    module, run, x = compiled
    before = run(x)
    change(module)
    for _ in range(3):
        close(run(x), module(x))
    assert not torch.allclose(before, run(x))


@torch.no_grad()
def test_weights_that_change_with_every_call_are_computed_by_torch(compiled, warnings_logged) -> None:
    module, run, x = compiled
    for _ in range(9):
        module.layers[0].weight.mul_(0.9)
        close(run(x), module(x))
    assert any("change with nearly every call" in one for one in troubles(warnings_logged))


@torch.no_grad()
def test_live_weights_are_no_constants(plans: list[str]) -> None:
    module, host, x = Scores(1).eval(), Host(weights="live"), torch.randn(8, 32)
    close(torch.compile(module, backend=host)(x), module(x))
    assert host.calls == 1
    assert plans
    assert not kept(plans[0])


def test_training_keeps_nothing(plans: list[str]) -> None:
    module, x = Scores(1), torch.randn(8, 32)
    run = torch.compile(module, backend=Host())
    for _ in range(3):
        close(run(x), module(x))
        with torch.no_grad():
            module.layers[0].weight.data.mul_(1.5)
    assert not any(map(kept, plans))


def test_a_plan_that_claims_to_make_something_else_is_refused(compiled, plans) -> None:
    text = plans[0].replace('\\"once\\"', '"once"')
    wrong = text.replace("sum[n]", "max[n]", 1) if "sum[n]" in text else text.replace("contract", "max", 1)
    assert wrong != text
    with pytest.raises(InputError):
        RegionPlan.read(wrong).prove()


class Adapted(nn.Module):
    """Layers of over 256 KiB, each with an adapter that is merged into it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(288, 288, bias=False) for _ in range(2))
        self.downs = nn.ParameterList(torch.randn(288, 64) / 17 for _ in range(2))
        self.ups = nn.ParameterList(torch.randn(64, 288) / 8 for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for one, down, up in zip(self.layers, self.downs, self.ups, strict=True):
            x = (one(x) + x @ down @ up).sort(-1).values
        return x


@torch.no_grad()
def test_frozen_weights_go_to_a_file_layer_by_layer(plans, warnings_logged) -> None:
    torch.manual_seed(0)
    module, host, x = Adapted().eval(), Host(weights="frozen"), torch.randn(8, 288)
    run = torch.compile(module, backend=host)
    places = [one.weight.data_ptr() for one in module.layers]
    for _ in range(20):
        close(run(x), module(x))
    assert host.calls == 2
    assert all(kept(plan) for plan in plans)
    assert not set(places) & {one.weight.data_ptr() for one in module.layers}
    compiled = len(host.graphs)
    for change in (
        lambda: module.layers[0].weight.mul_(2),
        lambda: module.layers[1].weight.data.neg_(),
        lambda: module.load_state_dict({name: one + 1 for name, one in module.state_dict().items()}),
    ):
        change()
        for _ in range(9):
            close(run(x), module(x))
    assert len(host.graphs) == compiled
    assert not troubles(warnings_logged)


class Heads(nn.Module):
    """Layers of projections of one tensor, which are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(32, outer, bias=outer == 48) for outer in (48, 16, 24)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for q, k, v in self.layers:
            q, k, v = (one(x).sort(-1).values for one in (q, k, v))
            x = x + q[:, :32] + k.mean(-1, keepdim=True) * v.sum(-1, keepdim=True)
        return x


@pytest.mark.slow
@torch.no_grad()
def test_projections_of_one_tensor_are_joined_layer_by_layer(plans, warnings_logged, monkeypatch) -> None:
    # So small products say little about the time: a joined one may be estimated to be slow.
    monkeypatch.setattr("superopt.schedule.search._FAR_TIMED", 100.0)
    torch.manual_seed(0)
    module, host, x = Heads().eval(), Host(), torch.randn(8, 32)
    run = torch.compile(module, backend=host)
    for _ in range(9):
        close(run(x), module(x))
    assert any("joined" in plan and kept(plan) for plan in plans)
    for change in (
        lambda: module.layers[0][1].weight.mul_(2),
        lambda: module.layers[1][2].weight.data[3, 5].fill_(100),
        lambda: module.load_state_dict({name: one * 3 for name, one in module.state_dict().items()}),
        lambda: setattr(module.layers[0][0], "weight", nn.Parameter(torch.randn(48, 32))),
    ):
        before = run(x)
        change()
        for _ in range(3):
            close(run(x), module(x))
        assert not torch.allclose(before, run(x))
    assert not troubles(warnings_logged)


class Few(nn.Module):
    """Weights of four bits in pairs, or of eight bits, whose groups are seen before they become floats."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits
        kind = torch.uint8 if bits == 4 else torch.int8
        least, most = (0, 256) if bits == 4 else (-128, 128)
        self.register_buffer("w", torch.randint(least, most, (48, 64 * bits // 8), dtype=kind))
        self.register_buffer("s", torch.rand(48, 4) / 64)

    def forward(self, x: Tensor) -> Tensor:
        w = self.w
        if self.bits == 4:
            w = torch.stack([w & 15, w >> 4], -1).view(48, 64).to(torch.int8) - 8
        whole = w.view(48, 4, 16).to(x.dtype) * self.s[..., None]
        return nn.functional.linear(x, whole.view(48, 64)).sort(-1).values


@torch.no_grad()
@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_a_region_reads_weights_of_few_bits_as_they_lie(bits: int, plans, warnings_logged) -> None:
    torch.manual_seed(0)
    module, host, x = Few(bits).eval(), Host(), torch.randn(5, 64)
    run = torch.compile(module, backend=host)
    close(run(x), module(x))
    assert host.calls == 1
    [plan] = plans
    assert f": {'u8' if bits == 4 else 'i8'}[" in plan
    module.w.add_(1)
    close(run(x), module(x))
    assert not troubles(warnings_logged)


@torch.no_grad()
def test_bytes_that_wrap_around_are_left_to_pytorch(plans) -> None:
    class Wrapping(Few):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, ((self.w & 15) - 8).view(24, 64).to(x.dtype)).sort(-1).values

    module, x = Wrapping(4).eval(), torch.randn(5, 64)
    close(torch.compile(module, backend=Host())(x), module(x))


class Moving(nn.Module):
    """A layer whose gain changes in every call, as counters, caches and running statistics do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 32))
        self.register_buffer("gain", torch.rand(48))

    def forward(self, x: Tensor) -> Tensor:
        made = (x @ self.weight.t() * self.gain).sort(-1).values
        self.gain.data.add_(0.5)
        return made


@torch.no_grad()
def test_what_the_graph_itself_writes_to_is_no_weight(plans: list[str]) -> None:
    """Before: a kernel could keep what was made of a buffer, which compiled code then wrote to."""
    module, other, x = Moving().eval(), Moving().eval(), torch.randn(8, 32)
    other.load_state_dict(module.state_dict())
    run = torch.compile(module, backend=Host())
    for _ in range(4):
        close(run(x), other(x))
    goal = read(plans[0]).goal
    constant = {goal.shape(port): port.constant for port in goal.inputs}
    assert constant == {(8, 32): False, (48, 32): True, (48,): False}


@torch.no_grad()
@pytest.mark.parametrize("all_shared", [False, True])
def test_weights_that_cannot_be_watched_are_no_constants(
    all_shared: bool, plans: list[str], warnings_logged
) -> None:
    """Before: they were raced as such, and then PyTorch computed the region step by step in each call."""
    module, x = Scores(1).eval(), torch.randn(8, 32)
    for one in module.parameters() if all_shared else [module.layers[0].bias]:
        one.share_memory_()
    run = torch.compile(module, backend=Host())
    for _ in range(3):
        close(run(x), module(x))
    goal = read(plans[0]).goal
    constant = {goal.shape(port): port.constant for port in goal.inputs}
    assert constant == {(8, 32): False, (48, 32): not all_shared, (48,): False}
    assert not troubles(warnings_logged)
