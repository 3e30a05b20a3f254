"""Every operator that only proofs know: what its algebra computes is what PyTorch computes, in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.trace import trace

_NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "sign": lambda x: torch.sign(x * (x > 0)) - torch.sgn(x),
    "erfc": torch.erfc,
    "logit": lambda x: x.sigmoid().logit(),
    "logit within bounds": lambda x: torch.logit(x, eps=0.1),
    "logaddexp": lambda x: torch.logaddexp(x, 2 * x[:, :1]),
    "logaddexp2": lambda x: torch.logaddexp2(x, 2 * x[:1]),
    "log sigmoid": F.logsigmoid,
    "powers of roots": lambda x: x.abs() ** 1.5 + x.abs() ** 0.25 - x.abs() ** -2.125,
    "long powers": lambda x: (x / 3) ** 24 + x**-3 + x**1,
    "no power": lambda x: x**0 + x,
    "another power": lambda x: x.abs() ** 1.7,
    "powers of two": lambda x: 2.0**x + torch.pow(torch.tensor(2.0), x),
    "powers of three": lambda x: 3.0**x,
    "product of a row": lambda x: x.prod(-1),
    "product kept": lambda x: x.prod(0, keepdim=True),
    "product of all": lambda x: x[:2].prod(),
    "product of rows on two axes": lambda x: x.reshape(12).prod(0) * x,
    "product of equal numbers": lambda x: x[:, :1].expand(3, 4).prod(-1),
    "hypot": lambda x: torch.hypot(x, x + 1),
    "hyperbolic": lambda x: x.sinh() + x.cosh(),
    "log10": lambda x: x.abs().log10(),
    "xlogy": lambda x: torch.xlogy(x.relu(), x.relu()),
}


_EXTREMA: dict[str, Callable[[Tensor], Any]] = {
    "argmax": lambda x: x.argmax(1),
    "argmax kept": lambda x: x.argmax(0, keepdim=True),
    "argmax of all": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(-1),
    "argmin of all, kept": lambda x: x.argmin(keepdim=True),
    "argmax of one number": lambda x: x[0, 0].argmax() + x[:, :1].argmax(1),
    "argmax of two axes": lambda x: x.reshape(2, 2, 6).argmax(1),
    "argmax of softmax": lambda x: (3 * x - 1).softmax(-1).argmax(-1),
    "argmax of equal numbers": lambda x: (0 * x).argmax(1),
    "argmax gathered": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "argmin gathered": lambda x: x.gather(0, x.argmin(0, keepdim=True)),
    "argmax of another gathered": lambda x: x.gather(1, (-2 * x).argmax(1, keepdim=True)),
    "top of one": lambda x: x.topk(1).values,
    "lowest of one": lambda x: x.topk(1, 0, largest=False).values,
}


@pytest.mark.parametrize("name", _EXTREMA)
def test_a_proof_finds_the_first_place_of_an_extremum(name: str) -> None:
    x = torch.randint(0, 4, (4, 6), generator=torch.Generator().manual_seed(0)).double()  # with many ties
    traced = trace(_EXTREMA[name], x, for_proof=True)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(x), _EXTREMA[name](x))


def test_more_than_the_first_stays_a_call() -> None:
    traced = trace(lambda x: x.topk(2).values, torch.randn(3, 4), for_proof=True)
    assert [node.reason for node in traced.program.opaque] == ["the order depends on the data"]


@pytest.mark.parametrize("name", _NUMBERS)
def test_a_proof_has_the_numbers_of_pytorch(name: str) -> None:
    function = _NUMBERS[name]
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    traced = trace(function, x, for_proof=True)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(x), function(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("above", "below"), [(1, 3), (2, 3), (1, 5), (3, 7), (-5, 6)])
def test_no_square_roots_make_a_root_of_another_degree(above: int, below: int) -> None:
    def power(x: Tensor) -> Tensor:
        return x ** (torch.tensor(float(above), dtype=torch.float64) / below)

    x = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    torch.testing.assert_close(trace(power, x, for_proof=True).run(x), power(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("for_proof", [False, True])
def test_a_negative_power_that_is_an_integer_stays_a_call(for_proof: bool) -> None:
    """Before: the reciprocal, of which PyTorch leaves 0."""
    x = torch.tensor([1, 2, -1, 3])
    traced = trace(lambda x: (x + 0).pow(torch.tensor(-1)), x, for_proof=for_proof)
    assert "aten.pow.Tensor_Tensor" in [node.target for node in traced.program.opaque]
    assert traced.run(x).tolist() == [1, 0, -1, 0]
    halves = trace(lambda x: x.double() ** torch.tensor(-1), x, for_proof=True)
    assert not halves.program.opaque


def test_a_long_product_stays_a_call() -> None:
    traced = trace(lambda x: x.prod(-1), torch.randn(17), for_proof=True)
    assert [node.target for node in traced.program.opaque] == ["aten.prod.dim_int"]


_LOOK_UPS: dict[str, Callable[..., Any]] = {
    "embedding": lambda x, i, j, k: F.embedding(i, x),
    "embedding of a matrix of numbers": lambda x, i, j, k: F.embedding(k, x),
    "index": lambda x, i, j, k: x[i] * x[i - 5],
    "index of columns": lambda x, i, j, k: x[:, j],
    "indices side by side": lambda x, i, j, k: x[i, j],
    "indices that broadcast": lambda x, i, j, k: x[i[:, None], j],
    "indices in the middle": lambda x, i, j, k: torch.stack([x, -x], -1)[i[:, None], j],
    "index of a folded axis": lambda x, i, j, k: x.reshape(20)[i * 4 + j],
    "index select": lambda x, i, j, k: x.index_select(1, j),
    "gather": lambda x, i, j, k: x.gather(0, k),
    "index add": lambda x, i, j, k: x.index_add(1, j, x[:, :3], alpha=2),
    "one hot": lambda x, i, j, k: F.one_hot(i, 5).double() @ x,
    "nll": lambda x, i, j, k: F.nll_loss(x[:3], j, reduction="none"),
    "nll of one row": lambda x, i, j, k: F.nll_loss(x[0], j[0]),
    "nll with weights": lambda x, i, j, k: F.nll_loss(x[:3], j, x[4].exp()),
    "nll with a class ignored": lambda x, i, j, k: F.nll_loss(x[:3], j, ignore_index=3),
    "arithmetic": lambda x, i, j, k: (i + 1 - j * 2) ** 2 - (-i),
    "counts": lambda x, i, j, k: (k > 1).long().sum(-1) + (k == 0).sum(-1),
    "casts": lambda x, i, j, k: x[:3, 0] * i * (j / 2) + i.bool() * j.to(x.dtype),
    "comparisons": lambda x, i, j, k: (i < j) | (i == 2) | (j >= 3),
}


@pytest.mark.parametrize("name", _LOOK_UPS)
def test_a_proof_looks_up_what_pytorch_does(name: str) -> None:
    function = _LOOK_UPS[name]
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    i, j = torch.tensor([4, 0, 2]), torch.tensor([3, 3, 1])
    k = torch.tensor([[0, 4, 1, 2], [3, 3, 0, 4]])
    traced = trace(function, x, i, j, k, for_proof=True)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(x, i, j, k), function(x, i, j, k), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "function",
    [
        lambda i, k: i + i,
        lambda i, k: i[:2] - i[1:],
        lambda i, k: (i[None] * 2).float(),
        lambda i, k: k.to(torch.int32),
    ],
)
def test_integers_that_wrap_around_at_a_few_bits_are_no_numbers(function: Callable[..., Any]) -> None:
    i, k = torch.tensor([200, 100, 1], dtype=torch.uint8), torch.tensor([1, 2])
    traced = trace(function, i, k, for_proof=True)
    assert traced.program.opaque


def _gradients(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def made(x: Tensor, *others: Tensor) -> Any:
        with torch.enable_grad():
            own = x.detach().requires_grad_()
            return torch.autograd.grad(function(own, *others).square().sum(), own)[0]

    return made


_BACKWARD: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda x, j: x.softmax(-1),
    "log softmax": lambda x, j: x.log_softmax(0),
    "gelu": lambda x, j: F.gelu(x) + F.gelu(x, approximate="tanh"),
    "silu": lambda x, j: F.silu(x),
    "sigmoid": lambda x, j: x.sigmoid() + x.tanh(),
    "relu": lambda x, j: F.relu(x - 0.1),
    "hardswish": lambda x, j: F.hardswish(4 * x),
    "elu": lambda x, j: F.elu(x),
    "layer norm": lambda x, j: F.layer_norm(x, (4,)),
    "cross entropy": lambda x, j: F.cross_entropy(x, j),
    "cross entropy, summed": lambda x, j: F.cross_entropy(x, j, reduction="sum"),
    "cross entropy of rows": lambda x, j: F.cross_entropy(x, j, reduction="none"),
    "a class ignored": lambda x, j: F.cross_entropy(x, j, ignore_index=3),
    "rms norm": lambda x, j: x + F.rms_norm(x, (4,), x.sum(0), 1e-6) + F.rms_norm(x, (5, 4)),
    "attention": lambda x, j: x + F.scaled_dot_product_attention(x, 2 * x, x + 1, scale=0.3),
    "causal attention": lambda x, j: x + F.scaled_dot_product_attention(x, 2 * x, x + 1, is_causal=True),
    "masked attention": lambda x, j: x + F.scaled_dot_product_attention(x, 2 * x, x + 1, x @ x.T > 2),
    "attention with a bias": lambda x, j: x + F.scaled_dot_product_attention(x, 2 * x, x + 1, x @ x.T),
    "grouped attention": lambda x, j: F.scaled_dot_product_attention(
        x.T[..., None], *(y.view(5, 2, 2).sum(-1).T[..., None] for y in (x, 2 * x)), enable_gqa=True
    ),
}


@pytest.mark.parametrize("for_proof", [False, True])
@pytest.mark.parametrize("name", _BACKWARD)
def test_gradients_are_algebra(name: str, for_proof: bool) -> None:
    function = _gradients(_BACKWARD[name])
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = (x, torch.tensor([3, 0, 1, 2, 3]))
    traced = trace(function, *inputs, for_proof=for_proof)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(*inputs), function(*inputs), rtol=1e-9, atol=1e-12)
