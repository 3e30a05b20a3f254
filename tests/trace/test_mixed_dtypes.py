"""Numbers that meet tensors of other dtypes: what is computed is what PyTorch computes, or stays a call."""

import pytest
import torch
from torch import Tensor

from superopt.trace import trace

_OPERATORS = (
    "{a} + {b}",
    "{a} * {b}",
    "{a} & {b}",
    "{a} | {b}",
    "{a} ^ {b}",
    "{a} ** {b}",
    "{a} == {b}",
    "torch.add({a}, {b}, alpha=2)",
    "torch.add({b}, {a}, alpha=2)",
    "torch.sub({b}, {a}, alpha=3)",
    "torch.rsub({a}, {b}, alpha=3)",
    "torch.where({a} > 0, {b}, {a})",
    "{a}.masked_fill(m, {b})",
    "{a}.clone().fill_({b})",
    "{a}.clone().copy_({b})",
    "{a}.index_put((m,), torch.as_tensor({b}))",
    "torch.full_like({a}, {b}) + i",
    "{a}.new_full((4,), {b}) + i",
)
_NUMBERS = ("True", "False", "0", "1", "2", "-1", "0.5", "2.5")
_OTHERS = (
    "(x > 0) + (x > 1) + 1",
    "torch.where(x > 0, 1, 0) + m",
    "torch.where(x > 0, True, False) + m",
    "m.any() + 1",
    "m.all() + True",
    "m.any(()) + m.all(()) + 1",
    "torch.cat([m, ~m]) + 1",
    "x.sum(0, dtype=torch.int64)",
    "m.sum(0, dtype=torch.bool)",
    "x.cumsum(0, dtype=torch.int64)",
    "x.prod(0, dtype=torch.int64)",
    "i.cumprod(0, dtype=torch.bool)",
    "torch.full_like(x, 5, dtype=torch.bool) * i",
    "torch.full((4,), 2.5, dtype=torch.int64) * i",
    "torch.scalar_tensor(2.5, dtype=torch.int64) * i",
    "torch.arange(0.5, 4.5, dtype=torch.int64) * i",
    "torch.linspace(0, 5, 4, dtype=torch.int64) * i",
    "m.clone().copy_(i)",
    "m.masked_fill(m, torch.tensor(7)) + 0",
    "torch.addcmul(m, m, x, value=2)",
    "torch.addcmul(m, x, m)",
    "torch.addcdiv(m, m, x, value=2)",
    "torch.addcmul(x, m, i, value=2)",
    "torch.lerp(x, x * m, 0.3)",
    "i ** (i - 2)",
    "False ** i",
)


def _written() -> list[str]:
    found = [op.format(a=a, b=b) for op in _OPERATORS for a in "xmi" for b in (*_NUMBERS, "m")]
    return [*found, *_OTHERS]


@pytest.mark.parametrize("for_proof", [False, True])
def test_a_number_does_not_become_a_truth_value_or_lose_its_fraction(for_proof: bool) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64, generator=random)
    m, i = x > 0.3, torch.randint(-2, 4, (3, 4), generator=random)
    checked = 0
    for text in _written():
        function = eval(f"lambda x, m, i: {text}", {"torch": torch})
        try:
            expected: Tensor = function(x.clone(), m.clone(), i.clone())
        except (RuntimeError, TypeError):  # of dtypes that PyTorch does not let meet
            continue
        found = trace(function, x, m, i, for_proof=for_proof).run(x, m, i)
        same = torch.allclose(found.double(), expected.double(), equal_nan=True)
        assert same, f"{text}: {found} against {expected}"
        checked += 1
    assert checked > 300


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_is_rounded_before_half_precisions_are_compared_with_it(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x >= 0.1, 1.0, 0.0) + torch.where(x == 0.3, 1.0, 0.0)

    x = torch.tensor([0.1, 0.3, -torch.inf], dtype=dtype)
    torch.testing.assert_close(trace(function, x).run(x), function(x))
