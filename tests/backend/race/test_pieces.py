"""How a functional graph is cut: kinds of nodes, connected pieces, waists, and what a piece stands for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from superopt.backend.pieces import Piece, pieces_of, why_no_search
from superopt.backend.subgraph import masks_leaving, subgraph_of
from superopt.errors import InputError
from superopt.rivals.aten import flops_of, operator_name
from superopt.rivals.kinds import kinds_of


def functional(function: Callable[..., Any], *inputs: Tensor) -> fx.Graph:
    """Return the functional graph of a function, with fake tensors, as Inductor has it."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        plain = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs)
        return make_fx(torch.func.functionalize(plain), tracing_mode="fake")(*inputs).graph


def pieces(function: Callable[..., Any], *inputs: Tensor) -> list[Piece]:
    graph = functional(function, *inputs)
    return pieces_of(graph, kinds_of(graph, "cpu"))


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


def names(piece: Piece) -> list[str | None]:
    return [operator_name(node) for node in piece.nodes]


def mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.silu(x @ up) @ down


def test_a_program_of_algebra_is_one_piece() -> None:
    [piece] = pieces(mlp, ones(4, 8), ones(8, 16), ones(16, 8))
    assert piece.heavy == 2
    assert why_no_search(piece) is None


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x, w: x @ w, "one matmul"),
        (lambda x, w: torch.relu(x) * 2, "one pointwise chain"),
        (lambda x, w: x.softmax(-1), None),
        (lambda x, w: x.mean(-1) * 2, "one reduction and what is pointwise around it"),
        (lambda x, w: torch.relu(x @ w), None),
    ],
)
def test_what_inductor_does_well_is_left_to_it(function: Callable[..., Tensor], why: str | None) -> None:
    [piece] = pieces(function, ones(4, 8), ones(8, 8))
    assert why_no_search(piece) == why


@pytest.mark.parametrize(
    ("rows", "columns", "why"), [(1, 2048, None), (256, 2048, "one matmul"), (1, 64, "one matmul")]
)
def test_one_matmul_is_searched_where_it_waits_for_memory(rows: int, columns: int, why: str | None) -> None:
    [piece] = pieces(lambda x, w: x @ w, ones(rows, 1024), ones(1024, columns))
    assert why_no_search(piece) == why


def test_what_is_no_algebra_cuts() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.cumprod(x @ w, 0) @ w

    assert [names(piece) for piece in pieces(function, ones(4, 8), ones(8, 8))] == [["mm"], ["mm"]]


def test_a_way_around_through_the_outside_parts_a_group() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        first = torch.relu(x @ w)
        return torch.sigmoid(first @ w) + torch.cumprod(first, 0)

    parts = [names(piece) for piece in pieces(function, ones(4, 8), ones(8, 8))]
    assert parts == [["mm", "relu", "mm", "sigmoid"], ["add"]]


def test_views_are_repeated_where_they_are_read() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = (x @ w).relu()
        return made.t() @ made, made.view(2, 2, 8).transpose(0, 1)

    graph = functional(function, ones(4, 8), ones(8, 8))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    assert "t" not in names(piece)
    subgraph = subgraph_of(piece, kinds)
    assert [operator_name(result.node) for result in subgraph.results] == ["relu", "mm"]


@pytest.mark.parametrize("parted", [lambda made: made.chunk(2, 1), lambda made: made.view(4, 2, 4).unbind(1)])
def test_a_result_that_is_read_in_parts_leaves_whole(parted: Callable[[Tensor], Any]) -> None:
    def function(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = x @ w
        left, right = parted(made)
        return left.cumprod(0), right.cumprod(1), made.relu() @ v

    graph = functional(function, ones(4, 8), ones(8, 8), ones(8, 8))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    subgraph = subgraph_of(piece, kinds)
    assert [operator_name(result.node) for result in subgraph.results] == ["mm", "mm"]


def test_equal_layers_make_equal_modules() -> None:
    def layers(x: Tensor, norm: Tensor, up: Tensor, down: Tensor) -> Tensor:
        for _ in range(4):
            x = x + F.silu(F.rms_norm(x, (8,), norm) @ up) @ down
        return x

    graph = functional(layers, ones(4, 8), ones(8), ones(8, 16), ones(16, 8))
    kinds = kinds_of(graph, "cpu")
    found = pieces_of(graph, kinds)
    assert len(found) == 4
    assert len({subgraph_of(piece, kinds).module.code for piece in found}) == 1


def test_the_first_layer_is_like_the_others() -> None:
    def layers(x: Tensor, table: Tensor, norm: Tensor, up: Tensor, down: Tensor) -> Tensor:
        angles, x = table.sin() * 0.5, x * 2 + 1
        for _ in range(3):
            x = x + (F.rms_norm(x, (8,), norm) @ up * angles) @ down
        return x

    graph = functional(layers, ones(4, 8), ones(4, 16), ones(8), ones(8, 16), ones(16, 8))
    kinds = kinds_of(graph, "cpu")
    found = pieces_of(graph, kinds)
    assert sorted(name for piece in found if not piece.heavy for name in names(piece)) == [
        "add",
        "mul",
        "mul",
        "sin",
    ]
    heavy = [piece for piece in found if piece.heavy]
    assert len(heavy) == 3
    assert len({subgraph_of(piece, kinds).module.code for piece in heavy}) == 1
    held = [node for piece in found for node in piece.nodes]
    assert sorted(held, key=list(graph.nodes).index) == [n for n in graph.nodes if kinds[n] == "compute"]


def test_what_comes_before_belongs_to_its_only_reader() -> None:
    def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        shared = x.sigmoid()
        return torch.cumprod(x.tanh() @ w * shared, 0) @ v * shared.exp()

    found = [names(piece) for piece in pieces(function, ones(4, 8), ones(8, 8), ones(8, 8))]
    assert found == [["sigmoid"], ["tanh", "mm", "mul"], ["mm", "exp", "mul"]]


def test_a_norm_belongs_to_what_reads_it_and_a_sum_to_what_it_adds_up() -> None:
    def layers(x: Tensor, norm: Tensor, up: Tensor, down: Tensor) -> Tensor:
        for _ in range(2):
            x = x + torch.cumprod(F.silu(F.rms_norm(x, (8,), norm) @ up) @ down, 0)
        return F.rms_norm(x, (8,), norm)

    cut = pieces(layers, ones(4, 8), ones(8), ones(8, 16), ones(16, 8))
    found = [names(piece) for piece in cut if piece.heavy]
    assert [("rsqrt" in one, one.count("mm")) for one in found] == [(True, 2), (True, 2), (True, 0)]
    assert found[1][0] == "add"
    [sums] = pieces(lambda x, w: (x @ w).sum(-1), ones(4, 8), ones(8, 8))
    assert names(sums) == ["mm", "sum"]


def test_a_mean_begins_a_layer_only_where_it_scales_what_it_is_taken_of() -> None:
    def pooled(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).mean(-1) * 2

    def normed(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)) @ w

    given = ones(4, 8), ones(8, 8)
    assert [names(piece) for piece in pieces(pooled, *given)] == [["mm", "mean", "mul"]]
    assert [names(piece)[0] for piece in pieces(normed, *given)] == ["mm", "pow"]


def test_a_cast_belongs_to_what_reads_it() -> None:
    def layers(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        for _ in range(3):
            normed = F.rms_norm(x.float(), (8,)).bfloat16()
            x = x + torch.cumprod(F.silu(normed @ up) @ down, 0)
        return x

    inputs = [one.bfloat16() for one in (ones(4, 8), ones(8, 16), ones(16, 8))]
    graph = functional(layers, *inputs)
    kinds = kinds_of(graph, "cpu")
    found = [piece for piece in pieces_of(graph, kinds) if piece.heavy]
    assert len(found) == 3
    assert {value.meta["val"].dtype for one in found for value in subgraph_of(one, kinds).inputs} == {
        torch.bfloat16
    }


def test_a_result_in_another_order_comes_contiguous_and_is_turned_back() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu().t() * 2.0

    graph = functional(function, ones(4, 8), ones(8, 8))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    subgraph = subgraph_of(piece, kinds)
    [result] = subgraph.results
    assert result.back == (1, 0)
    [made] = subgraph.module(torch.randn(4, 8), torch.randn(8, 8))
    assert made.shape == (4, 8)


def test_a_long_chain_is_cut_where_one_tensor_is_live() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(12):
            x = torch.relu(x @ w)
        return x

    found = pieces(function, ones(4, 8), ones(8, 8))
    assert sum(piece.heavy for piece in found) == 12
    assert max(piece.heavy for piece in found) <= 6


def test_other_devices_and_dtypes_stay_outside() -> None:
    graph = functional(lambda x, w: torch.relu(x @ w), ones(4, 8).double(), ones(8, 8).double())
    assert not pieces_of(graph, kinds_of(graph, "cpu"))
    graph = functional(lambda x, w: torch.relu(x @ w), ones(4, 8), ones(8, 8))
    assert not pieces_of(graph, kinds_of(graph, "cuda"))


def test_a_piece_without_inputs_stands_not_alone() -> None:
    graph = functional(lambda x: x + torch.ones(3).exp(), ones(3))
    kinds = kinds_of(graph, "cpu")
    node = next(node for node in graph.nodes if operator_name(node) == "exp")
    with pytest.raises(InputError, match="reads no tensor"):
        subgraph_of(Piece((node,)), kinds)


def test_masks_that_leave_are_left_outside() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.relu(x @ w) @ w
        return made, made <= 0

    graph = functional(function, ones(4, 8), ones(8, 8))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    assert [operator_name(node) for node in masks_leaving(piece, kinds)] == ["le"]


def test_operations_of_matmuls_are_counted() -> None:
    graph = functional(lambda x, w, b: torch.addmm(b, x, w), ones(4, 8), ones(8, 16), ones(16))
    assert sum(map(flops_of, graph.nodes)) == 2 * 4 * 8 * 16
