"""Stages: chunks whose products libraries make, in shared memory, compute what the graph does."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from superopt.backend.joint.chunks import choice, run
from superopt.backend.joint.chunks.run import TiledKernel
from superopt.backend.joint.chunks.stages import Multiply
from superopt.backend.joint.chunks.tiles import Tiles
from superopt.backend.joint.chunks.tiling import tiled, with_undefined
from superopt.backend.joint.limits import changed
from superopt.trace import trace
from superopt.trace.run import run_graph

M, K, N = 11, 5, 64
LARGE = 4 * M * N - 1

Function = Callable[..., object]


@pytest.fixture(autouse=True)
def everything_is_a_product() -> Iterator[None]:
    """Count small products as large ones; what lies between runs operator by operator."""
    with changed(product_flops=1, fused=False):
        yield


def chained(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """A product reads a product; both are read again later."""
    first = x @ w.t()
    second = first @ v
    third = second @ w.t()
    return second, (third * first).sum(1), third.t() @ x


def read_twice(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """What lies over a product is not yet all that reads the product."""
    made = x @ w.t()
    d = made.exp() - made.amax(1, keepdim=True)
    back = d @ v
    return back, (made * d).sum(0), (back @ w.t() * made * d).sum(), made.t() @ x


def crossed(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """What is computed before a product is needed after it."""
    made = torch.relu(x @ w.t())
    norm = made.square().sum(1, keepdim=True).sqrt()
    y = (made / (norm + 1)) @ v
    return y / (norm + 1), (y.exp() @ w.t()).sum(1) * norm[:, 0]


def mixed_with_itself(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The same tensor again and again, under other names of its axes."""
    made = x @ w.t()
    again = (made @ w + x) @ w.t()
    return (again * made).sum(1), again.t() @ x, (made @ w).t() @ (again @ w)


def gated(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Two large values at a time become one."""
    a, b = x @ w.t(), x @ v.t()
    h = torch.sigmoid(a) * a * b
    return h @ v, h.t() @ x, (torch.sigmoid(b) * h).t() @ x, h.sum(), h.amax(0)


def masked(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """A mask is multiplied."""
    made = x @ w.t()
    return (made > 0).float() @ v, (made > 0).float().t() @ x, made.sum(1)


def scaled(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """What enters products is made in the chunk itself, of inputs alone."""
    y = x / (x.square().sum(1, keepdim=True).sqrt() + 1)
    made = y @ w.t()
    return made.exp() @ v, made.t() @ y, (y @ v.t() * made).sum(1)


def equal(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The same product leaves twice, and is read."""
    made = torch.relu(x @ w.t())
    return made @ v, made.sum(1), made @ v, (made @ v).exp(), made.sum(1), made.t() @ x, made.t() @ x


def in_batches(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    x = torch.stack([x, x + 1, x * 2])
    made = torch.tanh(x @ w.t())
    return made @ v, (made.flatten(0, 1).t() @ x.flatten(0, 1)).exp()


def heads(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The backward pass of attention, whose products have axes that both operands keep."""
    q, k, u = torch.stack([x, x + 1]), torch.stack([w, 2 * w]), torch.stack([v, v.exp()])
    p = torch.softmax(q @ k.transpose(1, 2), -1)
    inner = q @ u.transpose(1, 2)
    scores = p * (inner - (p * inner).sum(-1, keepdim=True))
    return scores @ k, scores.transpose(1, 2) @ q, p.transpose(1, 2) @ q


DRAW = torch.Generator().manual_seed(0)
X, W, V = (torch.randn(size, K, generator=DRAW) for size in (M, N, N))


QUICK = [equal, read_twice, gated, scaled, heads]
SLOW = [chained, crossed, mixed_with_itself, masked, in_batches]


@pytest.mark.parametrize(
    "function", [*QUICK, *(pytest.param(one, marks=pytest.mark.slow, id=one.__name__) for one in SLOW)]
)
def test_stages_compute_what_the_whole_does(function: Function) -> None:
    traced = trace(function, X, W, V, for_proof=True)
    graph, given = with_undefined(traced.graph), dict(zip(traced.input_names, (X, W, V), strict=True))
    wanted = run_graph(graph, given)
    count = 0
    for axis in graph.axes:
        tiling = tiled(graph, axis.name, LARGE)
        if tiling is None:
            continue
        for rows, last in ((4, False), (4, True), (axis.size, True)):
            kernel = TiledKernel(tiling, rows, last=last)
            assert any(isinstance(one, Multiply) for one in kernel.stages.steps)
            made = kernel({port.name: given[port.name] for port in graph.inputs})
            for name, tensor in made.items():
                torch.testing.assert_close(tensor, wanted[name].float(), rtol=1e-4, atol=1e-4)
            assert set(made) == {one.port.name for one in graph.outputs}
            count += 1
    assert count


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_stages_of_ours_do_not_depend_on_the_default_dtype(default: torch.dtype) -> None:
    """Before: they wrote float32 into memory of the default dtype, beyond its end if that is shorter."""

    def loss(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        z = x @ w.t()
        return z.logsumexp(-1), z.softmax(-1) @ w

    traced = trace(loss, X, W, for_proof=True)
    graph, given = with_undefined(traced.graph), dict(zip(traced.input_names, (X, W), strict=True))
    axis = next(one.name for one in graph.axes if one.size == M)
    tiling = tiled(graph, axis, LARGE)
    assert tiling is not None
    names = tuple(TiledKernel(tiling, 4).flops())
    torch.set_default_dtype(default)
    try:
        made = TiledKernel(tiling, 4, own=names)(given)
    finally:
        torch.set_default_dtype(torch.float32)
    wanted = run_graph(graph, given)
    for name, tensor in made.items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, wanted[name].float(), rtol=1e-4, atol=1e-4)


def test_chunks_without_a_product_share_little() -> None:
    """Before: the positions of a chunk were those that fit where nothing is shared: a division by 0."""
    graph = trace(lambda x, w: (x[:, None] * w).sin().sum(-1), torch.randn(M, N), torch.randn(N, N)).graph
    found = [
        choice._rows(Tiles(graph, axis.name, 1, 4 * N * N), memory)
        for axis in graph.axes
        if tiled(graph, axis.name, 4 * N * N) is not None
        for memory in ("fast", "balanced", LARGE)
    ]
    assert found
    assert all(rows and min(rows) >= 1 for rows in found)


def test_within_a_number_of_bytes_the_clock_decides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger chunks race as well where their products take a little longer, and tiles of both orders."""
    function = lambda x, w: (x @ w.t()).softmax(-1) @ w  # noqa: E731
    graph = trace(function, torch.randn(64, K), torch.randn(N, K), for_proof=True).graph
    tiles = Tiles(graph, graph.inputs[0].dims[0][0], 1, 4 * 64 * N - 1)
    took = {(64, False): 1.05, (64, True): 1.03, (32, False): 1.0, (32, True): 0.98, (16, True): 1.0}

    def seconds(kernel: TiledKernel) -> dict[str, float]:
        last = kernel.stages.axes[min(kernel.stages.axes)][-1] == tiles.axis
        return {"product": took.get((kernel.rows, last), 9.0) * kernel.rows}

    monkeypatch.setattr(choice, "seconds_together", lambda kernels, given: [*map(seconds, kernels)])
    monkeypatch.setattr(TiledKernel, "flops", lambda kernel: {})
    with changed(product_flops=1):
        memory = 64 * tiles.kernel.shared_bytes(1)
        found = choice.chosen([tiles], {}, memory)
    assert [(one.rows, one.last) for one in found] == [(32, True), (64, False), (32, False)]


def test_the_best_of_about_each_size_is_raced_for_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: a larger chunk was left out where its stages alone took a little longer, without a race."""
    function = lambda x, w: (x @ w.t()).softmax(-1) @ w  # noqa: E731
    graph = trace(function, torch.randn(96, K), torch.randn(N, K), for_proof=True).graph
    tiles = Tiles(graph, graph.inputs[0].dims[0][0], 1, 4 * 96 * N - 1)
    took = {48: 1.05, 32: 1.0, 24: 1.1}

    def seconds(kernel: TiledKernel) -> dict[str, float]:
        return {"product": took[kernel.rows] * kernel.rows}

    monkeypatch.setattr(choice, "seconds_together", lambda kernels, given: [*map(seconds, kernels)])
    monkeypatch.setattr(TiledKernel, "flops", lambda kernel: {})
    with changed(product_flops=1, chunk_bytes=1 << 20):
        assert [one.rows for one in choice.chosen([tiles], {}, "balanced")] == [24, 48, 32]
        assert [one.rows for one in choice.chosen([tiles], {}, "fast")] == [24, 32]


def test_stages_that_were_not_tried_are_not_ours() -> None:
    """Before: a product too small for a kernel of ours became one where its second time was the shorter."""
    graph = trace(lambda x, w: x @ w, torch.randn(4, 4), torch.randn(4, 4)).graph
    tiles = Tiles(graph, "m", 1, 1)
    both, halved = {"large": 2.0, "small": 2.0}, {"large": 1.0, "small": 1.0}
    seconds, made = choice._with_fastest(tiles, ("large",), both, halved)
    assert made.own == ("large",)
    assert seconds == 3.0


@pytest.mark.parametrize(
    ("size", "most", "over", "rows"),
    [
        (512, 170.7, 0.1, 176),  # three chunks, not four with one of 8 positions
        (512, 341.3, 0.1, 256),
        (512, 600.0, 0.1, 512),
        (512, 170.7, 0.0, 128),  # a number of bytes holds
        (27, 10.0, 0.1, 8),
        (7, 0.5, 0.1, 1),
        (1, 100.0, 0.0, 1),
    ],
)
def test_chunks_are_of_nearly_equal_sizes(size: int, most: float, over: float, rows: int) -> None:
    assert choice._even(size, most, over) == rows


def test_code_that_another_thread_lets_go_is_returned_nonetheless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: the thread that had made the code looked it up again, and failed for good."""

    class Contested(dict[object, object]):
        def __setitem__(self, key: object, value: object) -> None:
            for old in [*self, key]:
                self.pop(old, None)

    monkeypatch.setattr(run, "_CODE", Contested())
    monkeypatch.setattr(run, "_compiled", lambda graph, inputs, at: graph.name)
    graph = trace(torch.exp, torch.randn(3), name="f").graph
    assert run._code_of(graph, [torch.randn(3)], {}) == graph.name


def test_threads_share_a_few_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_CODE", {})
    monkeypatch.setattr(run, "_compiled", lambda graph, inputs, at: graph.sizes)
    graphs = [trace(torch.exp, torch.randn(size), name="f").graph for size in range(2, 52)]
    given = [torch.randn(3)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda graph: run._code_of(graph, given, {}), graphs * 8))
    assert found == [graph.sizes for graph in graphs] * 8
    run._code_of(graphs[0], given, {})
    assert len(run._CODE) == run._MOST_CODE
