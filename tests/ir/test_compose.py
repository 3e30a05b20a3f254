"""Compose: every operator is found again in its own definition, and means the same."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from superopt.frontier.tensors.graphs import canonical
from superopt.ir import Graph, Step, check_graph, parse_graph
from superopt.ir.compose import compose, contract_products
from superopt.ops import OPS, Op
from superopt.trace import trace
from superopt.workloads import WORKLOADS

Evaluate = Callable[[Graph], dict[str, Tensor]]
OF_NUMBERS = {"and", "or", "not"}  # composed for masks only: 1 - x of a number is no `not`

MIRRORED = {"gt": "lt", "ge": "le"}  # a > b is written b < a


class Expansion:
    """Scalars that write an operator out in primitive steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.inputs = 0

    def emit(self, op: str, *inputs: int, value: Fraction | None = None) -> int:
        self.steps.append(Step(op, inputs, value=value))
        return self.inputs + len(self.steps) - 1

    def const(self, value: Fraction) -> int:
        return self.emit("const", value=value)

    def infinity(self) -> int:
        return self.emit("infinity")

    def add(self, a: int, b: int) -> int:
        return self.emit("add", a, b)

    def mul(self, a: int, b: int) -> int:
        return self.emit("mul", a, b)

    def neg(self, a: int) -> int:
        return self.emit("neg", a)

    def inv(self, a: int) -> int:
        return self.emit("reciprocal", a)

    def exp(self, a: int) -> int:
        return self.emit("exp", a)

    def sqrt(self, a: int) -> int:
        return self.emit("sqrt", a)

    def maximum(self, a: int, b: int) -> int:
        return self.emit("maximum", a, b)

    def less(self, a: int, b: int) -> int:
        return self.emit("lt", a, b)

    def equal(self, a: int, b: int) -> int:
        return self.emit("eq", a, b)

    def where(self, mask: int, a: int, b: int) -> int:
        return self.emit("where", mask, a, b)

    def function(self, name: str, *args: int) -> int:
        return self.emit(name, *args)


def one_step(op: Op) -> Graph:
    """A graph that applies one operator to inputs of different axes."""
    text = "graph one\naxes i=3 j=4\nin m: bool[i, j]\nin x: f64[i, j]\nin y: f64[j]\nin z: f64[i]\n"
    first = ["m"] if op.arity == 3 or op.name in OF_NUMBERS else []
    names = [*first, "x", "y", "z"][: op.arity]
    if op.name in ("and", "or"):
        names = ["m", "mz"]
        text = text.replace("in z: f64[i]", "in mz: bool[i]")
    return parse_graph(text + f"t4 = {op.name}({', '.join(names)})\nout r: f64[i, j] = t4")


def expanded(graph: Graph) -> Graph:
    """The graph with its only step written out in primitives."""
    step = graph.steps[0]
    primitives = Expansion()
    primitives.inputs = len(graph.inputs)
    value = OPS[step.op].scalar(primitives, *step.inputs)
    output = replace(graph.outputs[0], value=value)
    return check_graph(replace(graph, steps=tuple(primitives.steps), outputs=(output,)))


@pytest.mark.parametrize("name", sorted(set(OPS) - OF_NUMBERS))
def test_every_operator_is_recognised_in_its_expansion(name: str, evaluate: Evaluate) -> None:
    graph = one_step(OPS[name])
    primitives = expanded(graph)
    found = compose(primitives)
    # x * x stays a product: as a square it would hide from contractions.
    if name != "square":
        assert [step.op for step in found.steps] == [MIRRORED.get(name, name)]
        assert found.steps[0].inputs in (graph.steps[0].inputs, graph.steps[0].inputs[::-1])
    torch.testing.assert_close(evaluate(found), evaluate(graph), equal_nan=True)
    torch.testing.assert_close(evaluate(primitives), evaluate(graph), equal_nan=True)


@pytest.mark.parametrize("name", sorted(OF_NUMBERS))
def test_arithmetic_of_masks_stays_arithmetic(name: str, evaluate: Evaluate) -> None:
    graph = one_step(OPS[name])
    found = compose(expanded(graph))
    assert name not in [step.op for step in found.steps]
    torch.testing.assert_close(evaluate(found), evaluate(graph))


def test_one_minus_a_number_is_no_negation() -> None:
    graph = parse_graph("""
        graph g
        axes i=3
        in x: f32[i]
        t1 = const[1]()
        t2 = neg(x)
        t3 = add(t1, t2)
        out y: f32[i] = t3
    """)
    assert [step.op for step in compose(graph).steps] == ["const", "sub"]


def test_shared_parts_stay_for_their_other_readers(evaluate: Evaluate) -> None:
    graph = parse_graph("""
        graph g
        axes i=3
        in x: f64[i]
        in y: f64[i]
        t2 = reciprocal(y)
        t3 = mul(x, t2)
        out a: f64[i] = t3
        out b: f64[i] = t2
    """)
    found = compose(graph)
    assert sorted(step.op for step in found.steps) == ["div", "reciprocal"]
    torch.testing.assert_close(evaluate(found), evaluate(graph))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["t2 = mul(x, w)", "t3 = sum[k](t2)"], ["contract[k](x, w)"]),
        (["t2 = square(x)", "t3 = sum[k](t2)"], ["contract[k](x, x)"]),
        (["t2 = add(x, w)", "t3 = sum[k](t2)"], ["add(x, w)", "sum[k](t2)"]),
        (["t2 = mul(x, w)", "t3 = max[k](t2)"], ["mul(x, w)", "max[k](t2)"]),
        (
            ["t2 = mul(x, w)", "t4 = sum[k](t2)", "t5 = max[k](t2)", "t3 = add(t4, t5)"],
            ["mul(x, w)", "sum[k](t2)", "max[k](t2)", "add(t3, t4)"],
        ),  # the product has another reader
    ],
)  # fmt: skip
def test_sums_of_products_become_contractions(
    steps: list[str], expected: list[str], evaluate: Evaluate
) -> None:
    head = "graph g\naxes m=2 k=3\nin x: f64[m, k]\nin w: f64[k]\n"
    graph = parse_graph(head + "\n".join(steps) + "\nout y: f64[m] = t3")
    found = contract_products(graph)
    lines = str(found).splitlines()[4:-1]
    assert [line.partition(" = ")[2] for line in lines] == expected
    torch.testing.assert_close(evaluate(found), evaluate(graph))


def test_an_output_keeps_its_product() -> None:
    graph = parse_graph("""
        graph g
        axes k=3
        in x: f64[k]
        t1 = mul(x, x)
        t2 = sum[k](t1)
        out y: f64[] = t2
        out z: f64[k] = t1
    """)
    assert contract_products(graph) == graph


@pytest.mark.parametrize("name", WORKLOADS)
def test_canonical_is_idempotent(name: str) -> None:
    item = WORKLOADS[name]
    graph = canonical(trace(item.function, *item.inputs(), name="w").graph)
    assert canonical(graph) == graph


def test_canonical_orders_operands() -> None:
    text = "graph g\naxes i=3 k=4\nin x: f64[i, k]\nin w: f64[k]\n{}\nout y: f64[i] = {}"
    one = parse_graph(text.format("t2 = mul(w, x)\nt3 = exp(x)\nt4 = mul(t2, t3)\nt5 = sum[k](t4)", "t5"))
    other = parse_graph(text.format("t2 = exp(x)\nt3 = mul(x, w)\nt4 = mul(t2, t3)\nt5 = sum[k](t4)", "t5"))
    swapped = parse_graph(text.format("t2 = exp(x)\nt3 = div(x, w)\nt4 = mul(t2, t3)\nt5 = sum[k](t4)", "t5"))
    assert canonical(one) == canonical(other)
    assert canonical(one) != canonical(swapped)


ORDERS = """graph orders
axes m=4
in x: f32[m]
in y: f32[m]
one = const[1]()
t1 = lt(x, y)
t2 = neg(t1)
t3 = add(one, t2)
i = index[m]()
t4 = lt(i, one)
t5 = neg(t4)
t6 = add(t5, one)
t7 = mul(t3, t6)
out o: bool[m] = t7
"""
LIKE = "graph like\naxes m=4\nin x: f32[m]\nin y: f32[m]\n{}\nout o: bool[m] = t\n"


@pytest.mark.parametrize(
    ("like", "expected"),
    [
        (None, set()),
        ("t = ge(x, y)", set()),
        ("s = lt(x, y)\nt = not(s)", {"lt", "not"}),
        ("s = gt(y, x)\nt = not(s)", {"lt", "not"}),
        ("s = lt(x, y)\nr = not(s)\nq = le(x, y)\nt = and(r, q)", set()),
        ("i = index[m]()\nn = size[m]()\ns = lt(i, n)\nt = not(s)", set()),
    ],
)
def test_what_holds_of_nan_is_as_in_the_program(like: str | None, expected: set[str]) -> None:
    graph = parse_graph(ORDERS)
    found = compose(graph, None if like is None else parse_graph(LIKE.format(like)))
    assert {step.op for step in found.steps} - {"const", "index", "mul", "le"} == expected
    assert sum(step.op == "le" for step in found.steps) == (1 if expected else 2)
