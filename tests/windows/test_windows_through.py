"""Windows moved to what enters: the same numbers, whatever they read, and proofs where axes are long."""

import random
from fractions import Fraction

import pytest
import torch

from superopt.ir import Axis, Graph, Output, Port, Step, check_graph, parse_graph
from superopt.ir.graph import step_axes, value_axes
from superopt.ir.windows.place import Place
from superopt.ir.windows.through import windows_through
from superopt.trace.run import run_graph
from superopt.verify.graphs.equality import equal_graphs


def random_graph(seed: int) -> Graph:
    """Return sums, products and contractions of two tensors, with windows anywhere that read anything."""
    draw = random.Random(seed)
    axes = [Axis("a", 3), Axis("b", 4), Axis("c", 12)]
    inputs = (Port("x", "f64", (("a",), ("b",))), Port("y", "f64", (("c",), ("b",))))
    steps: list[Step] = []
    known = [frozenset(port.axes) for port in inputs]

    def emit(step: Step) -> None:
        steps.append(step)
        known.append(step_axes(step, tuple(known[i] for i in step.inputs)))

    emit(Step("const", value=Fraction(draw.choice((0, 2)))))
    for number in range(9):
        one = draw.randrange(len(known))
        alike = [i for i, other in enumerate(known) if other == known[one]]
        kind = draw.choice(
            ("window", "window", "window", "add", "sub", "mul", "contract", "neg", "square", "clip")
        )
        if kind == "window" and known[one]:
            read = draw.sample(sorted(known[one]), draw.choice((1, 1, len(known[one]))))
            fresh = [Axis(f"w{number}_{at}", draw.choice((3, 4, 7))) for at in range(draw.choice((1, 1, 2)))]
            old = [axis for axis in axes if axis.name in "abc" and axis.name not in known[one]]
            beside = [axis for axis in axes if axis.name in known[one] - {*read}]
            if (old or beside) and draw.random() < 0.5:
                fresh = [draw.choice(old + beside)]
            factors = draw.choice(((4, 1), (1, 2), (-1, 3), (1, 1)))
            factors = factors[-len(fresh) :]
            terms = tuple((axis.name, by) for axis, by in zip(fresh, factors, strict=True))
            axes += [axis for axis in fresh if axis not in axes]
            emit(Step("window", (one,), places=(Place(tuple(read), terms, draw.randint(-9, 9)),)))
        elif kind in ("add", "sub"):
            emit(Step(kind, (one, draw.choice(alike))))
        elif kind in ("mul", "contract"):
            other = draw.randrange(len(known))
            shared = sorted(known[one] | known[other])
            if kind == "mul" and len(shared) < 5:
                emit(Step(kind, (one, other)))
            elif shared and len(shared) < 6:
                emit(Step("contract", (one, other), (draw.choice(shared),)))
        elif kind in ("neg", "square"):
            emit(Step(kind, (one,)))
        elif kind == "clip":
            emit(Step("const", value=Fraction(draw.choice((-1, 0, 1)))))
            emit(Step(draw.choice(("minimum", "maximum")), (one, len(known) - 1)))
    outputs = tuple(
        Output(Port(f"o{at}", "f64", tuple((axis,) for axis in sorted(known[at]))), at)
        for at in range(len(known) - 1, len(known) - 4, -1)
    )
    return check_graph(Graph("random", tuple(axes), inputs, tuple(steps), outputs))


def windows(graph: Graph) -> int:
    return sum(step.op == "window" for step in graph.steps)


def test_random_graphs_compute_the_same() -> None:
    torch.manual_seed(0)
    tensors = {"x": torch.randn(3, 4).double(), "y": torch.randn(12, 4).double()}
    moved = 0
    for seed in range(300):
        graph = random_graph(seed)
        through = windows_through(graph)
        moved += through != graph
        assert value_axes(through)[through.outputs[0].value] == value_axes(graph)[graph.outputs[0].value]
        wanted, found = run_graph(graph, tensors, torch.float64), run_graph(through, tensors, torch.float64)
        for name, one in wanted.items():
            torch.testing.assert_close(found[name], one, msg=lambda text, seed=seed: f"{seed}: {text}")
    assert moved > 100


SIDE = """
graph side
axes m=4 k=512 a=300 b=200 j=500
in x: f32[m, k]
in v: f32[a, k]
in w: f32[b, k]
t3 = window[a = j](v)
t4 = window[b = j - 300](w)
t5 = add(t3, t4)
t6 = contract[k](x, t5)
t7 = window[j = b + 300](t6)
out y: f32[m, b] = t7
"""
PLAIN = """
graph plain
axes m=4 k=512 a=300 b=200
in x: f32[m, k]
in v: f32[a, k]
in w: f32[b, k]
t3 = contract[k](x, w)
out y: f32[m, b] = t3
"""


def test_tensors_side_by_side_are_seen_through_however_long() -> None:
    side = parse_graph(SIDE)
    assert windows(windows_through(side)) == 0
    assert equal_graphs(parse_graph(PLAIN), side).equal


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b + 300", "b + 299"),
        ("b + 300", "b"),
        ("j - 300", "j - 301"),
        ("b = j - 300", "b = -j + 300"),
        ("a = j", "a = j - 1"),
        ("a=300", "a=301"),
        ("add(t3, t4)", "sub(t3, t4)"),
    ],
)
def test_what_is_a_little_off_is_not_equal(old: str, new: str) -> None:
    assert old in SIDE
    assert not equal_graphs(parse_graph(PLAIN.replace("a=300", new if old == "a=300" else "a=300")),
                            parse_graph(SIDE.replace(old, new))).equal  # fmt: skip
