"""Tiling: a graph in chunks along an axis computes what the graph does, or is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from superopt.backend.joint.chunks.tiling import UNDEFINED, Product, Tiling, tiled, with_undefined
from superopt.candidates.sizes import resized
from superopt.ir import Graph, Port
from superopt.trace import trace
from superopt.trace.run import run_graph

M, K, N = 11, 5, 64
LARGE = 4 * M * N - 1

Function = Callable[..., object]


def in_chunks(tiling: Tiling, given: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Compute a tiling part by part in float64, as its definition says."""
    axis, goal = tiling.axis, tiling.goal
    known = {**given, **run_graph(tiling.before, given)}
    shapes = [(one.port.name, goal.shape(one.port)) for one in goal.outputs if one.port.name in tiling.rows]
    rest = [(one.port.name, goal.shape(one.port)) for one in (*tiling.sums, *tiling.products)]
    whole = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in (*shapes, *rest)}
    for one in tiling.sums:
        if one.op == "maximum":
            whole[one.port.name].fill_(-torch.inf)
    for start in range(0, goal.sizes[axis], rows):
        count = min(rows, goal.sizes[axis] - start)
        chunk = resized(tiling.chunk, {axis: count})

        def part(port: Port, tensor: Tensor, start: int = start, count: int = count) -> Tensor:
            apart = tensor.reshape([goal.sizes[one] for one in port.axes])
            return apart.narrow(port.axes.index(axis), start, count) if axis in port.axes else apart

        made = run_graph(
            chunk,
            {port.name: part(port, known[port.name]).reshape(chunk.shape(port)) for port in chunk.inputs},
        )
        for one in chunk.outputs:
            if one.port.name in tiling.rows:
                target = part(one.port, whole[one.port.name])
                target.copy_(made[one.port.name].reshape(target.shape))
        for product in tiling.products:
            whole[product.port.name] += _multiplied(product, made)
        for one in tiling.sums:
            add = torch.add if one.op == "add" else torch.maximum
            whole[one.port.name] = add(whole[one.port.name], made[one.port.name])
    made = run_graph(tiling.after, {**known, **whole})
    return {**made, **{name: whole[name] for name in tiling.rows}}


def _multiplied(product: Product, made: dict[str, Tensor]) -> Tensor:
    """Return a product of two values of a chunk, by the names of their axes."""
    ports = (product.left, product.right, product.port)
    numbers = {
        axis: at for at, axis in enumerate(dict.fromkeys(axis for port in ports for axis in port.axes))
    }
    left, right, wanted = ([numbers[axis] for axis in port.axes] for port in ports)
    summed: Tensor = torch.einsum(made[product.left.name], left, made[product.right.name], right, wanted)
    return summed


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.t(), -1) @ v


def attention_backward(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    p = torch.softmax(q @ k.mT, -1)
    inner = g @ v.mT
    scores = p * (inner - (p * inner).sum(-1, keepdim=True))
    return scores @ k, scores.mT @ q, p.mT @ g


def loss(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    logits = (x @ w.t()).log_softmax(-1)
    counted = y != -100
    count = counted.sum().float()
    picked = logits.gather(1, torch.where(counted, y, 0)[:, None])[:, 0]
    one = (torch.where(counted, y, 0)[:, None] == torch.arange(N)).float()
    d = torch.where(counted, 1 / count, 0.0)[:, None] * (logits.exp() - one)
    return torch.where(counted, -picked, 0.0).sum() / count, d @ w, d.t() @ x


def pooled(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.relu(x @ w.t())
    return made.mean(0), made.amax(0)


def in_batches(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return loss(x.flatten(0, 1), w, y.flatten())


X, W, V = torch.randn(M, K), torch.randn(N, K), torch.randn(N, K)
Y = torch.randint(0, N, (M,))
Y[3] = -100
TILED: dict[str, tuple[Function, tuple[Tensor, ...], set[str]]] = {
    "attention": (attention, (X, W, V), {"m"}),
    "its backward pass": (attention_backward, (X, W, V, torch.randn(M, K)), {"m"}),
    "that of several heads": (
        attention_backward,
        tuple(torch.randn(2, size, K) for size in (M, N, N, M)),
        {"b", "m"},
    ),
    "a loss": (loss, (X, W, Y), {"m"}),
    "a loss of several sentences": (
        in_batches,
        (torch.randn(3, 4, K), W, torch.randint(0, N, (3, 4))),
        {"b", "m"},
    ),
    "two reductions": (pooled, (X, W), {"m", "n"}),
}


@pytest.mark.parametrize("name", TILED)
def test_chunks_compute_what_the_whole_does(name: str) -> None:
    function, inputs, expected = TILED[name]
    traced = trace(function, *inputs, for_proof=True)
    graph, given = with_undefined(traced.graph), dict(zip(traced.input_names, inputs, strict=True))
    wanted, found = run_graph(graph, given), {}
    for axis in graph.axes:
        tiling = tiled(graph, axis.name, LARGE - 1 if "sentences" not in name else 4 * 12 * N - 1)
        if tiling is not None:
            found[axis.name] = tiling
    assert set(found) == expected
    for tiling in found.values():
        for rows in (1, 4, M):
            made = in_chunks(tiling, given, rows)
            for one in graph.outputs:
                torch.testing.assert_close(made[one.port.name], wanted[one.port.name])


def standardized(x: Tensor, w: Tensor) -> Tensor:
    """Each row needs the mean of all rows."""
    made = x @ w.t()
    return (made - made.mean(0)).sum(1)


def kept(x: Tensor, w: Tensor) -> Tensor:
    """The large value itself leaves."""
    return x @ w.t()


def by_position(x: Tensor, w: Tensor) -> Tensor:
    """What a chunk makes depends on where its rows are."""
    return torch.tril(x @ w[:M].t()).exp().sum(1)


def moved(x: Tensor, w: Tensor) -> Tensor:
    """A row needs the next one."""
    made = x @ w.t()
    return (made[1:] * made[:-1]).sum(1)


@pytest.mark.parametrize("function", [standardized, kept, by_position, moved])
def test_what_chunks_cannot_compute_is_refused(function: Function) -> None:
    graph = trace(function, X, W, for_proof=True).graph
    rows = next(port.dims[0][0] for port in graph.inputs if graph.shape(port) == (M, K))
    assert tiled(graph, rows, 4 * M * M - 1 if function is by_position else LARGE - 1) is None


def test_indices_out_of_range_are_counted() -> None:
    traced = trace(loss, X, W, Y, for_proof=True)
    graph = with_undefined(traced.graph)
    wrong = Y.clone()
    wrong[2], wrong[5] = N, -7
    counts = [
        int(run_graph(graph, dict(zip(traced.input_names, (X, W, one), strict=True)))[UNDEFINED])
        for one in (Y, wrong)
    ]
    assert counts == [0, 2]


def test_what_never_raises_counts_nothing() -> None:
    graph: Graph = trace(attention, X, W, V, for_proof=True).graph
    assert with_undefined(graph) is graph
