"""A graph in two parts: which values are made once, and that both parts together compute the graph."""

import pytest
import torch

from superopt.errors import GraphError, InputError
from superopt.ir import Graph, parse_graph, parse_program, print_graph, print_program
from superopt.options import OptimizeOptions
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.weights.division import constant_values, divided, once_values, weight_bytes
from superopt.weights.kept import made_once

NORM = """
graph norm
axes m=8 k=16 n=4
in x: f32[m, k]
in g: f32[k] constant
in w: f16[n, k] constant
t3 = mul(g, w)
t4 = contract[k](x, t3)
t5 = const[1]()
t6 = add(g, t5)
t7 = mul(x, t6)
t8 = sum[k](t7)
out y: f32[m, n] = t4
out z: f32[m] = t8
"""


def graph(*lines: str) -> Graph:
    head = NORM.partition("t3 =")[0]
    return parse_graph(head + "\n".join(lines))


def test_constant_inputs_are_part_of_the_text() -> None:
    found = parse_graph(NORM)
    assert [port.constant for port in found.inputs] == [False, True, True]
    assert parse_graph(print_graph(found)) == found
    assert found != parse_graph(NORM.replace("in g: f32[k] constant", "in g: f32[k]"))


def test_constant_inputs_with_strides() -> None:
    found = parse_graph(NORM.replace("f16[n, k] constant", "f16[n, k] strides(1, 4) constant"))
    assert found.inputs[2].strides == (1, 4)
    assert parse_graph(print_graph(found)) == found


def test_an_output_is_never_constant() -> None:
    with pytest.raises(GraphError, match="'y' is constant; only inputs are"):
        parse_graph(NORM.replace("out y: f32[m, n] =", "out y: f32[m, n] constant ="))


def test_a_modules_tensors_are_constant_and_arguments_are_not() -> None:
    layer = torch.nn.Linear(8, 4)
    program = trace(lambda x, y: layer(x) + y, torch.randn(2, 8), torch.randn(4)).program
    assert {port.name: port.constant for port in program.inputs} == {
        port.name: port.name not in ("x", "y") for port in program.inputs
    }
    assert sum(port.constant for port in program.inputs) == 2
    assert parse_program(print_program(program)) == program


def test_both_parts_together_compute_the_graph() -> None:
    whole = parse_graph(NORM)
    values = once_values(whole, "frozen")
    parts = divided(whole, values)
    tensors = {
        "x": torch.randn(8, 16),
        "g": torch.randn(16),
        "w": torch.randn(4, 16).half(),
    }
    kept = made_once(parts.once, tensors)
    names = [output.port.name for output in parts.once.outputs]
    found = run_graph(parts.run, tensors | dict(zip(names, kept, strict=True)))
    for name, wanted in run_graph(whole, tensors).items():
        torch.testing.assert_close(found[name], wanted, rtol=2e-3, atol=2e-3)
    assert {port.name for port in parts.run.inputs} == {"x", *names}


def test_what_is_kept_is_laid_out_and_rounded_as_the_largest_weight() -> None:
    parts = divided(parse_graph(NORM), (3, 6))
    folded, shifted = [output.port for output in parts.once.outputs]
    assert (folded.dtype, folded.dims) == ("f16", (("n",), ("k",)))
    assert (shifted.dtype, shifted.dims) == ("f32", (("k",),))
    assert parts.kept_bytes == 2 * 4 * 16 + 4 * 16
    assert weight_bytes(parts.run) == parts.kept_bytes
    assert weight_bytes(parse_graph(NORM)) == 4 * 16 + 2 * 4 * 16


def test_what_is_kept_follows_the_memory_of_the_weight() -> None:
    text = NORM.replace("f16[n, k] constant", "f16[n, k] strides(1, 4) constant")
    [port] = [output.port for output in divided(parse_graph(text), (3,)).once.outputs]
    assert port.dims == (("k",), ("n",))


REFUSED = {
    "a view": ("t3 = rename[k->k](g)", "t4 = mul(x, t3)", "out y: f32[m, k] = t4"),
    "a result": ("t3 = neg(g)", "out y: f32[k] = t3"),
    "a mask": ("t3 = const[0]()", "t4 = gt(g, t3)", "t5 = mul(t4, x)", "out y: f32[m, k] = t5"),
    "no weights": ("t3 = mul(x, x)", "t4 = mul(t3, g)", "out y: f32[m, k] = t4"),
    "the size of another axis": (
        "t3 = size[m]()", "t4 = mul(g, t3)", "t5 = mul(x, t4)", "out y: f32[m, k] = t5",
    ),
    "the index of another axis": (
        "t3 = index[m]()", "t4 = mul(g, t3)", "t5 = mul(x, t4)", "out y: f32[m, k] = t5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lines", REFUSED.values(), ids=list(REFUSED))
def test_what_is_not_made_once(lines: tuple[str, ...]) -> None:
    assert once_values(graph(*lines), "frozen") == ()


def test_whole_numbers_are_not_made_once() -> None:
    lines = ("graph g", "axes k=4", "in x: f32[k]", "in i: i64[k] constant", "t2 = neg(i)", "t3 = add(x, t2)")
    text = "\n".join((*lines, "out y: f32[k] = t3"))
    assert once_values(parse_graph(text), "frozen") == ()
    assert once_values(parse_graph(text.replace("i64", "f32")), "frozen") == (2,)


def test_only_small_tensors_are_made_unasked() -> None:
    large = parse_graph(NORM.replace("k=16 n=4", "k=1024 n=1024"))
    assert once_values(large, "frozen") == (3, 6)
    assert once_values(large, "default") == (6,)
    assert once_values(large, "live") == ()


def test_constant_values_are_made_of_constants_alone() -> None:
    assert constant_values(parse_graph(NORM)) == (False, True, True, True, False, False, True, False, False)


@pytest.mark.parametrize("value", [0, 4, 5, 99])
def test_other_values_cannot_be_made_once(value: int) -> None:
    with pytest.raises(GraphError, match="is not made of constant inputs alone"):
        divided(parse_graph(NORM), (value,))


def test_numbers_that_are_not_finite_are_not_kept() -> None:
    once = divided(parse_graph(NORM), (3,)).once
    with pytest.raises(InputError, match="is not finite"):
        made_once(once, {"g": torch.full((16,), 1e5), "w": torch.ones(4, 16).half()})


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="weights is 'thawed'; choose live, default, frozen"):
        OptimizeOptions(weights="thawed").check()
