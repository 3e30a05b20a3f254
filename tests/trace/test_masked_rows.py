"""Masks and class numbers: what hides a number, and what is no infinity."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

from superopt.trace import trace

from .test_operators import MASKS


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy_of_class_numbers(reduction: str) -> None:
    def loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x @ w.T, target, reduction=reduction)

    x, w = torch.randn(5, 4, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)
    target = torch.tensor([0, 6, -100, 3, 3])
    traced = trace(loss, x, w, target)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(x, w, target), loss(x, w, target))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_an_ignored_class_counts_nothing(reduction: str) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(x, target, ignore_index=2, reduction=reduction)

    x, target = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 2])
    torch.testing.assert_close(trace(loss, x, target).run(x, target), loss(x, target))


@pytest.mark.parametrize("hidden", [torch.tensor(False), torch.tensor(-torch.inf)])
def test_rows_that_see_nothing_are_zero(hidden: torch.Tensor) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, mask)

    q, k = torch.randn(2, 4, 5), torch.randn(2, 6, 5)
    mask = torch.ones(4, 6, dtype=hidden.dtype)
    mask[1] = hidden
    made = trace(attention, q, k, mask).run(q, k, mask)
    assert not made[:, 1].any()
    torch.testing.assert_close(made, attention(q, k, mask))


def test_a_mask_that_is_added_tells_which_keys_are_seen() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, torch.where(seen, bias, -torch.inf))

    def plain(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, torch.where(seen, 0.0, -torch.inf))

    def infinite(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, torch.where(seen, torch.inf, -torch.inf))

    q, k, seen, bias = torch.randn(4, 5), torch.randn(6, 5), torch.rand(4, 6) > 0.3, torch.randn(4, 6)
    seen[1], bias[2] = False, -torch.inf
    for function, given in ((plain, (q, k, seen)), (infinite, (q, k, seen)), (attention, (q, k, seen, bias))):
        made = trace(function, *given).run(*given)
        torch.testing.assert_close(made, function(*given), equal_nan=True)
    assert {step.op for step in trace(plain, q, k, seen).graph.steps}.isdisjoint({"where", "infinity", "gt"})


# These leave a mask in a value that no exp follows, or have no minus infinity at all.
UNMASKED = {
    "finite",
    "minus-1e9",
    "relu-of-masked",
    "negative-scale",
    "plus-infinity",
    "output",
    "log-softmax",
    "by-hand",
}


@pytest.mark.parametrize("name", [name for name in MASKS if name not in UNMASKED])
def test_a_masked_exp_is_a_product(name: str) -> None:
    function, shapes = MASKS[name]
    graph = trace(function, *(torch.empty(shape, device="meta") for shape in shapes)).graph
    assert {step.op for step in graph.steps}.isdisjoint({"where", "infinity"})


@pytest.mark.parametrize("name", ["finite", "minus-1e9"])
def test_a_finite_number_is_no_infinity(name: str) -> None:
    function, shapes = MASKS[name]
    graph = trace(function, *(torch.empty(shape, device="meta") for shape in shapes)).graph
    assert "infinity" not in {step.op for step in graph.steps}
    assert any(step.value is not None and step.value < -(10**8) for step in graph.steps)


@pytest.mark.parametrize("widths", [(4, 4), (4, 2), (2, 6)])
@pytest.mark.parametrize("number", [float("inf"), -float("inf"), 3.0])
def test_a_number_is_put_beside_others(widths: tuple[int, int], number: float) -> None:
    """Before: NaN everywhere, where the number is infinite."""
    x, width = torch.randn(3, widths[0], dtype=torch.float64), widths[1]

    def wider(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.full((3, width), number, dtype=x.dtype), x], 1)

    torch.testing.assert_close(trace(wider, x).run(x), wider(x))


def test_softmax_has_no_maximum() -> None:
    graph = trace(lambda x: x.softmax(-1), torch.empty(3, 4)).graph
    assert [step.op for step in graph.steps] == ["exp", "sum", "div"]


def test_a_constant_is_the_exact_float() -> None:
    graph = trace(lambda x: x * 0.1, torch.empty(3, 4)).graph
    assert [step.value for step in graph.steps if step.op == "const"] == [Fraction(0.1)]


def test_layers_of_attention_know_rows_that_see_nothing() -> None:
    """`nn.MultiheadAttention` takes the softmax of scores and a bias, which may be minus infinity."""
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()

    def added(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = layer(x, x, x, attn_mask=mask, need_weights=False)[0]
        return made

    def padded(x: torch.Tensor, mask: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        bias = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
        made: torch.Tensor = layer(x, x, x, bias, False, mask)[0]
        return made

    x, hidden = torch.randn(2, 6, 16), torch.zeros(6, 6)
    hidden[3], hidden[1, 2] = -torch.inf, -torch.inf
    causal = torch.full((6, 6), -torch.inf).triu(1)
    padding = torch.tensor([[True, True, False, False, False, False], [False] * 6])
    with torch.no_grad():
        for function, given in ((added, (x, hidden)), (padded, (x, causal, padding))):
            torch.testing.assert_close(trace(function, *given).run(*given), function(*given))


def test_a_softmax_that_is_safe_is_zero_where_all_is_minus_infinity() -> None:
    def safe(p: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.aten._safe_softmax(p.log(), -1)
        return made

    p = torch.rand(3, 4)
    p[1], p[2, 0] = 0, 0
    made = trace(safe, p).run(p)
    assert not made[1].any()
    torch.testing.assert_close(made, safe(p))


def test_a_safe_softmax_of_products_hides_nothing() -> None:
    def safe(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.ops.aten._safe_softmax(q @ k.mT / 2 + 1, -1)
        return made

    graph = trace(safe, torch.empty(3, 4), torch.empty(5, 4)).graph
    assert "guard" not in {step.op for step in graph.steps}


def test_sums_of_booleans_are_booleans() -> None:
    def neighbors(m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return (m[:, 1:] + m[:, :-1]).float()

    def joined(m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return (torch.cat([m, n], 1) + torch.cat([n, m], 1)).float()

    m, n = torch.rand(4, 8) > 0.5, torch.rand(4, 3) > 0.5
    for function in (neighbors, joined, lambda m, n: (m + m[:1]).float()):
        torch.testing.assert_close(trace(function, m, n).run(m, n), function(m, n))


def test_minus_infinity_is_true() -> None:
    def function(m: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.where(m, 1.0, -torch.inf).bool(), a, 0.0)

    m, a = torch.rand(4, 8) > 0.5, torch.randn(4, 8)
    torch.testing.assert_close(trace(function, m, a).run(m, a), function(m, a))
