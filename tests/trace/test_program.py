"""Programs with opaque operators, modules, inputs of every form, and the errors a user meets."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superopt.backend.joint.memory.peak import peak_bytes
from superopt.errors import InputError, TraceError
from superopt.ir import Opaque, Region, check_graph, parse_graph, print_graph
from superopt.trace import trace

f64 = torch.float64

OPAQUE: dict[str, tuple[Callable[..., Any], str]] = {
    "sort": (lambda x: x.sort(-1).values * 2, "order depends on the data"),
    "topk": (lambda x: x.topk(2)[0] + 1, "order depends on the data"),
    "argmax": (lambda x: x.argmax(-1), "extremum"),
    "max-indices": (lambda x: x.max(-1).indices, "extremum"),
    "max-both": (lambda x: x.max(-1), "extremum"),
    "cumsum": (lambda x: (x.repeat(1, 40) * 2).cumsum(-1).sum(), "running total"),
    "diagonal": (lambda x: x.diagonal() + 1, "diagonal"),
    "einsum-diagonal": (lambda x: torch.einsum("ii->i", x), "diagonal"),
    "round": (lambda x: (x * 3).round() / 3, "rounds"),
    "floor-div": (lambda x: torch.div(x, 0.3, rounding_mode="floor"), "rounds"),
    "to-int": (lambda x: (x * 3).to(torch.int64), "rounds"),
    "cumprod": (lambda x: x.cumprod(0), "running product"),
    "conv": (
        lambda x: F.conv_transpose1d(x[None], x[:, None, :2], None, 2, 0, 0, 4, 2),
        "stride and dilation",
    ),
    "prod": (lambda x: x.prod(-1), "no such operator"),
    "cat-ragged": (lambda x: torch.cat([x[:, :1], x.repeat(1, 20)] * 5, 1) * 2, "of unequal lengths"),
    "gather-lines": (lambda x: x.repeat(1, 30)[:, torch.arange(11) * torch.arange(11)] + 1, "lines"),
    "linalg": (lambda x: torch.linalg.inv(x @ x.T) @ x, "no such operator"),
    "fft": (lambda x: torch.fft.fft(x).real + 1, "no such operator"),
    "norm-3": (lambda x: x.norm(3), "norm of order 3"),
    "var-lost": (lambda x: x.var(-1, correction=4.5) + 1, "fewer elements than its correction"),
    "std-lost": (lambda x: torch.std_mean(x, 0, correction=5), "fewer elements than its correction"),
    "int-input-arithmetic": (lambda x: (torch.tensor([1, 2, 3, 4]) + 1) * x, "i64 data"),
    "where-nonzero-mutated": (lambda x: x.clone().cumprod_(0) + 1, "running product"),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", OPAQUE)
def test_opaque(name: str) -> None:
    function, reason = OPAQUE[name]
    x = torch.randn(4, 4, dtype=f64)
    expected = function(x)
    traced = trace(function, x)
    assert reason in " ".join(node.reason for node in traced.program.opaque)
    actual = traced.run(x)
    for a, b in zip(
        actual if isinstance(actual, tuple) else [actual],
        expected if isinstance(expected, tuple) else [expected],
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    for region in traced.program.regions:
        assert parse_graph(print_graph(region.graph)) == region.graph
    with pytest.raises(TraceError, match="is not one graph"):
        _ = traced.graph


def test_regions_between_opaque_operators() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        a = h.sort(-1).values * 2
        b = (h + a).cumprod(0)
        return b.exp() + h, a.sum(-1)

    x, w = torch.randn(3, 4, dtype=f64), torch.randn(4, 5, dtype=f64)
    traced = trace(function, x, w)
    kinds = [type(node) for node in traced.program.nodes]
    assert kinds == [Region, Opaque, Region, Opaque, Region]
    torch.testing.assert_close(traced.run(x, w), function(x, w), rtol=1e-9, atol=0)


def test_an_opaque_operator_on_inputs_only_splits_nothing() -> None:
    def function(ids: Tensor, table: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(F.embedding(ids, table), (4,)) @ w

    inputs = torch.tensor([3, 1, 2]), torch.randn(5, 4, dtype=f64), torch.randn(4, 6, dtype=f64)
    traced = trace(function, *inputs)
    assert [type(node) for node in traced.program.nodes] == [Opaque, Region]
    assert traced.program.opaque[0].inputs == ("table", "ids")
    torch.testing.assert_close(traced.run(*inputs), function(*inputs))


def test_dead_operators_are_gone() -> None:
    traced = trace(lambda x: (x.sort(), x.exp())[1], torch.empty(3))
    assert [step.op for step in traced.graph.steps] == ["exp"]


def test_random_operators_run_opaque() -> None:
    traced = trace(lambda x: F.dropout(x * 2, 0.5) + 1, torch.empty(100, 100))
    assert "random numbers" in " ".join(node.reason for node in traced.program.opaque)
    out = traced.run(torch.ones(100, 100))
    assert set(out.unique().tolist()) == {1.0, 5.0}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 8, bias=False)])
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(self.norm(x)))
        for layer in self.layers:
            h = layer(h)
        return x + h * self.temperature + self.shift


def test_module() -> None:
    block = Block().double()
    x = torch.randn(2, 3, 8, dtype=f64)
    traced = trace(block, x)
    assert traced.program.name == "Block"
    assert set(traced.constants) == {
        "norm_weight", "norm_bias", "up_weight", "up_bias", "layers_0_weight", "layers_0_bias",
        "layers_1_weight", "temperature", "shift",
    }  # fmt: skip
    torch.testing.assert_close(traced.run(x), block(x).detach(), rtol=1e-9, atol=1e-12)
    assert traced.graph.inputs[0].name == "x"


def test_module_on_meta() -> None:
    with torch.device("meta"):
        block = Block()
    traced = trace(block, torch.empty(2, 3, 8, device="meta"))
    assert not traced.program.opaque


def test_closure_tensors_become_constants() -> None:
    w = torch.randn(4, 4, dtype=f64)
    x = torch.randn(4, 4, dtype=f64)
    traced = trace(lambda x: x @ w + w, x)
    assert list(traced.constants) == ["constant"]
    torch.testing.assert_close(traced.run(x), x @ w + w)


def test_graph_module() -> None:
    module = torch.fx.symbolic_trace(Block().double())
    x = torch.randn(2, 8, dtype=f64)
    torch.testing.assert_close(trace(module, x).run(x), module(x).detach())


def test_inputs_of_every_form() -> None:
    def function(x: Tensor, scale: float, pair: tuple[Tensor, Tensor], extra: dict[str, Any]) -> Tensor:
        return x * scale + pair[0] @ pair[1] + extra["bias"] * extra["n"]

    a, b, c, d = (torch.randn(4, 4, dtype=f64) for _ in range(4))
    inputs = (a, 0.5, (b, c), {"bias": d, "n": 3})
    traced = trace(function, *inputs)
    assert traced.input_names == ("x", "pair_0", "pair_1", "extra_bias")
    torch.testing.assert_close(traced.run(*inputs), function(*inputs))


def test_names_are_plain_whatever_the_function_calls_them() -> None:
    """Before: the text of the graph could not be parsed, and kernels had names that no compiler takes."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.β = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor, γ: Tensor, _: Tensor) -> Tensor:
            return x * γ + _ + self.β

    traced = trace(Scale(), torch.randn(3, 4), torch.randn(4), torch.randn(4), name="2-layer")
    assert traced.program.name == traced.graph.name == "x2_layer"
    assert [port.name for port in traced.graph.inputs] == ["x", "x_", "x__2", "x__3"]
    assert parse_graph(print_graph(traced.graph)) == traced.graph


def test_meta_inputs_cost_nothing() -> None:
    x = torch.empty(1 << 20, 1 << 20, device="meta", dtype=torch.float16)
    traced = trace(lambda x: x @ x + torch.arange(1 << 20), x)
    assert traced.graph.sizes["m"] == 1 << 20


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes_show_at_the_ports(dtype: torch.dtype) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = F.rms_norm(x.float(), (8,)).to(x.dtype) @ w
        return h, h.float().sum(-1)

    x, w = torch.randn(4, 8).to(dtype), torch.randn(8, 6).to(dtype)
    traced = trace(function, x, w)
    assert traced.graph.outputs[1].port.dtype == "f32"
    assert "cast" not in print_graph(traced.graph)
    torch.testing.assert_close(traced.run(x, w), function(x, w), rtol=3e-2, atol=3e-2)


def test_bool_inputs_are_masks() -> None:
    x, m = torch.randn(4, 4, dtype=f64), torch.rand(4, 4) > 0.3
    traced = trace(lambda x, m: x.masked_fill(m, -torch.inf).logsumexp(0), x, m)
    assert traced.graph.inputs[1].dtype == "bool"
    torch.testing.assert_close(traced.run(x, m), x.masked_fill(m, -torch.inf).logsumexp(0))


def test_a_product_with_a_mask_selects() -> None:
    x = torch.tensor([[1.0, 800.0], [2.0, 3.0]], dtype=f64)
    traced = trace(lambda x: x.tril().exp() * torch.ones(2, 2).tril(), x)
    assert traced.run(x).isfinite().all()
    traced = trace(lambda x: x.exp().masked_fill(x > 700, 0.0) @ x, x)
    assert traced.run(x).isfinite().all()


def test_graphs_are_checked() -> None:
    graph = trace(lambda x: x.softmax(-1) @ x, torch.empty(4, 4)).graph
    assert check_graph(graph) is graph


def test_returning_inputs_computes_nothing() -> None:
    x = torch.randn(3)
    traced = trace(lambda x: x, x)
    assert traced.program.nodes == ()
    assert traced.run(x) is x
    with pytest.raises(TraceError, match="returns its inputs"):
        _ = traced.graph


ERRORS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], type[Exception], str]] = {
    "branch": (lambda x: x if x.sum() > 0 else -x, (torch.empty(3),), TraceError, "branch on a tensor"),
    "item": (lambda x: x * x[0].item(), (torch.empty(3),), TraceError, r"item\(\) needs the values"),
    "tolist": (lambda x: torch.tensor(x.tolist()), (torch.empty(3),), TraceError, "needs the values"),
    "index": (lambda x: x[int(x[0])], (torch.empty(3),), TraceError, "needs the values"),
    "numpy": (lambda x: x.numpy(), (torch.empty(3),), TraceError, "needs the values"),
    "shapes": (
        lambda x, w: x @ w,
        (torch.empty(3, 4), torch.empty(5, 6)),
        TraceError,
        r"matmul\(f32\[3, 4\], f32\[5, 6\]\)",
    ),
    "own-error": (lambda x: 1 / 0, (torch.empty(3),), TraceError, "ZeroDivisionError"),
    "nonzero": (lambda x: x.nonzero(), (torch.empty(3),), TraceError, "nonzero.*depends on the data"),
    "bool-index": (lambda x: x[x > 0], (torch.empty(3),), TraceError, "depends on the data"),
    "too-many": (lambda x: x, (torch.empty(3), torch.empty(3)), InputError, r"takes \(x\) but got 2"),
    "too-few": (lambda x, y: x, (torch.empty(3),), InputError, "'y'"),
    "not-callable": (3, (torch.empty(3),), InputError, "not a function"),  # type: ignore[dict-item]
    "not-a-tensor": (lambda x: x, ([{1, 2}],), InputError, "is a set"),
    "complex": (lambda x: x, (torch.empty(3, dtype=torch.complex64),), InputError, "complex64"),
    "writes-input": (lambda x: x.add_(1), (torch.empty(3),), TraceError, "writes into an input"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    function, inputs, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message) as caught:
        trace(function, *inputs)
    assert "\n" not in str(caught.value)


def test_run_takes_the_traced_tensors() -> None:
    traced = trace(lambda x, y: x + y, torch.empty(3), torch.empty(3))
    with pytest.raises(InputError, match="takes 2 tensors"):
        traced.run(torch.empty(3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.randn(3, 4, dtype=f64),
        lambda x: x * torch.randperm(4, device=x.device) + torch.randperm(3)[:, None],
        lambda x: x * torch.nn.functional.dropout(torch.ones(4, dtype=f64, device="cpu"), 0.5, True),
    ],
)
def test_random_numbers_that_no_input_makes(function: Callable[..., Any]) -> None:
    x = torch.randn(3, 4, dtype=f64)
    traced = trace(function, x.to("meta"))
    torch.manual_seed(7)
    expected = function(x)
    torch.manual_seed(7)
    torch.testing.assert_close(traced.run(x), expected)


@pytest.mark.parametrize("shape", [(0, 5), (4, 0)])
@pytest.mark.parametrize(
    "function",
    [torch.mean, lambda x: F.mse_loss(x, x + 1), lambda x: F.huber_loss(x * 0, x), lambda x: (x * 2).mean(0)],
)
def test_a_mean_of_nothing_is_no_number(function, shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    assert torch.allclose(trace(function, x).run(x), function(x), equal_nan=True)


def test_what_nothing_reads_any_more_is_let_go() -> None:
    """Before: a program held all that its operators made to the end, and could take much more memory."""

    def chain(x: Tensor) -> tuple[Tensor, Tensor]:
        first = x
        for _ in range(9):
            x = x.cumprod(-1).flip(-1)
        return x, first.cumprod(0)

    x = torch.rand(256, 256)
    traced = trace(chain, x)
    held = peak_bytes(lambda: traced.run(x, dtype=torch.float32)) or 0
    assert 2 * x.nbytes <= held <= 5 * x.nbytes
    for made, expected in zip(traced.run(x, dtype=torch.float32), chain(x), strict=True):
        torch.testing.assert_close(made, expected)


def test_results_of_operators_are_arguments() -> None:
    pair = torch.topk(torch.randn(4, 8), 3)
    made = trace(lambda found: found.values * 2, pair, live="cpu").run(pair)
    torch.testing.assert_close(made, pair.values * 2)
