"""Models in half precision whose library calls are computed in float32, compiled and trained."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from quick import few
from torch import Tensor, fx, nn

from superopt.backend.checks.wide_calls import learn_wide_calls, put_wide_calls
from superopt.backend.decision import Ledger
from superopt.backend.entry import ledger_of
from superopt.backend.options import BackendOptions
from superopt.rivals.aten import operator_name
from superopt.rivals.wide import calls, choice

HALVES = (torch.bfloat16, torch.float16)
APART = {torch.bfloat16: 0.03, torch.float16: 0.004}


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.heads = causal, nn.Linear(16, 48, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in self.heads(x).chunk(3, -1))
        made = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return x + made.transpose(1, 2).flatten(2)


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.heads(x).chunk(2, -1)
        return x + torch.softmax(query @ key.transpose(1, 2) / 4, -1) @ x


class Image(nn.Module):
    def __init__(self, stride: int, groups: int, bias: bool) -> None:
        super().__init__()
        self.stride = stride
        self.inner = nn.Conv2d(4, 4, 3, stride, padding=1, groups=groups, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        made = self.inner(x.unflatten(-1, (4, 4)).transpose(1, 2).contiguous())
        made = F.interpolate(made, scale_factor=self.stride) if self.stride > 1 else made
        return x + made[:, :, : x.shape[1], :4].transpose(1, 2).flatten(2)


class Mlp(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 40, bias), nn.Linear(40, 16, bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(x)))


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        several = torch.baddbmm(x, x, self.weight.expand(x.shape[0], 16, 16), beta=0.5, alpha=2)
        return torch.addmm(several[0], x[0], self.weight, beta=2, alpha=0.5) + several


def model_of(seed: int, dtype: torch.dtype) -> nn.Module:
    """Return a random model of the parts above."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    parts: list[Callable[[], nn.Module]] = [
        lambda: Attention(draw.random() < 0.5),
        ByHand,
        lambda: Image(draw.choice([1, 2]), draw.choice([1, 2, 4]), draw.random() < 0.5),
        lambda: Mlp(draw.random() < 0.5),
        Added,
    ]
    chosen = draw.sample(parts, 3)
    return nn.Sequential(*[piece for part in chosen for piece in (part(), nn.LayerNorm(16))]).to(dtype)


def trained(model: nn.Module, x: Tensor, call: Callable[..., Tensor] | None = None) -> list[Tensor]:
    """Return what a model makes, and the gradients of a loss of it."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    made = (call or model)(x)
    (made * torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view(made.shape)).sum().backward()
    return [made.detach(), x.grad, *(one.grad for one in model.parameters())]  # type: ignore[list-item]


def distance(some: list[Tensor], others: list[Tensor]) -> float:
    """Return how far tensors are apart, as a share of the largest number of each."""
    return max(
        float((one.double() - other.double()).abs().max() / (other.double().abs().max() + 1e-2))
        for one, other in zip(some, others, strict=True)
    )


@pytest.mark.parametrize("seed", few(range(40), 6))
@pytest.mark.parametrize("dtype", HALVES)
def test_random_models_are_trained_as_by_pytorch(seed: int, dtype: torch.dtype, all_wide: list[str]) -> None:
    model = model_of(seed, dtype)
    x = torch.randn(2, 9, 16, dtype=dtype)
    exact = trained(model_of(seed, dtype).double(), x.double())
    eager = trained(model, x)
    options = {"budget_s": 1e-3}
    ours = trained(model, x, torch.compile(model, backend="superopt", options=options))
    assert all_wide
    assert distance(ours, exact) <= 1.5 * distance(eager, exact) + APART[dtype] / 4
    decided = ledger_of(options).decisions
    assert any("in float32" in one.why for one in decided if one.taken)


@pytest.mark.parametrize("dtype", few(HALVES, torch.bfloat16))
def test_steps_under_autocast_agree(dtype: torch.dtype, all_wide: list[str]) -> None:
    model = model_of(1, torch.float32)
    x = torch.randn(2, 9, 16)
    exact = trained(model_of(1, torch.float32).double(), x.double())

    def step(call: Callable[..., Tensor]) -> list[Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", dtype):
            made = call(x)
            made.float().mul(torch.linspace(-1, 1, made.numel()).view(made.shape)).sum().backward()
        return [made.detach(), *(one.grad for one in model.parameters())]  # type: ignore[list-item]

    eager, ours = step(model), step(torch.compile(model, backend="superopt", options={"budget_s": 1e-3}))
    assert all_wide
    wanted = [exact[0], *exact[2:]]
    assert distance(ours, wanted) <= 1.5 * distance(eager, wanted) + APART[dtype] / 4


def test_sizes_may_change(all_wide: list[str]) -> None:
    model = nn.Sequential(Mlp(True), Attention(True), ByHand()).bfloat16()
    compiled = torch.compile(model, backend="superopt", dynamic=True, options={"budget_s": 1e-3})
    for rows in (5, 9, 1, 64):
        x = torch.randn(2, rows, 16).bfloat16()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=0.03, atol=0.03)
    assert all_wide


def traced(function: Callable[..., Any], *inputs: Tensor) -> fx.Graph:
    """Return the functional graph of a function."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="fake")(*inputs).graph  # type: ignore[no-any-return]


def half(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


@pytest.mark.parametrize(
    ("function", "inputs", "wide"),
    [
        (torch.mm, (half(300, 40), half(40, 300)), True),
        (torch.mm, (torch.randn(300, 40), torch.randn(40, 300)), False),
        (torch.mm, (half(3, 40), half(40, 3)), False),
        (torch.mm, (half(300, 40).long(), half(40, 300).long()), False),
        (lambda x, w: torch.conv2d(x, w), (half(1, 4, 9, 9), half(4, 4, 3, 3)), True),
        (lambda x, w: torch.conv2d(x, w), (torch.randn(1, 4, 9, 9), torch.randn(4, 4, 3, 3)), False),
        (lambda x: torch.relu(x) + 1, (half(900, 900),), False),
    ],
)
def test_library_calls_in_half_precision_may_be_wide(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], wide: bool
) -> None:
    nodes = traced(function, *inputs).nodes
    assert any(map(calls.may_be_wide, nodes)) is wide


def test_the_clock_decides_and_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_SPEEDS", {})
    races: list[str] = []

    def race(node: fx.Node) -> float:
        races.append(str(operator_name(node)))
        return 5.0 if operator_name(node) == "mm" else 0.5

    monkeypatch.setattr(choice, "raced", race)
    graph = traced(lambda x, w: torch.bmm((x @ w)[None], w[None]), half(300, 300), half(300, 300))
    for _ in range(2):
        choice.learn_speeds(graph)
        monkeypatch.setattr(choice, "_SPEEDS", {})  # as in another process
    assert races == ["mm", "bmm"]
    choice.learn_speeds(graph, racing_s=0)
    assert [str(operator_name(node)) for node in graph.nodes if choice.is_faster_wide(node)] == ["mm"]


def test_a_race_is_one_of_the_clock() -> None:
    for node in traced(
        lambda x, w, q: (
            torch.addmm(x[0], x, w, beta=2),
            torch.conv2d(q, q[:, :, :3, :3]),
            torch.bmm(q[0], q[0]),
        ),
        half(300, 300),
        half(300, 300).t(),
        half(1, 4, 60, 60),
    ).nodes:
        if calls.may_be_wide(node):
            assert choice.raced(node) > 0


def test_large_products_are_timed_on_smaller_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_MOST_FLOPS", 1 << 16)
    [node] = [
        one
        for one in traced(lambda x, w, b: torch.addmm(b, x, w), half(700, 90), half(90, 300), half(300)).nodes
        if calls.may_be_wide(one)
    ]
    (summand, left, right), _ = choice._smaller(node)
    assert 2 * left.numel() * right.shape[1] <= 1 << 16
    assert (left @ right + summand).shape == (left.shape[0], right.shape[1])


def test_without_a_budget_nothing_is_timed(all_wide: list[str]) -> None:
    model = Mlp(True).bfloat16()
    torch.compile(model, backend="superopt", options={"budget_s": 0})(half(2, 9, 16))
    assert not all_wide


@pytest.mark.parametrize("setting", ["cpp_wrapper", "max_autotune"])
def test_products_may_be_left_to_inductor(setting: str, all_wide: list[str]) -> None:
    graph = traced(lambda x, w: x @ w, half(30, 40), half(40, 30))
    ledger = Ledger(BackendOptions(cache=False))
    learn_wide_calls(graph, ledger)
    with torch._inductor.config.patch({setting: True}):
        put_wide_calls(graph, ledger, "it")
    assert not graph.find_nodes(op="call_function", target=calls.WIDE_PRODUCT)
    put_wide_calls(graph, ledger, "it")
    assert graph.find_nodes(op="call_function", target=calls.WIDE_PRODUCT)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, 16, 24) / 4)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return F.grouped_mm(x, self.weights, offs=ends)


def test_experts_are_trained_in_float32(all_wide: list[str]) -> None:
    torch.manual_seed(0)
    model, ends = Experts().bfloat16(), torch.tensor([5, 5, 32], dtype=torch.int32)
    x = half(32, 16)
    eager = trained(model, x, lambda one: model(one, ends))
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 1e-3})
    ours = trained(model, x, lambda one: compiled(one, ends))
    assert any("grouped" in name for name in all_wide)
    assert distance(ours, eager) <= 0.02


CONVERT = torch.ops.prims.convert_element_type.default


@pytest.mark.parametrize(
    ("between", "rounded"),
    [
        (lambda made: made, False),
        (lambda made: made.t(), False),
        (lambda made: made.view(torch.int16), True),  # bits
        (lambda made: made[:1], True),  # a part, of which the whole would have to stay
    ],
)
def test_what_leaves_in_float32_is_not_rounded(
    between: Callable[[Tensor], Tensor], rounded: bool, all_wide: list[str]
) -> None:
    x, w = half(30, 40), half(40, 20)
    graph = traced(lambda x, w: CONVERT(between(x @ w), torch.float32), x, w)
    before = fx.GraphModule(nn.Module(), fx.Graph())
    before.graph.output(before.graph.graph_copy(graph, {}))
    before.recompile()
    choice.learn_speeds(graph, cached=False)
    calls.put_wide(graph, [node for node in graph.nodes if choice.is_faster_wide(node)], {})
    [call] = graph.find_nodes(op="call_function", target=calls.WIDE_PRODUCT)
    assert call.args[-1] is rounded
    made, wanted = fx.GraphModule(nn.Module(), graph)(x, w), before(x, w)
    assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape)
    if rounded:
        torch.testing.assert_close(made, wanted, rtol=0.02, atol=300)  # of bits, those of the last place
    else:
        torch.testing.assert_close(made, between(x.float() @ w.float()))


def test_rivals_are_wide_as_their_graphs_are(all_wide: list[str]) -> None:
    """Before: not where a region converts its inputs itself; and one with a number among these failed."""
    graph = traced(
        lambda x, w: CONVERT(x, torch.bfloat16) @ CONVERT(w, torch.bfloat16),
        *map(torch.randn, [(30, 40), (40, 20)]),
    )
    with graph.inserting_before(next(iter(graph.nodes))):
        graph.placeholder("size")
    module = fx.GraphModule(nn.Module(), graph)
    inputs = (4, torch.randn(30, 40), torch.randn(40, 20))

    def is_wide(**patches: bool) -> bool:
        nodes = choice.widened(module, inputs, patches).graph.nodes
        return any(node.target is calls.WIDE_PRODUCT for node in nodes)

    assert is_wide()
    assert not is_wide(max_autotune=True)
    assert not is_wide(cpp_wrapper=True)


def test_a_race_that_fails_is_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(node: fx.Node) -> float:
        raise MemoryError("no memory")

    monkeypatch.setattr(choice, "_SPEEDS", {})
    monkeypatch.setattr(choice, "raced", failing)
    graph = traced(torch.mm, half(300, 300), half(300, 300))
    choice.learn_speeds(graph, cached=False)
    assert not any(map(choice.is_faster_wide, graph.nodes))
