"""Weights of four bits and fewer, several in a byte: shifts and masks are algebra, which kernels unpack."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from superopt.candidates import Candidate
from superopt.candidates.schedules import schedules
from superopt.driver import Found, SearchOptions, search
from superopt.funnel.assembly import as_kernel
from superopt.ir import Graph, Opaque
from superopt.schedule.unrolled import unrolled
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.trace.traced import Traced
from superopt.verify.graphs.equality import equal_graphs
from superopt.weights.division import divided, once_values
from superopt.weights.packed import packed

from .test_integers import kernels

K, N, GROUP = 128, 70, 32


class Pairs(nn.Module):
    """Two neighbours of a row in a byte, a scale for each group."""

    def __init__(self, outer: int = N) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(0, 256, (outer, K // 2), dtype=torch.uint8))
        self.register_buffer("s", torch.rand(outer, K // GROUP) / 8)

    def whole(self, dtype: torch.dtype) -> Tensor:
        made = torch.stack([self.w & 15, self.w >> 4], -1).view(-1, K)
        return (made.to(torch.int8) - 8).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        w = self.whole(x.dtype).view(len(self.s), -1, GROUP) * self.s.to(x.dtype)[..., None]
        return x @ w.view(-1, K).t()


class Halves(Pairs):
    """The first half of a row in the lower bits, the second one in the upper bits; each group has a zero."""

    def __init__(self, outer: int = N) -> None:
        super().__init__(outer)
        self.register_buffer("z", torch.rand(outer, K // GROUP) * 15)

    def whole(self, dtype: torch.dtype) -> Tensor:
        made = torch.cat([self.w & 0xF, self.w >> 4], 1).to(dtype)
        return (made.view(len(self.s), -1, GROUP) - self.z.to(dtype)[..., None]).view(-1, K)


class Signed(Pairs):
    """Numbers with a sign in signed bytes: a shift keeps the sign."""

    def __init__(self, outer: int = N) -> None:
        super().__init__(outer)
        self.w = torch.randint(-128, 128, (outer, K // 2), dtype=torch.int8)

    def whole(self, dtype: torch.dtype) -> Tensor:
        return torch.cat([(self.w & 15).to(dtype) - 8, (self.w >> 4).to(dtype)], 1)


class Quarters(Pairs):
    """Four numbers of two bits in a byte."""

    def __init__(self, outer: int = N) -> None:
        super().__init__(outer)
        self.w = torch.randint(0, 256, (outer, K // 4), dtype=torch.uint8)

    def whole(self, dtype: torch.dtype) -> Tensor:
        parts = [(self.w >> by) & 3 for by in (0, 2, 4)] + [self.w >> 6]
        return torch.cat([one.to(dtype) for one in parts], 1) - 1.5


class Whole(Pairs):
    """Eight bits, and a scale for each group."""

    def __init__(self, outer: int = N) -> None:
        super().__init__(outer)
        self.w = torch.randint(-128, 128, (outer, K), dtype=torch.int8)

    def whole(self, dtype: torch.dtype) -> Tensor:
        return self.w.to(dtype)


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


@pytest.mark.slow
@pytest.mark.parametrize(("module", "rows"), [(Pairs, 1), *((one, 5) for one in MODULES)])
def test_kernels_unpack_them_as_accurately_as_torch(module, rows: int) -> None:
    torch.manual_seed(rows)
    made, x = module().eval(), torch.randn(rows, K)
    exact = made(x.double())
    wanted, found = made(x).double(), kernels(trace(made, x))(x).double()
    assert (found - exact).abs().max() <= max(2 * (wanted - exact).abs().max(), 1e-6 * exact.abs().max())


def panels(module: nn.Module, rows: int) -> tuple[Traced, Graph, list[Candidate]]:
    """Return a traced module, its region, and the ways to run it with weights in panels."""
    traced = trace(module.eval(), torch.randn(rows, K))
    [node] = traced.program.nodes
    found = Found(node.graph, None, equal_graphs(node.graph, node.graph), is_original=True)
    ways = schedules(node.graph, [found], pick_target("cpu"), graphs=4, weights="frozen").candidates
    return traced, node.graph, [one for one in ways if one.once]


@pytest.mark.parametrize("module", [*MODULES, Whole])
def test_bytes_and_scales_lie_in_panels_and_no_float_is_kept(module) -> None:
    _, graph, ways = panels(module(96), 1)
    for one in ways:
        assert equal_graphs(graph, one.graph).equal
        kept = divided(one.graph, one.once).once.outputs
        assert {output.port.dtype for output in kept} == {graph.inputs[1].dtype, "f32"}
        for output in kept:
            *_, lane = output.port.axes
            assert one.graph.sizes[lane] == 32


@torch.no_grad()
@pytest.mark.parametrize(
    ("module", "rows"),
    [(one, 1) for one in (*MODULES, Whole)]
    + [pytest.param(one, 5, marks=pytest.mark.slow) for one in (*MODULES, Whole)],
)
def test_kernels_read_panels_as_accurately_as_torch_and_see_changes(module, rows: int) -> None:
    torch.manual_seed(rows)
    made = module(96)
    traced, graph, ways = panels(made, rows)
    kernel = as_kernel(graph, ways[0], pick_target("cpu").make(ways[0].mugraph, ways[0].configs))
    for x in (torch.randn(rows, K), torch.randn(K, rows).t()):
        known = {traced.input_names[0]: x, **traced.constants}
        [found] = kernel(**{port.name: known[port.name] for port in graph.inputs}).values()
        exact, wanted = made(x.double()), made(x).double()
        limit = max(2 * (wanted - exact).abs().max(), 1e-6 * exact.abs().max())
        assert (found.double() - exact).abs().max() <= limit
        made.w.add_(3)
        made.s.mul_(0.5)


class Shared(Pairs):
    """Scales that something else reads as well."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.s.sum(1)


def test_what_else_is_read_is_not_laid_out_anew() -> None:
    traced = trace(Shared(96).eval(), torch.randn(1, K))
    graph = unrolled(traced.program.nodes[0].graph)
    assert packed(graph, "frozen") is None
    plain = unrolled(trace(Pairs(96).eval(), torch.randn(1, K)).program.nodes[0].graph)
    assert packed(plain, "frozen") is not None
    assert packed(plain, "live") is None


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
