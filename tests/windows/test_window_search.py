"""The search derives the forms of convolutions by itself; each is proven, and its kernels are right."""

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.codegen.cpp import CppMuGraph
from superopt.driver import RegionSearch, SearchOptions, search
from superopt.frontier.tensors.grid import Grid
from superopt.ir import Graph, fuse, parse_graph
from superopt.precision import with_rounding
from superopt.rules.terms import goal_of
from superopt.trace.run import run_graph
from superopt.verify.graphs.equality import equal_graphs

CONV3X3 = """graph conv
axes b=2 c=7 f=5 h1=9 w1=8 h=9 w=8 r=3 s=3
in x: f32[b, c, h1, w1]
in w: f32[f, c, r, s]
t2 = window[h1 = h + r - 1, w1 = w + s - 1](x)
t3 = contract[c, r, s](t2, w)
out y: f32[b, f, h, w] = t3
"""
OFFSET = """t2 = contract[c](x, w)
t3 = window[h1 = h + r - 1, w1 = w + s - 1](t2)
t4 = sum[r, s](t3)
"""


def searched(text: str, graphs: int = 16) -> RegionSearch:
    """Return the complete search of a graph, all of which is proven, however slow the machine is."""
    options = SearchOptions(seed=1, max_graphs=graphs, seconds=600)
    [region] = search(parse_graph(text), options=options).regions
    assert not region.truncated
    assert region.reached
    assert not region.notes
    assert all(one.verdict.equal for one in region.found)
    return region


def steps_of(graph: Graph) -> str:
    """Return the steps of a graph as text."""
    return "".join(
        f"{line}\n" for line in str(graph).splitlines() if " = " in line and not line.startswith("out")
    )


def check_kernels(graph: Graph, tensors: Mapping[str, Tensor], expected: Tensor) -> None:
    """Compare the interpreter and the C++ kernels of a graph with float64."""
    doubles = {name: one.double() for name, one in tensors.items()}
    torch.testing.assert_close(run_graph(graph, doubles)["y"], expected)
    kernels = CppMuGraph(with_rounding(fuse(graph)), {})
    [found] = kernels.in_order([tensors[port.name] for port in graph.inputs])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_a_convolution_is_a_product_of_matrices_and_a_sum_of_shifts() -> None:
    region = searched(CONV3X3)
    forms = {steps_of(one.graph): one.graph for one in region.found}
    assert OFFSET in forms
    torch.manual_seed(0)
    tensors = {"x": torch.randn(2, 7, 9, 8), "w": torch.randn(5, 7, 3, 3)}
    expected = F.conv2d(tensors["x"].double(), tensors["w"].double(), padding=1)
    check_kernels(forms[OFFSET], tensors, expected)


def test_a_transposed_convolution_is_a_product_of_matrices_and_a_sum_of_shifts() -> None:
    def transposed(x: Tensor, w: Tensor) -> Tensor:
        return F.conv_transpose2d(x, w, stride=2, padding=1)

    torch.manual_seed(0)
    inputs = torch.randn(1, 64, 14, 14), torch.randn(64, 32, 4, 4)
    options = SearchOptions(seed=1, max_graphs=100, seconds=600)
    [region] = search(transposed, *inputs, options=options).regions
    products = [one.graph for one in region.found if _is_a_product_first(one.graph)]
    assert products
    assert all(one.verdict.equal for one in region.found)
    expected = transposed(*(one.double() for one in inputs))
    for graph in products:
        named = {port.name: one.double() for port, one in zip(graph.inputs, inputs, strict=True)}
        [found] = run_graph(graph, named).values()
        torch.testing.assert_close(found, expected)
        kernels = CppMuGraph(with_rounding(fuse(graph)), {})
        [made] = kernels.in_order(inputs)
        torch.testing.assert_close(made.double(), expected, rtol=1e-4, atol=1e-4)


def _is_a_product_first(graph: Graph) -> bool:
    """Whether whole tensors are multiplied first, and windows of the product summed."""
    first, *rest = graph.steps
    inputs = range(len(graph.inputs))
    return (
        first.op == "contract"
        and set(first.inputs) == set(inputs)
        and {step.op for step in rest} == {"window", "sum"}
        and not any(at in step.inputs for step in rest for at in inputs)
    )


def test_the_order_of_places_makes_no_other_graph() -> None:
    turned = CONV3X3.replace("h1 = h + r - 1, w1 = w + s - 1", "w1 = w + s - 1, h1 = h + r - 1")
    assert turned != CONV3X3
    first, second = ([steps_of(one.graph) for one in searched(text).found] for text in (CONV3X3, turned))
    assert first == second
    assert len(set(first)) == len(first)


def test_a_pool_of_a_convolution_with_one_tap_is_one_of_a_pool() -> None:
    region = searched("""graph pool
axes b=2 c=16 f=32 h1=9 w=8 h=9 r=3
in x: f32[b, c, h1, w]
in w: f32[f, c]
t2 = contract[c](x, w)
t3 = window[h1 = h + r - 1](t2)
t4 = sum[r](t3)
out y: f32[b, f, h, w] = t4
""")
    first = region.found[0]
    assert not first.is_original
    assert (
        steps_of(first.graph)
        == """t2 = window[h1 = h + r - 1](x)
t3 = sum[r](t2)
t4 = contract[c](t3, w)
"""
    )


def test_activations_pass_windows_where_they_are_0_at_0() -> None:
    text = """graph act
axes b=2 h1=9 h=9 r=3
in x: f32[b, h1]
in w: f32[r]
t2 = {op}(x)
t3 = window[h1 = h + r - 1](t2)
t4 = contract[r](t3, w)
out y: f32[b, h] = t4
"""
    for op, passes in (("relu", True), ("silu", True), ("sin", True), ("sqrt", True), ("exp", False)):
        found = searched(text.format(op=op)).found
        moved = [one for one in found if "window[h1 = h + r - 1](x)" in str(one.graph)]
        assert bool(moved) is passes, op


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("h + r - 1", "h + r"),
        ("h + r - 1", "h + r - 2"),
        ("w + s - 1", "w - s + 1"),
        ("h + r - 1, w1 = w + s - 1", "h + s - 1, w1 = w + r - 1"),
    ],
)
def test_wrong_offset_forms_are_refused(old: str, new: str) -> None:
    head, _, _ = CONV3X3.partition("t2 =")
    out = "out y: f32[b, f, h, w] = t4\n"
    graph = parse_graph(CONV3X3)
    assert equal_graphs(graph, parse_graph(head + OFFSET + out), seed=1).equal
    other = OFFSET.replace(old, new)
    assert other != OFFSET
    verdict = equal_graphs(graph, parse_graph(head + other + out), seed=1)
    assert not verdict.equal
    assert verdict.witness is not None


def test_any_whole_number_is_the_seed_of_a_search() -> None:
    """Before: a seed below 0 was an error where a goal reads windows."""
    one, other = (Grid(goal_of(parse_graph(CONV3X3)), seed=seed).roots for seed in (-1, 2**64))
    assert one[0].shape == other[0].shape
