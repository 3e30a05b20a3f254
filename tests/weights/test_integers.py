"""Weights of eight bits: their scales pass the contraction, and kernels read the integers as they lie."""

from collections.abc import Callable

import pytest
import torch
from quick import few
from torch import Tensor, nn
from torch.nn import functional

from superopt.bench.models.int8 import Int8Linear, with_int8_weights
from superopt.candidates.schedules import schedules
from superopt.driver import SearchOptions, search
from superopt.funnel.assembly import as_kernel
from superopt.funnel.state import _placed
from superopt.ir import Opaque, value_axes
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.trace.traced import Traced
from superopt.verify.floats.samples import sample
from superopt.weights.division import once_values

K, N, GROUP = 96, 70, 32


def integers(dtype: torch.dtype = torch.int8) -> Tensor:
    """Return all of the numbers there are, the least and the largest among them."""
    kind = torch.iinfo(dtype)
    made = torch.randint(kind.min, kind.max + 1, (N, K), dtype=dtype)
    made[0, :2] = torch.tensor([kind.min, kind.max], dtype=dtype)
    return made


class Channels(nn.Module):
    """A matrix whose rows have scales, made floats before the product."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("w", integers())
        self.register_buffer("s", (torch.rand(N) / 128).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.w.to(x.dtype) * self.s[:, None]).t()


class Promoted(Channels):
    """The same without a cast: PyTorch makes the integers floats."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.w * self.s[:, None])


class ZeroPoints(Channels):
    """Integers without a sign, from which each row takes a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = integers(torch.uint8)
        self.register_buffer("z", torch.rand(N) * 255)

    def forward(self, x: Tensor) -> Tensor:
        return x @ ((self.w.to(x.dtype) - self.z[:, None]) * self.s[:, None]).t()


class Groups(Channels):
    """A scale for each group of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.s = torch.rand(N, K // GROUP) / 128

    def forward(self, x: Tensor) -> Tensor:
        w = self.w.to(x.dtype).view(N, -1, GROUP) * self.s[..., None]
        return x @ w.view(N, K).t()


class Torchao(Groups):
    """As torchao's IntxWeightOnlyConfig writes them: a scale and a zero point of its own for each group."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.randint(-8, 8, (N, K), dtype=torch.int8)
        self.register_buffer("z", torch.randint(-8, 8, (N, K // GROUP), dtype=torch.int8))
        self.bias = nn.Parameter(torch.randn(N), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        scale, zero = (one.view(N, -1, 1) for one in (self.s, self.z))
        w = (self.w.view(N, -1, GROUP).to(x.dtype) - zero.to(x.dtype)) * scale
        return functional.linear(x, w.view(N, K), self.bias)


class Packed(Channels):
    """PyTorch's own operator for them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x, self.w, self.s)


def program(module: nn.Module, rows: int, dtype: torch.dtype = torch.float32) -> tuple[Traced, Tensor]:
    x = torch.randn(rows, K).to(dtype)
    return trace(module.eval(), x), x


@pytest.mark.parametrize("weights", ["live", "default", "frozen"])
@pytest.mark.parametrize("module", [Channels, Promoted])
def test_the_scales_of_rows_pass_the_contraction(module, weights) -> None:
    traced, _ = program(module(), 8)
    [region] = search(traced.program, options=SearchOptions(weights=weights)).regions
    best = region.found[0].graph
    assert once_values(best, weights) == ()
    assert [step.op for step in best.steps] == ["contract", "mul"]


def test_no_matrix_of_floats_is_kept_or_stored_where_groups_have_zero_points() -> None:
    """What the integers less the zero points are goes from one step to the next within a kernel."""
    traced, _ = program(Torchao(), 1)
    [region] = search(traced.program, options=SearchOptions(weights="frozen", max_graphs=4)).regions
    assert all(once_values(one.graph, "frozen") == () for one in region.found)
    ways = schedules(region.goal, region.found, pick_target("cpu"), graphs=4, weights="frozen").candidates
    assert len(ways[0].mugraph.kernels) == 1


def test_no_matrix_of_floats_is_kept_or_made_where_groups_have_scales() -> None:
    traced, _ = program(Groups(), 1)
    [region] = search(traced.program, options=SearchOptions(weights="frozen")).regions
    assert all(once_values(one.graph, "frozen") == () for one in region.found)
    best = region.found[0].graph
    matrix = frozenset(best.inputs[1].axes)
    assert not any(axes == matrix for axes in value_axes(best)[len(best.inputs) :])


def kernels(traced: Traced) -> Callable[..., Tensor]:
    """Return the program by its best kernels."""
    [region] = search(traced.program, options=SearchOptions(max_graphs=4)).regions
    target = pick_target("cpu")
    best = schedules(region.goal, region.found, target, graphs=2, weights="default").candidates[0]
    kernel = as_kernel(region.goal, best, target.make(best.mugraph, best.configs))

    def run(x: Tensor) -> Tensor:
        known = {traced.input_names[0]: x, **traced.constants}
        return kernel(**{port.name: known[port.name] for port in region.goal.inputs})["out"]

    return run


@pytest.mark.parametrize(
    "rows", [1, pytest.param(5, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("module", few([Channels, ZeroPoints, Groups, Torchao], ZeroPoints, Groups))
def test_kernels_are_as_accurate_as_torch(module, rows: int) -> None:
    torch.manual_seed(rows)
    made = module()
    traced, x = program(made, rows)
    exact = made.double()(x.double())
    made.float()
    wanted, found = made(x).double(), kernels(traced)(x).double()
    scale = exact.abs().max()
    assert (found - exact).abs().max() <= max(2 * (wanted - exact).abs().max(), 1e-6 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_of_half_precision_read_them(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(rows)
    made = Channels(dtype)
    traced, x = program(made, rows, dtype)
    exact = x.double() @ (made.w.double() * made.s.double()[:, None]).t()
    wanted, found = made(x).double(), kernels(traced)(x).double()
    assert (found - exact).abs().max() <= 2 * (wanted - exact).abs().max()


def test_torchs_own_product_of_them_is_algebra() -> None:
    traced, _ = program(Packed(torch.bfloat16), 4, torch.bfloat16)
    [region] = traced.program.nodes
    assert [step.op for step in region.graph.steps] == ["contract", "mul"]


WRAPPING = {
    "a sum": lambda x, w: x + (w + w).to(x.dtype),
    "a product": lambda x, w: x + (w * 2).to(x.dtype),
    "a negation": lambda x, w: x + (-w).to(x.dtype),
    "other integers": lambda x, w: x + w.to(torch.int16).to(x.dtype),
    "a square": lambda x, w: x + (w * w).to(x.dtype),
    "rounded": lambda x, w: x + (x * w).to(torch.int8).to(x.dtype),
}


@pytest.mark.parametrize("function", WRAPPING.values(), ids=list(WRAPPING))
def test_arithmetic_that_wraps_around_is_left_to_torch(function) -> None:
    """-128 + -128 is 0 among eight bits, and no algebra of numbers."""
    x, w = torch.randn(N, K), integers()
    traced = trace(function, x, w)
    assert any(isinstance(node, Opaque) for node in traced.program.nodes)
    torch.testing.assert_close(traced.run(x, w), function(x, w))


def test_all_of_their_numbers_are_drawn() -> None:
    for dtype in (torch.int8, torch.uint8):
        [drawn] = sample("normal", (torch.empty(64, 64, dtype=dtype, device="meta"),))
        assert (int(drawn.min()), int(drawn.max())) == (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def test_a_race_without_data_has_all_of_their_numbers() -> None:
    """Zeros would hide what a kernel makes of them."""
    placed = _placed((torch.empty(64, 64, dtype=torch.int8, device="meta"),), pick_target("cpu"))[0]
    assert (int(placed.min()), int(placed.max())) == (-128, 127)
    assert not _placed((torch.empty(4, dtype=torch.int64, device="meta"),), pick_target("cpu"))[0].any()


def test_rows_without_data_that_are_one_row_stay_one() -> None:
    shared = torch.empty(1, 4096, dtype=torch.int8, device="meta").expand(3, 4096)
    placed = _placed((shared,), pick_target("cpu"))[0]
    assert placed.stride() == (0, 1)
    assert (int(placed.min()), int(placed.max())) == (-128, 127)


@torch.no_grad()
def test_a_model_of_eight_bits_computes_nearly_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(K, N), nn.GELU(), nn.Linear(N, K, bias=False))
    x = torch.randn(4, K)
    wanted = model(x)
    found = with_int8_weights(model)(x)
    assert all(isinstance(model[at], Int8Linear) for at in (0, 2))
    assert (found - wanted).norm() < 0.02 * wanted.norm()
    assert [one.dtype for one in model.buffers()].count(torch.int8) == 2
