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

_WRITES_BESIDES = (
    "z = y * 2; torch._foreach_add_([y, z], 2.0); y = y * z",
    "torch._foreach_mul_([y], [x]); torch._foreach_exp_([y])",
    "m, v = torch.zeros(6, dtype=x.dtype), torch.ones(6, dtype=x.dtype)"
    "; y = F.batch_norm(y, m, v, training=True) * v + m",
    "y = F.rrelu(y, 0.1, 0.3, False) + 1",
    "t = torch.tensor([5.0, 7.0]); t[0] = 3; y = y[:, :2] * t",
    "t = torch.tensor([5.0, 7.0]); t += x[0, :2]; y = y[:, :2] * t",
    "t = torch.tensor(1.0); t.add_(x.sum()); y = y * t",
    "m = torch.empty(4, dtype=x.dtype); n = torch.empty(4, dtype=torch.long)"
    "; torch.max(y, 1, out=(m, n)); y = m * n",
)


def _writing(text: str) -> Callable[[Tensor, Tensor], Tensor]:
    lines = "\n    ".join(["y = x.clone()", *text.split("; "), "return y"])
    made: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    exec(f"def function(x, i):\n    {lines}", {"torch": torch, "F": F, "C": C}, made)
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


@pytest.mark.parametrize("for_proof", [False, True])
@pytest.mark.parametrize("text", _WRITES_BESIDES)
def test_a_write_to_several_tensors_or_besides_a_result(text: str, for_proof: bool) -> None:
    function = _writing(text)
    traced = trace(function, *_inputs(), for_proof=for_proof)
    torch.testing.assert_close(traced.run(*_inputs()), function(*_inputs()))


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


@pytest.mark.parametrize(
    "kept_whole",
    [
        lambda y: F.scaled_dot_product_attention(y, y, y),
        lambda y: F.rms_norm(y, (4,)),
    ],
)
def test_a_function_that_is_kept_whole_of_what_was_written(kept_whole: Callable[[Tensor], Tensor]) -> None:
    """Before: it was refused."""

    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y[0] = 1
        return kept_whole(y)

    x = torch.randn(3, 4)
    torch.testing.assert_close(trace(function, x).run(x), function(x))


def test_a_foreach_write_is_told_apart() -> None:
    x, i = torch.randn(4, 6), torch.tensor([3, 0, 3])
    assert equivalent(
        _writing("torch._foreach_add_([y], 2.0)"), _writing("y = y * 1"), x, i, seed=0
    ).different


@pytest.mark.parametrize(
    "text", ["y.data = x * 2", "y.data = y.t()[:2]", "torch.utils.swap_tensors(y, x * 2)"]
)
def test_the_memory_of_another_tensor_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match="is given the memory of another one"):
        trace(_writing(f"{text}; y = y + 1"), torch.randn(4, 6), torch.tensor([3, 0, 3]))


def test_numbers_that_were_written_over_are_refused() -> None:
    with pytest.raises(TraceError, match="needs the values"):
        trace(_writing("t = torch.tensor([1.0, 2.0]); t[0] = 3; y = y * t.tolist()[0]"), *_inputs())


_LAYOUTS = (
    "y = (x.t() * 2).as_strided((2, 3), (1, 4))",
    "y = torch.view_as_real(torch.view_as_complex(torch.stack([x, x * 2], -1)) * 2)",
    "y = (x * 2).t().view(torch.int64)",
)


@pytest.mark.parametrize("text", _LAYOUTS)
def test_a_view_reads_memory_as_it_lies_in_pytorch(text: str) -> None:
    function = _writing(text)
    torch.testing.assert_close(trace(function, *_inputs()).run(*_inputs()), function(*_inputs()))


def test_a_view_of_an_input_that_lies_in_another_order() -> None:
    x, i = _inputs()
    function = _writing("y = C[i.reshape(-1)]")
    i = torch.stack([i, i + 1])
    traced = trace(function, x, i)
    for given in (i, i.t().contiguous().t()):
        torch.testing.assert_close(traced.run(x, given), function(x, given))


def _inputs() -> tuple[Tensor, Tensor]:
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x, torch.tensor([3, 0, 3])


_ROW = torch.randn(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def _into_a_part(x: Tensor) -> Tensor:
    first, second = (x * 2).chunk(2, 1)
    first.add_(1)
    return first * second


def _read_whole_afterwards(x: Tensor) -> Tensor:
    y = x * 2
    first, second = y.chunk(2, 1)
    first.add_(1)
    return y * torch.cat([second, first], 1)


def _parts_in_the_same_memory(x: Tensor) -> Tensor:
    first, second = (x * 2).expand(2, 6).split(1, 0)
    first.add_(1)
    return first * second


@pytest.mark.parametrize(
    ("function", "is_algebra"),
    [
        (torch.nn.LSTMCell(6, 5, dtype=torch.float64), True),
        (torch.nn.GRUCell(6, 5, dtype=torch.float64), True),
        (_into_a_part, True),
        (_read_whole_afterwards, True),
        (_parts_in_the_same_memory, True),
    ],
)
def test_parts_of_a_tensor_are_written_apart(function: Callable[..., object], is_algebra: bool) -> None:
    with torch.no_grad():
        traced = trace(function, _ROW)
        torch.testing.assert_close(traced.run(_ROW), function(_ROW))
    assert bool(traced.program.opaque) != is_algebra


@pytest.mark.parametrize(
    ("write", "is_algebra"),
    [
        ("y[:, 1:3] = 0", True),
        ("y[0] += 1", True),
        ("y[..., -1] = y[..., 0] * 2", True),
        ("y[:, 1:3] = x[:, :1]", True),
        ("y[:, 1:3] = x[:, :2]", True),
        ("y[:, ::2] = 0", True),
        ("y[:, ::4] = 0", False),
        ("y.fill_diagonal_(0)", False),
    ],
)
def test_what_is_written_alike_everywhere_is_algebra_to_run(write: str, is_algebra: bool) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 1
        exec(write, {"x": x, "y": y})
        return y

    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    traced = trace(function, x)
    torch.testing.assert_close(traced.run(x), function(x))
    assert bool(traced.program.opaque) != is_algebra
