"""Folds in blocks of models: norms of batches, means, and the projections of attention. And wrong ones."""

from collections.abc import Callable

import pytest
import torch
from quick import few
from torch import Tensor, nn

from superopt.weights.division import divided, once_values, run_part

from .folding import best, parts, products, reads, searched, widest

M, K, N = 16, 256, 512


class BatchNorm(nn.Module):
    """A norm by running statistics after a projection goes into the projection and its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(K, N)
        self.n = nn.BatchNorm1d(N)

    def forward(self, x: Tensor) -> Tensor:
        return self.n(self.l(x))


class NormFirst(BatchNorm):
    """The same where the norm comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.n = nn.BatchNorm1d(K)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(self.n(x))


class Mean(nn.Module):
    """A projection of which the mean is wanted is a product with one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(K, N)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x).mean(-1)


class ValueOutput(nn.Module):
    """One head of attention: the projections of its values and of its output are one matrix where smaller."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.empty(1024, inner, device="meta"))
        self.o = nn.Parameter(torch.empty(inner, 1024, device="meta"))

    def forward(self, p: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(p, -1) @ (x @ self.v) @ self.o


STEP = (128, 128), (4096, 512)  # a query of each head, and the latent vectors of all times


class Latent(nn.Module):
    """One step of latent attention: keys and values of each head are projections of one short vector."""

    def __init__(self, heads: int = 128, inner: int = 128, latent: int = 512) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.empty(latent, heads, inner, device="meta"))
        self.v = nn.Parameter(torch.empty(latent, heads, inner, device="meta"))


class LatentScores(Latent):
    def forward(self, q: Tensor, c: Tensor) -> Tensor:
        return torch.einsum("hd,thd->ht", q, torch.einsum("tr,rhd->thd", c, self.k))


class LatentAttention(Latent):
    def forward(self, q: Tensor, c: Tensor) -> Tensor:
        keys, values = (torch.einsum("tr,rhd->thd", c, one) for one in (self.k, self.v))
        p = torch.softmax(torch.einsum("hd,thd->ht", q, keys), -1)
        return torch.einsum("ht,thd->hd", p, values)


def test_the_norm_of_a_batch_goes_into_the_projection_before() -> None:
    found = parts(BatchNorm(), (M, K))
    assert reads(found.once) == {
        "l_weight", "l_bias", "n_weight", "n_bias", "n_running_mean", "n_running_var",
    }  # fmt: skip
    assert [step.op for step in found.run.steps] == ["contract", "add"]


def test_the_norm_of_a_batch_goes_into_the_projection_after() -> None:
    found = parts(NormFirst(), (M, K))
    assert not reads(found.run) & reads(found.once)
    assert [step.op for step in found.run.steps] == ["contract", "add"]


@pytest.mark.parametrize("weights", ["default", "frozen"])
def test_a_mean_of_a_projection_is_a_vector(weights) -> None:
    found = parts(Mean(), (M, K), weights=weights)
    assert products(found.run) == 0
    assert found.kept_bytes == 4 * (K + 1)


@pytest.mark.parametrize(("inner", "matrices"), [(4096, 1), (64, 2)])
def test_projections_of_values_and_output_are_one_where_that_is_smaller(inner: int, matrices: int) -> None:
    run = run_part(best(ValueOutput(inner), "frozen", (2048, 2048), (2048, 1024)), "frozen")
    assert products(run) == matrices


@pytest.mark.parametrize("weights", ["live", "frozen"])
def test_latent_scores_are_of_the_latent_vector(weights) -> None:
    """The keys of all heads at all times are never computed."""
    assert widest(best(LatentScores(), weights, *STEP), weights) <= 128 * 4096


@pytest.mark.parametrize("weights", ["live", "frozen"])
def test_latent_attention_reads_the_latent_vectors(weights) -> None:
    """Neither keys nor values of heads are computed."""
    assert widest(best(LatentAttention(), weights, *STEP), weights) <= 128 * 4096


class Pair(nn.Module):
    """Two projections with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a = nn.Linear(K, N, bias=False)
        self.b = nn.Linear(N, 64, bias=False)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


NOT_LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "softmax": lambda x: torch.softmax(x, -1),
    "clamp": lambda x: x.clamp(-1, 1),
    "square": torch.square,
    "mask by itself": lambda x: x * (x > 0),
}


@pytest.mark.parametrize("name", few(NOT_LINEAR, "relu", "softmax", "mask by itself"))
def test_matrices_with_something_between_stay_two(name: str) -> None:
    """What is not linear is computed in each call, of one matrix, and the other one comes after it."""
    found = searched(Pair(NOT_LINEAR[name]), "frozen", (M, K)).found
    best = found[0].graph
    if values := once_values(best, "frozen"):  # half of the second matrix, where a factor goes into it
        assert reads(divided(best, values).once) <= {"b_weight"}
    assert products(run_part(best, "frozen")) == 2
    for one in found:
        assert one.verdict.equal
        assert products(run_part(one.graph, "frozen")) >= 1


class Scaled(nn.Module):
    """A factor before a norm: with eps it does not cancel."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.rand(()) + 1)
        self.l = nn.Linear(K, N, bias=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.s
        return self.l(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


def test_a_factor_does_not_cancel_in_a_norm_with_eps() -> None:
    for one in searched(Scaled(1e-5), "frozen", (M, K)).found:
        read = {i for step in one.graph.steps for i in step.inputs}
        assert any(port.name == "s" and at in read for at, port in enumerate(one.graph.inputs))


class GainInside(nn.Module):
    """A gain before the squares of a norm is no gain after it."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.rand(K))
        self.l = nn.Linear(K, N, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.g
        return self.l(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))


def test_a_gain_inside_a_norm_stays_there() -> None:
    """The gain may go into the projection as well, but the squares are of what it made."""
    found = searched(GainInside(), "frozen", (M, K)).found
    for one in found:
        run = run_part(one.graph, "frozen")
        assert any(port.constant and len(port.dims) == 1 for port in run.inputs), run
