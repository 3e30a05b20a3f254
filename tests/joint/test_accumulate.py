"""Accumulate: rows are added to the other gradient of a weight, and only where nothing else reads that."""

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from quick import few
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from superopt.backend.joint import joint_pass
from superopt.backend.joint.accumulate import add_rows_in_place, adds_rows
from superopt.bench.models.memory import peaks_of

ROWS, WIDTH = 60, 8
Step = Callable[[Tensor, Tensor], Tensor]


def tied(weight: Tensor, read: Tensor) -> Tensor:
    return F.cross_entropy(F.embedding(read, weight) @ weight.t(), read)


def padded(weight: Tensor, read: Tensor) -> Tensor:
    """Rows of padding get no gradient, wherever they are read."""
    return F.cross_entropy(F.embedding(read, weight, padding_idx=3).tanh() @ weight.t(), read)


def twice(weight: Tensor, read: Tensor) -> Tensor:
    x = F.embedding(read, weight) * F.embedding(read.flip(0), weight, padding_idx=0)
    return F.cross_entropy(x @ weight.t(), read)


def by_index(weight: Tensor, read: Tensor) -> Tensor:
    """Negative indices, in a plane and in pairs."""
    pairs = weight[read - ROWS, read % WIDTH]
    return (weight[read] @ weight.t()).square().mean() + (pairs * weight.exp().sum()).sum()


def transposed(weight: Tensor, read: Tensor) -> Tensor:
    """The other gradient is that of a transposed weight."""
    return (weight[:, read].t() @ weight).tanh().sum()


def doubled(weight: Tensor, read: Tensor) -> Tensor:
    """The embedding alone, of one row many times."""
    return (F.embedding(torch.zeros_like(read), weight) * 3).sum() + (weight.sin() * 2).sum()


STEPS: dict[str, tuple[Step, int]] = {
    "tied": (tied, 1),
    "padded": (padded, 1),
    "twice": (twice, 2),
    "by index": (by_index, 2),
    "transposed": (transposed, 1),
    "doubled": (doubled, 1),
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many sums were replaced, in each joint graph."""
    found = list[int]()

    def counting(graph: fx.Graph) -> int:
        found.append(add_rows_in_place(graph))
        return found[-1]

    monkeypatch.setattr(joint_pass, "add_rows_in_place", counting)
    with (  # a cached graph has met no pass of ours, and is another one where buffers are not donated
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._inductor.config.patch(fx_graph_cache=False),
    ):
        yield found


def drawn(dtype: torch.dtype = torch.float32, width: int = WIDTH, rows: int = ROWS) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(rows, width, generator=draw).to(dtype).requires_grad_()


def words(count: int = 40, rows: int = ROWS) -> Tensor:
    read = torch.randint(0, rows, (count,), generator=torch.Generator().manual_seed(1))
    read[:4] = torch.tensor([3, 0, 3, 0])
    return read


def gradient(step: Step, weight: Tensor, read: Tensor, times: int = 1) -> Tensor:
    weight.grad = None
    loss = step(weight, read)
    for _ in range(times):
        loss.backward(retain_graph=times > 1)
    assert weight.grad is not None
    return weight.grad.clone()


def compiled(step: Step) -> Step:
    torch._dynamo.reset()
    found: Step = torch.compile(lambda *given: step(*given), backend="superopt", options={"budget_s": 0})
    return found


@pytest.mark.parametrize(
    ("name", "times"), few(product(STEPS, (1, 2)), *product(STEPS, (1,)), ("tied", 2), ("by index", 2))
)
def test_gradients_are_those_of_float64(name: str, times: int, counts: list[int]) -> None:
    step, count = STEPS[name]
    square = name == "transposed"
    weight, read = drawn(width=ROWS if square else WIDTH), words()
    exact = gradient(step, weight.detach().double().requires_grad_(), read, times)
    with torch._functorch.config.patch(donated_buffer=times == 1):
        found = gradient(compiled(step), weight, read, times)
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=1e-4 * float(exact.abs().max()))
    assert counts == [count]


def test_rows_of_half_precision_are_summed_apart(counts: list[int]) -> None:
    """Each row would be rounded to half precision as it is added."""
    weight, read = drawn(torch.bfloat16), words(400, 4)
    exact = gradient(tied, weight.detach().double().requires_grad_(), read)
    error = (gradient(compiled(tied), weight, read).double() - exact).abs().max()
    assert error <= 1.5 * (gradient(tied, weight, read).double() - exact).abs().max()
    assert counts == [0]


def graph_of(function: Callable[..., object], *given: Tensor) -> fx.Graph:
    return make_fx(function, tracing_mode="fake")(*given).graph


def put(total: Tensor, at: Tensor, rows: Tensor) -> Tensor:
    return torch.ops.aten.index_put.default(total, [at], rows, True)


def is_full(node: object) -> bool:
    return isinstance(node, fx.Node) and node.target is torch.ops.aten.full.default


def zeros() -> Tensor:
    return torch.full((9, 4), 0.0)


GIVEN = torch.randn(9, 4), torch.tensor([1, 8, 1]), torch.randn(3, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, at, rows: x + put(zeros(), at, rows),  # the other summand is an input
        lambda x, at, rows: (y := x.exp()) * (y + put(zeros(), at, rows)),
        lambda x, at, rows: x.exp() + put(torch.full((9, 4), 1.0), at, rows),
        lambda x, at, rows: x.exp() + (z := put(zeros(), at, rows)) * 2 + z,
        lambda x, at, rows: torch.add(x.exp(), put(zeros(), at, rows), alpha=2),
        lambda x, at, rows: x.exp()[:1] + put(zeros(), at, rows),  # it is expanded
        lambda x, at, rows: x.exp().t().contiguous().t() + put(zeros(), at, rows),
        lambda x, at, rows: x.exp() + torch.ops.aten.index_put.default(zeros(), [at], rows),
        lambda x, at, rows: x[:].view(9, 4) + put(zeros(), at, rows),  # a view of an input
        lambda x, at, rows: torch.cat([x, x]).split(9)[1] + put(zeros(), at, rows),  # a part of a value
        lambda x, at, rows: x.view(3, 3, 4).flatten(0, 1).split(9)[0] + put(zeros(), at, rows),
        lambda x, at, rows: x.exp() + put(zeros(), at.repeat(2000), rows.repeat(2000, 1)),
        lambda x, at, rows: x.exp().bfloat16() + put(zeros().bfloat16(), at, rows.bfloat16()),
    ],
    ids=[
        "input",
        "read",
        "ones",
        "twice",
        "alpha",
        "expanded",
        "strides",
        "not added",
        "view",
        "part",
        "input's part",
        "rows",
        "half",
    ],
)
def test_what_may_not_be_added_in_place_stays(function: Callable[..., Tensor]) -> None:
    graph = graph_of(function, *GIVEN)
    before = str(graph)
    assert add_rows_in_place(graph) == 0
    assert str(graph) == before


@pytest.mark.parametrize(
    "function",
    [
        lambda x, at, rows: x.exp() + put(zeros(), at, rows),
        lambda x, at, rows: put(zeros(), at, rows) + (x @ x.t() @ x).view(3, 12).view(9, 4),
        lambda x, at, rows: put(zeros(), at, rows) + put(zeros(), at, rows.exp()),
    ],
    ids=["loop", "views", "both"],
)
def test_a_graph_computes_the_same(function: Callable[..., Tensor]) -> None:
    graph = graph_of(function, *GIVEN)
    assert add_rows_in_place(graph) == 1
    graph.lint()
    assert not graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    assert any(adds_rows(node) and not is_full(node.args[0]) for node in graph.nodes)
    torch.testing.assert_close(fx.GraphModule({}, graph)(*GIVEN), function(*GIVEN))


def test_small_rows_are_not_lost_in_a_large_gradient(counts: list[int]) -> None:
    """Each of them is smaller than what a float32 of the other gradient can tell."""

    def step(weight: Tensor, read: Tensor) -> Tensor:
        return weight.sum() + (F.embedding(read, weight) * 2e-8).sum()

    weight, read = drawn(), torch.zeros(1 << 18, dtype=torch.long)
    found = gradient(compiled(step), weight, read)
    assert float(found[0, 0]) == pytest.approx(1 + 2e-8 * len(read), rel=1e-5)
    assert counts == [0]


def test_graphs_of_any_sizes_are_left_as_they_are(
    counts: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def step(weight: Tensor, read: Tensor) -> Tensor:
        return weight[read].sin().sum() + weight.exp().sum()

    program: Step = torch.compile(
        lambda *given: step(*given), backend="superopt", dynamic=True, options={"budget_s": 0}
    )
    for rows in (20, 31):
        weight, read = drawn(rows=rows), words(9, rows)
        torch.testing.assert_close(gradient(program, weight, read), gradient(step, weight, read))
    assert set(counts) == {0}
    assert "left as it is" not in caplog.text


@pytest.mark.parametrize("kind", ["float64", "deterministic"])
def test_other_gradients_are_those_of_eager(kind: str, counts: list[int]) -> None:
    weight, read = drawn(torch.float64 if kind == "float64" else torch.float32), words()
    exact = gradient(tied, weight.detach().double().requires_grad_(), read)
    torch.use_deterministic_algorithms(kind == "deterministic")
    try:
        found = gradient(compiled(tied), weight, read)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))
    assert counts == [1]


def test_a_step_holds_one_gradient_and_not_three(counts: list[int]) -> None:
    """Before: zeros of the size of the weight were filled, added to, and added to the other gradient."""
    rows, width = 4000, 64
    weight, read = drawn(width=width, rows=rows), words(16, rows)
    peaks = []
    for program in (torch.compile(tied), compiled(tied)):

        def step(program: Step = program) -> None:
            program(weight, read).backward()

        def drop() -> None:
            weight.grad = None

        peaks.append(peaks_of(step, drop).whole)
        torch._dynamo.reset()
    assert counts == [1]
    assert peaks[1] <= peaks[0] - 0.9 * 4 * rows * width
