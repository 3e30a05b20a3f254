"""Which nodes of a graph are algebra: masks made of positions, values of maxima; and what a race may call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from superopt.backend.cut import _nodes_without_rule
from superopt.backend.decision import Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of
from superopt.backend.region import Region, region_of
from superopt.backend.subgraph import Subgraph, subgraph_of
from superopt.errors import SuperoptError
from superopt.rivals.aten import operator_name, runs_on_anything, value_of
from superopt.rivals.indices import indices_of
from superopt.rivals.kinds import kinds_of, reasons_of
from superopt.targets import pick_target

from .test_pieces import functional, ones

N = 6


def last_piece(function: Callable[..., Tensor], *given: Tensor) -> Subgraph:
    """Return the last piece of a function's graph as a graph of its own."""
    graph = functional(function, *given)
    kinds = kinds_of(graph, "cpu")
    return subgraph_of(pieces_of(graph, kinds)[-1], kinds)


def positions(**options: torch.dtype) -> Tensor:
    return torch.arange(N, **options)


def away(i: Tensor) -> Tensor:
    return i[:, None] - i[None]


_MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "causal": lambda x: x.masked_fill(away(positions()) < 0, -torch.inf),
    "window": lambda x: torch.where((away(positions()).abs() < 3) & (away(positions()) >= 0), x, 0.0),
    "triangle": lambda x: x * torch.ones(N, N, dtype=torch.bool).tril(1),
    "clamped": lambda x: x + away(positions()).clamp(-2, 2),
    "negated": lambda x: torch.where(~(positions()[:, None] * 2 > positions()), x, -x),
    "added": lambda x: x + torch.zeros(N, N).masked_fill(away(positions()) > 1, -torch.inf),
    "from one": lambda x: x * torch.arange(1, 2 * N, 2)[:, None],
    "narrow": lambda x: x.masked_fill(away(positions(dtype=torch.int32)) < 0, 0.0),
}


@pytest.mark.parametrize("name", _MASKS)
def test_a_mask_of_positions_is_made_in_the_region(name: str) -> None:
    """The region reads the data alone, and computes what the function does."""
    x = torch.randn(N, N)
    graph = functional(_MASKS[name], x)
    kinds = kinds_of(graph, "cpu")
    assert not reasons_of(graph, "cpu").keys() & {node for node in graph.nodes if node.op == "call_function"}
    [piece] = pieces_of(graph, kinds)
    found = subgraph_of(piece, kinds)
    assert [node.op for node in found.inputs] == ["placeholder"]
    torch.testing.assert_close(found.module(x)[0], _MASKS[name](x))


_NO_POSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "of few bits": lambda x: positions(dtype=torch.int8) * 100 > 3,
    "large": lambda x: positions() * (1 << 23) > 3,
    "rounded": lambda x: positions() * 0.1 > 0.3,
    "no whole number": lambda x: positions() * 1.0 > 0.3,
    "of data": lambda x: positions() > x.argmax(),
    "of bits": lambda x: positions() & 1 == 0,
}


@pytest.mark.parametrize("name", _NO_POSITIONS)
def test_what_a_kernel_might_round_is_left_alone(name: str) -> None:
    graph = functional(_NO_POSITIONS[name], ones(N))
    last = graph.output_node().args[0]
    assert value_of(last).dtype == torch.bool
    assert last not in indices_of(graph)


def test_only_the_results_that_are_read_count() -> None:
    """The positions of a maximum are integers, which matters where they are read."""

    def kind(function: Callable[[Tensor], Tensor]) -> str:
        graph = functional(function, ones(4, N))
        kinds = kinds_of(graph, "cpu")
        return next(kinds[node] for node in graph.nodes if operator_name(node) == "max")

    assert kind(lambda x: x.max(1).values * 2) == "compute"
    assert kind(lambda x: torch.mul(*x.max(1))) == "outside"


def test_a_view_without_a_rule_stays_outside_alone() -> None:
    """What reads it is algebra all the same."""
    graph = functional(lambda x, w: torch.relu(x[:, :7] @ w), ones(4, 131), ones(7, 5))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    reasons = {"aten.slice.Tensor": "a reason", "aten.mm.out": "no such overload"}
    found = _nodes_without_rule(piece, kinds, reasons)
    assert [operator_name(node) for node in found] == ["slice"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum() * 0.7,
        lambda x: 1 / (x.sum() + 2),
        lambda x: torch.ops.aten.where(x.sum() > 0.1, x.mean(), 0.5),
        lambda x: (x.mean() >= 0.3) * x.amax(),
    ],
)
def test_numbers_widen_no_number_of_no_dimensions(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    """A region's own module makes the dtype that the graph's nodes have."""
    x = torch.rand(N, dtype=dtype)
    found = last_piece(function, x)
    given = [x if one.op == "placeholder" else torch.rand((), dtype=dtype) for one in found.inputs]
    assert found.module(*given)[-1].dtype == dtype


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1) * (torch.arange(N) + 1),
        lambda x: x.softmax(-1) * (torch.arange(N) * 2 - 3),
        lambda x: x.softmax(-1) * ((torch.arange(N) > 2) + 1),
        lambda x: x.softmax(-1) * (torch.arange(N) + 1.5),
        lambda x: torch.where(torch.arange(N) > 1, x.softmax(-1).sum(), 2.0) * x,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_numbers_beside_integers_have_their_dtype(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    """Before: an integer beside positions made floats of them, and a result of halves was one of float32."""
    x = torch.rand(N, dtype=dtype)
    found = last_piece(function, x)
    given = [
        x if one.op == "placeholder" else value_of(one).new_ones(value_of(one).shape) for one in found.inputs
    ]
    for result, made in zip(found.results, found.module(*given), strict=True):
        assert made.dtype == value_of(result.node).dtype


def test_a_region_of_another_dtype_is_none() -> None:
    found = last_piece(lambda x: x.softmax(-1) * 2, torch.rand(N, N))
    [result] = found.results
    result.node.meta["val"] = result.node.meta["val"].to(torch.bfloat16)
    with pytest.raises(SuperoptError, match=r"would be of torch\.float32"):
        region_of(found, pick_target("cpu"), Ledger(BackendOptions()))


def test_a_region_of_constants_is_none() -> None:
    """A softmax of one element is 1, whatever the element is; a plan without inputs could not be called."""
    graph = functional(lambda x: x.softmax(-1) + 1, ones(3, 1))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    with pytest.raises(SuperoptError, match="do not depend on any tensor"):
        region_of(subgraph_of(piece, kinds), pick_target("cpu"), Ledger(BackendOptions()))


def test_a_product_of_symbolic_positions_may_be_too_large() -> None:
    """Kernels for symbolic sizes serve all; a sum of positions is small at any that fit into memory."""
    seen: dict[str, bool] = {}

    def backend(module: torch.fx.GraphModule, example: list[Tensor]) -> Callable[..., object]:
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table

        def compiled(graph: torch.fx.GraphModule, given: list[Tensor]) -> Callable[..., object]:
            found = indices_of(graph.graph)
            made = {
                str(node.target): node in found for node in graph.graph.nodes if node.op == "call_function"
            }
            seen.update(made)
            return graph.forward

        table = select_decomp_table()
        return aot_autograd(fw_compiler=compiled, decompositions=table)(module, example)  # type: ignore[no-any-return]

    def function(x: Tensor) -> Tensor:
        i = torch.arange(x.shape[0])
        return x * (i[:, None] - i >= 2) + x * (i[:, None] * i == 6)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, dynamic=True)(torch.ones(7, 7))
    assert seen["prims.iota.default"]
    assert seen["aten.ge.Scalar"]
    assert not seen["aten.eq.Scalar"]


def test_a_region_that_rounds_elsewhere_is_another_one() -> None:
    """Before: both had one key, and a plan as exact as the first was taken for the second as well."""

    def region(function: Callable[[Tensor], Tensor]) -> Region:
        found = last_piece(function, torch.rand(N, N, dtype=torch.bfloat16))
        return region_of(found, pick_target("cpu"), Ledger(BackendOptions()))

    half, again, whole = map(
        region,
        (
            lambda x: x.softmax(-1).float().softmax(0),
            lambda x: x.softmax(-1).float().softmax(0),
            lambda x: x.float().softmax(-1).softmax(0),
        ),
    )
    assert half.key == again.key
    assert half.key != whole.key


@torch.library.custom_op("superopt_tests::tap", mutates_args=())
def tap(x: Tensor) -> Tensor:
    """Stand for an operator that keeps count."""
    return x.clone()


@tap.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("superopt_tests::count", mutates_args=("counter",))
def count(x: Tensor, counter: Tensor) -> Tensor:
    """Stand for an operator that writes into what it is given, and perhaps elsewhere."""
    counter += 1
    return x.clone()


@count.register_fake
def _(x: Tensor, counter: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("name", ["auto_functionalized_v2", "with_effects", "while_loop"])
def test_a_race_calls_no_operator_through_another_one(name: str) -> None:
    """Before: an operator of the user's that writes ran in every round of a race."""
    graph = functional(lambda x: x.softmax(-1) * 2, ones(4, 4))
    assert runs_on_anything(graph)
    [last] = graph.find_nodes(op="output")
    with graph.inserting_before(last):
        graph.call_function(getattr(torch.ops.higher_order, name), (torch.ops.superopt_tests.count.default,))
    assert not runs_on_anything(graph)


def chosen(x: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cond(x.sum() > 0, choose, lambda x: x * 2, (x,))


@pytest.mark.parametrize(("choose", "may"), [(torch.exp, True), (tap, False)])
def test_what_a_condition_chooses_from_counts(choose: Any, may: bool) -> None:
    graph = functional(lambda x: chosen(x, choose), ones(4, 4))
    assert any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in graph.nodes)
    assert runs_on_anything(graph) is may


@pytest.mark.parametrize(
    ("function", "may"),
    [
        (lambda x, n: x.softmax(-1) * 2, True),
        (lambda x, n: x.softmax(-1)[n % 3], False),
        (lambda x, n: x.softmax(-1) / 3, True),
        (lambda x, n: x[torch.div(n, n, rounding_mode="trunc")], False),
        (lambda x, n: x[n], True),
        (lambda x, n: tap(x.softmax(-1)), False),
    ],
)
def test_what_a_race_may_call(function: Callable[..., Tensor], may: bool) -> None:
    """Before: operators that keep count ran hundreds of times, and a division by 0 ended the process."""
    graph = functional(function, ones(4, 4), torch.ones(4, dtype=torch.int64))
    assert runs_on_anything(graph) is may
