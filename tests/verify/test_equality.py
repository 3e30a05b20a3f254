"""Equality: identities hold, wrong variants are refuted, and no identity of one size passes."""

import math
import random
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ATTENTION, RMSNORM, edit

from superopt.errors import InputError
from superopt.ir import Axis, Graph, Output, Port, Step, check_graph, parse_graph, refine_axis, rename_axes
from superopt.ops import OPS
from superopt.verify.graphs.equality import equal_graphs


def test_an_identity_of_two_elements_is_none_of_many():
    # e3 = 0 for two numbers: p1^3 - 3 p1 p2 + 2 p3 = 0 where p_i is the sum of i-th powers.
    text = """
graph newton
axes k=SIZE
in x: f32[k]
a = square(x)
b = mul(a, x)
p = sum[k](x)
q = sum[k](a)
r = sum[k](b)
c = const[3]()
d = const[2]()
e = mul(p, q)
f = mul(e, c)
g = square(p)
h = mul(g, p)
i = mul(r, d)
j = add(h, i)
out y: f32[] = OUT
"""
    for size, equal in ((1, False), (2, True), (3, False), (64, False)):
        left, right = (parse_graph(text.replace("SIZE", str(size)).replace("OUT", out)) for out in "jf")
        assert equal_graphs(left, right).equal == (equal or size == 1), size


@pytest.mark.parametrize(
    ("count", "equal"), [("size[k]", True), ("const[64]", True), ("const[63]", False), ("const[3]", False)]
)
def test_a_count_is_its_extent_and_no_other(count, equal):
    text = "graph a\naxes k=64\nin x: f32[k]\ns = sum[k](x)\nc = {}()\no = div(s, c)\nout y: f32[] = o"
    mean = parse_graph(text.format("size[k]"))
    assert equal_graphs(mean, parse_graph(text.format(count))).equal == equal


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1 / math.sqrt(128), 128**-0.5, True),
        (0.1 + 0.2, 0.3, True),
        (9.999999974752427e-07, 1e-06, True),  # float32 on the way
        (math.sqrt(0.5), 1 / math.sqrt(2), True),
        (0.3, 0.3001, False),
        (0.125, 0.1250001, False),
        (1e-5, 1e-6, False),
        (2.0, -2.0, False),
    ],
)
def test_constants_are_what_they_stand_for(one, other, equal):
    text = "graph a\naxes k=8\nin x: f32[k]\nc = const[{!r}]()\no = mul(x, c)\nout y: f32[k] = o"
    assert equal_graphs(parse_graph(text.format(one)), parse_graph(text.format(other))).equal == equal


def test_names_of_axes_and_split_axes_do_not_matter():
    graph = parse_graph(ATTENTION)
    renamed = rename_axes(graph, {axis.name: f"{axis.name}_" for axis in graph.axes})
    assert equal_graphs(graph, renamed).equal
    split = refine_axis(graph, "n", [Axis("n0", 32), Axis("n1", 128)])
    assert equal_graphs(graph, split).equal
    assert equal_graphs(split, graph).equal


GRAM = "graph gram\naxes {}\nin x: f32[{}, k]\na = rename[{}](x)\nc = contract[k](x, a)\nout y: f32[{}] = c"


def test_renamed_axes_split_alike():
    whole = parse_graph(GRAM.format("i=12 j=12 k=5", "i", "i->j", "i, j"))
    split = parse_graph(GRAM.format("p=3 q=4 r=3 s=4 k=5", "(p q)", "p->r, q->s", "(p q), (r s)"))
    crossed = parse_graph(GRAM.format("p=3 q=4 r=3 s=4 k=5", "(p q)", "p->r, q->s", "(r s), (p q)"))
    square = parse_graph(GRAM.format("i=16 j=16 k=5", "i", "i->j", "i, j"))
    twisted = parse_graph(GRAM.format("p=4 q=4 r=4 s=4 k=5", "(p q)", "p->s, q->r", "(p q), (r s)"))
    assert equal_graphs(whole, split).equal
    assert equal_graphs(split, crossed).equal
    assert not equal_graphs(square, twisted).equal


@pytest.mark.parametrize("position", [0, 5, 11])
def test_a_selected_position_splits(position):
    whole = f"graph a\naxes k=12\nin x: f32[k]\na = select[k={position}](x)\nout y: f32[] = a"
    split = "graph b\naxes p=3 q=4\nin x: f32[(p q)]\na = select[p={}, q={}](x)\nout y: f32[] = a"
    assert equal_graphs(parse_graph(whole), parse_graph(split.format(*divmod(position, 4)))).equal
    assert not equal_graphs(parse_graph(whole), parse_graph(split.format(1, 2))).equal


@pytest.mark.parametrize(
    "text",
    [
        "axes k=0\nin x: f32[k]\ns = sum[k](x)\nout y: f32[] = s",
        "axes k=0 m=3\nin x: f32[m, k]\ns = max[k](x)\nout y: f32[m] = s",
        "axes k=0\nin x: f32[k]\ns = exp(x)\nout y: f32[k] = s",
        "axes k=3\nc = const[2]()\nout y: f32[k] = c",
        "axes k=1\nin x: f32[1, k]\ns = neg(x)\nout y: f32[k, 1] = s",
        "axes k=3\nin x: f32[k]\nout y: f32[k] = x",
    ],
)
def test_odd_shapes(text):
    graph = parse_graph(f"graph g\n{text}")
    assert equal_graphs(graph, graph).equal


def test_inputs_match_by_position_where_names_differ():
    other = edit(RMSNORM, ("in x:", "in p:"), ("square(x)", "square(p)"), ("mul(x, r)", "mul(p, r)"))
    assert equal_graphs(parse_graph(RMSNORM), other).equal


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((("k=4096", "k=4095"),), r"input 'x' differs between the programs: f16\[16, 4096\] and"),
        ((("out y: f16", "out y: f32"),), r"return different tensors: f16\[16, 6144\] and f32\[16, 6144\]"),
        (
            (
                ("in g: f16[k]", "in g: f16[k]\nin h: f16[k]"),
                ("h = mul(x, r)", "hh = mul(x, r)"),
                ("mul(h, g)", "mul(hh, g)"),
            ),
            "takes 3 tensors",
        ),
    ],
)
def test_programs_that_cannot_be_compared_say_why(changes, message):
    with pytest.raises(InputError, match=message):
        equal_graphs(parse_graph(RMSNORM), edit(RMSNORM, *changes))


def test_values_too_large_to_evaluate_are_not_compared():
    steps = "".join(
        f"{axis}0 = index[{axis}]()\n{axis}1 = index[{axis}2]()\n{axis} = eq({axis}0, {axis}1)\n"
        for axis in "ab"
    )
    text = "graph g\naxes a=64 a2=64 b=64 b2=64\nin x: f32[a, a2, b, b2]\n" + steps
    text += "{}\nout y: f32[a, a2, b, b2] = o\n"
    one = parse_graph(text.format("c = mul(a, b)\no = mul(c, x)"))
    other = parse_graph(text.format("c = mul(b, x)\no = mul(a, c)"))
    verdict = equal_graphs(one, other)
    assert verdict.unknown
    assert "elements" in verdict.notes[0]


def test_unknown_functions_are_named():
    text = "graph a\naxes k=8\nin x: f32[k]\na = {}(x)\no = mul(a, a)\nout y: f32[k] = {}"
    log = parse_graph(text.format("log", "o"))
    verdict = equal_graphs(log, parse_graph(text.format("log", "o").replace("mul(a, a)", "square(a)")))
    assert verdict.equal
    assert verdict.oracles == ("log",)
    assert "unknown functions, equal for equal arguments: log" in str(verdict)
    assert not equal_graphs(log, parse_graph(text.format("log2", "o"))).equal


def test_a_program_that_is_undefined_everywhere_is_not_equal_to_one_that_is_not():
    text = "graph a\naxes k=8\nin x: f32[k]\na = sub(x, x)\no = {}\nout y: f32[k] = o"
    verdict = equal_graphs(parse_graph(text.format("add(x, a)")), parse_graph(text.format("div(x, a)")))
    assert not verdict.equal
    assert "the second program divides by zero on every input" in str(verdict)


# Random programs. Equal by a known identity: must pass. Verdicts of random changes: floats decide.

AXES = (Axis("i", 5), Axis("j", 4), Axis("k", 6))
INPUTS = (
    Port("x", "f32", (("i",), ("k",))),
    Port("y", "f32", (("k",), ("j",))),
    Port("z", "f32", (("i",), ("k",))),
)
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
UNARY = ("neg", "square", "exp", "sqrt", "sigmoid", "silu", "relu", "abs", "rsqrt", "reciprocal", "tanh")


@st.composite
def programs(draw, max_steps: int = 7) -> Graph:
    axes = [frozenset(port.axes) for port in INPUTS]
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, max_steps))):
        values = st.integers(0, len(axes) - 1)
        a, b = draw(values), draw(values)
        kind = draw(st.sampled_from(["unary", "binary", "binary", "sum", "contract"]))
        shared = sorted(axes[a] & axes[b]) if kind == "contract" else sorted(axes[a])
        if kind == "unary" or (kind != "binary" and not shared):
            steps.append(Step(draw(st.sampled_from(UNARY)), (a,)))
            axes.append(axes[a])
        elif kind == "binary":
            steps.append(Step(draw(st.sampled_from(BINARY)), (a, b)))
            axes.append(axes[a] | axes[b])
        else:
            axis = draw(st.sampled_from(shared))
            steps.append(Step(kind, (a, b) if kind == "contract" else (a,), axes=(axis,)))
            axes.append((axes[a] | axes[b] if kind == "contract" else axes[a]) - {axis})
    dims = tuple((axis.name,) for axis in AXES if axis.name in axes[-1])
    output = Output(Port("out", "f32", dims), len(axes) - 1)
    return check_graph(Graph("random", AXES, INPUTS, tuple(steps), (output,)))


def spell(graph: Graph, rng: random.Random) -> Graph:
    """Return an equal graph: every step written another way, at random."""
    first = len(graph.inputs)
    position = list(range(first))
    steps: list[Step] = []

    def emit(op: str, *inputs: int, axes: tuple[str, ...] = (), value: int | None = None) -> int:
        steps.append(Step(op, inputs, axes=axes, value=None if value is None else Fraction(value)))
        return first + len(steps) - 1

    for step in graph.steps:
        args = [position[i] for i in step.inputs]
        if rng.random() < 0.3:
            position.append(emit(step.op, *args, axes=step.axes))
            continue
        match step.op:
            case "add" | "mul" | "maximum" | "minimum" | "contract":
                new = emit(step.op, *args[::-1], axes=step.axes)
            case "sub":
                new = emit("neg", emit("sub", *args[::-1]))
            case "div":
                new = emit("mul", emit("reciprocal", args[1]), args[0])
            case "square":
                new = emit("mul", args[0], args[0])
            case "exp":
                half = emit("div", args[0], emit("const", value=2))
                root = emit("exp", half)
                new = emit("mul", root, root)
            case "sqrt":
                new = emit("mul", args[0], emit("rsqrt", args[0]))
            case "rsqrt":
                new = emit("reciprocal", emit("sqrt", args[0]))
            case "silu":
                new = emit("mul", args[0], emit("sigmoid", args[0]))
            case "sum":
                new = emit("contract", args[0], emit("const", value=1), axes=step.axes)
            case "neg":
                new = emit("mul", args[0], emit("const", value=-1))
            case _:
                new = emit(step.op, *args)
        position.append(new)
    outputs = tuple(Output(output.port, position[output.value]) for output in graph.outputs)
    return check_graph(Graph("spelled", graph.axes, graph.inputs, tuple(steps), outputs))


@settings(max_examples=50, deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_random_programs_equal_themselves_spelled_another_way(graph, rng):
    equals_itself_spelled_another_way(graph, rng)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_many_random_programs_equal_themselves_spelled_another_way(graph, rng):
    equals_itself_spelled_another_way(graph, rng)


def equals_itself_spelled_another_way(graph, rng):
    verdict = equal_graphs(graph, spell(graph, rng))
    # A program that divides by zero everywhere, or takes too many roots, stays undecided.
    assert not verdict.different, f"{verdict}\n{graph}\n{spell(graph, rng)}"


def mutate(graph: Graph, rng: random.Random) -> Graph | None:
    """Return the graph with one step changed, or None where the change breaks it."""
    place = rng.randrange(len(graph.steps))
    step = graph.steps[place]
    if step.op in BINARY:
        other = Step(rng.choice([op for op in BINARY if op != step.op]), step.inputs)
        if step.op in ("sub", "div") and rng.random() < 0.5:
            other = Step(step.op, step.inputs[::-1])
    elif step.op in UNARY:
        other = Step(rng.choice([op for op in UNARY if op != step.op]), step.inputs)
    else:
        return None
    steps = (*graph.steps[:place], other, *graph.steps[place + 1 :])
    return check_graph(Graph("mutant", graph.axes, graph.inputs, steps, graph.outputs))


@settings(max_examples=150, deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_no_mutant_passes_that_floats_tell_apart(graph, rng):
    torch = pytest.importorskip("torch")
    from superopt.trace.run import run_graph

    mutant = mutate(graph, rng)
    if mutant is None:
        return
    verdict = equal_graphs(graph, mutant)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        port.name: torch.rand(graph.shape(port), generator=generator, dtype=torch.float64) + 0.5
        for port in graph.inputs
    }
    a, b = (run_graph(g, tensors)["out"] for g in (graph, mutant))
    usable = a.isfinite() & b.isfinite()
    if not usable.any():
        return
    error = ((a - b).abs() / (a.abs() + 1e-30))[usable].max()
    if error > 1e-6:
        assert not verdict.equal, f"{verdict}\n{graph}\n{mutant}"


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_every_operator_equals_itself_and_nothing_else(step):
    names = [name for name, op in OPS.items() if op.arity == 1 and name != "not"]
    text = "graph a\naxes k=8\nin x: f32[k]\no = {}(x)\nout y: f32[k] = o"
    graphs = {name: parse_graph(text.format(name)) for name in names}
    for name, graph in graphs.items():
        assert equal_graphs(graph, graph).equal, name
    pairs = list(combinations(sorted(names), 2))[::step]
    verdicts = {(a, b): equal_graphs(graphs[a], graphs[b]).equal for a, b in pairs}
    assert not any(verdicts.values()), [pair for pair, equal in verdicts.items() if equal]
