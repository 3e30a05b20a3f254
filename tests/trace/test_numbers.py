"""Numbers, dtypes and layouts that a trace must not lose."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.errors import TraceError
from superopt.trace import trace

NAN = torch.tensor(float("nan"))


def attention(x: Tensor) -> Tensor:
    q = x.transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).view(2, 5, 12) * 2


PROGRAMS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "a new tensor": (lambda x: x * x.new_tensor([0.2, 0.7, 0.1]), (4, 3)),
    "a new tensor by name": (lambda x: x * x.new_tensor(data=[0.2, 0.7, 0.1]), (4, 3)),
    "a tuple in an index": (lambda x: x[:, (0, 2)] * 2, (4, 3)),
    "no number": (lambda x: torch.where(x > 0, x, NAN) * 2, (4, 8)),
    "no number of its own": (lambda x: torch.where(x > 0, x, torch.tensor(float("nan"))) * 2, (4, 8)),
    "between tensors": (lambda x: x[:, None] - torch.linspace(x.min(), x.max(), 5), (8,)),
    "as the query lies": (attention, (2, 5, 3, 4)),
    "filled in order": (lambda x: x.t().masked_fill(x.t() > 0, 0.0).view(-1) * 2, (3, 4)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_pytorchs(name: str) -> None:
    function, shape = PROGRAMS[name]
    x = torch.randn(shape)
    torch.testing.assert_close(
        trace(function, x).run(x, dtype=torch.float32), function(x), equal_nan=True, rtol=1e-4, atol=1e-5
    )


def test_a_norm_has_the_dtype_of_its_input() -> None:
    def gradients(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        made = F.rms_norm(x, (8,), w)
        [found] = torch.autograd.grad(made.float().sum(), x)
        return made.detach(), found

    x, w = torch.randn(4, 8, dtype=torch.bfloat16), torch.ones(8)
    assert [one.dtype for one in trace(gradients, x, w).run(x, w)] == [torch.bfloat16] * 2


def test_where_a_tensor_begins_is_no_number_of_a_program() -> None:
    with pytest.raises(TraceError, match=r"storage_offset\(\) is asked for"):
        trace(lambda x: x.as_strided((3, 2), (1, 1), x.storage_offset()) * 2, torch.arange(10.0))


LONG = torch.empty(1, 2**24 + 1, device="meta")


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        (lambda x: torch.tril(x, 2**24) * 2, (LONG,)),
        (lambda x: torch.tril(x, 2**24) * torch.tril(x, 2**24), (LONG,)),
        (lambda x, i: F.nll_loss(x, i), (LONG, torch.empty(1, dtype=torch.int64, device="meta"))),
        (lambda x: torch.slice_scatter(x, x[:, :7] * 2, 1, 2**24 - 6) + 1, (LONG,)),
    ],
)
def test_positions_that_a_kernel_would_round_are_not_compared(
    program: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> None:
    """Kernels compute in float32; before, a mask there took 2^24 + 1 for 2^24."""
    traced = trace(program, *inputs)
    assert any("2^24" in one.reason for one in traced.program.opaque)
    short = tuple(one[:, : 2**24] if one is LONG else one for one in inputs)
    if len(inputs) > 1:
        assert not trace(program, *short).program.opaque
