"""Domains: what is drawn keeps to the numbers that a function takes, and no further."""

import logging
import shutil
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import superopt
from superopt import InputError, OptimizeOptions, SearchOptions
from superopt.codegen.cpp import compile as cpp_compile
from superopt.funnel.domain import domain_of, positive_domain
from superopt.trace import trace
from superopt.verify.floats.compare import typical

OPTIONS = OptimizeOptions(
    target="cpu",
    seconds=0.4,
    graphs=1,
    torch_compile=False,
    guarded=False,
    cache=False,
    search=SearchOptions(max_graphs=2),
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Any, kernels_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cpp_compile, "_folder", lambda: kernels_folder)


def probabilities() -> Tensor:
    return torch.rand(6, 16, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


def positive_definite() -> Tensor:
    x = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    return x @ x.T + 5 * torch.eye(5)


def above_a_quarter(x: Tensor) -> Tensor:
    if bool((x < 0.25).any()):
        raise ValueError("too small")
    return x


@pytest.mark.parametrize(
    ("function", "example", "limits"),
    [
        (lambda x: F.binary_cross_entropy(x, x), probabilities(), (0.0, 1.0)),
        (torch.bernoulli, probabilities(), (0.0, 1.0)),
        (torch.poisson, probabilities(), (0.0, inf)),
        (torch.linalg.cholesky, positive_definite(), (inf, -inf)),
        (above_a_quarter, probabilities() + 0.5, (None, inf)),
        (torch.sqrt, probabilities(), (-inf, inf)),
    ],
)
def test_the_range_is_as_wide_as_the_function_allows(
    function: Callable[..., Any], example: Tensor, limits: tuple[float | None, float]
) -> None:
    domain = domain_of(function, (example,), seed=0)
    least, most = limits
    assert domain.limits == ((float(example.min()) if least is None else least, most),)
    for scale in (0.1, 1.0, 4096.0):
        [kept] = domain.keep((torch.randn(example.shape) * scale,))
        function(kept)
        assert kept.shape == example.shape


def test_what_is_inside_is_kept() -> None:
    example = probabilities()
    domain = domain_of(lambda x: F.binary_cross_entropy(x, x), (example,), seed=0)
    drawn = torch.randn(example.shape)
    inside = (drawn >= 0) & (drawn <= 1)
    [kept] = domain.keep((drawn,))
    assert torch.equal(kept, torch.where(inside, drawn, example))
    assert inside.any()
    assert not inside.all()


def test_a_function_that_fails_on_its_examples_is_refused() -> None:
    with pytest.raises(InputError, match="the function fails on its inputs: _LinAlgError"):
        domain_of(torch.linalg.cholesky, (-positive_definite(),), seed=0)


needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)


@needs_compiler
def test_a_loss_of_probabilities_is_optimized(caplog: pytest.LogCaptureFixture) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(x, y, reduction="none") * 2

    inputs = probabilities(), probabilities().flip(0)
    with caplog.at_level(logging.INFO, "superopt"):
        best = superopt.optimize(loss, *inputs, options=OPTIONS)
    assert best.fused is not None
    torch.testing.assert_close(best.fused(*inputs), loss(*inputs))
    edges = torch.tensor([0.0, 1.0, 0.5]).repeat(6, 6)[:, :16].contiguous()
    torch.testing.assert_close(best.fused(edges, inputs[1]), loss(edges, inputs[1]))
    assert "takes no other inputs than such as were given: RuntimeError: all elements" in caplog.text


@needs_compiler
def test_what_lies_beside_a_factorization_is_optimized() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.inv(x) * 2 + 1

    best = superopt.optimize(function, positive_definite(), options=OPTIONS)
    assert best.fused is not None
    torch.testing.assert_close(best.fused(positive_definite()), function(positive_definite()))


@needs_compiler
def test_without_examples_it_is_refused() -> None:
    x = torch.empty(5, 5, device="meta")
    with pytest.raises(InputError, match=r"fails on random inputs: .*; pass tensors with data"):
        superopt.optimize(lambda x: torch.linalg.cholesky(x) * 2, x, options=OPTIONS)


def normed(x: Tensor, variance: Tensor) -> Tensor:
    return (x / torch.sqrt(variance + 1e-5)).relu()


@pytest.mark.parametrize(
    ("function", "positive"),
    [
        (normed, {1}),
        (lambda x, y: x * torch.rsqrt(y), {1}),
        (lambda x, y: x * y.log(), {1}),
        (lambda x, y: x * torch.sqrt(y - 1e-5), set()),  # y = 0 is no number there
        (lambda x, y: torch.where(y > 0, y.sqrt(), x), set()),  # both sides of the comparison must be seen
        (lambda x, y: x + y.sqrt() + y, set()),
        (lambda x, y: x * torch.rsqrt(y.square() + 1), set()),
        (lambda x, y: (x * y.sqrt(), y), set()),
    ],
)
def test_what_only_roots_are_taken_of_is_drawn_positive(function: Any, positive: set[int]) -> None:
    inputs = (torch.randn(4, 8), torch.randn(8))
    domain = positive_domain(trace(function, *inputs), inputs)
    assert (set() if domain is None else domain.positive) == positive
    if domain is not None:
        kept = domain.keep(inputs)
        assert kept[0] is inputs[0]
        assert torch.equal(kept[1], inputs[1].abs())


def test_a_running_variance_leaves_no_layer_of_nan() -> None:
    def layers(x: Tensor, variance: Tensor, w: Tensor) -> Tensor:
        return normed(x, variance) @ w

    given = (torch.randn(4, 8), torch.rand(8) + 0.5, torch.randn(8, 4))
    traced = trace(layers, *given)
    meta = tuple(one.to("meta") for one in given)
    domain = positive_domain(traced, meta)
    assert domain is not None
    drawn = typical(meta)
    assert layers(*drawn).isnan().all()
    assert layers(*domain.keep(drawn)).isfinite().all()
