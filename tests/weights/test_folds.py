"""What people fold into weights by hand is found unaided, and what may not be folded is not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from superopt.candidates.proof import prove_by_graph
from superopt.driver import SearchOptions, search
from superopt.ir import Graph, fuse, parse_graph
from superopt.trace import trace
from superopt.weights.division import Divided, Weights, divided, once_values

M, K, N = 16, 256, 512


class Gain(nn.Module):
    """The gain of an rms norm goes into the next projection."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.rand(K))
        self.l = nn.Linear(K, N, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.g)


class NormLinear(nn.Module):
    """The gain and the shift of a layer norm go into the next projection and its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.n = nn.LayerNorm(K)
        self.l = nn.Linear(K, N)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(self.n(x))


class Lora(nn.Module):
    """The product of the two small matrices goes into the large one."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(K, N, bias=False)
        self.a = nn.Parameter(torch.randn(K, 8))
        self.b = nn.Parameter(torch.randn(8, N))

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x) + (x @ self.a) @ self.b * 0.5


class RowSum(nn.Module):
    """A projection of which only sums are wanted is a product with one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(K, N)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x).sum(-1)


class Two(nn.Module):
    """Two projections in a row are one, where that is smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(K, N)
        self.b = nn.Linear(N, 64)

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


class WithRelu(Two):
    def between(self, x: Tensor) -> Tensor:
        return torch.relu(x)


class Clamped(Two):
    def between(self, x: Tensor) -> Tensor:
        return x.clamp(-1, 1)


class Normed(Two):
    def between(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


class Wide(Two):
    """Two projections through a waist are cheaper as two."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4096, 4, device="meta")
        self.b = nn.Linear(4, 16384, device="meta")


def best(module: nn.Module, weights: Weights, wide: int = K) -> Graph:
    program = trace(module.eval(), torch.empty(M, wide, device="meta")).program
    [region] = search(program, options=SearchOptions(weights=weights)).regions
    assert region.found[0].verdict.equal
    return region.found[0].graph


def parts(module: nn.Module, weights: Weights = "frozen") -> Divided:
    graph = best(module, weights)
    return divided(graph, once_values(graph, weights))


def reads(graph: Graph) -> set[str]:
    return {port.name for port in graph.inputs}


def products(graph: Graph) -> int:
    """Return the contractions of a graph that have a matrix of weights as an operand."""
    matrices = {at for at, port in enumerate(graph.inputs) if port.constant and len(port.dims) == 2}
    return sum(step.op == "contract" and not matrices.isdisjoint(step.inputs) for step in graph.steps)


def test_the_gain_of_an_rms_norm_goes_into_the_projection() -> None:
    found = parts(Gain())
    assert reads(found.once) == {"g", "l_weight"}
    assert reads(found.run) == {"x", found.once.outputs[0].port.name}
    assert products(found.run) == 1


def test_a_layer_norm_goes_into_the_projection() -> None:
    found = parts(NormLinear())
    assert reads(found.once) == {"n_weight", "n_bias", "l_weight", "l_bias"}
    assert not reads(found.run) & reads(found.once)
    assert products(found.run) == 1


def test_lora_is_merged() -> None:
    found = parts(Lora())
    assert reads(found.once) == {"l_weight", "a", "b"}
    assert [step.op for step in found.run.steps] == ["contract"]


@pytest.mark.parametrize("weights", ["default", "frozen"])
def test_a_projection_that_is_summed_is_a_vector(weights: Weights) -> None:
    found = parts(RowSum(), weights)
    assert products(found.run) == 0
    assert found.kept_bytes == 4 * (K + 1)


def test_two_projections_are_one() -> None:
    found = parts(Two())
    assert products(found.run) == 1
    assert reads(found.once) == {"a_weight", "a_bias", "b_weight", "b_bias"}


def test_a_waist_stays() -> None:
    graph = best(Wide(), "frozen", 4096)
    run = divided(graph, values).run if (values := once_values(graph, "frozen")) else graph
    assert products(run) == 2


@pytest.mark.parametrize("module", [Gain, NormLinear, Lora])
def test_large_tensors_are_not_kept_unasked(module: Callable[[], nn.Module]) -> None:
    graph = best(module(), "default")
    values = once_values(graph, "default")
    if values:
        assert divided(graph, values).kept_bytes < 256 << 10


@pytest.mark.parametrize("module", [Gain, NormLinear, Lora, RowSum, Two])
def test_live_weights_are_left_alone(module: Callable[[], nn.Module]) -> None:
    assert once_values(best(module(), "live"), "live") == ()


@pytest.mark.parametrize("module", [WithRelu, Clamped, Normed])
def test_nothing_passes_what_is_not_linear(module: Callable[[], nn.Module]) -> None:
    """No graph that is found makes one matrix of both."""
    program = trace(module(), torch.randn(M, K)).program
    [region] = search(program, options=SearchOptions(weights="frozen")).regions
    for one in region.found:
        values = once_values(one.graph, "frozen")
        once = divided(one.graph, values).once if values else None
        both = {"a_weight", "b_weight"}
        if once is not None and module is not Normed:
            assert not both <= reads(once)
        run = one.graph if once is None else divided(one.graph, values).run
        assert products(run) >= 1


GOAL = """
graph goal
axes m=8 k=16 n=4
in x: f32[m, k]
in g: f32[k] constant
in w: f32[k, n] constant
t3 = relu(x)
t4 = mul(t3, g)
t5 = contract[k](t4, w)
out out: f32[m, n] = t5
"""

FOLDED = GOAL.replace("t4 = mul(t3, g)", "t4 = mul(g, w)").replace("(t4, w)", "(t3, t4)")
BEFORE_THE_RELU = FOLDED.replace("t3 = relu(x)\n", "").replace("t4 =", "t3 =").replace(
    "t5 = contract[k](t3, t4)\nout out: f32[m, n] = t5",
    "t4 = contract[k](x, t3)\nt5 = relu(t4)\nout out: f32[m, n] = t5",
)  # fmt: skip


@pytest.mark.parametrize(("text", "once", "good"), [(FOLDED, (4,), True), (BEFORE_THE_RELU, (3,), False)])
def test_a_candidate_is_proven_with_what_it_makes_once(text: str, once: tuple[int, ...], good: bool) -> None:
    goal, graph = parse_graph(GOAL), parse_graph(text)
    verdict = prove_by_graph(goal, graph, fuse(divided(graph, once).run), once)
    assert (verdict is not None) is good


def test_kernels_of_another_part_are_not_proven() -> None:
    goal, graph = parse_graph(GOAL), parse_graph(FOLDED)
    wrong = parse_graph(str(divided(graph, (4,)).run).replace("relu(x)", "tanh(x)"))
    assert prove_by_graph(goal, graph, fuse(wrong), (4,)) is None


def test_what_a_caller_brings_is_not_constant_because_a_file_says_so() -> None:
    goal = parse_graph(GOAL.replace("in g: f32[k] constant", "in g: f32[k]"))
    graph = parse_graph(FOLDED)
    assert prove_by_graph(goal, graph, fuse(divided(graph, (4,)).run), (4,)) is None
