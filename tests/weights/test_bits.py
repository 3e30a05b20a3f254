"""Weights of four bits and fewer, several in a byte: shifts and masks are algebra, which kernels unpack."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from superopt.driver import SearchOptions, search
from superopt.ir import Opaque
from superopt.trace import trace
from superopt.weights.division import once_values

from .test_integers import kernels

K, N, GROUP = 128, 70, 32


class Pairs(nn.Module):
    """Two neighbours of a row in a byte, a scale for each group."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(0, 256, (N, K // 2), dtype=torch.uint8))
        self.register_buffer("s", torch.rand(N, K // GROUP) / 8)

    def whole(self, dtype: torch.dtype) -> Tensor:
        made = torch.stack([self.w & 15, self.w >> 4], -1).view(N, K)
        return (made.to(torch.int8) - 8).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        w = self.whole(x.dtype).view(N, -1, GROUP) * self.s.to(x.dtype)[..., None]
        return x @ w.view(N, K).t()


class Halves(Pairs):
    """The first half of a row in the lower bits, the second one in the upper bits; each group has a zero."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("z", torch.rand(N, K // GROUP) * 15)

    def whole(self, dtype: torch.dtype) -> Tensor:
        made = torch.cat([self.w & 0xF, self.w >> 4], 1).to(dtype)
        return (made.view(N, -1, GROUP) - self.z.to(dtype)[..., None]).view(N, K)


class Signed(Pairs):
    """Numbers with a sign in signed bytes: a shift keeps the sign."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.randint(-128, 128, (N, K // 2), dtype=torch.int8)

    def whole(self, dtype: torch.dtype) -> Tensor:
        return torch.cat([(self.w & 15).to(dtype) - 8, (self.w >> 4).to(dtype)], 1)


class Quarters(Pairs):
    """Four numbers of two bits in a byte."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.randint(0, 256, (N, K // 4), dtype=torch.uint8)

    def whole(self, dtype: torch.dtype) -> Tensor:
        parts = [(self.w >> by) & 3 for by in (0, 2, 4)] + [self.w >> 6]
        return torch.cat([one.to(dtype) for one in parts], 1) - 1.5


MODULES = [Pairs, Halves, Signed]


@pytest.mark.parametrize("module", MODULES)
def test_the_whole_projection_is_one_region_without_a_matrix_of_floats(module) -> None:
    traced = trace(module().eval(), torch.randn(2, K))
    assert not any(isinstance(node, Opaque) for node in traced.program.nodes)
    options = SearchOptions(weights="frozen", max_graphs=2, seconds=20)
    [region] = search(traced.program, options=options).regions
    assert all(once_values(one.graph, "frozen") == () for one in region.found)
    assert all(one.verdict.equal for one in region.found if not one.is_original)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("module", [*MODULES, Quarters])
def test_the_algebra_has_pytorchs_numbers(module, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    made, x = module(), torch.randn(3, K).to(dtype)
    traced = trace(made.eval(), x)
    torch.testing.assert_close(traced.run(x), made(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("module", "rows"), [(Pairs, 1), *(pytest.param(one, 5, marks=pytest.mark.slow) for one in MODULES)]
)
def test_kernels_unpack_them_as_accurately_as_torch(module, rows: int) -> None:
    torch.manual_seed(rows)
    made, x = module().eval(), torch.randn(rows, K)
    exact = made(x.double())
    wanted, found = made(x).double(), kernels(trace(made, x))(x).double()
    assert (found - exact).abs().max() <= max(2 * (wanted - exact).abs().max(), 1e-6 * exact.abs().max())


WRAPPING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "below 0": lambda x, w: x + ((w & 15) - 8).to(x.dtype),
    "above 255": lambda x, w: x + ((w & 15) * 20).to(x.dtype),
    "a negation": lambda x, w: x + (-(w & 15)).to(x.dtype),
    "a shift to the left": lambda x, w: x + ((w & 15) << 5).to(x.dtype),
    "many bits": lambda x, w: x + (w & 10).to(x.dtype),
    "a sum of many": lambda x, w: x + ((w >> 4) + w).to(x.dtype),
    "other bits": lambda x, w: x + (w ^ 15).to(x.dtype),
    "chosen": lambda x, w: x + torch.where(x > 0, (w * x).floor(), 0.0).to(torch.int8).to(x.dtype),
    "too far": lambda x, w: x + (w.view(torch.int8) >> 4).view(torch.uint8).to(x.dtype),
}
HELD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a sum": lambda x, w: x + ((w & 15) + (w >> 4)).to(x.dtype),
    "a product": lambda x, w: x + ((w & 15) * 17).to(x.dtype),
    "signed": lambda x, w: x + ((w >> 4).to(torch.int8) - 8).to(x.dtype),
    "wider": lambda x, w: x + ((w & 15).to(torch.int32) * 1000).to(x.dtype),
}


@pytest.mark.parametrize("function", WRAPPING.values(), ids=list(WRAPPING))
def test_what_wraps_around_is_left_to_torch(function) -> None:
    x, w = torch.randn(4, 256), torch.arange(256, dtype=torch.uint8).repeat(4, 1)
    traced = trace(function, x, w)
    assert any(isinstance(node, Opaque) for node in traced.program.nodes)
    torch.testing.assert_close(traced.run(x, w), function(x, w))


@pytest.mark.parametrize("function", HELD.values(), ids=list(HELD))
def test_what_surely_does_not_is_algebra(function) -> None:
    x, w = torch.randn(4, 256), torch.arange(256, dtype=torch.uint8).repeat(4, 1)
    traced = trace(function, x, w)
    assert not any(isinstance(node, Opaque) for node in traced.program.nodes)
    torch.testing.assert_close(traced.run(x, w), function(x, w))
