"""Running shifts: how each operator depends on a shift, and which loops may use one while it moves."""

from fractions import Fraction

import pytest
import torch
from interpreter import execute

from superopt.errors import GraphError
from superopt.ir import FusionChoices, Growth, fuse, growths, parse_graph, parse_mugraph, print_mugraph
from superopt.ir.running import rescaled_by
from superopt.trace.run import run_graph

KNOWN = """graph g
axes m=3 k=4
in x: f32[m, k]
in y: f32[m, k]
c = max[k](x)
three = const[3]()
zero = const[0]()
endless = infinity()
below = neg(endless)
mask = gt(x, y)
s = sub(x, c)
e = exp(s)
z = sum[k](e)
"""


def plus(degree: int | str) -> Growth:
    return Growth("plus", Fraction(degree))


def times(degree: int | str) -> Growth:
    return Growth("times", Fraction(degree))


STEPS: dict[str, Growth | None] = {
    "add(s, y)": plus(-1),
    "add(s, s)": plus(-2),
    "add(s, c)": None,
    "add(e, e)": times(-1),
    "add(e, y)": None,
    "add(e, s)": None,
    "sub(y, s)": plus(1),
    "sub(s, s)": None,
    "sub(e, z)": times(-1),
    "neg(s)": plus(1),
    "neg(e)": times(-1),
    "mul(e, y)": times(-1),
    "mul(e, e)": times(-2),
    "mul(s, three)": plus(-3),
    "mul(three, s)": plus(-3),
    "mul(s, y)": None,
    "mul(s, s)": None,
    "mul(s, e)": None,
    "div(e, z)": None,
    "div(y, e)": times(1),
    "div(s, three)": plus("-1/3"),
    "div(three, s)": None,
    "contract[k](e, y)": times(-1),
    "contract[k](s, y)": None,
    "square(e)": times(-2),
    "square(s)": None,
    "reciprocal(e)": times(1),
    "sqrt(e)": times("-1/2"),
    "rsqrt(e)": times("1/2"),
    "exp(s)": times(-1),
    "exp(e)": None,
    "log(e)": plus(-1),
    "log(s)": None,
    "sum[k](e)": times(-1),
    "sum[k](s)": None,
    "sum[m](e)": None,  # the shift differs along m
    "max[k](e)": times(-1),
    "max[k](s)": plus(-1),
    "maximum(s, s)": plus(-1),
    "maximum(s, y)": None,
    "maximum(e, zero)": None,
    "where(mask, s, below)": plus(-1),
    "where(mask, e, zero)": times(-1),
    "where(mask, s, zero)": None,
    "where(mask, e, y)": None,
    "where(e, y, y)": None,
    "abs(e)": times(-1),
    "relu(e)": times(-1),
    "abs(s)": None,
    "tanh(e)": None,
    "gt(s, y)": None,
}
CONSTANT = {"add(s, c)", "sub(s, s)", "div(e, z)"}


def growth_of(step: str) -> tuple[bool, Growth | None]:
    """Return whether the value of a step depends on the shift, and how."""
    renamed = KNOWN + f"out_ = {step}\n"
    names = ["c", "three", "zero", "endless", "below", "mask", "s", "e", "z", "out_"]
    graph = parse_graph(renamed + f"out o: f32[{', '.join(_axes(step))}] = out_\n")
    found = growths(graph, 2 + names.index("c"))
    value = len(graph.inputs) + names.index("out_")
    return value in found, found.get(value)


def _axes(step: str) -> list[str]:
    reduces = step.partition("(")[0]
    return [axis for axis in ("m", "k") if f"[{axis}]" not in reduces]


@pytest.mark.parametrize("step", [step for step in STEPS if step not in CONSTANT])
def test_every_operator_has_its_degree(step: str) -> None:
    depends, growth = growth_of(step)
    assert depends
    assert growth == STEPS[step]


@pytest.mark.parametrize("step", sorted(CONSTANT))
def test_what_cancels_does_not_depend_on_the_shift(step: str) -> None:
    assert growth_of(step) == (False, None)


@pytest.mark.parametrize(
    "step", [step for step, growth in STEPS.items() if growth and growth.kind == "times"]
)
def test_what_is_a_multiple_is_rescaled_as_its_degree_says(step: str) -> None:
    """Move the shift by 1/2 by hand: the value is multiplied by exp(degree / 2)."""
    growth = STEPS[step]
    moved = KNOWN.replace("c = max[k](x)", "c = max[k](x2)")
    graph = parse_graph(
        moved.replace("in y: f32[m, k]", "in y: f32[m, k]\nin x2: f32[m, k]")
        + f"out_ = {step}\nout o: f32[{', '.join(_axes(step))}] = out_\n"
    )
    torch.manual_seed(0)
    x, y = (torch.rand(3, 4, dtype=torch.float64) + 0.1 for _ in range(2))
    before = run_graph(graph, {"x": x, "y": y, "x2": x})["o"]
    after = run_graph(graph, {"x": x, "y": y, "x2": x + 0.5})["o"]
    assert growth is not None
    torch.testing.assert_close(after, before * torch.exp(torch.tensor(float(growth.degree) / 2)))


def test_only_multiples_and_constants_are_rescaled() -> None:
    assert rescaled_by(times(-1)) == -1
    assert rescaled_by(plus(0)) == 0
    assert rescaled_by(plus(-1)) is None
    assert rescaled_by(None) is None


HEAD = """graph g
axes m=3 k=7
in x: f32[m, k]
in y: f32[m, k]
"""


def softmax_sums(*lines: str, after: str, axes: str = "m", grid: str = "m") -> str:
    """Return one kernel that adds up in a loop in which a shift runs."""
    body = [f"    {line}" for line in lines]
    return "\n".join(
        [
            HEAD + f"kernel grid[{grid}]",
            "  t3 = const[-1000]()",
            "  loop[k] running t5",
            "    t4 max= max[k](x)",
            "    t5 = maximum(t4, t3)",
            "    t6 = sub(x, t5)",
            "    t7 = exp(t6)",
            *body,
            *after.splitlines(),
            f"out o: f32[{axes}] = t99",
            "",
        ]
    )


ACCEPTED = {
    "a sum": softmax_sums("t8 += sum[k](t7)", after="  t9 = log(t8)\n  t99 = add(t9, t5)"),
    "two sums, one a product": softmax_sums(
        "t8 += sum[k](t7)", "t9 += contract[k](t7, y)", after="  t99 = div(t9, t8)"
    ),
    "degree two": softmax_sums(
        "t8 += sum[k](t7)",
        "t9 = square(t7)",
        "t10 += sum[k](t9)",
        after="  t11 = square(t8)\n  t99 = div(t10, t11)",
    ),
    "what does not depend on it": softmax_sums(
        "t8 += sum[k](t7)",
        "t9 += sum[k](y)",
        after="  t10 = log(t8)\n  t11 = add(t10, t5)\n  t99 = mul(t11, t9)",
    ),
    "a second pass": softmax_sums(
        "t8 += sum[k](t7)",
        after="  loop[k]\n    again t6 = sub(x, t5)\n    again t7 = exp(t6)\n    t99 = div(t7, t8)",
        axes="m, k",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("tile", [1, 2, 3, 7])
def test_a_loop_whose_shift_moves_computes_the_same(name: str, tile: int) -> None:
    mugraph = parse_mugraph(ACCEPTED[name])
    torch.manual_seed(1)
    tensors = {port: torch.randn(3, 7, dtype=torch.float64) * 20 for port in ("x", "y")}
    expected = run_graph(mugraph.graph, tensors)
    torch.testing.assert_close(execute(mugraph, tensors, tile), expected)


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_text_keeps_what_runs(name: str) -> None:
    mugraph = parse_mugraph(ACCEPTED[name])
    text = print_mugraph(mugraph)
    assert "loop[k] running t" in text
    assert parse_mugraph(text) == mugraph


LOG = "  t99 = log(t8)"
REFUSED = {  # values are named by position: the shift, t5 above, is t4
    "t7 has no degree in t4": softmax_sums("t8 = tanh(t7)", "t9 += sum[k](t8)", after="  t99 = neg(t9)"),
    "t7 cannot be rescaled when t4 moves": softmax_sums("t8 max= max[k](t6)", after="  t99 = add(t8, t5)"),
    "t5 has no degree in t4": softmax_sums("t8 += sum[k](t7)", after=LOG).replace("sub(x, t5)", "mul(x, t5)"),
    "t7 has no degree in t4, which": softmax_sums("t8 += sum[m, k](t7)", after=LOG, axes="", grid=""),
    "it stores t6 while t4, on which it depends, still moves": softmax_sums(
        "t8 += sum[k](t7)", after="kernel grid[m]\n  loop[k]\n    t99 = div(t7, t8)", axes="m, k"
    ),
    "t4 runs with what is no maximum over 'k' alone": softmax_sums("t8 += sum[k](t7)", after=LOG).replace(
        "t4 max= max[k](x)", "t4 += sum[k](x)"
    ),
    "t5 cannot run: it takes other values": softmax_sums("t8 += sum[k](t7)", after=LOG).replace(
        "running t5", "running t7"
    ),
    "t2 is not made from maxima directly in its loop": softmax_sums("t8 += sum[k](t7)", after=LOG).replace(
        "running t5", "running t3"
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_loop_that_cannot_use_a_moving_shift_is_refused(reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        parse_mugraph(REFUSED[reason])


def test_a_name_that_nothing_computes_cannot_run() -> None:
    with pytest.raises(GraphError, match="q runs, but nothing computes it"):
        parse_mugraph(ACCEPTED["a sum"].replace("running t5", "running q"))


def test_what_a_moving_shift_changes_is_not_stored() -> None:
    graph = parse_mugraph(ACCEPTED["two sums, one a product"]).graph
    value = next(v for v, step in enumerate(graph.steps, len(graph.inputs)) if step.op == "exp")
    plain = fuse(graph, online=True)
    cut = fuse(graph, online=True, choices=FusionChoices(cuts=frozenset({value})))
    assert "running" in str(plain)
    assert "running" not in str(cut)
    tensors = {port: torch.randn(3, 7, dtype=torch.float64) for port in ("x", "y")}
    torch.testing.assert_close(execute(cut, tensors), execute(plain, tensors))
