"""The text form of graphs: what is printed parses back to the same graph, for graphs of all operators."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.dtypes import DTYPES
from superopt.errors import GraphError
from superopt.ir import (
    STRUCTURAL,
    Axis,
    Graph,
    Output,
    Port,
    Step,
    check_graph,
    format_constant,
    fuse,
    parse_graph,
    parse_mugraph,
    plain_name,
    print_graph,
    print_mugraph,
    value_axes,
)
from superopt.ops import OPS

AXES = tuple(Axis(name, size) for name, size in {"i": 3, "j": 3, "k": 4, "head.dim": 2, "_n": 5}.items())
SIZES = {axis.name: axis.size for axis in AXES}
CONSTANTS = st.one_of(
    st.fractions(), st.floats(allow_nan=False, allow_infinity=False).map(Fraction), st.just(Fraction(1, 3))
)


@st.composite
def ports(draw: st.DrawFn, name: str, axes: list[str]) -> Port:
    """A tensor whose dimensions are products of these axes, and some of extent 1."""
    dims: list[tuple[str, ...]] = []
    for axis in draw(st.permutations(axes)):
        if dims and draw(st.booleans()):
            dims[-1] = (*dims[-1], axis)
        else:
            dims.append((axis,))
    if draw(st.booleans()):
        dims.insert(draw(st.integers(0, len(dims))), ())
    strided = draw(st.booleans())
    strides = tuple(draw(st.integers(-9, 10**6)) for _ in dims) if strided else None
    return Port(name, draw(st.sampled_from(sorted(DTYPES))), tuple(dims), strides)


@st.composite
def graphs(draw: st.DrawFn, most_steps: int = 8) -> Graph:
    """A graph of any operators that keeps all the rules."""
    names = draw(
        st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,6}", fullmatch=True), max_size=3, unique=True)
    )
    axes = list(SIZES)
    subsets = st.lists(st.sampled_from(axes), unique=True)
    inputs = tuple(draw(ports(name, draw(subsets))) for name in names)
    steps: list[Step] = []
    for _ in range(draw(st.integers(0 if inputs else 1, most_steps))):
        found = value_axes(Graph("partial", AXES, inputs, tuple(steps), ()))
        step = draw(_step(found))
        steps.append(step)
    found = value_axes(Graph("partial", AXES, inputs, tuple(steps), ()))
    outputs = []
    for number in range(draw(st.integers(1, 2))):
        value = draw(st.integers(0, len(found) - 1))
        extra = draw(subsets) if draw(st.booleans()) else []
        port = draw(ports(f"out{number}", sorted(found[value] | set(extra))))
        outputs.append(Output(port, value))
    return check_graph(Graph("random", AXES, inputs, tuple(steps), tuple(outputs)))


def _step(axes: tuple[frozenset[str], ...]) -> st.SearchStrategy[Step]:
    values = st.integers(0, len(axes) - 1)
    choices = [
        st.builds(lambda value: Step("const", value=value), CONSTANTS),
        st.just(Step("infinity")),
        st.builds(
            lambda op, axis: Step(op, axes=(axis,)),
            st.sampled_from(["size", "index"]),
            st.sampled_from(list(SIZES)),
        ),
    ]
    if axes:
        for arity in (1, 2, 3):
            ops = [op.name for op in OPS.values() if op.arity == arity]
            inputs = st.tuples(*[values] * arity)
            choices.append(st.builds(Step, st.sampled_from(ops), inputs))
    wide = [value for value, found in enumerate(axes) if found]
    if wide:
        choices += [
            st.sampled_from(wide).flatmap(lambda v: _reduction(("sum", "max"), (v,), axes[v])),
            st.tuples(st.sampled_from(wide), values).flatmap(
                lambda pair: _reduction(("contract",), pair, axes[pair[0]] | axes[pair[1]])
            ),
            st.sampled_from(wide).flatmap(lambda v: _select(v, axes[v])),
        ]
    square = [v for v in wide if len(axes[v] & {"i", "j"}) == 1]
    if square:
        choices.append(
            st.sampled_from(square).map(
                lambda v: Step("rename", (v,), mapping=(("i", "j") if "i" in axes[v] else ("j", "i"),))
            )
        )
    return st.one_of(choices)


def _reduction(
    ops: tuple[str, ...], inputs: tuple[int, ...], axes: frozenset[str]
) -> st.SearchStrategy[Step]:
    over = st.lists(st.sampled_from(sorted(axes)), min_size=1, unique=True).map(tuple)
    return st.builds(lambda op, names: Step(op, inputs, axes=names), st.sampled_from(ops), over)


def _select(value: int, axes: frozenset[str]) -> st.SearchStrategy[Step]:
    return st.sampled_from(sorted(axes)).flatmap(
        lambda axis: st.integers(0, SIZES[axis] - 1).map(
            lambda at: Step("select", (value,), mapping=((axis, at),))
        )
    )


def parses_back(graph: Graph) -> None:
    text = print_graph(graph)
    assert parse_graph(text) == graph
    assert print_graph(parse_graph(text)) == text


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_graphs_parse_back(graph: Graph) -> None:
    parses_back(graph)


@pytest.mark.slow
@given(graphs())
@settings(max_examples=500, deadline=None)
def test_many_graphs_parse_back(graph: Graph) -> None:
    parses_back(graph)


def default_schedule_parses_back(graph: Graph) -> None:
    mugraph = fuse(graph)  # checks itself
    assert parse_mugraph(print_mugraph(mugraph)) == mugraph


@given(graphs(most_steps=12))
@settings(max_examples=40, deadline=None)
def test_default_schedules_parse_back(graph: Graph) -> None:
    default_schedule_parses_back(graph)


@pytest.mark.slow
@given(graphs(most_steps=12))
@settings(max_examples=300, deadline=None)
def test_many_default_schedules_parse_back(graph: Graph) -> None:
    default_schedule_parses_back(graph)


def test_a_constant_that_leaves_and_is_used_elsewhere() -> None:
    graph = parse_graph(
        "graph g\naxes i=2\nin A: bf16[i]\na = infinity()\nb = neg(a)\nc = add(A, b)\n"
        "out out0: bf16[] = a\nout out1: bf16[i] = c\nout out2: bf16[] = b\n"
    )
    mugraph = fuse(graph)
    assert parse_mugraph(print_mugraph(mugraph)) == mugraph
    stored = [value for kernel in mugraph.kernels for value in mugraph.stores(kernel)]
    assert sorted(stored) == [1, 2, 3]


@given(CONSTANTS)
@settings(max_examples=300, deadline=None)
def test_constants_are_exact(value: Fraction) -> None:
    graph = Graph("c", (), (), (Step("const", value=value),), (Output(Port("y", "f32", ()), 0),))
    assert parse_graph(print_graph(graph)).steps[0].value == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(0), "0"),
        (Fraction(-7), "-7"),
        (Fraction(1, 2), "0.5"),
        (Fraction(1, 3), "1/3"),
        (Fraction(10) ** 400, "1" + "0" * 400),
        (Fraction(1e-6), "1e-06"),
        (Fraction(1, 10**6), "1/1000000"),
    ],
)  # fmt: skip
def test_constants_are_short(value: Fraction, text: str) -> None:
    assert format_constant(value) == text


@pytest.mark.parametrize("op", [*STRUCTURAL, *OPS])
def test_every_operator_parses_back(op: str) -> None:
    arity = STRUCTURAL.get(op, OPS[op].arity if op in OPS else 0)
    attrs = {
        "const": "[0.25]", "size": "[k]", "index": "[k]", "sum": "[k, i]", "max": "[k]", "contract": "[k]",
        "rename": "[i->j]", "select": "[k=3]", "window": "[k = 2*j - 1]",
    }.get(op, "")  # fmt: skip
    line = f"t2 = {op}{attrs}({', '.join(['x', 'y', 'x'][:arity])})"
    text = f"graph one\naxes i=3 j=3 k=4\nin x: f16[i, k]\nin y: bool[k] strides(2)\n{line}\n"
    text += "out z: f32[(i j k), 1] = t2\n"
    assert print_graph(parse_graph(text)) == text


def test_names_of_steps_avoid_those_of_inputs() -> None:
    text = "graph g\naxes i=3\nin t1: f32[i]\nin t_7: f32[i]\nt__2 = add(t1, t_7)\nout y: f32[i] = t__2\n"
    assert print_graph(parse_graph(text)) == text


def test_comments_and_blank_lines_are_skipped() -> None:
    text = "# a title\n\ngraph g\naxes i=3  # one axis\nin x: f32[i]\n\nout y: f32[i] = x\n"
    assert parse_graph(text).steps == ()


GOOD = ["graph g", "axes i=3 k=4", "in x: f32[i, k]", "a = exp(x)", "b = sum[k](a)", "out y: f32[i] = b"]


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (0, "# none", "no 'graph NAME' line"),
        (1, "axes i=3 k", "line 2: 'k' is not an axis; write name=size"),
        (1, "axes i=3 k=-4", "'k=-4' is not an axis"),
        (2, "in x f32[i, k]", "line 3: 'x f32[i, k]' is not a tensor; write name: dtype[dims]"),
        (3, "a := exp(x)", "line 4: 'a := exp(x)' is none of"),
        (3, "a = exp(z)", "line 4: 'z' is not defined above"),
        (3, "a = const[]()", "line 4: const takes one number"),
        (3, "a = const[one]()", "line 4: 'one' is not a finite number"),
        (3, "a = const[1/0]()", "line 4: '1/0' is not a finite number"),
        (3, "a = const[1e999]()", "line 4: '1e999' is not a finite number"),
        (3, "a = rename[k](x)", "line 4: rename takes old->new"),
        (3, "a = select[k](x)", "line 4: select takes axis=position"),
        (4, "a = sum[k](a)", "line 5: 'a' is already defined"),
        (5, "out y: f32[i] = c", "line 6: 'c' is not defined above"),
    ],
)  # fmt: skip
def test_errors_name_the_line(line: int, text: str, message: str) -> None:
    assert parse_graph("\n".join(GOOD)).outputs[0].value == 2
    with pytest.raises(GraphError) as caught:
        parse_graph("\n".join([*GOOD[:line], text, *GOOD[line + 1 :]]))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rms_norm", "rms_norm"),
        ("_private", "_private"),
        ("0.weight", "x0_weight"),
        ("2-layer", "x2_layer"),
        ("größe", "gr__e"),
        ("γ", "x_"),
        ("_", "x_"),
        ("\udce9", "x_"),
    ],
)
def test_a_plain_name_is_read_back(text: str, name: str) -> None:
    assert plain_name(text) == plain_name(name) == name
    graph = Graph(name, (), (Port(name, "f32", ()),), (), (Output(Port("y", "f32", ()), 0),))
    assert parse_graph(str(graph)) == graph
