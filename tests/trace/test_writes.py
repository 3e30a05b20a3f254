"""Writes to views: what is computed is what PyTorch computes; a proof sees most of them as algebra."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt import equivalent
from superopt.errors import TraceError
from superopt.trace import trace

C = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

_WRITES = (
    "y[:, 1:3] = 5.0",
    "y[:, 3:] += 1",
    "y[:, 1:3] += x[:, :2]",
    "y[:, :] += 1",
    "y[-1] = x[0] * 2",
    "y[0, 1] = x.sum()",
    "y[1:3, 2:5] = x[:2, :3]",
    "y[:, 1:3] = y[:, 3:5]",
    "y[1:] = y[:-1].clone()",
    "y[:, ::2] = 0",
    "y[:, 1::2] *= 3",
    "y[:, 1:4][:, 1:].mul_(2)",
    "y[0:0] = 1",
    "y[:, 2] = -torch.inf; y = y.softmax(-1)",
    "y[1:3].copy_(C)",
    "y[1, :] = torch.arange(6)",
    "y[:, [0, 2]] = 2.0",
    "y[i] = 7.0",
    "y[x > 0] = 0; y[0] = 1",
    "y.view(2, 2, 6)[:, 0].zero_()",
    "y.t()[1] = 3",
    "y.diagonal().mul_(2)",
    "y.diagonal(1).copy_(C[:4])",
    "y.diagonal(-1).fill_(3)",
    "y.chunk(2, 1)[1].mul_(0.5)",
    "y.unbind(0)[2].exp_()",
    "y[:, 0], y[:, 1] = x[:, 1], x[:, 0]",
    "z = y[0]; z += 1; z *= y[1]",
    "y = torch.zeros(4, 8, dtype=x.dtype); y[:, 1:7] = x",
    "y = torch.zeros(4, 6, dtype=torch.bool); y[:, 1:3] = True; y = y + x",
    "y = torch.zeros(4, dtype=torch.int64); y[2:] += 2; y = y * x[:, 0]",
)


def _writing(text: str) -> Callable[[Tensor, Tensor], Tensor]:
    lines = "\n    ".join(["y = x.clone()", *text.split("; "), "return y"])
    made: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    exec(f"def function(x, i):\n    {lines}", {"torch": torch, "C": C}, made)
    return made["function"]


@pytest.mark.parametrize("for_proof", [False, True])
@pytest.mark.parametrize("text", _WRITES)
def test_a_write_to_a_view(text: str, for_proof: bool) -> None:
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    i = torch.tensor([3, 0, 3])
    function = _writing(text)
    traced = trace(function, x, i, for_proof=for_proof)
    assert not (for_proof and traced.program.opaque)
    torch.testing.assert_close(traced.run(x, i), function(x, i))


_PAIRS = {
    "columns": ("y[:, 1:3] = 5.0", "y[:, 1:4] = 5.0"),
    "the last column": ("y[:, 5] = 1.0", "y[:, 4] = 1.0"),
    "another row": ("y[1] *= 2", "y[2] *= 2"),
    "another step": ("y[:, ::2] = 0", "y[:, ::3] = 0"),
    "another diagonal": ("y.diagonal(1).zero_()", "y.diagonal(-1).zero_()"),
    "another list": ("y[:, [0, 2]] = 2.0", "y[:, [0, 3]] = 2.0"),
    "in another order": ("y[0] = 1.0; y[0] *= 2", "y[0] *= 2; y[0] = 1.0"),
    "what is read before": ("y[1:] = y[:-1].clone()", "y[1] = y[0]; y[2] = y[1]; y[3] = y[2]"),
}


@pytest.mark.parametrize(("text", "other"), _PAIRS.values(), ids=_PAIRS)
def test_another_write_is_told_apart(text: str, other: str) -> None:
    x, i = torch.randn(4, 6), torch.tensor([3, 0, 3])
    assert equivalent(_writing(text), _writing(text.replace("clone()", "clone() * 1")), x, i, seed=0).equal
    assert equivalent(_writing(text), _writing(other), x, i, seed=0).different


def test_attention_of_what_was_written() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y[0] = 1
        return F.scaled_dot_product_attention(y, y, y)

    line = function.__code__.co_firstlineno + 2
    with pytest.raises(TraceError, match=rf"written in place \(test_writes.py:{line}\); build the result"):
        trace(function, torch.empty(3, 4))
