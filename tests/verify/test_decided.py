"""Orders that are decided before any number is drawn: nothing that depends on the inputs ever is."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import inf
from random import Random

import pytest
import torch
from torch import Tensor

from superopt.bench.verdicts.pairs import constants_of, draw, parse
from superopt.bench.verdicts.programs.growth import grow
from superopt.bench.verdicts.programs.nodes import as_function
from superopt.ir import Graph, Output, Port, parse_graph, value_axes
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.verify.evaluation.orders import nonnegative_values
from superopt.verify.evaluation.tensorless import constants_of as rationals_of
from superopt.verify.graphs.decided_orders import decide_orders
from superopt.verify.graphs.equality import equal_graphs
from superopt.verify.graphs.ranges import ranges_of
from superopt.verify.ranges import Range

pytestmark = pytest.mark.filterwarnings("ignore")  # odd programs warn of odd shapes


def graph_of(function: Callable[..., Tensor], count: int = 2) -> Graph:
    """Return a function of short vectors as a graph."""
    return trace(function, *(torch.empty(5) for _ in range(count)), for_proof=True).graph


def random_graphs(count: int) -> Iterator[tuple[Graph, Iterator[dict[str, Tensor]]]]:
    """Yield regions of random programs that are all algebra, with inputs for each."""
    for number in range(count):
        root, shapes = grow(Random(number))
        inputs = parse(" ".join(f"f64[{m},{n}]" for m, n in shapes))
        function = as_function(root)
        traced = trace(function, *(torch.empty(one.shape) for one in inputs), for_proof=True)
        if not traced.program.opaque and traced.program.regions:
            drawn = draw(inputs, tuple({0.0, 1.0, -1.0, *constants_of(function)}), number)
            known = (traced.constants | dict(zip(traced.input_names, one, strict=True)) for one in drawn)
            yield traced.graph, known


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors agree wherever the first is finite."""
    a, b = torch.broadcast_tensors(a.double(), b.double())
    kept = a.isfinite()
    return torch.allclose(a[kept], b[kept], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("count", "least"), [(100, 10), pytest.param(250, 25, marks=pytest.mark.slow)])
def test_random_programs_stay_what_they_are(count: int, least: int) -> None:
    changed = 0
    for graph, inputs in random_graphs(count):
        made = decide_orders(graph, narrow=False)
        if made is None:
            continue
        changed += 1
        for known in inputs:
            before, after = (run_graph(one, known, torch.float64) for one in (graph, made))
            assert all(same(before[name], after[name]) for name in before), graph
    assert changed > least


@pytest.mark.parametrize(("count", "least"), [(50, 330), pytest.param(150, 1000, marks=pytest.mark.slow)])
def test_values_of_random_programs_lie_in_their_ranges(count: int, least: int) -> None:
    bounded = 0
    for graph, inputs in random_graphs(count):
        ranges = ranges_of(graph, rationals_of(graph, narrow=False)[2])
        shown = _with_all_values(graph)
        for known in inputs:
            found = run_graph(shown, known, torch.float64)
            for output in shown.outputs:
                own = ranges[output.value]
                numbers = found[output.port.name]
                numbers = numbers[numbers.isfinite()]
                slack = 1e-9 * (1 + numbers.abs())
                assert bool((numbers >= float(own.low) - slack).all()), (graph, output, own)
                assert bool((numbers <= float(own.high) + slack).all()), (graph, output, own)
                bounded += own.low > -inf
    assert bounded > least


def _with_all_values(graph: Graph) -> Graph:
    """Return the graph with each value of a step as an output, in the order of its axes."""
    axes, first = value_axes(graph), len(graph.inputs)
    outputs = [
        Output(Port(f"v{at}", "f64", tuple((axis,) for axis in sorted(axes[at]))), at)
        for at in range(first, first + len(graph.steps))
    ]
    return Graph(graph.name, graph.axes, graph.inputs, graph.steps, tuple(outputs))


DECIDED = {
    "a square": lambda x, y: torch.where(x * x >= 0, x, y),
    "a square and one": lambda x, y: torch.where(x * x + 1 > 0, x, y),
    "exp": lambda x, y: torch.where(x.exp() > 0, x, y),
    "a root": lambda x, y: torch.where((1 + x * x).sqrt() >= 1, x, y),
    "one more": lambda x, y: torch.where(x + y + 1 > y + x, x, y),
    "cos": lambda x, y: x.cos().clamp(-1, 1) * y,
    "a rising function": lambda x, y: torch.where(x.tanh() > y.tanh(), x, y),
    "sigmoid above a half": lambda x, y: torch.where(x.sigmoid() >= 0.5, x, y),
    "an interval": lambda x, y: torch.where((x - 4).abs() < 2, x, y),
}
OPEN = {
    "an order": lambda x, y: torch.where(x > y, x, y),
    "a square above zero": lambda x, y: torch.where(x * x > 0, x, y),
    "relu above zero": lambda x, y: torch.where(x.relu() > 0, x, y),
    "one more than another": lambda x, y: torch.where(x + 1 > y, x, y),
    "a maximum and one of its numbers": lambda x, y: torch.where(x.amax() > x, x, y),
    "exp above two": lambda x, y: torch.where(x.exp() > 2, x, y),
    "what may be undefined": lambda x, y: torch.where((1 / x).square() >= 0, x, y),
    "the root of what may be negative": lambda x, y: torch.where(x.sqrt() >= 0, x, y),
    "the maximum of what may be undefined": lambda x, y: torch.maximum(x.exp(), -(1 / y).square()),
}


@pytest.mark.parametrize("name", DECIDED)
def test_what_order_decides(name: str) -> None:
    assert decide_orders(graph_of(DECIDED[name]), narrow=True) is not None


@pytest.mark.parametrize("name", OPEN)
def test_what_order_leaves_open(name: str) -> None:
    assert decide_orders(graph_of(OPEN[name]), narrow=True) is None


def test_the_largest_of_no_numbers_is_below_all() -> None:
    """No range and no sign says otherwise, though a maximum of squares is elsewhere never negative."""
    text = """graph over
axes m=2 k={}
in x: f32[m, k]
y = square(x)
z = max[k](y)
zero = const[0]()
one = const[1]()
d = ge(z, zero)
e = where(d, zero, one)
s = sum[k](x)
t = add(e, s)
out o: f32[m] = t
"""
    some, none = parse_graph(text.format(3)), parse_graph(text.format(0))
    assert decide_orders(some, narrow=True) is not None
    assert nonnegative_values(some)[2]
    assert decide_orders(none, narrow=True) is None
    assert not nonnegative_values(none)[2]
    never = parse_graph("graph zero\naxes m=2 k=0\nin x: f32[m, k]\ns = sum[k](x)\nout o: f32[m] = s\n")
    assert not equal_graphs(none, never).equal  # one of them is 1, the other 0


def test_ranges() -> None:
    one, two = Range(Fraction(1), Fraction(2)), Range(Fraction(-2), Fraction(0), high_open=True)
    assert one + two == Range(Fraction(-1), Fraction(2), high_open=True)
    assert one * two == Range(Fraction(-4), Fraction(0))
    assert -two == Range(Fraction(0), Fraction(2), low_open=True)
    assert (-two).positive
    assert not (one * Range(total=False)).total
    assert (one | two) == Range(Fraction(-2), Fraction(2))
    assert one.larger(two) == one
    assert two.magnitude() == -two
