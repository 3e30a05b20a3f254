"""What is planned without its device: candidates whose algebra alone rounds worse are refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import superopt
import superopt.driver
from superopt import OptimizeOptions
from superopt.candidates import Candidate
from superopt.candidates.schedules import schedules
from superopt.cli import main
from superopt.fate import Fate, Kind
from superopt.funnel.rehearse import power_below, refuse_inaccurate, rounding_fault
from superopt.ir import Graph, parse_graph
from superopt.schedule.recipe import Recipe, followed, prepared
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.verify.floats.compare import compare_floats, compare_many, in_float64
from superopt.workloads import WORKLOADS

pytestmark = pytest.mark.usefixtures("everything_fits")

PLAN = OptimizeOptions(target="cuda:90", measure=False, cache=False)

DIFFERENCES = """
graph variance
axes m=16 k=4096
in x: f32[m, k]
a = sum[k](x)
b = size[k]()
c = div(a, b)
d = sub(x, c)
e = square(d)
f = sum[k](e)
g = div(f, b)
out y: f32[m] = g
"""
SQUARES = """
graph variance
axes m=16 k=4096
in x: f32[m, k]
a = sum[k](x)
b = size[k]()
c = div(a, b)
d = square(x)
e = sum[k](d)
f = div(e, b)
g = square(c)
h = sub(f, g)
out y: f32[m] = h
"""
AT_THIS_SIZE = DIFFERENCES.replace("b = size[k]()", "b = const[4096]()")
IN_PARTS = """
graph variance
axes m=16 k_outer=16 k_inner=256
in x: f32[m, (k_outer k_inner)]
a0 = sum[k_inner](x)
a = sum[k_outer](a0)
b0 = size[k_inner]()
b1 = size[k_outer]()
b = mul(b0, b1)
c = div(a, b)
d = square(x)
e0 = sum[k_inner](d)
e = sum[k_outer](e0)
f = div(e, b)
g = square(c)
h = sub(f, g)
out y: f32[m] = h
"""
ODD_PARTS = IN_PARTS.replace("k_outer=16 k_inner=256", "k_outer=8 k_inner=512")


def layer_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), g, b)


def candidate(graph: Graph, name: str) -> Candidate:
    return Candidate(name, graph, followed(prepared(graph, ()), Recipe()))


def fates(goal: str, *graphs: str, entering: tuple[str, ...] = ("x",)) -> list[str | None]:
    """Return why each graph is refused."""
    candidates = [candidate(parse_graph(text), str(at)) for at, text in enumerate(graphs)]
    found = refuse_inaccurate(parse_graph(goal), candidates, entering, seed=0)
    assert [one.id for one in found] == [one.id for one in candidates]
    assert {one.fate.kind for one in found} <= {Kind.KEPT, Kind.REFUSED}
    return [one.fate.reason or None for one in found]


def test_a_variance_by_squares_is_refused_and_one_by_differences_is_not() -> None:
    squares, differences, parts = fates(DIFFERENCES, SQUARES, DIFFERENCES, IN_PARTS)
    assert differences is None
    for refused in (squares, parts):
        assert refused is not None
        assert "its algebra at small sizes: floats (f32): offset: error" in refused


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_what_rounds_more_in_the_result_is_fine(dtype: str) -> None:
    """The output of few bits hides what fp32 loses."""
    goal, squares = (text.replace("f32", dtype) for text in (DIFFERENCES, SQUARES))
    scaled = squares.replace("h = sub(f, g)", "h0 = sub(f, g)\nh1 = const[64]()\nh = add(h0, h1)")
    shifted = goal.replace("g = div(f, b)", "g0 = div(f, b)\ng1 = const[64]()\ng = add(g0, g1)")
    assert fates(shifted, scaled) == [None]


def test_only_what_is_known_is_judged() -> None:
    assert fates(DIFFERENCES, SQUARES, entering=()) == [None]  # another region makes its input
    assert fates(DIFFERENCES, AT_THIS_SIZE) == [None]  # at small sizes it is another function
    assert fates(DIFFERENCES, ODD_PARTS) == [None]  # parts that no small size has
    assert fates(DIFFERENCES.replace("k=4096", "k=262144"), SQUARES.replace("k=4096", "k=262144"))[0]


def test_what_is_refused_already_keeps_its_reason() -> None:
    goal = parse_graph(DIFFERENCES)
    known = replace(candidate(parse_graph(SQUARES), "1"), fate=Fate("compile", Kind.FAILED, "it spills"))
    [found] = refuse_inaccurate(goal, [known], ("x",), seed=0)
    assert found.fate == known.fate


@pytest.mark.parametrize(
    ("function", "shapes", "why"),
    [
        (layer_norm, [(8, 4096), (4096,), (4096,)], "offset: error"),
        (
            WORKLOADS["layernorm-linear-gelu"].function,
            [(8, 2048), (2048,), (2048,), (2048, 2048), (2048,)],
            "constant rows: error",
        ),
    ],
)
def test_graphs_whose_sums_cancel_leave_their_places_to_others(
    function: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]], why: str
) -> None:
    """Before: all graphs that were compiled for layer norms were refused in floats, and none won."""
    program = trace(function, *map(torch.empty, shapes)).program
    [region] = superopt.driver.search(program).regions
    target = pick_target("cpu")
    known, unknown = (
        schedules(region.goal, region.found, target, graphs=3, entering=entering)
        for entering in ({port.name for port in program.inputs}, ())
    )
    [original] = [one.graph for one in region.found if one.is_original]
    assert {one.graph for one in known.candidates} == {original}
    assert not [one for one in unknown.dropped if one.name.startswith("found ")]
    [*refused] = [one for one in known.dropped if one.name.startswith("found ")]
    assert len(refused) == len(region.found) - 1
    assert all(why in one.fate.reason for one in refused)


DELAYED = """
graph norm
axes m=16 k=64 n=32
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
a = mul(x, g)
b = contract[k](a, w)
c = contract[k](x, x)
d = rsqrt(c)
e = mul(b, d)
out y: f16[m, n] = e
"""
NORMED = """
graph norm
axes m=16 k=64 n=32
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
a = contract[k](x, x)
b = rsqrt(a)
c = mul(x, b)
d = mul(c, g)
e = contract[k](d, w)
out y: f16[m, n] = e
"""


def test_rows_that_are_scaled_pass_where_rounding_them_as_they_are_overflows() -> None:
    goal, mugraph = parse_graph(NORMED), candidate(parse_graph(DELAYED), "1").mugraph
    overflow = rounding_fault(mugraph, goal, seed=0, wide=())
    assert "huge" in overflow
    assert "NaN or infinity where PyTorch has none" in overflow
    assert rounding_fault(mugraph, goal, seed=0, wide=(0,)) == ""


@pytest.mark.parametrize(
    ("rows", "powers"),
    [([3e38, 1.0, 0.75, 0.0, torch.inf, 1e-40], [2.0**127, 1.0, 0.5, 2.0**-112, 2.0**127, 2.0**-112])],
)
def test_powers_of_two_that_scale_rows(rows: list[float], powers: list[float]) -> None:
    assert power_below(torch.tensor(rows)).tolist() == powers


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    fates(DIFFERENCES, SQUARES)
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_a_plan_and_what_is_exported_of_it_are_accurate(tmp_path, capsys: pytest.CaptureFixture) -> None:
    inputs = tuple(torch.empty(shape, device="meta") for shape in ((64, 4096), (4096,), (4096,)))
    best = superopt.optimize(layer_norm, *inputs, options=PLAN)
    [plan] = best.regions
    several = (*plan.candidates, *plan.dropped)
    refused = [one for one in several if "its algebra" in one.fate.reason]
    assert refused
    assert plan.chosen is not None
    assert plan.chosen.graph not in {one.graph for one in refused if isinstance(one, Candidate)}
    assert "times what is allowed" in best.explain()
    best.save(tmp_path / "plan.json")
    assert main(["export", str(tmp_path / "plan.json"), "-o", str(tmp_path / "kernel.py")]) == 0
    narrow = tuple(one.half() for one in inputs)
    [plan] = superopt.optimize(layer_norm, *narrow, options=PLAN).regions
    assert not [one for one in plan.candidates if not one.fate.is_sound]


def test_many_are_compared_as_one_is() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.var(-1, correction=0)

    def squares(x: torch.Tensor) -> torch.Tensor:
        return (x * x).mean(-1) - x.mean(-1).square()

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x.var(-1, correction=0) * 1.00001

    inputs = (torch.empty(8, 300),)
    several = [function, squares, wrong]
    together = compare_many(in_float64(function), function, several, inputs, seed=3)
    alone = [compare_floats(function, one, inputs, seed=3) for one in several]
    assert together == alone
    assert [one.ok for one in together] == [True, False, False]


def test_the_trace_of_a_layer_norm_is_by_differences() -> None:
    """Else the goal itself would allow what is refused here."""
    graph = trace(layer_norm, *(torch.empty(shape) for shape in ((4, 32), (32,), (32,)))).graph
    assert "sub(x, " in str(graph)
