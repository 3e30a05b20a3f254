"""A muGraph in pieces that run one after the other computes what it computes as a whole."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import TWO_PRODUCTS, gated_backward
from torch import Tensor
from torch.nn import functional as F

from superopt.ir import Graph, MuGraph, fuse, kernels_apart, parse_mugraph
from superopt.schedule import explored
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.workloads import WORKLOADS

TINY = {
    "M": 2, "K": 4, "N": 3, "R": 2, "B": 1, "H": 2, "G": 1, "S": 3, "T": 4, "D": 2, "L": 3, "E": 4,
    "Q": 4, "P": 2, "V": 3,
}  # fmt: skip


class _Found:
    """A graph as a search would have found it."""

    splits = ()
    is_original = True

    def __init__(self, graph: Graph) -> None:
        self.graph = graph


def _norm(x: Tensor, g: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    y = x * r * g
    return r, y, F.softmax(y @ w, -1) @ w.t() + x


def _masked(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """A mask that a second kernel reads."""
    kept = (x @ w) > 0
    return torch.where(kept, x, x.square()) @ w, kept.float().sum(0)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "gated": (gated_backward, [(6, 5), (6, 5), (6, 5), (6, 4), (5, 3)]),
    "norm": (_norm, [(6, 5), (5,), (5, 4)]),
    "masked": (_masked, [(5, 5), (5, 5)]),
}


def _graph(name: str, dtype: torch.dtype = torch.float32) -> Graph:
    if name in PROGRAMS:
        function, shapes = PROGRAMS[name]
        return trace(function, *(torch.empty(one, dtype=dtype) for one in shapes), name="w").graph
    item = WORKLOADS[name]
    sizes = {size: value for size, value in TINY.items() if size in item.sizes}
    return trace(item.function, *item.inputs(**sizes), name="w").graph


def _drawn(graph: Graph) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {port.name: torch.rand(graph.shape(port), dtype=torch.float64) + 0.5 for port in graph.inputs}


def _run_apart(mugraph: MuGraph, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run the pieces in order, each of what it reads; whatever nothing reads later is gone."""
    pieces = [piece for _, piece in kernels_apart(mugraph)]
    known = dict(tensors)
    for piece in pieces:
        given = {port.name: known[port.name] for port in piece.graph.inputs}
        known |= run_graph(piece.graph, given)
    return {output.port.name: known[output.port.name] for output in mugraph.graph.outputs}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in (*PROGRAMS, *WORKLOADS) if name != "llama-layer"),
        pytest.param("llama-layer", torch.float32, marks=pytest.mark.slow),
        *((name, torch.bfloat16) for name in PROGRAMS),
    ],
)
def test_pieces_compute_the_whole(name: str, dtype: torch.dtype) -> None:
    graph = _graph(name, dtype)
    tensors, target = _drawn(graph), pick_target("cpu")
    expected = run_graph(graph, tensors)
    parted = 0
    for one in [fuse(graph), *(way.mugraph for way in explored([_Found(graph)], target.cost_device()))]:
        segments = [segment for segment, _ in kernels_apart(one)]
        assert [at for segment in segments for at in segment] == list(range(len(one.kernels)))
        parted += len(segments) > 1
        torch.testing.assert_close(_run_apart(one, tensors), expected, rtol=1e-9, atol=1e-9)
    assert parted or name not in ("gated", "norm")


def test_pieces_have_the_dtype_between_kernels() -> None:
    mugraph = parse_mugraph(TWO_PRODUCTS.replace("f32", "bf16").format(rounding="round t3 to bf16\n"))
    [(_, first), (_, last)] = kernels_apart(mugraph)
    assert [output.port.dtype for output in first.graph.outputs] == ["bf16"]
    assert [port.name for port in last.graph.inputs] == ["v", first.graph.outputs[0].port.name]
    assert not first.rounded
    assert not last.rounded


def test_parts_stay_together() -> None:
    """What has the axis of a part has no form as a tensor of a program."""
    mugraph = parse_mugraph(IN_PARTS)
    assert kernels_apart(mugraph) == [(range(2), mugraph)]


IN_PARTS = """graph parts
axes m=4 k_part=2 k_at=8 n=6 k=16
in x: f32[m, (k_part k_at)]
in w: f32[(k_part k_at), n]
split k into k_part k_at
kernel grid[m, k_part, n]
  loop[k_at]
    t2 += contract[k_at](x, w)
kernel grid[m, n]
  t3 = sum[k_part](t2)
out out: f32[m, n] = t3
"""


def test_masks_stay_together() -> None:
    mugraph = parse_mugraph(MASKED)
    assert kernels_apart(mugraph) == [(range(2), mugraph)]


MASKED = """graph masks
axes m=4 k=8 n=6
in x: f32[m, k]
in w: f32[k, n]
kernel grid[m]
  loop[k]
    t2 += contract[k](x, x)
  t3 = const[0]()
  t4 = lt(t3, t2)
kernel grid[m, n]
  loop[k]
    t5 += contract[k](x, w)
  t6 = mul(t4, t5)
out out: f32[m, n] = t6
"""


TWO = TWO_PRODUCTS.format(rounding="")


@pytest.mark.parametrize("name", ["x: f32[m, k]", "v: f32[n, r]"])
def test_an_input_that_leaves_is_a_result_of_the_first_piece(name: str) -> None:
    """It is so also where the first kernel does not read it."""
    mugraph = parse_mugraph(TWO + f"out kept{name[1:]} = {name[0]}\n")
    [(_, first), (_, last)] = kernels_apart(mugraph)
    assert [output.port.name for output in first.graph.outputs] == ["kept", "two_t3"]
    assert [output.port.name for output in last.graph.outputs] == ["out"]
    _check_pieces(mugraph)


def test_a_result_that_is_repeated_is_not_read_again() -> None:
    """Kernels read one row where the result has many equal ones."""
    mugraph = parse_mugraph(TWO + "out wide: f32[m, r, n] = t3\n")
    [_, (_, last)] = kernels_apart(mugraph)
    assert [port.dims for port in last.graph.inputs] == [(("n",), ("r",)), (("m",), ("n",))]
    _check_pieces(mugraph)


def _check_pieces(mugraph: MuGraph) -> None:
    tensors = _drawn(mugraph.graph)
    torch.testing.assert_close(_run_apart(mugraph, tensors), run_graph(mugraph.graph, tensors))
